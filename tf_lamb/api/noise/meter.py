"""Defines NoiseMeter, which measures the noise of gradients, and the Backend that it works with.

A frontend is the part of this package for one Keras: `tf_lamb.keras` or `tf_lamb.tf_keras`. The
position of a variable is its index in the list that the optimizer was built for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tf_lamb.api.variables import numpy_of
from tf_lamb.core import noise

# Name -> (shape, dtype, initializer) of a variable that a meter keeps from step to step.
Declarations = Mapping[str, tuple[tuple[int, ...], str, str]]
Gradients = Mapping[int, Any]  # position of a variable -> its gradient
# The variables of the meter that begin at zero again for each update.
_RESET_EACH_UPDATE = (
    "micro_step",
    "squares",
)


class Backend(Protocol):
    """Declares the functions on arrays and replicas that a `NoiseMeter` needs from a frontend.

    Attributes:
        xp: The array functions of the framework, with NumPy's names.
        replicas: The number of replicas whose gradients are measured separately.
        gathers: Whether each replica adds up its own gradients over micro-batches, and only an
            update sums them over replicas.
    """

    xp: Any
    replicas: int
    gathers: bool

    def cond(self, condition: Any, if_true: Callable, if_false: Callable) -> Any:
        """Calls one of two functions without arguments, also in a compiled program.

        Args:
            condition: A boolean scalar.
            if_true: The function to call if the condition is true.
            if_false: The function to call if it is false.

        Returns:
            The result of the function that is called.
        """

    def squared_norm(self, gradient: Any) -> Any:
        """Returns |g|^2 of a gradient g, in float32."""

    def sum_over_replicas(self, squares: Any) -> Any:
        """Returns the sum over replicas of `squares`, a squared norm on each replica."""

    def sum_stacked(self, gradient: Any) -> Any:
        """Sums a gradient over replicas if they are its first axis; else returns it unchanged."""

    def accumulated(self, position: int) -> Any:
        """Returns the sum of a variable's gradients in earlier micro-batches.

        If `gathers` is true, the result is the accumulator itself, to which `gather` adds.
        """

    def gather(self, arrays: Sequence, accumulators: Sequence) -> None:
        """Adds arrays to this replica's accumulators, which an update sums over replicas."""

    def assign(self, variables: Sequence, values: Sequence) -> None:
        """Assigns the values to the variables, on every replica."""


class NoiseMeter:
    """Measures the variance sigma^2 and the signal mu^2 of gradients; see `MeasureNoise`.

    Each call of the training step has the gradients of one micro-batch. The last micro-batch of an
    update also updates the moving averages of sigma^2 and mu^2. In each call these methods run, in
    this order: `gather`, if `gathers` is true; `measure`; the optimizer's step; `undo_skipped`, if
    the optimizer may skip steps whose gradient norm is a spike; and `finish`.

    Args:
        smoothing: theta, the decay factor per update of the exponential averages of sigma^2 and
            mu^2.

    Attributes:
        smoothing: theta, as above.
        state: Name -> variable; empty before `start`.
    """

    declarations: Declarations = {
        "micro_step": ((), "int32", "zeros"),
        "squares": ((1,), "float32", "zeros"),  # |g_i|^2, summed over the micro-batches so far
        "variance": ((1,), "float32", "zeros"),
        "signal": ((1,), "float32", "zeros"),
        "count": ((), "float32", "zeros"),
    }
    _backend: Backend
    _micro_batches: int

    def __init__(self, smoothing: float):
        self.smoothing = smoothing
        self.state: Mapping[str, Any] = {}

    def start(self, backend: Backend, state: Mapping[str, Any], micro_batches: int) -> None:
        """Sets the backend, and the variables that `build` of the optimizer has made.

        Args:
            backend: The `Backend` of the framework.
            state: Name in `declarations` -> its variable.
            micro_batches: The number of micro-batches in an update.
        """
        self._backend, self.state, self._micro_batches = backend, state, micro_batches

    @property
    def gathers(self) -> bool:
        """Whether `gather` has to be called before `measure`."""
        return self._backend.gathers

    def gather(self, gradients: Gradients, missing: Sequence[int]) -> None:
        """Adds this replica's gradients, and their squared norm, to the sums for the next update.

        Args:
            gradients: The gradients of this replica.
            missing: The positions of variables that have no gradient in this micro-batch, but may
                have sums of earlier ones, which the update uses.
        """
        backend, xp = self._backend, self._backend.xp
        squares = self._squares(gradients, self._preconditioner([*gradients]))
        missing_sums = [backend.accumulated(i) for i in missing]
        zeros = [xp.zeros(missing_sum.shape, missing_sum.dtype) for missing_sum in missing_sums]
        sums = [*map(backend.accumulated, gradients), *missing_sums, self.state["squares"]]
        backend.gather([*gradients.values(), *zeros, backend.replicas * squares], sums)

    def measure(self, gradients: Gradients, sums: Gradients | None, missing: Sequence[int]) -> Any:
        """Measures the gradients of a micro-batch; updates the averages if it ends an update.

        Args:
            gradients: The gradients of this replica.
            sums: The sums of these gradients over replicas; None after `gather`, which has added
                the gradients to accumulators.
            missing: The positions of variables that have no gradient in this micro-batch, but may
                have sums of earlier ones.

        Returns:
            A boolean scalar: whether the micro-batch ends an update with finite gradients.
        """
        backend, xp = self._backend, self._backend.xp
        state = {name: xp.convert_to_tensor(variable) for name, variable in self.state.items()}
        # The count can exceed the micro-batches of an update: `set_weights` may have loaded it from
        # an optimizer with more micro-batches per update.
        is_update = state["micro_step"] >= self._micro_batches - 1
        count = xp.maximum(state["micro_step"] + 1, self._micro_batches)
        micro_batches = xp.cast(count, "float32")
        positions = [*gradients, *missing]
        precondition = self._preconditioner(positions)
        squares = state["squares"]
        if sums is not None:
            sums = {i: xp.cast(gradient, "float32") for i, gradient in sums.items()}
            # With n replicas, `gradients` of replica i are g_i/n. So the mean of |g_i|^2 over
            # replicas is n times the sum of |g_i/n|^2.
            local_squares = self._squares(gradients, precondition)
            squares = squares + backend.replicas * backend.sum_over_replicas(local_squares)
        square_of_mean = self._square_of_mean(
            sums or {}, positions, precondition, is_update, micro_batches
        )
        parts = backend.replicas * micro_batches
        moments = noise.moments(squares / micro_batches, square_of_mean, parts=parts)
        new_values = {
            "micro_step": xp.where(is_update, 0, state["micro_step"] + 1),
            "squares": xp.where(is_update, xp.zeros_like(squares), squares),
            **self._updated_averages(state, moments, is_update & self._is_measured()),
        }
        self._set(new_values)
        return xp.logical_and(is_update, xp.isfinite(xp.sum(square_of_mean)))

    def lasting_values(self) -> dict[str, Any]:
        """Returns copies, by name, of the state that does not restart at zero at each update."""
        return {
            name: variable + 0
            for name, variable in self.state.items()
            if name not in _RESET_EACH_UPDATE
        }

    def undo_skipped(self, values_before: Mapping[str, Any], is_update: Any, is_taken: Any) -> Any:
        """Undoes a measurement if the optimizer has skipped the update, for a spike of the norm.

        Args:
            values_before: What `lasting_values` returned before `measure` was called.
            is_update: What `measure` returned.
            is_taken: Whether the optimizer has made an update, a boolean scalar.

        Returns:
            A boolean scalar: whether an update was made, with finite gradients.
        """
        xp = self._backend.xp
        is_spike = xp.logical_and(is_update, xp.logical_not(is_taken))
        values = {
            name: xp.where(is_spike, value, xp.convert_to_tensor(self.state[name]))
            for name, value in values_before.items()
        }
        self._set(values)
        return xp.logical_and(is_update, is_taken)

    def finish(self, is_update: Any) -> None:
        """Ends the measurement of a micro-batch, after the optimizer's step.

        It does nothing here; AdaScale's subclass `GainMeter` counts base batch steps in it.

        Args:
            is_update: Whether an update was made, a boolean scalar.
        """

    def averages(self) -> noise.Averages:
        """Returns the averages sigma^2 and mu^2, and the number of steps averaged, as floats."""
        names = noise.Averages._fields
        return noise.Averages(*(float(numpy_of(self.state[name]).sum()) for name in names))

    def _set(self, values):
        """Assigns values to variables of `state`. `values` is a dict, name -> value."""
        self._backend.assign([self.state[name] for name in values], values.values())

    def _squares(self, gradients, precondition):
        """Returns |g|^2 over all variables, with shape (1,).

        Args:
            gradients: Position of a variable -> gradient.
            precondition: A function from `_preconditioner`, which is applied to gradients first.
        """
        xp, squared_norm = self._backend.xp, self._backend.squared_norm
        squares = {i: squared_norm(precondition(g, i)) for i, g in gradients.items()}
        return xp.stack([sum((squares[i] for i in sorted(squares)), xp.zeros((), "float32"))])

    def _square_of_mean(self, sums, positions, precondition, is_update, micro_batches):
        """Returns |g|^2 of the mean gradient g over replicas and micro-batches, with shape (1,).

        It is 0 unless the micro-batch ends an update.

        Args:
            sums: Position of a variable -> sum of its gradients over replicas, in this micro-batch;
                empty after `gather`, which has added gradients to accumulators.
            positions: The positions of all variables that the update changes.
            precondition: A function from `_preconditioner`.
            is_update: Whether the micro-batch ends an update, a boolean scalar.
            micro_batches: The number of micro-batches in this update, a float32 scalar.
        """
        backend, xp = self._backend, self._backend.xp
        if self._micro_batches == 1:
            means = {i: backend.sum_stacked(gradient) for i, gradient in sums.items()}
            return self._squares(means, precondition)

        def at_update():
            # Adds this micro-batch to the sums of earlier ones, unless `gather` has added it.
            totals = {i: xp.cast(backend.accumulated(i), "float32") for i in positions}
            totals |= {i: gradient + totals[i] for i, gradient in sums.items()}
            means = {i: backend.sum_stacked(totals[i]) / micro_batches for i in positions}
            return self._squares(means, precondition)

        return backend.cond(is_update, at_update, lambda: xp.zeros((1,), "float32"))

    def _preconditioner(self, positions):
        """Returns the function that is applied to each gradient before the noise is measured.

        The function takes a gradient and the position of its variable. Here it returns the gradient
        unchanged; a subclass may return another function.

        Args:
            positions: The positions of the variables.
        """
        return lambda gradient, position: gradient

    def _is_measured(self):
        """Returns whether the averages are updated in this step.

        In this class they always are; `GainMeter` leaves out the first steps.
        """
        return True

    def _updated_averages(self, state, moments, is_counted):
        """Returns the new variance, signal and count of the state, by name, after one more step.

        Args:
            state: Name -> value of the state before the step.
            moments: The variance and the signal of the step.
            is_counted: Whether to count the step, a boolean scalar; if not, the averages stay.
        """
        xp, theta = self._backend.xp, self.smoothing
        averages = noise.Averages(state["variance"], state["signal"], state["count"])
        return noise.next_averages(
            xp, averages, *moments, theta=theta, count_step=is_counted
        )._asdict()
