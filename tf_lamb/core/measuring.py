"""The half of a measuring optimizer that needs no host: its parts, its state, its arithmetic.

A measuring optimizer stands around another one, sees the gradients on their way to it, and keeps
what `tf_lamb.core.noise` makes of them.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.core import checks, noise
from tf_lamb.core import plan as plans


class Measuring:
    """Mixed into the wrapper of each door, which owns all that touches an array."""

    inner_optimizer: Any
    parts: int
    micro_batches: int
    biased: bool
    _groups: tuple[str, ...]
    _previous_gradient: bool
    _smoothing: float
    # The door's.
    name: str
    _wrap: Callable  # takes the inner optimizer over, or refuses it
    _state: dict[str, Any]  # name -> variable, once built
    _as_numpy: Callable
    _second_moment_of: Callable

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
        group = [plans.group_of(path, self._groups) for path in paths]
        if empty := [p for i, p in enumerate(self._groups) if i not in group]:
            warnings.warn(
                f"No variable is left for the group {', '.join(map(repr, empty))}: it measures "
                f"nothing. Patterns are searched in paths such as {', '.join(paths[:3])}.",
                stacklevel=3,
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


class Scaling(Measuring):
    """AdaScale's half: the gain, and the steps of the base batch that were spent."""

    _scale: float
    _averaging: str
    _preconditioned: bool

    def _count_parts(self, replicas: int, micro_batches: int):
        super()._count_parts(replicas, micro_batches)
        if self.biased:
            warnings.warn(
                "AdaScale with previous_gradient=True can run away: a step that is too long turns "
                "the next gradient around, which counts as noise and lengthens the steps after it. "
                "Prefer gradient_accumulation_steps=2 in the inner optimizer.",
                stacklevel=3,
            )

    def _take_scale(self, scale, averaging: str, preconditioned: bool | None):
        self.scale = scale
        self._averaging = checks.choice("averaging", averaging)
        adaptive = self._second_moment_of() is not None
        self._preconditioned = adaptive
        if preconditioned is not None:
            self._preconditioned = checks.flag("preconditioned", preconditioned)
        if self._preconditioned and not adaptive:
            raise ValueError(
                f"preconditioned=True needs second moments, and {self.inner_optimizer.name} keeps "
                "none. Leave the argument out."
            )

    @property
    def scale(self) -> float:
        """By how much the whole batch is larger than the base batch.

        Set anew in mid-run, it holds from the next time that the step is traced, which
        `model.make_train_function(force=True)` asks for; the averages stay, for they are those of a
        base batch.
        """
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = checks.number("scale", value)

    @property
    def power(self) -> float:
        """Of the gain, what multiplies the learning rate: its root for adaptive methods."""
        return 0.5 if self._preconditioned else 1.0

    def _initial_state(self):
        floats = ("base_variance", "base_signal", "base_count", "fraction")
        return {
            **super()._initial_state(),
            **dict.fromkeys(floats, ((), "float32", "zeros")),
            "gain": ((), "float32", "ones"),
            "step": ((), "int32", "zeros"),
        }

    def _averaged(self, xp, state, moments, when):
        variance, signal = (xp.sum(each) for each in moments)
        kept = noise.Averages(state["base_variance"], state["base_signal"], state["base_count"])
        paper = self._averaging == "paper"
        base = noise.average(
            xp, kept, *noise.clipped(xp, self.scale * variance, signal),
            theta=noise.smoothing(self.scale), mean_first=paper, when=when,
        )  # fmt: skip
        return {
            **super()._averaged(xp, state, moments, when),
            "base_variance": base.variance,
            "base_signal": base.signal,
            "base_count": base.count,
            "gain": noise.gain(xp, base, self.scale, first_is_one=paper),
        }

    def _spent(self, xp, state, is_update):
        """What the state changes by after the inner optimizer has stepped, at the worth of a gain.

        Whole steps are counted apart, so that a million of them do not swallow a fraction.
        """
        fraction = state["fraction"] + xp.where(is_update, state["gain"], 0.0)
        whole = xp.floor(fraction)
        return {"step": state["step"] + xp.cast(whole, "int32"), "fraction": fraction - whole}


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
