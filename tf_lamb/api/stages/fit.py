"""A training whose batch grows: `fit_stages`."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from tf_lamb.api import frontends, seams
from tf_lamb.api.data import Arrays, check_paired, source
from tf_lamb.api.stages import checks
from tf_lamb.core.checks import integer
from tf_lamb.core.epochs import Epochs
from tf_lamb.core.recipes.recipe import check_recipe


def fit_stages(
    model: Any, data: Any, recipe: Any, *, validation_data: Any = None,
    callbacks: Sequence[Any] | None = None, verbose: str | int = "auto",
    examples: int | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    """Trains a compiled model with a recipe in stages, whose batch grows: `fit` for it.

    The examples are one stream of passes over the data, and each update takes the next batch of its
    stage. An epoch has as many examples as one of `fit` at the first batch: its steps become fewer
    as the batch grows. Optimizer, schedules, callbacks, progress bar and history go on through all
    stages. The training step is compiled once for each size of a call.

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
    checks.check_model(model)
    stages = checks.stages_of(recipe, model.optimizer)
    checks.check_rates(recipe, model.optimizer, rate)
    checks.check_devices(stages, frontend.devices(model))
    read = source("data", data)
    counted = examples is None or isinstance(read, Arrays)
    plan = Epochs(stages, read.count() if counted else integer("examples", examples))
    checks.check_examples(recipe, plan, examples)
    callback_list = type("Callbacks", (WholeRun, frontend.host.callbacks.CallbackList), {})
    every = callback_list(
        callbacks, add_history=True, add_progbar=verbose != 0, model=model,
        verbose=1 if verbose == "auto" else verbose, epochs=plan.count,
        steps=_steps(plan.calls(0)),
    )  # fmt: skip
    checks.check_callbacks(every.callbacks)

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
        checks.check_restored(recipe, model.optimizer, done, plan.updates(done))
        take = read.stream(plan.start(done), seed, plan.examples)
        while not every.is_over:
            epoch, calls = every.done, plan.calls(every.done)
            every.begin_epoch(epoch, _steps(calls))
            batches = frontend.fed(model, _batches(take, calls), first)
            history = fit(batches, _steps(calls), epoch, epoch + 1)
    return history


class WholeRun:
    """Stands before a host's `CallbackList`: several calls of `fit` begin and end once.

    Attributes:
        epochs: Of the whole training.
        done: Epochs that are done when the running `fit` ends.
    """

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


def _batches(take, calls):
    """A generator, which a host reads exactly as far as an epoch goes."""
    sizes = itertools.chain.from_iterable(itertools.repeat(*each) for each in calls)
    return (take(size) for size in sizes)
