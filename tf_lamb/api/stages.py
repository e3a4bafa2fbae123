"""A training whose batch grows: `fit_stages`, and what cannot be trained so."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_lamb.api import frontends, progress, seams
from tf_lamb.api.data import Arrays, check_paired, source
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import step_of, unwrapped, waiting_in
from tf_lamb.core.accumulation import Epochs, Stage
from tf_lamb.core.checks import integer
from tf_lamb.core.messages import warn
from tf_lamb.core.recipes.recipe import check_recipe

_SET_RATES = {"LearningRateScheduler", "ReduceLROnPlateau"}  # of Keras; ours say so themselves
_NEAR = 1e-5  # of two rates that are the same in float32
SEVERAL = (
    "The data are read in one process here, and {} train the model: search in one, and train each "
    "stage of a recipe by a fit of its own, on a dataset that is dealt out."
)


def fit_stages(
    model: Any, data: Any, recipe: Any, *, validation_data: Any = None,
    callbacks: Sequence[Any] | None = None, verbose: str | int = "auto",
    examples: int | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    """Trains a compiled model with a recipe in stages, whose batch grows: `fit` for it.

    The examples are one stream of passes over the data, and each update takes the next batch of its
    stage. An epoch has as many examples as one of `fit` at the first batch: its steps become fewer
    as the batch grows. Optimizer, schedules, callbacks, progress bar and history go on through all
    stages, and a line tells which stage begins. The training step is compiled once for each size of
    a call.

    An optimizer of this package that accumulates gradients, as by
    `gradient_accumulation_steps={0: 1, 500: 2}`, is given its micro-batches: a call has
    batch / count examples.

    Where `on_nonfinite`, `on_spike` or the loss scale of float16 skips a step, the data goes
    on, but neither the schedule nor the number of micro-batches does: they count updates.

    With `BackupAndRestore` among the callbacks a training that was killed goes on after its
    last epoch, with the batches that were due: of arrays always; of other data, if they come in
    the same order in each process, as from `Dataset.shuffle` with a seed.

    Args:
        model: A compiled model. Its optimizer has the rate of the recipe, as by
            `from_recipe(recipe)` or `learning_rate=recipe.schedule()`.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, which are shuffled anew for each pass;
            a `tf.data.Dataset` of batches, a `PyDataset`, or a list of batches, which are read
            in their own order, by one thread, and batched anew.
        recipe: A recipe of `tf_lamb.recipes`, such as `growing`.
        validation_data, callbacks, verbose: As of `fit`.
        examples: Examples of a pass over the data. Defaults to None: counted, for which a
            `tf.data.Dataset` is read once; one of unknown cardinality needs it.
        seed: Seed of the order of arrays. Defaults to 0.

    Returns:
        The `History` of all epochs.

    Raises:
        TypeError: for what is no recipe, or data that can be read only once.
        ValueError: for a model that is not compiled, a batch that shrinks or is larger than all
            examples, an optimizer that does not go with the recipe, or a callback that sets
            the learning rate.

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
    read = source("data", data)
    counted = examples is None or isinstance(read, Arrays)
    plan = Epochs(stages, read.count() if counted else integer("examples", examples))
    _check_examples(recipe, plan, examples)
    shown = verbose if progress.can_print() else 0
    callback_list = type("Callbacks", (WholeRun, frontend.host.callbacks.CallbackList), {})
    every = callback_list(
        callbacks, add_history=True, add_progbar=shown != 0, model=model,
        verbose=1 if shown == "auto" else shown, epochs=plan.count,
        steps=_steps(plan.calls(0)),
    )  # fmt: skip
    _check_callbacks(every.callbacks)

    def fit(batches, steps, first, last):
        return model.fit(
            batches, steps_per_epoch=steps, initial_epoch=first, epochs=last, shuffle=False,
            validation_data=validation_data, callbacks=every, verbose=0,
            validation_batch_size=max(each.batch // each.calls for each in stages),
        )  # fmt: skip

    with seams.averaged_where(model.optimizer, lambda: every.is_over):
        # Without an epoch: builds the model, and callbacks may restore a backup.
        (size, _), *_ = plan.calls(0)
        first = read.stream(0, seed, plan.examples)(size)
        history = fit(frontend.fed(model, (first for _ in itertools.count()), first), 1, 1, 1)
        done = every.done
        _check_restored(recipe, model.optimizer, done, plan.updates(done))
        take = read.stream(plan.start(done), seed, plan.examples)
        told = 0
        while not every.is_over:
            epoch, calls = every.done, plan.calls(every.done)
            if shown:
                told = _tell_stages(plan, epoch, told)
            every.begin_epoch(epoch, _steps(calls))
            batches = frontend.fed(model, _batches(take, calls), first)
            history = fit(batches, _steps(calls), epoch, epoch + 1)
    return history


class WholeRun:
    """Stands before a host's `CallbackList`: several calls of `fit` begin and end once."""

    model: Any
    params: dict
    epochs: int
    done = 0
    _has_begun = False
    _batches: Any = 0

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Tells the callbacks of the epoch that the next `fit` trains."""
        self.done = epoch + 1
        if steps != self.params["steps"]:
            self.set_params({**self.params, "steps": steps})  # type: ignore[attr-defined]

    @property
    def is_over(self) -> bool:
        """Whether the training ends with the running `fit`."""
        return self.model.stop_training or self.done >= self.params["epochs"]

    def on_train_begin(self, logs=None):
        """At the first time begins, and finds the epoch that a backup was restored to."""
        # seam: tf_keras 2.20.1. It counts all batches of a training, for TensorBoard.
        counter = getattr(self.model, "_train_counter", None)
        if self._has_begun:
            if counter is not None:
                counter.assign(self._batches)
            return
        self._has_begun = True
        super().on_train_begin(logs)  # type: ignore[misc]
        self.done = self._restored()

    def on_train_end(self, logs=None):
        """Ends at the last time."""
        if (counter := getattr(self.model, "_train_counter", None)) is not None:
            self._batches = counter.numpy()
        if self.is_over:
            super().on_train_end(logs)  # type: ignore[misc]

    def _restored(self):
        """The epochs that a backup has; `fit` would go on there in each of its calls."""
        # seam: tf_keras 2.20.1, Keras 3.15.1.
        if load := getattr(self.model, "_maybe_load_initial_counters_from_ckpt", None):
            return load(self.params["steps"], 0)[0]
        restored = self.model._initial_epoch or 0
        seams.begin_at(self.model, None)
        return restored


def _steps(calls: Iterable[tuple[int, int]]) -> int:
    return sum(number for _, number in calls)


def _tell_stages(plan, epoch, told):
    """Says which stages an epoch trains, after those that were told of; the last one's number."""
    begin, stages = 0, plan.stages
    for number, stage in enumerate(stages, 1):
        first, begin = begin, begin + stage.steps
        if number > told and first < plan.updates(epoch + 1) and begin > plan.updates(epoch):
            told = number
            progress.say(
                f"Stage {number} of {len(stages)}, batch {stage.batch:,}: updates {first + 1:,} to "
                f"{begin:,} of {sum(each.steps for each in stages):,}"
            )
    return told


def _batches(take, calls):
    """A generator, which a host reads exactly as far as an epoch goes."""
    sizes = itertools.chain.from_iterable(itertools.repeat(*each) for each in calls)
    return (take(size) for size in sizes)


def _stages_of(recipe: Any, optimizer: Any) -> tuple[Stage, ...]:
    """The stages of a recipe, with the calls that the optimizer takes for an update of each."""
    lengths = list(dict.fromkeys(stage.sequence_length for stage in recipe.stages))
    if len(lengths) > 1:
        raise ValueError(
            f"The stages of {recipe.title} have sequence lengths of "
            f"{' and '.join(map(str, lengths))}, which are different data: train each stage by a "
            "fit of its own."
        )
    found: list[Stage] = []
    starts, start, counts = [], 0, _accumulated(optimizer)
    for number, stage in enumerate(recipe.stages, 1):
        if found and stage.batch_size < found[-1].batch:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, and the "
                f"one before {found[-1].batch:,}: the batch can only grow."
            )
        calls = [count for step, count in counts.items() if step <= start][-1]
        if stage.batch_size % calls:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, which "
                f"gradient_accumulation_steps={calls} of the optimizer does not divide."
            )
        found.append(Stage(stage.batch_size, stage.train_steps, calls))
        starts.append(start)
        start += stage.train_steps
    if others := [step for step in counts if step not in starts]:
        raise ValueError(
            f"gradient_accumulation_steps of the optimizer changes at step {others[0]:,}, where no "
            f"stage of {recipe.title} begins: they begin at {', '.join(map(str, starts))}."
        )
    return tuple(found)


def _accumulated(optimizer) -> Mapping[int, int]:
    """Optimizer step -> micro-batches of an update from there on."""
    inner = unwrapped(optimizer)
    if isinstance(inner, Layerwise):
        given = inner._settings.gradient_accumulation_steps or 1
        return given if isinstance(given, Mapping) else {0: given}
    if steps := getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            f"gradient_accumulation_steps={steps} of Keras's {type(inner).__name__} cannot grow, "
            "and its learning rate counts micro-batches: leave it out, or take an optimizer of "
            "tf_lamb, with gradient_accumulation_steps={0: 1, 500: 2} for instance."
        )
    return {0: 1}


def _check_model(model: Any) -> None:
    """Raises for a model that `fit_stages` cannot train."""
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
    steps, waiting = step_of(optimizer), waiting_in(optimizer)
    begun = f" and {waiting:,} micro-batches" if waiting else ""
    if steps or begun:
        raise ValueError(
            f"The optimizer has made {steps:,} steps{begun}, and the recipe begins at step 0: "
            "compile the model with a new optimizer. After a kill, BackupAndRestore goes on."
        )


def _check_rates(recipe: Any, optimizer: Any, schedule: Any) -> None:
    """Raises where the optimizer's learning rate is not the recipe's."""
    inner = unwrapped(optimizer)
    own = inner._learning_rate  # seam: Keras 3.15.1, tf_keras 2.20.1
    end = 0
    for number, stage in enumerate(recipe.stages, 1):
        begin, end = end, end + stage.train_steps
        for step in (begin, end - 1):
            wanted = float(schedule(step))
            is_schedule = hasattr(own, "get_config")  # a function has no step
            rate = float(own(step) if is_schedule else inner.learning_rate)
            if not math.isclose(rate, wanted, rel_tol=_NEAR, abs_tol=1e-12):
                raise ValueError(
                    f"The optimizer's learning rate at step {step:,}, of stage {number}, is "
                    f"{rate:.6g}, and that of {recipe.title} is {wanted:.6g}: compile the model "
                    "with an optimizer from_recipe(recipe), or with learning_rate="
                    "recipe.schedule()."
                )


def _check_examples(recipe: Any, epochs: Epochs, examples: int | None) -> None:
    """Refuses a stage of more than all examples; warns where the recipe is for another number."""
    if examples not in (None, epochs.examples):
        raise ValueError(
            f"examples={examples}, but the arrays of data hold {epochs.examples:,}: leave it out."
        )
    if (told := recipe.stages[0].examples) not in (None, epochs.examples):
        warn(
            f"{recipe.title} is for {told:,} examples, and the data has {epochs.examples:,}, so "
            f"that its {recipe.train_steps:,} updates are {epochs.count} epochs: make the recipe "
            f"for {epochs.examples:,} examples."
        )
    for number, stage in enumerate(epochs.stages, 1):
        if stage.batch > epochs.examples:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch:,}, more than all "
                f"{epochs.examples:,} examples: take a recipe with a smaller batch, or more data."
            )


def replicas_of(model: Any) -> int:
    """The replicas of a `tf.distribute` strategy that share a call; raises for several workers."""
    strategy = getattr(model, "distribute_strategy", None)
    if any(kind in type(strategy).__name__ for kind in ("MultiWorker", "ParameterServer")):
        raise ValueError(SEVERAL.format("several"))
    return getattr(strategy, "num_replicas_in_sync", 1)


def _check_devices(stages: tuple[Stage, ...], devices: int) -> None:
    """Raises for a call that devices cannot share."""
    for number, stage in enumerate(stages, 1):
        if (stage.batch // stage.calls) % devices:
            raise ValueError(
                f"A call of stage {number} has {stage.batch // stage.calls:,} examples, which "
                f"{devices} devices cannot share: take a batch that they divide."
            )


def _check_restored(recipe: Any, optimizer: Any, epoch: int, planned: int) -> None:
    """Refuses a backup of another recipe or other data; a step that was skipped is not planned."""
    steps, inner = step_of(optimizer), unwrapped(optimizer)
    skips = inner is not optimizer or any(
        getattr(inner, name, 0) for name in ("skipped_steps", "spiked_steps")
    )
    if steps > planned or steps < planned and not skips:
        raise ValueError(
            f"The optimizer was restored to step {steps:,}, and epoch {epoch + 1} of "
            f"{recipe.title} begins at step {planned:,}: go on with the recipe and the data that "
            "the backup is of, or name another backup_dir to begin anew."
        )


def _check_callbacks(callbacks: Iterable[Any]) -> None:
    """Raises for a backup within an epoch, or of averages, and for a second schedule."""
    swaps = False
    for each in callbacks:
        names = [cls.__name__ for cls in type(each).__mro__]
        own = {type(each).__name__} if getattr(each, "sets_learning_rate", False) else set()
        for name in own | _SET_RATES.intersection(names):
            raise ValueError(
                f"{name} sets a learning rate of its own, and here it is the recipe's: leave "
                f"{name} out."
            )
        frequency = getattr(each, "save_freq", "epoch")
        if "BackupAndRestore" in names and (
            frequency != "epoch" or getattr(each, "save_before_preemption", False)
        ):
            raise ValueError(
                f"BackupAndRestore with save_freq={frequency!r} would go on within an epoch: leave "
                "save_freq and save_before_preemption out, so that it saves after each epoch."
            )
        swaps = swaps or getattr(each, "swap_on_epoch", False)
        if "BackupAndRestore" in names and swaps:
            raise ValueError(
                "SwapEMAWeights(swap_on_epoch=True) stands before BackupAndRestore, which would "
                "save the averages in the place of the weights: put it after."
            )
