"""Defines NoiseMeter, which measures the noise of gradients, and the Backend that it works with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tf_lamb.api.variables import numpy_of
from tf_lamb.core import noise

# Name -> (shape, dtype, initializer) of a variable of the state.
Declarations = Mapping[str, tuple[tuple[int, ...], str, str]]
Gradients = Mapping[int, Any]  # position of a variable in the build -> array
_OF_AN_UPDATE = ("micro_step", "squares")  # the state that an update uses up


class Backend(Protocol):
    """What a frontend gives to a `NoiseMeter`: its arrays, its replicas and the sums of gradients.

    Attributes:
        xp: The array namespace.
        replicas: The number of replicas whose gradients are measured apart.
        gathers: Whether each replica adds up its own gradients until the update sums them.
    """

    xp: Any
    replicas: int
    gathers: bool

    def cond(self, condition: Any, if_true: Callable, if_false: Callable) -> Any:
        """Calls one of two functions of no arguments, also in a compiled program.

        Args:
            condition: A boolean scalar.
            if_true: Is called where the condition is true.
            if_false: Is called elsewhere.

        Returns:
            The result of the function that is called.
        """

    def squared_norm(self, gradient: Any) -> Any:
        """Returns |g|^2 in float32."""

    def sum_over_replicas(self, squares: Any) -> Any:
        """Sums a squared norm over the replicas, where each has computed that of its gradient."""

    def sum_stacked(self, gradient: Any) -> Any:
        """Returns the sum of gradients that are stacked by replica; any other as it is."""

    def accumulated(self, position: int) -> Any:
        """Returns the sum of a variable's gradients in earlier micro-batches.

        If `gathers`, it is the accumulator, which `gather` adds to.
        """

    def gather(self, arrays: Sequence, accumulators: Sequence) -> None:
        """Adds arrays to accumulators of this replica; an update sums these over replicas."""

    def assign(self, variables: Sequence, values: Sequence) -> None:
        """Assigns the values to the variables, on every replica."""


class NoiseMeter:
    """Measures the variance and the signal of gradients, as `MeasureNoise` defines them.

    A call brings the gradients of a micro-batch; the last one of an update moves the averages. The
    order of the calls in a step is `gather`, if the backend gathers, `measure`, and, after the
    optimizer's step, `undo_skipped` and `finish`.

    Args:
        smoothing: theta of the averages.

    Attributes:
        smoothing: theta of the averages.
        state: Name -> variable; empty before `start`.
    """

    declarations: Declarations = {
        "micro_step": ((), "int32", "zeros"),
        "squares": ((1,), "float32", "zeros"),  # the sum over the micro-batches so far
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
        """Takes what the build of an optimizer has made.

        Args:
            backend: The frontend's part.
            state: The variable of each of `declarations`, by name.
            micro_batches: The micro-batches of an update.
        """
        self._backend, self.state, self._micro_batches = backend, state, micro_batches

    @property
    def gathers(self) -> bool:
        """Whether a step has to call `gather`."""
        return self._backend.gathers

    def gather(self, gradients: Gradients, missing: Sequence[int]) -> None:
        """Has each replica add up its own gradients and their squared norms, until an update.

        Args:
            gradients: The gradients of this replica.
            missing: The positions of variables that have no gradient in this call, but sums of
                earlier ones that the update takes.
        """
        backend, xp = self._backend, self._backend.xp
        squares = self._squares(gradients, self._preconditioner([*gradients]))
        missing_sums = [backend.accumulated(i) for i in missing]
        zeros = [xp.zeros(missing_sum.shape, missing_sum.dtype) for missing_sum in missing_sums]
        sums = [*map(backend.accumulated, gradients), *missing_sums, self.state["squares"]]
        backend.gather([*gradients.values(), *zeros, backend.replicas * squares], sums)

    def measure(self, gradients: Gradients, sums: Gradients | None, missing: Sequence[int]) -> Any:
        """Measures a call, and moves the averages if it ends an update.

        Args:
            gradients: The gradients of this replica.
            sums: Their sums over replicas; None after `gather`, which has added them up.
            missing: As in `gather`.

        Returns:
            Whether the call ends an update with finite gradients, a boolean scalar.
        """
        backend, xp = self._backend, self._backend.xp
        state = {name: xp.convert_to_tensor(variable) for name, variable in self.state.items()}
        # More micro-batches may wait than an update has, after `set_weights` from another number.
        is_update = state["micro_step"] >= self._micro_batches - 1
        count = xp.maximum(state["micro_step"] + 1, self._micro_batches)
        micro_batches = xp.cast(count, "float32")
        positions = [*gradients, *missing]
        precondition = self._preconditioner(positions)
        squares = state["squares"]
        if sums is not None:
            sums = {i: xp.cast(gradient, "float32") for i, gradient in sums.items()}
            # Replica i has g_i/n, so the mean of |g_i|^2 is n times the sum of these squares.
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
            **self._averaged(state, moments, is_update & self._is_measured()),
        }
        self._set(new_values)
        return xp.logical_and(is_update, xp.isfinite(xp.sum(square_of_mean)))

    def lasting_values(self) -> dict[str, Any]:
        """Returns copies, by name, of the state that outlasts an update."""
        return {
            name: variable + 0 for name, variable in self.state.items() if name not in _OF_AN_UPDATE
        }

    def undo_skipped(self, values_before: Mapping[str, Any], is_update: Any, is_taken: Any) -> Any:
        """Undoes the measurement of an update that the optimizer has skipped as a spike.

        Args:
            values_before: What `lasting_values` returned before the step.
            is_update: What `measure` returned.
            is_taken: Whether the optimizer has made an update, a boolean scalar.

        Returns:
            Whether the call has made an update, a boolean scalar.
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
        """Ends a call, after the optimizer's step; here it does nothing, for AdaScale it counts.

        Args:
            is_update: Whether the call has made an update, a boolean scalar.
        """

    def averages(self) -> noise.Averages:
        """Returns variance, signal, and the number of steps that they average, as floats."""
        names = noise.Averages._fields
        return noise.Averages(*(float(numpy_of(self.state[name]).sum()) for name in names))

    def _set(self, values):
        """Assigns values, which are given by name, to variables of the state."""
        self._backend.assign([self.state[name] for name in values], values.values())

    def _squares(self, gradients, precondition):
        """Returns |g|^2 over all variables, with shape (1,)."""
        xp, squared_norm = self._backend.xp, self._backend.squared_norm
        squares = {i: squared_norm(precondition(g, i)) for i, g in gradients.items()}
        return xp.stack([sum((squares[i] for i in sorted(squares)), xp.zeros((), "float32"))])

    def _square_of_mean(self, sums, positions, precondition, is_update, micro_batches):
        """Returns |mean g|^2 over all micro-batches; 0 before the last one."""
        backend, xp = self._backend, self._backend.xp
        if self._micro_batches == 1:
            means = {i: backend.sum_stacked(gradient) for i, gradient in sums.items()}
            return self._squares(means, precondition)

        def at_update():
            # Adds this micro-batch to the sums of those before, unless `gather` has done so.
            totals = {i: xp.cast(backend.accumulated(i), "float32") for i in positions}
            totals |= {i: gradient + totals[i] for i, gradient in sums.items()}
            means = {i: backend.sum_stacked(totals[i]) / micro_batches for i in positions}
            return self._squares(means, precondition)

        return backend.cond(is_update, at_update, lambda: xp.zeros((1,), "float32"))

    def _preconditioner(self, positions):
        """Returns a function of a gradient and its variable's position, which is applied first.

        The noise of its results is measured. Here it returns the gradient itself.
        """
        return lambda gradient, position: gradient

    def _is_measured(self):
        """Returns whether this step enters the averages; here every step does."""
        return True

    def _averaged(self, state, moments, when):
        """Returns the averages of the state by name, with the moments of one more step."""
        xp, theta = self._backend.xp, self.smoothing
        averages = noise.Averages(state["variance"], state["signal"], state["count"])
        return noise.average(xp, averages, *moments, theta=theta, when=when)._asdict()
