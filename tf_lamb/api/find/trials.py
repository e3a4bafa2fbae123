"""Short runs of a model, which is afterwards as it was, bit for bit."""

import contextlib
import itertools
import math
import os
import random
import warnings
from collections.abc import Callable, Mapping
from time import perf_counter as clock
from typing import IO, Any

from tf_lamb.api import frontends, seams
from tf_lamb.api.data import mapped, size_of, whole
from tf_lamb.api.find.checks import scaled_as
from tf_lamb.api.find.data import WHOLE, Examples
from tf_lamb.api.unlisted import identity_of, unlisted
from tf_lamb.api.variables import Snapshot, as_int, numpy_of, unwrapped, variables_of

AVERAGED = 16  # batches for the running averages of batch normalization
# Attributes of a model. seam: Keras 3.15.1, the latter two. What a step on JAX has in hand, which
# Keras would put into the variables if a step was interrupted.
SET_BY_FIT = ("history", "stop_training", "_jax_state", "_jax_state_synced")
HUGE = 2.0**100
STEPS = ("train_step", "test_step")  # methods of a model
# What a loss tells of that no training moves.
NO_TEST_STEP = (
    "as where a model has a train_step of its own and no test_step, which evaluate needs for its "
    "loss: give the model a test_step that returns it."
)


class Trials:
    """A model to be trained again and again from the weights that it has now.

    A context manager: on leaving it, by whatever road, weights, averages, seeds and metrics are as
    they were, and the optimizer is the one of `compile`, which was never touched. So many batches
    are `averaged` for batch normalization.
    """

    def __init__(
        self, model: Any, data: Examples, batch_size: int, micro_batch_size: int | None = None,
        seed: int = 0, averaged: int = AVERAGED,
    ):  # fmt: skip
        self.model, self.data, self.batch_size = model, data, batch_size
        self.calls = batch_size // (micro_batch_size or batch_size)
        self.seed, self.averaged = seed, averaged
        self.tell: Callable[[int], None] = lambda examples: None  # of each step

    def __enter__(self) -> "Trials":
        import numpy as np

        model = self.model
        self._before = (
            model.optimizer,
            model.train_function,
            model.test_function,
            random.getstate(),
            np.random.get_state(),
            {name: vars(model)[name] for name in SET_BY_FIT + STEPS if name in vars(model)},
        )
        self._own = Snapshot(self._variables())
        wrapped = {name: _as_in_fit(getattr(model, name), self.data) for name in STEPS}
        try:
            seams.set_own(model, wrapped, None)
            self._evaluate_first()
        except BaseException:
            self.__exit__()
            raise
        model.reset_metrics()
        known = map(identity_of, self._own.variables)
        before = dict(zip(known, self._own.values, strict=True))
        made = Snapshot(self._variables())
        values = [
            before.get(identity_of(v), value)
            for v, value in zip(made.variables, made.values, strict=True)
        ]
        self._own = self._start = Snapshot(made.variables, values)
        self._is_trained = False  # by the optimizer that is tried: seen once
        self._chosen: dict[str, list] = {}  # optimizer, compiled step, empty slots
        self._empty = Snapshot([])
        self._averages = RunningAverages(model)
        return self

    def __exit__(self, *exception):
        import numpy as np

        optimizer, compiled, evaluating, python, numpy, set_by_fit = self._before
        self._own.put_back()
        seams.use_optimizer(self.model, optimizer, compiled)
        seams.set_own(self.model, set_by_fit, evaluating, without=SET_BY_FIT + STEPS)
        random.setstate(python)
        np.random.set_state(numpy)

    def choose(self, name: str, make: Callable[[], Any]) -> None:
        """Trains with this optimizer from now on, whose learning rate is a number."""
        if name not in self._chosen:
            optimizer = make()
            config = optimizer.get_config()
            if config.get("on_nonfinite") == "raise":  # a run that is lost ends no search
                instead = "skip" if config.get("on_spike") else "propagate"
                optimizer = type(optimizer).from_config({**config, "on_nonfinite": instead})
            optimizer = scaled_as(self._before[0], optimizer)
            self._start.put_back()  # which a slot may begin with
            optimizer.build(self.model.trainable_variables)
            self._chosen[name] = [optimizer, None, Snapshot(variables_of(optimizer))]
        for chosen in self._chosen.values():
            if chosen[0] is self.model.optimizer:
                chosen[1] = self.model.train_function
        *used, self._empty = self._chosen[name]
        seams.use_optimizer(self.model, *used)

    def save(self, file: IO[bytes]) -> None:
        """Writes the weights that runs begin with."""
        import numpy as np

        np.savez(file, *self._start.values)

    def load(self, path: str) -> None:
        """Begins runs with the weights of a file from now on; leaving restores the model's own."""
        import numpy as np

        with np.load(path) as file:
            start = [*file.values()]
        if [each.shape for each in start] != [each.shape for each in self._own.values]:
            raise ValueError(
                f"{path} holds the weights of another model: pass the model of that search, or "
                "another directory."
            )
        # NumPy's files know no bfloat16.
        pairs = zip(start, self._own.values, strict=True)
        values = [a.view(b.dtype) if a.dtype.kind == "V" else a for a, b in pairs]
        self._start = Snapshot(self._own.variables, values)
        self._start.put_back()

    def start(self, order: int = 0) -> None:
        """Puts back the weights and an empty optimizer, for one of several orders of the data."""
        self._start.put_back()
        self._empty.put_back()
        self._left = self.data.batches(self.batch_size, self.seed + order)

    def step(self, rate: float) -> float:
        """Makes an update at this rate; the training loss of its last part."""
        self.model.optimizer.learning_rate = rate
        batch = next(self._left)
        part, loss = self.batch_size // self.calls, math.nan
        for i in range(self.calls):
            cut = slice(i * part, (i + 1) * part)
            micro = mapped(lambda each, cut=cut: each[cut], batch)
            loss = self._call(self.model.train_on_batch, micro)
        if not self._is_trained:
            self._check_trained()
        self.tell(self.batch_size)
        return loss

    def _check_trained(self):
        """Raises where weights have moved, and not by the optimizer that is tried."""
        if as_int(unwrapped(self.model.optimizer).iterations):
            self._is_trained = True
            return
        begun = dict(zip(map(id, self._start.variables), self._start.values, strict=True))
        if any((numpy_of(v) != begun[id(v)]).any() for v in self.model.trainable_variables):
            raise ValueError(
                "The model's train_step moves the weights by another optimizer than that of "
                "compile, so that no learning rate can be tried: let it use self.optimizer."
            )

    def judge(self) -> tuple[float, ...]:
        """The loss on each block of the held-out examples; empty where one is not finite."""
        if self._averages and self._empty.variables:
            self._average()
        losses = [self._call(self.model.test_on_batch, block) for block in self.data.blocks]
        return tuple(losses) if all(map(math.isfinite, losses)) else ()

    def check_loss(self) -> float:
        """The held-out loss before any step; raises where it is not finite, or 0."""
        if not (losses := self.judge()):
            way_out = self.data.not_finite() or "look at the data and the weights first"
            raise ValueError(f"The loss of the model is not finite before any step: {way_out}.")
        if not any(losses):
            raise ValueError(f"The held-out loss is 0 before any step, {self._way_out()}")
        return math.fsum(losses) / len(losses)

    def look(self) -> tuple[float, ...]:
        """`judge` in the middle of a run, which goes on as if nothing had been."""
        with self._aside(1):
            return self.judge()

    @contextlib.contextmanager
    def _aside(self, order):
        """Takes batches of another order; afterwards all is as before, and a run goes on."""
        before = [Snapshot(each.variables) for each in (self._empty, self._own)]
        left, self._left = self._left, self.data.batches(self.batch_size, self.seed + order)
        yield
        for each in before:
            each.put_back()
        self._left = left

    @property
    def averaging_updates(self) -> int:
        """Updates that `judge` makes besides those of a run."""
        return math.ceil(self.averaged / self.calls) if self._averages else 0

    def epochs(self, data: Mapping[str, Any], count: int) -> list[float]:
        """Seconds of a first epoch, from the call of `fit` on, and of so many more; at a rate of 0.

        The progress bar of `fit`, which awaits a step, is drawn to nowhere.
        """
        self.model.optimizer.learning_rate = 0.0
        host, ends = frontends.of(self.model).host, [clock()]

        def end(epoch, logs):
            _loss("fit", logs)  # which awaits the device
            ends.append(clock())

        # seam: Keras 3.15.1 on JAX. Where averages have replaced the weights at the end of a
        # `fit`, both are one buffer, which the next one cannot donate twice.
        Snapshot(self.model.trainable_variables).put_back()
        how = {
            "callbacks": [host.callbacks.LambdaCallback(on_epoch_end=end)],
            "verbose": int(host.utils.is_interactive_logging_enabled()),
        }
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of an epoch that ends where the data here end
            self.model.fit(**data, epochs=1 + count, **how)
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def _evaluate_first(self):
        """Makes weights and metrics; raises where the model has no loss for such data."""
        self._check_calls()
        try:
            self._call(self.model.test_on_batch, self.data.blocks[0])
        except Exception as error:
            if not (way := self._way_out("")):
                raise
            raise ValueError(f"The model cannot be evaluated ({error}), {way}") from error

    def _check_calls(self):
        """Raises where the model takes batches of another size alone, as a stateful RNN does."""
        shapes = (each.shape for each in getattr(self.model, "inputs", None) or ())
        takes = next((shape[0] for shape in shapes if len(shape) and shape[0]), None)
        call, held = self.batch_size // self.calls, size_of(self.data.blocks[0])
        alone = f"The model takes batches of {takes} examples alone, as its input's shape says, and"
        if takes and call != takes:
            raise ValueError(
                f"{alone} a call of this search has {call}: pass micro_batch_size={takes} with a "
                "batch that it divides, or make the model without a batch in that shape."
            )
        if takes and held != takes:
            count = len(self.data.blocks)
            may_be = takes < WHOLE**2 or takes % WHOLE == 0  # as examples are held out
            way_out = f"pass validation_data= of {count * takes:,} examples"
            instead = "make the model without a batch in that shape"
            raise ValueError(
                f"{alone} each of {count} held-out blocks has {held}: "
                f"{way_out if may_be else instead}."
            )

    def _way_out(self, other: str = NO_TEST_STEP) -> str:
        """What lacks where evaluation tells no loss: a test_step, targets, or the other."""
        host = frontends.of(self.model).host.__name__
        of = [getattr(type(self.model), name).__module__.partition(".")[0] for name in STEPS]
        if [each == host for each in of] == [False, True]:
            return NO_TEST_STEP
        if len(self.data.blocks[0]) == 1:
            return "as its loss needs targets: pass data=(x, y)."
        return other

    def _average(self):
        """Estimates the running averages for these weights, which stay as they are."""
        self._empty.put_back()
        if not self._averages.is_measured:
            with self._aside(0):
                self._averages.measure(lambda: self.step(0.0))
        trained = Snapshot(self.model.trainable_variables)

        def update():
            self.step(0.0)
            trained.put_back()  # a schedule-free optimizer moves them at a rate of 0, too

        self._averages.estimate(update, self.averaging_updates)

    def _variables(self):
        """What the model and its metrics hold, each once."""
        if not self.model.built:
            return []
        shown = [variable for metric in self.model.metrics for variable in metric.variables]
        every = [*self.model.variables, *shown, *unlisted(self.model)]
        return list({identity_of(variable): variable for variable in every}.values())

    def _call(self, method, batch):
        self.model.reset_metrics()  # in Keras 3.12 the loss is else the mean of all calls
        try:
            return _loss(method.__name__, frontends.of(self.model).on_batch(method, batch))
        except ValueError as error:
            if "values to unpack" not in str(error):
                raise
            raise ValueError(
                f"The model's own step takes another number of parts than the {len(batch)} of "
                "data: let it begin with x, y, sample_weight = "
                "keras.utils.unpack_x_y_sample_weight(data), as Keras's does, or pass data "
                "without what it does not take."
            ) from error


def _as_in_fit(step: Callable, read: Examples) -> Callable:
    """A model's step, which is given what `fit` gives it: x, (x, y) or (x, y, sample_weight)."""

    def taking(*given):
        *state, data = given
        if isinstance(data, (list, tuple)):  # on torch `fit` makes lists of tuples
            data = whole(data)
            in_tuple = read.is_py_dataset and not isinstance(data[0], dict)
            if len(data) == 1 and not (in_tuple or isinstance(data[0], (list, tuple))):
                (data,) = data
        return step(*state, data)

    return taking


def _loss(name, logs):
    if "loss" not in logs:
        raise ValueError(
            f"{name} of the model gives {', '.join(logs) or 'nothing'}, and no 'loss' to search "
            "by: let its train_step and test_step return one."
        )
    return float(logs["loss"])


def normalizations(model: Any) -> list:
    """Its layers of batch normalization whose averages training moves."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    every = model._flatten_layers()
    return [each for each in every if hasattr(each, "moving_variance") and each.trainable]


class RunningAverages:
    """Running averages, estimated for the weights of now: they would lag behind a short run.

    An update takes an average a to s a + (1 - s) x, with the statistic x of its batch. A layer may
    be called several times, or in groups, so that its s is not its momentum: it is measured. Beside
    2^100 a batch adds nothing: what is left / 2^100 is what one update keeps, s. From zero, n
    updates give (1 - s^n) times the mean of x.
    """

    def __init__(self, model: Any):
        layers = normalizations(model)
        self._means = [layer.moving_mean for layer in layers]
        self._variances = [layer.moving_variance for layer in layers]
        self._kept: list[float] = []  # by an update, of each layer

    def __bool__(self) -> bool:
        return bool(self._means)

    def measure(self, update: Callable[[], Any]) -> None:
        """Measures what an update keeps of them; they are lost."""
        _fill(self._variances, HUGE)
        update()
        self._kept = [float(numpy_of(each).flat[0]) / HUGE for each in self._variances]

    @property
    def is_measured(self) -> bool:
        """Whether it is known what an update keeps."""
        return bool(self._kept)

    def estimate(self, update: Callable[[], Any], count: int) -> None:
        """Sets them to the means over so many updates."""
        before = Snapshot([*self._means, *self._variances])
        _fill(before.variables, 0.0)
        for _ in range(count):
            update()
        for variable, old, kept in zip(
            before.variables, before.values, 2 * self._kept, strict=True
        ):
            # Nothing moved those of a layer that is called with training=False.
            variable.assign(old if kept == 1.0 else numpy_of(variable) / (1 - kept**count))


def _fill(variables, value):
    for each in variables:
        each.assign(0 * numpy_of(each) + value)
