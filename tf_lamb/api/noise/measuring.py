"""The half of a measuring optimizer that needs no host: its parts, its state, its arithmetic.

A measuring optimizer stands around another one, sees the gradients on their way to it, and keeps
what `tf_lamb.core.noise` makes of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.core import checks, noise
from tf_lamb.core import plan as plans
from tf_lamb.core.checks.warn import warn


class Measuring:
    """Mixed into the wrapper of each door, which owns all that touches an array."""

    inner_optimizer: Any
    parts: int
    micro_batches: int
    biased: bool
    _groups: tuple[str, ...]
    _previous_gradient: bool
    _smoothing: float
    # The door's: its array namespace, and what it knows of gradients and variables.
    name: str
    _xp: Any
    _cond: Callable  # a branch, as the door has it
    _wrap: Callable  # takes the inner optimizer over, or refuses it
    _state: Any = None  # name -> variable, once built
    _previous: Sequence  # the gradient of the step before, where that is a part
    _members_by_group: Sequence[Sequence[int]]
    _squared_norm: Callable  # in float32
    _mean_over_replicas: Callable  # of the squares of each
    _accumulated: Callable  # position -> the sum of the micro-batches before
    _second_moment_of: Callable  # a function from positions, or None
    _assign: Callable  # variables and values, on every replica
    _as_numpy: Callable

    def _take(self, *, previous_gradient: bool, groups, smoothing: float):
        self._previous_gradient = checks.flag("previous_gradient", previous_gradient)
        self._groups = checks.patterns("groups", groups) or ()
        self._smoothing = checks.number("smoothing", smoothing)

    @property
    def group_names(self) -> tuple[str, ...]:
        """What `noise_of` counts apart: a pattern each, and what matches none."""
        return (*self._groups, "others") if self._groups else ("all",)

    def _count_parts(self, replicas: int, micro_batches: int):
        """How many independent gradients a step has; refuses where there is only one."""
        self.parts, self.micro_batches = replicas * micro_batches, micro_batches
        self.biased = self.parts == 1
        if self.parts > 1:
            return
        if not self._previous_gradient:
            raise ValueError(
                f"{type(self).__name__} measures how the gradients of parts of a batch differ, but "
                "here a step has one part: one replica, and no gradient_accumulation_steps. Give "
                "the inner optimizer gradient_accumulation_steps=2 or more, train under a "
                "tf.distribute strategy of several replicas, or pass previous_gradient=True to "
                "compare with the gradient of the step before, which is biased."
            )
        self.parts = 2

    def _members(self, paths: Sequence[str]) -> list[list[int]]:
        """For each group, the positions of its variables; warns of a group that has none."""
        group = plans.groups_of(self._groups, paths)
        if empty := [p for i, p in enumerate(self._groups) if i not in group]:
            warn(
                f"No variable is left for the group {', '.join(map(repr, empty))}: it measures "
                f"nothing. Patterns are searched in paths such as {', '.join(paths[:3])}."
            )
        return [
            [i for i, g in enumerate(group) if g == wanted]
            for wanted in range(len(self.group_names))
        ]

    def _initial_state(self) -> dict[str, tuple[tuple[int, ...], str, str]]:
        """Name -> shape, dtype and initializer."""
        by_group = (len(self.group_names),)
        return {
            "micro_step": ((), "int32", "zeros"),
            # Of the micro-batches so far, or of the last step.
            "squares": (by_group, "float32", "zeros"),
            "variance": (by_group, "float32", "zeros"),
            "signal": (by_group, "float32", "zeros"),
            "count": ((), "float32", "zeros"),
        }

    def _measure(self, gradients, summed, positions):
        """Brings the state up to this call of the optimizer.

        Args:
            gradients: of this replica.
            summed: over the replicas.
            positions: of their variables, among those of the build.

        Returns:
            Whether the call is an update, and a finite one.
        """
        xp = self._xp
        summed = [xp.cast(g, "float32") for g in summed]
        state = {name: xp.convert_to_tensor(v) for name, v in self._state.items()}
        is_update = xp.equal(state["micro_step"], self.micro_batches - 1)
        weigh = self._preconditioner(positions)

        if self.biased:
            before = [xp.cast(self._previous[i], "float32") for i in positions]
            squares = (self._squares(each, positions, weigh) for each in (before, summed))
            local = sum(squares) / 2
            mean = [(g + b) / 2 for g, b in zip(summed, before, strict=True)]
            total = self._squares(mean, positions, weigh)
            finite = xp.isfinite(xp.sum(total))
            kept = [xp.where(finite, g, b) for g, b in zip(summed, before, strict=True)]
            self._assign([self._previous[i] for i in positions], kept)
        else:
            local = self._mean_over_replicas(self._squares(gradients, positions, weigh))
            total = self._squares_of_mean(summed, positions, weigh, is_update)
        new = self._advance(xp, state, local, total, is_update, self._is_measured())
        self._assign([self._state[name] for name in new], new.values())
        return xp.logical_and(is_update, xp.isfinite(xp.sum(total)))

    def _squares(self, gradients, positions, weigh):
        """|g|^2 by group."""
        xp = self._xp
        pairs = zip(gradients, positions, strict=True)
        squares = {i: self._squared_norm(weigh(g, i)) for g, i in pairs}
        zero = xp.zeros((), "float32")
        members = ([i for i in group if i in squares] for group in self._members_by_group)
        return xp.stack([sum((squares[i] for i in group), zero) for group in members])

    def _squares_of_mean(self, summed, positions, weigh, is_update):
        """|mean g|^2 by group over all micro-batches; 0 before the last."""
        xp = self._xp
        if self.micro_batches == 1:
            return self._squares(summed, positions, weigh)

        def of_mean():
            sums = (
                g + xp.cast(self._accumulated(i), "float32")
                for g, i in zip(summed, positions, strict=True)
            )
            return self._squares([each / self.micro_batches for each in sums], positions, weigh)

        return self._cond(is_update, of_mean, lambda: xp.zeros((len(self.group_names),), "float32"))

    def _preconditioner(self, positions):
        """What makes of a gradient, at its position, the one that is measured."""
        return lambda gradient, position: gradient

    def _is_measured(self):
        """Whether the averages take this step."""
        return True

    def _stepped(self, counts):
        """After every call; `counts` is what `_measure` returned."""

    def _advance(self, xp, state, local, total, is_update, is_measured=True):
        """The state after one call of the optimizer.

        Args:
            state: name -> array.
            local: |g|^2 by group, averaged over the replicas; over this step and the one before
                where those are the parts.
            total: |mean g|^2 by group, over all parts; asked for where `is_update` only.
            is_update: whether the inner optimizer moves the weights in this call.
            is_measured: whether the averages take what was measured.
        """
        if self.biased:  # the first step has none before it
            mean, when = local, xp.sum(state["squares"]) > 0
            left = xp.where(xp.isfinite(xp.sum(total)), local, state["squares"])
            scale = 2.0  # the parts are whole batches
        else:
            squares = state["squares"] + local
            mean, when, scale = squares / self.micro_batches, is_update, 1.0
            left = xp.where(is_update, xp.zeros_like(squares), squares)
        moments = noise.moments(mean, total, parts=self.parts, scale=scale)
        when = when & is_measured
        return {
            "micro_step": (state["micro_step"] + 1) % self.micro_batches,
            "squares": left,
            **self._averaged(xp, state, moments, when),
        }

    def _averaged(self, xp, state, moments, when):
        kept = noise.Averages(state["variance"], state["signal"], state["count"])
        new = noise.average(xp, kept, *moments, theta=self._smoothing, when=when)
        return new._asdict()

    def _read(self, name):
        return self._as_numpy(self._state[name])

    @property
    def updates(self) -> int:
        """Steps of the inner optimizer, as a number."""
        return int(self._as_numpy(self.inner_optimizer.iterations))

    def noise_of(self, batch_size: int) -> dict[str, float]:
        """The simple noise scale in examples, of the model ("model") and of each group.

        Args:
            batch_size: Examples of one update.

        Returns:
            nan where the gradient drowned in noise, or nothing was measured yet.
        """
        variance, signal = ([float(x) for x in self._read(name)] for name in ("variance", "signal"))
        scales = {
            name: noise.noise_scale(v, s, batch_size)
            for name, v, s in zip(self.group_names, variance, signal, strict=True)
        }
        return {"model": noise.noise_scale(sum(variance), sum(signal), batch_size), **scales}


def refuse_wrapper(wrapper: str, inner):
    """What wraps another optimizer stays outside; what measures already is enough."""
    if isinstance(inner, Measuring):
        raise ValueError(
            f"{wrapper} cannot stand around {type(inner).__name__}, which measures already. Take "
            "one of the two: AdaScale, whose noise scale is there as well, or Measured."
        )
    if hasattr(inner, "inner_optimizer"):
        raise ValueError(
            f"{wrapper} cannot stand around {type(inner).__name__}, which wraps an optimizer "
            f"itself: put {wrapper} around that optimizer, and {type(inner).__name__} outside."
        )
