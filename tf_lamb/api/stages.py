"""Trains a model with a batch size that grows in stages (`fit_stages`), after checks."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_lamb.api import frontends, progress, seams
from tf_lamb.api.data import Arrays, check_paired, make_reader
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import step_of, unwrapped, waiting_micro_batches
from tf_lamb.core.accumulation import Epochs, Stage
from tf_lamb.core.checks import integer
from tf_lamb.core.messages import warn
from tf_lamb.core.recipes.recipe import check_recipe

# Keras's callbacks that set the learning rate. Callbacks of this package that do so have an
# attribute `sets_learning_rate`.
_RATE_SETTING_CALLBACKS = {"LearningRateScheduler", "ReduceLROnPlateau"}
_RATE_TOLERANCE = 1e-5  # relative difference below which two rates in float32 count as the same
# The error message for a model that several processes train. {} stands for their number.
SEVERAL_PROCESSES_MESSAGE = (
    "The data are read in one process here, and {} train the model: search in one, and train each "
    "stage of a recipe by a fit of its own, on a dataset that is dealt out."
)


def fit_stages(
    model: Any, data: Any, recipe: Any, *, validation_data: Any = None,
    callbacks: Sequence[Any] | None = None, verbose: str | int = "auto",
    examples: int | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    """Trains a compiled model with a recipe whose batch grows in stages; call it instead of `fit`.

    The data are read again and again, as one endless stream of examples. Each update takes the next
    batch from this stream; the stage decides its size. An epoch has as many examples as an epoch of
    `fit` with the batch size of the first stage, so it has fewer steps as the batch grows. The
    optimizer, schedules, callbacks, progress bar and history continue through all stages, and a
    line is printed when a stage begins. The training step is compiled once for each size of batch
    or micro-batch.

    An optimizer of this package can accumulate gradients, for example with
    `gradient_accumulation_steps={0: 1, 500: 2}`: an update takes 1 micro-batch at first, and 2 from
    optimizer step 500 on. Each call of the training step then has one micro-batch.

    If the optimizer's `on_nonfinite` or `on_spike`, or the loss scale of float16, skips a step, its
    examples are used up, but the schedule and the number of micro-batches do not advance, because
    they count updates.

    With `BackupAndRestore` among the callbacks, a training that was killed resumes after its last
    finished epoch, with the batches that would have come next. This always holds for arrays. It
    holds for other data if they come in the same order in each process, for example from
    `Dataset.shuffle` with a seed.

    Args:
        model: A compiled model. Its optimizer must have the learning rate of the recipe, from
            `from_recipe(recipe)` or `learning_rate=recipe.schedule()`.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, which are shuffled again for each pass; or
            a `tf.data.Dataset` of batches, a `PyDataset`, or a list of batches. Batches are read in
            their own order, by one thread, and cut or joined to the batch size of the stage.
        recipe: A recipe of `tf_lamb.recipes`, such as `growing`.
        validation_data, callbacks, verbose: The same as for `fit`.
        examples: The number of examples in a pass over the data. Defaults to None: they are
            counted. A `tf.data.Dataset` is read once for that, and one of unknown cardinality
            needs this argument.
        seed: The seed of the order in which arrays are read. Defaults to 0.

    Returns:
        The Keras `History` of all epochs.

    Raises:
        TypeError: if `recipe` is no recipe, or if the data can be read only once.
        ValueError: for a model that is not compiled, a batch that shrinks or is larger than all
            examples, an optimizer whose learning rate or micro-batches do not fit the recipe, or a
            callback that sets the learning rate.

    Example:

    >>> import numpy as np, keras, tf_lamb.keras
    >>> from tf_lamb import recipes
    >>> x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
    >>> recipe = recipes.growing(
    ...     recipes.scale(32, 32, 0.01, 0, examples=1024, epochs=8), 128)
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile(tf_lamb.keras.LAMB.from_recipe(recipe), "mse")
    >>> history = tf_lamb.keras.fit_stages(model, (x, x[:, :1]), recipe, verbose=0)
    >>> len(history.epoch), recipe.train_steps, int(model.optimizer.iterations)
    (8, 176, 176)

    References:
        - Meterez et al., Seesaw, https://arxiv.org/abs/2510.14717
        - Smith et al., https://arxiv.org/abs/1711.00489
    """
    check_paired("recipe", recipe, "fit_stages(model, (x, y), recipe)")
    frontend = frontends.of(model)
    rate = check_recipe(recipe).schedule(frontend.schedules)
    _check_model(model)
    stages = _stages_of(recipe, model.optimizer)
    _check_rates(recipe, model.optimizer, rate)
    _check_devices(stages, frontend.devices(model))
    reader = make_reader("data", data)
    counts_pass = examples is None or isinstance(reader, Arrays)
    plan = Epochs(stages, reader.count() if counts_pass else integer("examples", examples))
    _check_examples(recipe, plan, examples)
    bar_verbosity = verbose if progress.can_print() else 0
    callback_list = type("Callbacks", (WholeRun, frontend.host.callbacks.CallbackList), {})
    run_callbacks = callback_list(
        callbacks, add_history=True, add_progbar=bar_verbosity != 0, model=model,
        verbose=1 if bar_verbosity == "auto" else bar_verbosity, epochs=plan.count,
        steps=_call_count(plan.calls(0)),
    )  # fmt: skip
    _check_callbacks(run_callbacks.callbacks)

    def fit(batches, steps, first_epoch, end_epoch):
        """Trains the epochs `first_epoch` to `end_epoch` - 1, each with `steps` batches."""
        return model.fit(
            batches, steps_per_epoch=steps, initial_epoch=first_epoch, epochs=end_epoch,
            shuffle=False, validation_data=validation_data, callbacks=run_callbacks, verbose=0,
            validation_batch_size=max(stage.batch // stage.calls_per_update for stage in stages),
        )  # fmt: skip

    with seams.average_only_at_end(model.optimizer, lambda: run_callbacks.is_over):
        # This `fit` trains no epoch: it builds the model, and callbacks may restore a backup.
        (size, _), *_ = plan.calls(0)
        first_batch = reader.stream(0, seed, plan.examples)(size)
        repeated = (first_batch for _ in itertools.count())
        batches = frontend.fit_input(model, repeated, first_batch)
        history = fit(batches, steps=1, first_epoch=1, end_epoch=1)
        epochs_done = run_callbacks.epochs_done
        _check_restored(recipe, model.optimizer, epochs_done, plan.updates_before(epochs_done))
        take_examples = reader.stream(plan.first_example(epochs_done), seed, plan.examples)
        last_printed = 0
        while not run_callbacks.is_over:
            epoch, calls = run_callbacks.epochs_done, plan.calls(run_callbacks.epochs_done)
            if bar_verbosity:
                last_printed = _print_new_stages(plan, epoch, last_printed)
            run_callbacks.begin_epoch(epoch, _call_count(calls))
            batches = frontend.fit_input(model, _read_batches(take_examples, calls), first_batch)
            history = fit(batches, _call_count(calls), epoch, epoch + 1)
    return history


class WholeRun:
    """Makes several calls of `fit` look like one training to callbacks.

    It is a mixin that stands before Keras's `CallbackList` among the base classes.

    Attributes:
        model: The model that is trained.
        params: The settings that Keras passes to callbacks, such as `epochs` and `steps`.
        epochs: The number of epochs of the whole training.
        epochs_done: The number of epochs that will be done when the current `fit` ends.
    """

    model: Any
    params: dict
    epochs: int
    epochs_done = 0
    _has_begun = False
    _batch_counter: Any = 0

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Prepares the next call of `fit`, which trains one epoch.

        If the number of steps has changed since the previous epoch, it is passed to the callbacks.

        Args:
            epoch: The number of the epoch, from 0.
            steps: The number of calls of the training step in the epoch.
        """
        self.epochs_done = epoch + 1
        if steps != self.params["steps"]:
            self.set_params({**self.params, "steps": steps})  # type: ignore[attr-defined]

    @property
    def is_over(self) -> bool:
        """Whether the training ends with the current `fit`."""
        return self.model.stop_training or self.epochs_done >= self.params["epochs"]

    def on_train_begin(self, logs=None):
        """Calls the callbacks in the first `fit` only; reads the epoch of a restored backup."""
        # seam: tf_keras 2.20.1. TensorBoard's callback takes the private `_train_counter` for the
        # number of batches of the whole training, but each `fit` sets it to 0. So the count from
        # the end of the previous `fit` is set again.
        counter = getattr(self.model, "_train_counter", None)
        if self._has_begun:
            if counter is not None:
                counter.assign(self._batch_counter)
            return
        self._has_begun = True
        super().on_train_begin(logs)  # type: ignore[misc]
        self.epochs_done = self._restored_epochs()

    def on_train_end(self, logs=None):
        """Calls the callbacks in the last `fit` only; keeps tf_keras's count of batches."""
        if (counter := getattr(self.model, "_train_counter", None)) is not None:
            self._batch_counter = counter.numpy()
        if self.is_over:
            super().on_train_end(logs)  # type: ignore[misc]

    def _restored_epochs(self):
        """Returns the number of epochs that were done in a restored backup; 0 without a backup.

        Keras 3 keeps this number in the model. It is removed from the model here, because otherwise
        every later `fit` would begin at this epoch.
        """
        # seam: private members of tf_keras 2.20.1 and Keras 3.15.1.
        if load := getattr(self.model, "_maybe_load_initial_counters_from_ckpt", None):
            return load(self.params["steps"], 0)[0]
        restored = self.model._initial_epoch or 0
        seams.set_initial_epoch(self.model, None)
        return restored


def _call_count(calls: Iterable[tuple[int, int]]) -> int:
    """Returns the number of calls of the training step in an epoch.

    Args:
        calls: Pairs (examples of a call, number of such calls), as from `Epochs.calls`.
    """
    return sum(number for _, number in calls)


def _print_new_stages(plan, epoch, last_printed):
    """Prints a line for each stage that trains in an epoch and was not printed before.

    Args:
        plan: The `Epochs`, which says which updates belong to which epoch.
        epoch: The number of the epoch, from 0.
        last_printed: The number of the last stage that was printed; 0 if there is none.

    Returns:
        The number of the last stage that has been printed, this call included.
    """
    end, stages = 0, plan.stages
    for number, stage in enumerate(stages, 1):
        start, end = end, end + stage.steps
        if (
            number > last_printed
            and start < plan.updates_before(epoch + 1)
            and end > plan.updates_before(epoch)
        ):
            last_printed = number
            progress.say(
                f"Stage {number} of {len(stages)}, batch {stage.batch:,}: updates {start + 1:,} to "
                f"{end:,} of {sum(entry.steps for entry in stages):,}"
            )
    return last_printed


def _read_batches(take_examples, calls):
    """Returns a generator of the batches of one epoch, and of no example of the next epoch.

    Args:
        take_examples: A function that takes a number of examples and returns the next ones.
        calls: Pairs (examples of a call, number of such calls), as from `Epochs.calls`.
    """
    sizes = itertools.chain.from_iterable(itertools.repeat(*call) for call in calls)
    return (take_examples(size) for size in sizes)


def _stages_of(recipe: Any, optimizer: Any) -> tuple[Stage, ...]:
    """Returns the stages of a recipe, each with the number of micro-batches in its updates.

    Raises:
        ValueError: if the stages differ in sequence length, if a batch shrinks or cannot be divided
            into the micro-batches, or if the number of micro-batches changes within a stage.
    """
    lengths = list(dict.fromkeys(stage.sequence_length for stage in recipe.stages))
    if len(lengths) > 1:
        raise ValueError(
            f"The stages of {recipe.title} have sequence lengths of "
            f"{' and '.join(map(str, lengths))}, which are different data: train each stage by a "
            "fit of its own."
        )
    stages: list[Stage] = []
    starts, start, counts = [], 0, _micro_batches_by_step(optimizer)
    for number, stage in enumerate(recipe.stages, 1):
        if stages and stage.batch_size < stages[-1].batch:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, and the "
                f"one before {stages[-1].batch:,}: the batch can only grow."
            )
        calls = [count for step, count in counts.items() if step <= start][-1]
        if stage.batch_size % calls:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, which "
                f"gradient_accumulation_steps={calls} of the optimizer does not divide."
            )
        stages.append(Stage(stage.batch_size, stage.train_steps, calls))
        starts.append(start)
        start += stage.train_steps
    if extra := [step for step in counts if step not in starts]:
        raise ValueError(
            f"gradient_accumulation_steps of the optimizer changes at step {extra[0]:,}, where no "
            f"stage of {recipe.title} begins: they begin at {', '.join(map(str, starts))}."
        )
    return tuple(stages)


def _micro_batches_by_step(optimizer) -> Mapping[int, int]:
    """Returns optimizer step -> number of micro-batches in an update from this step on.

    Raises:
        ValueError: for an optimizer of Keras itself that has `gradient_accumulation_steps`.
    """
    inner = unwrapped(optimizer)
    if isinstance(inner, Layerwise):
        micro_batches = inner._settings.gradient_accumulation_steps or 1
        return micro_batches if isinstance(micro_batches, Mapping) else {0: micro_batches}
    if steps := getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            f"gradient_accumulation_steps={steps} of Keras's {type(inner).__name__} cannot grow, "
            "and its learning rate counts micro-batches: leave it out, or take an optimizer of "
            "tf_lamb, with gradient_accumulation_steps={0: 1, 500: 2} for instance."
        )
    return {0: 1}


def _check_model(model: Any) -> None:
    """Raises ValueError for a model that `fit_stages` cannot train.

    The model is not compiled, or its optimizer has several learning rates, measures the noise of
    gradients, or has made steps already.
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model is not compiled: call model.compile(optimizer=..., loss=...) first, with a "
            "learning rate of recipe.schedule()."
        )
    optimizer = model.optimizer
    while True:
        if type(optimizer).__name__ in ("AdaScale", "MeasureNoise"):
            raise ValueError(
                f"{type(optimizer).__name__} measures gradients at one batch, and this one grows: "
                "compile the model with the optimizer inside it."
            )
        if (inner := getattr(optimizer, "inner_optimizer", None)) is None:
            break
        optimizer = inner
    if hasattr(optimizer, "optimizers"):
        raise ValueError(
            f"{type(optimizer).__name__} has several rates, and a recipe has one: compile the "
            "model with one optimizer. Those of tf_lamb have treatments, with a rate for layers."
        )
    steps, waiting_count = step_of(optimizer), waiting_micro_batches(optimizer)
    suffix = f" and {waiting_count:,} micro-batches" if waiting_count else ""
    if steps or suffix:
        raise ValueError(
            f"The optimizer has made {steps:,} steps{suffix}, and the recipe begins at step 0: "
            "compile the model with a new optimizer. After a kill, BackupAndRestore goes on."
        )


def _check_rates(recipe: Any, optimizer: Any, schedule: Any) -> None:
    """Raises ValueError if the optimizer's learning rate differs from the recipe's schedule."""
    inner = unwrapped(optimizer)
    rate_source = inner._learning_rate  # seam: private; Keras 3.15.1, tf_keras 2.20.1
    end = 0
    for number, stage in enumerate(recipe.stages, 1):
        begin, end = end, end + stage.train_steps
        for step in (begin, end - 1):
            expected = float(schedule(step))
            is_schedule = hasattr(rate_source, "get_config")  # others take no step
            rate = float(rate_source(step) if is_schedule else inner.learning_rate)
            if not math.isclose(rate, expected, rel_tol=_RATE_TOLERANCE, abs_tol=1e-12):
                raise ValueError(
                    f"The optimizer's learning rate at step {step:,}, of stage {number}, is "
                    f"{rate:.6g}, and that of {recipe.title} is {expected:.6g}: compile the model "
                    "with an optimizer from_recipe(recipe), or with learning_rate="
                    "recipe.schedule()."
                )


def _check_examples(recipe: Any, epochs: Epochs, examples: int | None) -> None:
    """Checks the recipe and the argument `examples` against the number of examples in the data.

    Warns if the recipe was made for another number of examples.

    Raises:
        ValueError: if `examples` is another number than the length of the arrays, or if a batch is
            larger than all examples.
    """
    if examples not in (None, epochs.examples):
        raise ValueError(
            f"examples={examples}, but the arrays of data hold {epochs.examples:,}: leave it out."
        )
    if (planned_examples := recipe.stages[0].examples) not in (None, epochs.examples):
        warn(
            f"{recipe.title} is for {planned_examples:,} examples, and the data has "
            f"{epochs.examples:,}, so that its {recipe.train_steps:,} updates are {epochs.count} "
            f"epochs: make the recipe for {epochs.examples:,} examples."
        )
    for number, stage in enumerate(epochs.stages, 1):
        if stage.batch > epochs.examples:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch:,}, more than all "
                f"{epochs.examples:,} examples: take a recipe with a smaller batch, or more data."
            )


def replicas_of(model: Any) -> int:
    """Returns the number of replicas of the model's `tf.distribute` strategy; 1 without a strategy.

    Raises:
        ValueError: for a strategy of several workers or of parameter servers.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if any(kind in type(strategy).__name__ for kind in ("MultiWorker", "ParameterServer")):
        raise ValueError(SEVERAL_PROCESSES_MESSAGE.format("several"))
    return getattr(strategy, "num_replicas_in_sync", 1)


def _check_devices(stages: tuple[Stage, ...], devices: int) -> None:
    """Raises ValueError if the devices cannot share each batch, or micro-batch, equally."""
    for number, stage in enumerate(stages, 1):
        if (stage.batch // stage.calls_per_update) % devices:
            raise ValueError(
                f"A call of stage {number} has {stage.batch // stage.calls_per_update:,} examples, "
                f"which {devices} devices cannot share: take a batch that they divide."
            )


def _check_restored(recipe: Any, optimizer: Any, epoch: int, planned_steps: int) -> None:
    """Raises ValueError if a restored backup belongs to another recipe or to other data.

    In both cases the optimizer's step differs from the planned one. An optimizer that can skip
    steps, for example for NaN gradients, may be at an earlier step than planned.

    Args:
        recipe: The recipe.
        optimizer: The optimizer, which a callback may have restored.
        epoch: The number of epochs that are done.
        planned_steps: The number of steps that the recipe plans for these epochs.
    """
    steps, inner = step_of(optimizer), unwrapped(optimizer)
    may_skip = inner is not optimizer or any(
        getattr(inner, name, 0) for name in ("skipped_steps", "spiked_steps")
    )
    if steps > planned_steps or steps < planned_steps and not may_skip:
        raise ValueError(
            f"The optimizer was restored to step {steps:,}, and epoch {epoch + 1} of "
            f"{recipe.title} begins at step {planned_steps:,}: go on with the recipe and the data "
            "that the backup is of, or name another backup_dir to begin anew."
        )


def _check_callbacks(callbacks: Iterable[Any]) -> None:
    """Raises ValueError for callbacks that cannot be used with `fit_stages`.

    They are callbacks that set the learning rate, a `BackupAndRestore` that saves within an epoch,
    and a `BackupAndRestore` after a `SwapEMAWeights(swap_on_epoch=True)`, because it would save
    moving averages instead of the weights.
    """
    swaps_averages = False
    for callback in callbacks:
        names = [cls.__name__ for cls in type(callback).__mro__]
        rate_setters = (
            {type(callback).__name__} if getattr(callback, "sets_learning_rate", False) else set()
        )
        for name in rate_setters | _RATE_SETTING_CALLBACKS.intersection(names):
            raise ValueError(
                f"{name} sets a learning rate of its own, and here it is the recipe's: leave "
                f"{name} out."
            )
        frequency = getattr(callback, "save_freq", "epoch")
        if "BackupAndRestore" in names and (
            frequency != "epoch" or getattr(callback, "save_before_preemption", False)
        ):
            raise ValueError(
                f"BackupAndRestore with save_freq={frequency!r} would go on within an epoch: leave "
                "save_freq and save_before_preemption out, so that it saves after each epoch."
            )
        swaps_averages = swaps_averages or getattr(callback, "swap_on_epoch", False)
        if "BackupAndRestore" in names and swaps_averages:
            raise ValueError(
                "SwapEMAWeights(swap_on_epoch=True) stands before BackupAndRestore, which would "
                "save the averages in the place of the weights: put it after."
            )
