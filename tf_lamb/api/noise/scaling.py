"""AdaScale's half that needs no host: the gain, and the steps of the base batch that were spent."""

from tf_lamb.api.noise.measuring import Measuring
from tf_lamb.core import checks, noise
from tf_lamb.core.checks.warn import warn
from tf_lamb.core.rules.moments import debias

UNMEASURED_STEPS = 5  # adaptdl's: before, the second moments say little


class Scaling(Measuring):
    """Mixed into the wrapper of each door, beside what measures."""

    _scale: float
    _averaging: str
    _preconditioned: bool

    def _count_parts(self, replicas: int, micro_batches: int):
        super()._count_parts(replicas, micro_batches)
        if self.biased:
            warn(
                "AdaScale with previous_gradient=True can run away: a step that is too long turns "
                "the next gradient around, which counts as noise and lengthens the steps after it. "
                "Prefer gradient_accumulation_steps=2 in the inner optimizer."
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

    def _preconditioner(self, positions):
        if not self._preconditioned:
            return super()._preconditioner(positions)
        xp, inner, moment = self._xp, self.inner_optimizer, self._second_moment_of()
        t = xp.maximum(xp.cast(inner.iterations, "float32"), 1.0)
        correction = debias(xp, inner.beta_2, t)
        denominators = {
            i: xp.sqrt(xp.cast(moment(i), "float32") / correction) + inner.epsilon
            for i in positions
        }
        return lambda gradient, i: xp.cast(gradient, "float32") / denominators[i]

    def _is_measured(self):
        return not self._preconditioned or self.inner_optimizer.iterations >= UNMEASURED_STEPS

    def _stepped(self, counts):
        xp = self._xp
        step, fraction, gain = (
            xp.convert_to_tensor(self._state[name]) for name in ("step", "fraction", "gain")
        )
        fraction = fraction + xp.where(counts, gain, 0.0)
        whole = xp.floor(fraction)  # apart, so that a million steps do not swallow a fraction
        values = step + xp.cast(whole, "int32"), fraction - whole
        self._assign([self._state["step"], self._state["fraction"]], values)

    @property
    def gain(self) -> float:
        """r of the last step, in [1, scale]."""
        return float(self._read("gain")) if self._state else 1.0

    @property
    def scale_invariant_steps(self) -> float:
        """tau: the steps of the base batch that training is worth so far."""
        return float(self._read("step") + self._read("fraction")) if self._state else 0.0
