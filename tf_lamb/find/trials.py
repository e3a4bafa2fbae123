"""Makes short training runs of a user's model, and then restores the model bit for bit."""

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
from tf_lamb.api.data import batch_tuple, map_arrays, size_of
from tf_lamb.api.unlisted import identity_of, unlisted
from tf_lamb.api.variables import Snapshot, as_int, numpy_of, unwrapped, variables_of
from tf_lamb.find.checks import with_loss_scale_of
from tf_lamb.find.data import BLOCK_MULTIPLE, Examples

# Micro-batches from which running averages of batch normalization are estimated.
BATCH_NORM_BATCHES = 16
# Attributes that `fit` sets in a model. A search restores them at its end.
# seam: the last two are private API of Keras 3.15.1. On JAX they hold the values of all variables
# during a step. If they stayed after an interrupted step, Keras would later assign their values to
# the variables.
FIT_ATTRIBUTES = ("history", "stop_training", "_jax_state", "_jax_state_synced")
# A value so large that adding the statistics of a batch to it changes nothing, by rounding.
HUGE_AVERAGE = 2.0**100
STEP_METHODS = ("train_step", "test_step")  # the methods of a model that a search wraps
# The end of the error messages about a held-out loss that training does not change.
NO_TEST_STEP_HINT = (
    "as where a model has a train_step of its own and no test_step, which evaluate needs for its "
    "loss: give the model a test_step that returns it."
)


class Trials:
    """Makes many training runs of a model, each from the weights that the model has at first.

    It is a context manager. On exit, even after an error, it restores the model's weights, running
    averages, seeds and metrics, the compiled functions, and the random state of Python and NumPy.
    It also puts back the optimizer of `compile`, which no run uses.

    Args:
        model: A compiled model.
        data: The training examples and the held-out examples.
        batch_size: The number of examples in an update.
        micro_batch_size: The number of examples in a micro-batch. Defaults to None: the batch is
            not divided.
        seed: Seed of the order of the data. Defaults to 0.
        batch_norm_batches: The number of micro-batches from which the running averages of batch
            normalization are estimated. It is rounded up to whole updates. Defaults to 16.

    Attributes:
        calls: Calls of `train_on_batch` in an update, one for each micro-batch.
        on_step: A function that is called with the number of examples of each step, for a progress
            bar. By default it does nothing.
    """

    def __init__(
        self, model: Any, data: Examples, batch_size: int, micro_batch_size: int | None = None,
        seed: int = 0, batch_norm_batches: int = BATCH_NORM_BATCHES,
    ):  # fmt: skip
        self.model, self.data, self.batch_size = model, data, batch_size
        self.calls = batch_size // (micro_batch_size or batch_size)
        self.seed, self.batch_norm_batches = seed, batch_norm_batches
        self.on_step: Callable[[int], None] = lambda examples: None

    def __enter__(self) -> "Trials":
        import numpy as np

        model = self.model
        self._compiled_state = (
            model.optimizer,
            model.train_function,
            model.test_function,
            random.getstate(),
            np.random.get_state(),
            {
                name: vars(model)[name]
                for name in FIT_ATTRIBUTES + STEP_METHODS
                if name in vars(model)
            },
        )
        self._user_values = Snapshot(self._variables())
        wrapped = {name: _with_fit_data(getattr(model, name), self.data) for name in STEP_METHODS}
        try:
            seams.set_attributes(model, wrapped, None)
            self._evaluate_first()
        except BaseException:
            self.__exit__()
            raise
        model.reset_metrics()
        identities = map(identity_of, self._user_values.variables)
        values_before = dict(zip(identities, self._user_values.values, strict=True))
        snapshot = Snapshot(self._variables())
        values = [
            values_before.get(identity_of(variable), value)
            for variable, value in zip(snapshot.variables, snapshot.values, strict=True)
        ]
        self._user_values = self._start_values = Snapshot(snapshot.variables, values)
        self._is_trained = False  # whether a step has used the optimizer that is being tried
        # For each name: [optimizer, compiled training step, values of the optimizer's variables
        # before any step].
        self._optimizers: dict[str, list] = {}
        self._initial_slots = Snapshot([])
        self._averages = RunningAverages(model)
        return self

    def __exit__(self, *exception):
        import numpy as np

        optimizer, compiled, evaluating, python, numpy, set_by_fit = self._compiled_state
        self._user_values.put_back()
        seams.use_optimizer(self.model, optimizer, compiled)
        seams.set_attributes(
            self.model, set_by_fit, evaluating, names_to_delete=FIT_ATTRIBUTES + STEP_METHODS
        )
        random.setstate(python)
        np.random.set_state(numpy)

    def use_optimizer(self, name: str, make_optimizer: Callable[[], Any]) -> None:
        """Trains with another optimizer from now on.

        One that raises for gradients that are not finite is made anew with another `on_nonfinite`.
        The optimizer is wrapped in a `LossScaleOptimizer` if that of `compile` is.

        Args:
            name: A name for the optimizer. If it was used before, the optimizer that was made then
                is used again.
            make_optimizer: A function that makes the optimizer, with a number as its learning rate.
        """
        if name not in self._optimizers:
            optimizer = make_optimizer()
            config = optimizer.get_config()
            if config.get("on_nonfinite") == "raise":  # its error would end the whole search
                policy = "skip" if config.get("on_spike") else "propagate"
                optimizer = type(optimizer).from_config({**config, "on_nonfinite": policy})
            optimizer = with_loss_scale_of(self._compiled_state[0], optimizer)
            # An optimizer's slot variable may be initialized with a copy of the weights.
            self._start_values.put_back()
            optimizer.build(self.model.trainable_variables)
            self._optimizers[name] = [optimizer, None, Snapshot(variables_of(optimizer))]
        for entry in self._optimizers.values():
            if entry[0] is self.model.optimizer:
                entry[1] = self.model.train_function
        *optimizer_and_step, self._initial_slots = self._optimizers[name]
        seams.use_optimizer(self.model, *optimizer_and_step)

    def save_start_values(self, file: IO[bytes]) -> None:
        """Writes the weights that runs begin with to an open file, as `numpy.savez` does."""
        import numpy as np

        np.savez(file, *self._start_values.values)

    def load_start_values(self, path: str) -> None:
        """Makes later runs begin with the weights in a file.

        On exit, the context still restores the weights that the model had at first.

        Args:
            path: A file that `save_start_values` wrote.

        Raises:
            ValueError: if the file holds weights of other shapes.
        """
        import numpy as np

        with np.load(path) as file:
            start_arrays = [*file.values()]
        if [array.shape for array in start_arrays] != [
            array.shape for array in self._user_values.values
        ]:
            raise ValueError(
                f"{path} holds the weights of another model: pass the model of that search, or "
                "another directory."
            )
        # A NumPy file has no type bfloat16, and stores these values as raw bytes.
        pairs = zip(start_arrays, self._user_values.values, strict=True)
        values = [
            saved.view(own_value.dtype) if saved.dtype.kind == "V" else saved
            for saved, own_value in pairs
        ]
        self._start_values = Snapshot(self._user_values.variables, values)
        self._start_values.put_back()

    def start_run(self, order: int = 0) -> None:
        """Begins a run: resets the weights and the optimizer, and reads the data from the start.

        Args:
            order: A number that is added to the seed of the order of the data. Defaults to 0.
        """
        self._start_values.put_back()
        self._initial_slots.put_back()
        self._batches = self.data.batches(self.batch_size, self.seed + order)

    def step(self, rate: float) -> float:
        """Makes one update of the weights.

        Args:
            rate: The learning rate of the update.

        Returns:
            The training loss of the last micro-batch of the update.

        Raises:
            ValueError: if the model's `train_step` trains by another optimizer than that of
                `compile`.
        """
        self.model.optimizer.learning_rate = rate
        batch = next(self._batches)
        micro_size, loss = self.batch_size // self.calls, math.nan
        for i in range(self.calls):
            cut = slice(i * micro_size, (i + 1) * micro_size)
            micro = map_arrays(lambda array, cut=cut: array[cut], batch)
            loss = self._loss_on_batch(self.model.train_on_batch, micro)
        if not self._is_trained:
            self._check_trained()
        self.on_step(self.batch_size)
        return loss

    def _check_trained(self):
        """Raises ValueError if the weights have changed, but the run's optimizer made no step.

        In that case the model's `train_step` uses another optimizer, whose rate is not searched.
        """
        if as_int(unwrapped(self.model.optimizer).iterations):
            self._is_trained = True
            return
        start_values = dict(
            zip(map(id, self._start_values.variables), self._start_values.values, strict=True)
        )
        if any(
            (numpy_of(variable) != start_values[id(variable)]).any()
            for variable in self.model.trainable_variables
        ):
            raise ValueError(
                "The model's train_step moves the weights by another optimizer than that of "
                "compile, so that no learning rate can be tried: let it use self.optimizer."
            )

    def evaluate(self) -> tuple[float, ...]:
        """Returns the loss on each block of the held-out examples; () if a loss is not finite.

        If the model has batch normalization and an optimizer is being tried, its running averages
        are estimated first, and stay in the model.
        """
        if self._averages and self._initial_slots.variables:
            self._estimate_averages()
        losses = [
            self._loss_on_batch(self.model.test_on_batch, block) for block in self.data.blocks
        ]
        return tuple(losses) if all(map(math.isfinite, losses)) else ()

    def check_start_loss(self) -> float:
        """Returns the mean held-out loss before any step.

        Raises:
            ValueError: if a loss is not finite, or if all losses are 0.
        """
        if not (losses := self.evaluate()):
            way_out = self.data.not_finite_message() or "look at the data and the weights first"
            raise ValueError(f"The loss of the model is not finite before any step: {way_out}.")
        if not any(losses):
            raise ValueError(f"The held-out loss is 0 before any step, {self._way_out_text()}")
        return math.fsum(losses) / len(losses)

    def evaluate_within_run(self) -> tuple[float, ...]:
        """Returns the losses of `evaluate` in the middle of a run, without an effect on the run."""
        with self._side_run(1):
            return self.evaluate()

    @contextlib.contextmanager
    def _side_run(self, order):
        """Reads batches in another order within the context, and restores all variables at its end.

        After an error in the context it restores nothing, because `Trials` does so on exit.

        Args:
            order: A number that is added to the seed of the order of the data.
        """
        snapshots = [
            Snapshot(snapshot.variables) for snapshot in (self._initial_slots, self._user_values)
        ]
        batches, self._batches = (
            self._batches,
            self.data.batches(self.batch_size, self.seed + order),
        )
        yield
        for snapshot in snapshots:
            snapshot.put_back()
        self._batches = batches

    @property
    def averaging_updates(self) -> int:
        """The number of updates from which `evaluate` estimates running averages.

        They are the averages of batch normalization. For a model without it the number is 0.
        """
        return math.ceil(self.batch_norm_batches / self.calls) if self._averages else 0

    def time_epochs(self, data: Mapping[str, Any], count: int) -> list[float]:
        """Trains for several epochs at a learning rate of 0, and times each epoch.

        The progress bar of `fit` is on where it would be by default, because it makes `fit` wait
        for each step. What it prints is discarded.

        Args:
            data: The arguments of `fit` that describe the data, by name.
            count: The number of epochs after the first.

        Returns:
            The seconds of the first epoch, which start at the call of `fit`, and the seconds of
            each later epoch.
        """
        self.model.optimizer.learning_rate = 0.0
        host, times = frontends.of(self.model).host, [clock()]

        def note_end(epoch, logs):
            _loss_of_logs("fit", logs)  # reading the loss waits until the device has computed it
            times.append(clock())

        # seam: internals of Keras 3.15.1 on JAX. At the end of a `fit` with `use_ema`, the weights
        # are replaced by their averages, and both share a buffer. The next `fit` would fail,
        # because it donates the buffers of both. Assigning the weights gives them new buffers.
        Snapshot(self.model.trainable_variables).put_back()
        options = {
            "callbacks": [host.callbacks.LambdaCallback(on_epoch_end=note_end)],
            "verbose": int(host.utils.is_interactive_logging_enabled()),
        }
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            warnings.catch_warnings(),
        ):
            # Keras warns if the data end before the epoch does, which may happen here.
            warnings.simplefilter("ignore")
            self.model.fit(**data, epochs=1 + count, **options)
        return [end - begin for begin, end in itertools.pairwise(times)]

    def _evaluate_first(self):
        """Evaluates the model on one block of held-out examples, to build its weights and metrics.

        Raises:
            ValueError: if the model has a fixed batch size that the search does not use, or if the
                evaluation gives no loss.
        """
        _check_call_size(self.model, self.data, self.batch_size // self.calls)
        try:
            self._loss_on_batch(self.model.test_on_batch, self.data.blocks[0])
        except Exception as error:
            if not (way_out := self._way_out_text("")):
                raise
            raise ValueError(f"The model cannot be evaluated ({error}), {way_out}") from error

    def _way_out_text(self, default: str = NO_TEST_STEP_HINT) -> str:
        """Returns the end of an error message about a missing loss: its cause, and what to do.

        Args:
            default: The text to return if the model lacks no `test_step` and the data lack no
                targets. Defaults to `NO_TEST_STEP_HINT`.
        """
        host = frontends.of(self.model).host.__name__
        modules = [
            getattr(type(self.model), name).__module__.partition(".")[0] for name in STEP_METHODS
        ]
        if [module == host for module in modules] == [False, True]:
            return NO_TEST_STEP_HINT
        if len(self.data.blocks[0]) == 1:
            return "as its loss needs targets: pass data=(x, y)."
        return default

    def _estimate_averages(self):
        """Estimates the running averages of batch normalization for the present weights.

        The weights do not change.
        """
        self._initial_slots.put_back()
        if not self._averages.is_measured:
            with self._side_run(0):
                self._averages.measure(lambda: self.step(0.0))
        trained = Snapshot(self.model.trainable_variables)

        def update():
            self.step(0.0)
            # A schedule-free optimizer changes the weights even at a learning rate of 0.
            trained.put_back()

        self._averages.estimate(update, self.averaging_updates)

    def _variables(self):
        """Returns all variables that training may change, each once; [] if the model is not built.

        These are the variables of the model and of its metrics, and further ones that the model
        uses and that Keras does not list.
        """
        if not self.model.built:
            return []
        metric_variables = [
            variable for metric in self.model.metrics for variable in metric.variables
        ]
        variables = [*self.model.variables, *metric_variables, *unlisted(self.model)]
        return list({identity_of(variable): variable for variable in variables}.values())

    def _loss_on_batch(self, method, batch):
        """Calls a method of the model on one batch, and returns the loss.

        Resets the metrics of the model first. Raises ValueError if a step of the user's own takes
        another number of parts.

        Args:
            method: The model's `train_on_batch` or `test_on_batch`.
            batch: The batch, a tuple of x, y and sample weights, or of the first one or two.
        """
        self.model.reset_metrics()  # without it, Keras 3.12 returns the mean loss of all calls
        try:
            logs = frontends.of(self.model).call_on_batch(method, batch)
            return _loss_of_logs(method.__name__, logs)
        except ValueError as error:
            if "values to unpack" not in str(error):
                raise
            raise ValueError(
                f"The model's own step takes another number of parts than the {len(batch)} of "
                "data: let it begin with x, y, sample_weight = "
                "keras.utils.unpack_x_y_sample_weight(data), as Keras's does, or pass data "
                "without what it does not take."
            ) from error


def _with_fit_data(step: Callable, examples: Examples) -> Callable:
    """Wraps a model's `train_step` or `test_step`, so that it gets a batch in the form `fit` uses.

    A search passes batches in tuples. `fit` passes x alone, (x, y) or (x, y, sample_weight).

    Args:
        step: The method of the model.
        examples: The data of the search. Its `is_py_dataset` says whether the user passed a
            `PyDataset`.
    """

    def adapted_step(*arguments):
        *state, data = arguments
        if isinstance(data, (list, tuple)):  # on torch `fit` passes a list in place of a tuple
            data = batch_tuple(data)
            in_tuple = examples.is_py_dataset and not isinstance(data[0], dict)
            if len(data) == 1 and not (in_tuple or isinstance(data[0], (list, tuple))):
                (data,) = data
        return step(*state, data)

    return adapted_step


def _check_call_size(model, data, call_size):
    """Raises ValueError if the model has a fixed batch size that the search does not use.

    The input's shape of such a model names the batch size, as it must for a stateful RNN. The
    search uses two sizes: that of a call of the training step, and that of a block of held-out
    examples.

    Args:
        model: The model of the search.
        data: Its `Examples`.
        call_size: The number of examples in a call of the training step.
    """
    shapes = (tensor.shape for tensor in getattr(model, "inputs", None) or ())
    fixed = next((shape[0] for shape in shapes if len(shape) and shape[0]), None)
    block_size = size_of(data.blocks[0])
    cause = f"The model takes batches of {fixed} examples alone, as its input's shape says, and"
    if fixed and call_size != fixed:
        raise ValueError(
            f"{cause} a call of this search has {call_size}: pass "
            f"micro_batch_size={fixed} with a batch that it divides, or make the model "
            "without a batch in that shape."
        )
    if fixed and block_size != fixed:
        count = len(data.blocks)
        # `Examples` makes blocks of these sizes: below BLOCK_MULTIPLE**2, or a multiple of
        # BLOCK_MULTIPLE.
        can_hold_out = fixed < BLOCK_MULTIPLE**2 or fixed % BLOCK_MULTIPLE == 0
        way_out = f"pass validation_data= of {count * fixed:,} examples"
        rebuild = "make the model without a batch in that shape"
        raise ValueError(
            f"{cause} each of {count} held-out blocks has {block_size}: "
            f"{way_out if can_hold_out else rebuild}."
        )


def _loss_of_logs(name, logs):
    """Returns the loss in the logs of a model's method; raises ValueError if there is none."""
    if "loss" not in logs:
        raise ValueError(
            f"{name} of the model gives {', '.join(logs) or 'nothing'}, and no 'loss' to search "
            "by: let its train_step and test_step return one."
        )
    return float(logs["loss"])


def batch_norm_layers(model: Any) -> list:
    """Returns the layers of batch normalization whose running averages training changes."""
    # seam: private API of Keras 3.15.1 and tf_keras 2.20.1, because no public method lists the
    # layers inside of layers.
    layers = model._flatten_layers()
    return [layer for layer in layers if hasattr(layer, "moving_variance") and layer.trainable]


class RunningAverages:
    """Estimates the running averages of batch normalization for the present weights.

    Without this estimate, the averages would lag behind the weights at the end of a short run.

        a <- s a + (1 - s) x

    An update of the model changes a running average a in this way. x is the statistic of the batch,
    and s is the share of a that stays. The momentum of the layer need not be s, because an update
    may call a layer several times. So s is measured: from a = 2^100, one update gives 2^100 s,
    because x is lost by rounding. From a = 0, n updates give (1 - s^n) times a weighted mean of x.

    Args:
        model: The model, whose layers of batch normalization are used.
    """

    def __init__(self, model: Any):
        layers = batch_norm_layers(model)
        self._means = [layer.moving_mean for layer in layers]
        self._variances = [layer.moving_variance for layer in layers]
        self._retained_shares: list[float] = []  # the share s of each layer

    def __bool__(self) -> bool:
        return bool(self._means)

    def measure(self, update: Callable[[], Any]) -> None:
        """Measures s, the share of a running average that an update of the model keeps.

        It overwrites the running averages.

        Args:
            update: A function that makes an update of the model.
        """
        _fill(self._variances, HUGE_AVERAGE)
        update()
        self._retained_shares = [
            float(numpy_of(variance).flat[0]) / HUGE_AVERAGE for variance in self._variances
        ]

    @property
    def is_measured(self) -> bool:
        """Whether `measure` was called, so that the shares s are known."""
        return bool(self._retained_shares)

    def estimate(self, update: Callable[[], Any], count: int) -> None:
        """Sets the running averages to the means of the batch statistics of several updates.

        Args:
            update: A function that makes an update of the model.
            count: The number of updates.
        """
        before = Snapshot([*self._means, *self._variances])
        _fill(before.variables, 0.0)
        for _ in range(count):
            update()
        for variable, old_value, retained in zip(
            before.variables, before.values, 2 * self._retained_shares, strict=True
        ):
            # The averages of a layer that is called with training=False do not change, which
            # `measure` finds as a share of 1. They get back the values that they had.
            variable.assign(
                old_value if retained == 1.0 else numpy_of(variable) / (1 - retained**count)
            )


def _fill(variables, value):
    """Sets all elements of the variables to a value."""
    for variable in variables:
        variable.assign(0 * numpy_of(variable) + value)
