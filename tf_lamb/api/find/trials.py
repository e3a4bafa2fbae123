"""Short runs of a model, which is afterwards as it was, bit for bit."""

import contextlib
import itertools
import math
import random
import sys
from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.data import mapped
from tf_lamb.api.find.data import Examples
from tf_lamb.api.variables import as_int, unwrapped, variables_of
from tf_lamb.core import checks

HUGE = 2.0**100  # beside which what a batch adds to an average is nothing
AVERAGED = 16  # batches for the running averages of batch normalization
# Attributes of a model. seam: Keras 3.15.1, the latter two. What a step on JAX has in hand, which
# Keras would put into the variables if a step was interrupted.
SET_BY_FIT = ("history", "stop_training", "_jax_state", "_jax_state_synced")
STEPS = ("train_step", "test_step")  # methods of a model
# seam: Keras 3.15.1, tf_keras 2.20.1. What exclude_from_weight_decay() was told.
UNDECAYED = {f"_exclude_from_weight_decay{end}" for end in ("", "_pattern", "_names")}
# What a loss tells of that no training moves.
NO_TEST_STEP = (
    "as where a model has a train_step of its own and no test_step, which evaluate needs for its "
    "loss: give the model a test_step that returns it."
)
SCALING = ("dynamic", "initial_scale", "dynamic_growth_steps")  # of a `LossScaleOptimizer`


class Trials:
    """A model to be trained again and again from the weights that it has now.

    A context manager: on leaving it, by whatever road, weights, averages, seeds and metrics are as
    they were, and the optimizer is the one of `compile`, which was never touched.

    Args:
        model: A compiled model of either Keras.
        data: What it is trained and judged on.
        batch_size: Examples of an update.
        micro_batch_size: Examples of a call, which divides the batch size; None: all of them.
        seed: Of the order of the data.
        averaged: Batches for the running averages of batch normalization.
    """

    def __init__(
        self, model: Any, data: Examples, batch_size: int, micro_batch_size: int | None = None,
        seed: int = 0, averaged: int = AVERAGED,
    ):  # fmt: skip
        self.model, self.data, self.batch_size = model, data, batch_size
        self.calls = batch_size // (micro_batch_size or batch_size)
        self.seed, self.averaged = seed, averaged
        self.tell: Callable[[int], None] | None = None  # of the examples of each step

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
        self._variables = self._state()
        self._values = _copies(self._variables)
        wrapped = {name: _as_in_fit(getattr(model, name), self.data) for name in STEPS}
        try:
            vars(model).update(wrapped)
            model.test_function = None
            self._evaluate_first()
        except BaseException:
            self.__exit__()
            raise
        model.reset_metrics()
        before = dict(zip(map(id, self._variables), self._values, strict=True))
        self._variables = self._state()
        self._values = [before.get(id(v), v.numpy().copy()) for v in self._variables]
        self._start = self._values
        self._is_trained = False  # by the optimizer that is tried: seen once
        self._chosen: dict[str, list] = {}  # optimizer, compiled step, slots, their beginning
        self._slots: list[Any] = []
        self._empty: list[Any] = []
        # Of each average of batch normalization, what an update leaves of it: a layer may be called
        # several times, and in groups.
        self._shares: list[float] | None = None
        return self

    def __exit__(self, *exception):
        import numpy as np

        optimizer, compiled, evaluating, python, numpy, set_by_fit = self._before
        self._put(self._variables, self._values)
        self._use(optimizer, compiled)
        self.model.test_function = evaluating
        for name in SET_BY_FIT + STEPS:
            vars(self.model).pop(name, None)
        vars(self.model).update(set_by_fit)
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
            self._put(self._variables, self._start)  # which a slot may begin with
            optimizer.build(self.model.trainable_variables)
            slots = variables_of(optimizer)
            self._chosen[name] = [optimizer, None, slots, _copies(slots)]
        self._keep_compiled()
        self._use(*self._chosen[name][:2])
        self._slots, self._empty = self._chosen[name][2:]

    def save(self, path: str) -> None:
        """Writes the weights that runs begin with."""
        import numpy as np

        np.savez(path, *self._start)

    def load(self, path: str) -> None:
        """Begins runs with the weights of a file from now on; leaving restores the model's own."""
        import numpy as np

        with np.load(path) as file:
            start = [*file.values()]
        if [each.shape for each in start] != [each.shape for each in self._values]:
            raise ValueError(
                f"{path} holds the weights of another model: take another directory, or the model "
                "of that search."
            )
        # NumPy's files know no bfloat16.
        pairs = zip(start, self._values, strict=True)
        self._start = [a.view(b.dtype) if a.dtype.kind == "V" else a for a, b in pairs]

    def first_loss(self) -> float:
        """The held-out loss of the weights that runs begin with."""
        self._put(self._variables, self._start)
        return sum(self.judge())

    def start(self, order: int = 0) -> None:
        """Puts back the weights and an empty optimizer, for one of several orders of the data."""
        self._put(self._variables, self._start)
        self._put(self._slots, self._empty)
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
        if self.tell:
            self.tell(self.batch_size)
        return loss

    def _check_trained(self):
        """Raises where weights have moved, and not by the optimizer that is tried."""
        if as_int(unwrapped(self.model.optimizer).iterations):
            self._is_trained = True
            return
        begun = dict(zip(map(id, self._variables), self._start, strict=True))
        if any((v.numpy() != begun[id(v)]).any() for v in self.model.trainable_variables):
            raise ValueError(
                "The model's train_step moves the weights by another optimizer than that of "
                "compile, so that no learning rate can be tried: let it use self.optimizer."
            )

    def judge(self) -> tuple[float, ...]:
        """The loss on each block of the held-out examples; empty where one is not finite."""
        if self._slots:
            self._average()
        losses = [self._call(self.model.test_on_batch, block) for block in self.data.blocks]
        return tuple(losses) if all(map(math.isfinite, losses)) else ()

    def check_loss(self) -> None:
        """Raises where the loss of the model is not finite before any step, or 0."""
        if not (losses := self.judge()):
            raise ValueError(
                "The loss of the model is not finite before any step: look at the data and the "
                "weights first."
            )
        if not any(losses):
            raise ValueError(f"The held-out loss is 0 before any step, {self._way_out()}")

    def look(self) -> tuple[float, ...]:
        """`judge` in the middle of a run, which goes on as if nothing had been."""
        with self._aside(1):
            return self.judge()

    @contextlib.contextmanager
    def _aside(self, order):
        """Takes batches of another order; afterwards all is as before, and a run goes on."""
        slots, values, left = _copies(self._slots), _copies(self._variables), self._left
        self._left = self.data.batches(self.batch_size, self.seed + order)
        yield
        self._put(self._slots, slots)
        self._put(self._variables, values)
        self._left = left

    @property
    def averaging_updates(self) -> int:
        """Updates that `judge` makes beside those of a run."""
        return math.ceil(self.averaged / self.calls) if normalizations(self.model) else 0

    def epochs(self, batch: tuple, steps: int, count: int) -> list[float]:
        """Seconds of so many epochs of `fit` on one batch, at a rate of 0, after two to begin."""
        self.model.optimizer.learning_rate = 0.0

        def fit(epochs, **how):
            # seam: Keras 3.15.1 on JAX. Where averages have replaced the weights at the end of a
            # `fit`, both are one buffer, which the next one cannot donate twice.
            trained = self.model.trainable_variables
            self._put(trained, _copies(trained))
            again = (batch for _ in itertools.count())
            return self.model.fit(
                again, steps_per_epoch=steps, epochs=epochs, shuffle=False, verbose=0, **how
            )

        timed = _clocked(type(fit(1)))()
        fit(1 + count, callbacks=[timed])
        return timed.seconds[1:]

    def _evaluate_first(self):
        """Makes weights and metrics; raises where the model has no loss for such data."""
        try:
            self._call(self.model.test_on_batch, self.data.blocks[0])
        except Exception as error:
            if not (way := self._way_out("")):
                raise
            raise ValueError(f"The model cannot be evaluated ({error}), {way}") from error

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
        """Estimates the running averages of batch normalization anew, for these weights.

        They would lag behind a short run. From zero, n updates of which each leaves the share s of
        what was there give (1 - s^n) of their mean.
        """
        if not (layers := normalizations(self.model)):
            return
        self._put(self._slots, self._empty)
        averages = [(each.moving_mean, each.moving_variance) for each in layers]
        before = [_copies(each) for each in averages]
        if self._shares is None:
            self._shares = self._left_of([variance for _, variance in averages])
        for each in itertools.chain(*averages):
            each.assign(0 * each.numpy())
        trained = self.model.trainable_variables
        weights = _copies(trained)
        for _ in range(self.averaging_updates):
            self.step(0.0)
            self._put(trained, weights)  # a schedule-free optimizer moves them at a rate of 0, too
        for share, pair, old in zip(self._shares, averages, before, strict=True):
            if share == 1.0:  # called with training=False
                self._put(pair, old)
                continue
            for average in pair:
                average.assign(average.numpy() / (1 - share**self.averaging_updates))

    def _left_of(self, variances):
        """The share of each that an update leaves; all is as before."""
        with self._aside(0):
            for each in variances:
                each.assign(0 * each.numpy() + HUGE)
            self.step(0.0)
            return [float(each.numpy().flat[0]) / HUGE for each in variances]

    def _state(self):
        """The variables of the model and of its metrics, each once."""
        shown = [variable for metric in self.model.metrics for variable in metric.variables]
        every = [*self.model.variables, *shown] if self.model.built else []
        return list({id(variable): variable for variable in every}.values())

    def _keep_compiled(self):
        for chosen in self._chosen.values():
            if chosen[0] is self.model.optimizer:
                chosen[1] = self.model.train_function

    def _use(self, optimizer, compiled):
        self.model.optimizer = optimizer
        self.model.train_function = compiled

    @staticmethod
    def _put(variables, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _call(self, method, batch):
        self.model.reset_metrics()  # in Keras 3.12 the loss is else the mean of all calls
        try:
            return _loss(method.__name__, method(*batch, return_dict=True))
        except ValueError as error:
            if "values to unpack" not in str(error):
                raise
            raise ValueError(
                f"{method.__name__} hands over (x, y, sample_weight), and the model's own step "
                "expects another number. Let it begin with x, y, sample_weight = "
                "keras.utils.unpack_x_y_sample_weight(data), as Keras's does."
            ) from error


def _as_in_fit(step: Callable, read: Examples) -> Callable:
    """A model's step, which is given what `fit` gives it: x, (x, y) or (x, y, sample_weight)."""

    def taking(*given):
        *state, data = given
        if isinstance(data, tuple):
            while data[1:] and data[-1] is None:
                data = data[:-1]
            in_tuple = read.is_py_dataset and not isinstance(data[0], dict)
            if len(data) == 1 and not (in_tuple or isinstance(data[0], (list, tuple))):
                (data,) = data
        return step(*state, data)

    return taking


def _clocked(history: Any) -> Any:
    """The class of a Keras's `History`, which notes the seconds of its epochs, too."""

    class Clocked(history):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_epoch_begin(self, epoch, logs=None):
            self._begin = clock()

        def on_epoch_end(self, epoch, logs=None):
            _loss("fit", logs)  # which awaits the device
            self.seconds.append(clock() - self._begin)

    return Clocked


def _loss(name, logs):
    if "loss" not in logs:
        raise ValueError(
            f"{name} of the model gives {', '.join(logs) or 'nothing'}, and no 'loss' to search "
            "by: let its train_step and test_step return one."
        )
    return float(logs["loss"])


def _copies(variables):
    return [variable.numpy().copy() for variable in variables]


def normalizations(model: Any) -> list:
    """Its layers of batch normalization whose averages training moves."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    every = model._flatten_layers()
    return [each for each in every if hasattr(each, "moving_variance") and each.trainable]


def is_watched() -> bool:
    """Whether what is printed comes to a terminal or a notebook, and not into a file."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class Progress:
    """Keras's progress bar; in a file, one line when it is done.

    Args:
        model: Of the Keras.
        most: That can be done.
        unit: Of it.
    """

    def __init__(self, model: Any, most: int, unit: str):
        verbose = 1 if is_watched() else 2
        self._bar = frontends.of(model).host.utils.Progbar(most, verbose=verbose, unit_name=unit)
        self._done = 0

    def show(self, done: int) -> None:
        """How far it is; not the end."""
        self._done = min(done, self._bar.target - 1)
        self._bar.update(self._done)

    def add(self, more: int) -> None:
        """So much more is done."""
        self.show(self._done + more)

    def end(self) -> None:
        """It is done."""
        self._bar.update(self._bar.target)


def devices_of(model: Any) -> int:
    """How many devices share a call, by `keras.distribution`."""
    known = getattr(frontends.of(model).host, "distribution", None)  # tf_keras has none
    if not known or (distribution := known.distribution()) is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]


def check_shared(model: Any, examples: int) -> None:
    """Raises for a call of so many examples that devices cannot share."""
    if examples % (devices := devices_of(model)):
        raise ValueError(
            f"A call has {examples:,} examples, which {devices} devices cannot share: take a batch "
            "that they divide."
        )


def tuned_rate(optimizer: Any, given: float | None) -> float:
    """The learning rate of an optimizer, or the one that is given; raises for a schedule."""
    if given is None:
        given = optimizer.get_config()["learning_rate"]
        if isinstance(given, dict) or callable(given):
            raise ValueError(
                "The model's optimizer has a schedule: pass its peak, baseline_learning_rate=."
            )
        given = float(given)
    return checks.number("baseline_learning_rate", given, "(0, inf)")


def accumulates(optimizer: Any) -> bool:
    """Whether it can make an update of several calls."""
    return "gradient_accumulation_steps" in optimizer.get_config()


def anew(optimizer: Any, calls: int, rate: Any = 1.0) -> Any:
    """The optimizer without its state, at a rate, with so many calls an update.

    Keras's keep no exclusion from weight decay in their config: it is copied.
    """
    told = {**optimizer.get_config(), "learning_rate": rate}
    if accumulates(optimizer):
        told["gradient_accumulation_steps"] = calls if calls > 1 else None
    made = type(optimizer).from_config(told)
    if not hasattr(optimizer, "rule"):
        kept = UNDECAYED & vars(optimizer).keys()
        vars(made).update({name: vars(optimizer)[name] for name in kept})
    return made


def scaled_as(compiled: Any, optimizer: Any) -> Any:
    """The optimizer, in a `LossScaleOptimizer` like that of `compile` if there is one."""
    if not _scales_loss(compiled):
        return optimizer
    config = compiled.get_config()
    told = {name: config[name] for name in SCALING if config.get(name) is not None}
    return type(compiled)(optimizer, **told)


def _scales_loss(optimizer):
    """Whether it wraps another one, for float16."""
    return "LossScale" in type(optimizer).__name__


def check_optimizer(optimizer: Any) -> None:
    """Raises for an optimizer whose rate cannot be searched."""
    if isinstance(optimizer, type) or not hasattr(optimizer, "get_config"):
        raise TypeError(
            f"{optimizer!r} is no optimizer: take the name of a class, such as 'LAMB', 'Muon' or "
            "'AdamW', or pass an optimizer."
        )
    if _scales_loss(optimizer):
        optimizer = optimizer.inner_optimizer
    name = type(optimizer).__name__
    if name == "AdaScale":
        raise ValueError(
            "AdaScale sets the rate itself: take the optimizer inside it for a search."
        )
    if "learning_rate" not in unwrapped(optimizer).get_config():
        raise ValueError(
            f"{name} has no learning rate of its own: take one optimizer for a search."
        )
    if not hasattr(optimizer, "build"):
        raise ValueError(
            f"{name} is one of the legacy optimizers, which are not searched: take {name} of "
            "tf_keras.optimizers."
        )


def check(model: Any, batch_size: int, micro_batch_size: int | None) -> None:
    """Raises for a model that cannot be tried."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model is not compiled, so that it has no loss to search by: call "
            "model.compile(optimizer=..., loss=...) first."
        )
    check_optimizer(model.optimizer)
    own = unwrapped(model.optimizer)
    for name, each in vars(model).items():
        if hasattr(each, "apply_gradients") and unwrapped(each) is not own:
            raise ValueError(
                f"The model has an optimizer of its own, {name}, beside that of compile. A search "
                "moves one learning rate, and would leave what that optimizer has learned changed."
            )
    if micro_batch_size is not None and batch_size % micro_batch_size:
        raise ValueError(
            f"micro_batch_size={micro_batch_size} does not divide batch_size={batch_size:,}."
        )
    check_shared(model, micro_batch_size or batch_size)
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if replicas > 1:
        raise ValueError(
            f"The model was built for {replicas} replicas. Search with a model built outside of "
            "the strategy's scope: the answer depends on the batch, not on its replicas."
        )
    # seam: tf_keras 2.20.1, where it has no public name.
    many = getattr(model, "steps_per_execution", None) or getattr(
        model, "_steps_per_execution", None
    )  # fmt: skip
    if many is not None and as_int(many) != 1:
        raise ValueError(
            f"A search sets the rate of every step, and the model was compiled with "
            f"steps_per_execution={as_int(many)}: compile it with 1 for the search."
        )
