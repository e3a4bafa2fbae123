"""MeasureNoise: an optimizer that sees gradients on their way to another, and keeps their noise."""

from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.optimizers import arguments, named
from tf_lamb.api.optimizers.guard import warn_if_waiting
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import as_int, names_of, numpy_of, step_of, unwrapped
from tf_lamb.core import checks, noise


class MeasureNoise:
    """Steps as the inner optimizer does, and measures the noise of the gradients meanwhile.

    Replicas, or the micro-batches of an accumulated step, are n independent samples g_i of the
    gradient, with the mean g:

        sigma^2 = (mean of |g_i|^2 - |g|^2) / (n - 1)        of the gradient of the batch
        mu^2    = (n |g|^2 - mean of |g_i|^2) / (n - 1)      of the true gradient

    Both are averaged over steps, and training is not touched, but for one thing: an optimizer of
    Keras 3 that clips does so after the replicas are summed, not before. `NoiseScale` says what the
    averages mean for the batch; `noise_scale(batch_size)` gives the numbers.

    Args:
        inner: An optimizer of this Keras; not yet wrapped for mixed precision.
        smoothing: theta of the averages, which reach back over 1/(1 - theta) steps.
            Defaults to 0.99 (GPT-NeoX).
        name: Name of the optimizer. Defaults to "measured".

    Raises:
        ValueError, TypeError: at construction, for an optimizer that cannot be wrapped or an
            argument out of its range; when it is built, where a step has only one part.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.MeasureNoise(tf_lamb.LAMB(gradient_accumulation_steps=4))
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - McCandlish et al., An Empirical Model of Large-Batch Training,
          https://arxiv.org/abs/1812.06162
    """

    saved_kind = "measured"  # as files call its state
    inner_optimizer: Any
    parts: int
    micro_batches: int
    name: str
    # The frontend's: its array namespace, and what it knows of gradients and variables.
    _xp: Any
    _host: Any
    _wraps: tuple[type, str]  # the optimizers of this Keras, and what a refusal says of them
    _wrap: Callable  # takes the inner optimizer over
    _serialize: Callable
    _deserialize: Callable
    _variables: list  # its own
    _cond: Callable  # a branch, as the frontend has it
    _add: Callable  # name, shape, dtype, initializer -> a variable
    _state: Any = None  # name -> variable, once built
    _ended_at = 0  # updates at the end of the last `fit`
    _measured: Sequence[int]  # the positions of the variables that are measured
    _squared_norm: Callable  # in float32
    _sum_over_replicas: Callable  # of the squares of each
    _sums: Callable  # pairs of a gradient and its variable -> those whose sum is over replicas
    _dense: Callable  # a gradient and its variable -> the gradient as an array
    _position: Callable  # of a variable, among those of the build
    _accumulated: Callable  # position -> the sum of the micro-batches before
    _replicas: int
    _gathers = False  # whether each replica adds up its own; an update finds the sums
    _summed: Callable  # per-replica gradients -> their sums over replicas
    _assign: Callable  # variables and values, on every replica

    @arguments.answered
    def __init__(self, inner: Any, *, smoothing: float = 0.99, name: str = "measured"):
        self._check_inner(inner)
        self._wrap(inner, checks.text("name", name))
        self.smoothing = checks.number("smoothing", smoothing)

    def _check_inner(self, inner):
        """Raises where it cannot wrap an optimizer."""
        own, (kind, words), name = type(self).__name__, self._wraps, type(inner).__name__
        if not isinstance(inner, kind):
            raise TypeError(f"{own} wraps an optimizer of {words} {inner!r}.")
        if isinstance(inner, MeasureNoise):
            raise ValueError(
                f"{own} cannot wrap {name}, which measures already. Take one of the two: "
                "AdaScale, whose noise scale is there as well, or MeasureNoise."
            )
        if unwrapped(inner) is not inner:
            raise ValueError(
                f"{own} cannot wrap {name}, which wraps an optimizer itself: put {own} "
                f"around that optimizer, and {name} outside."
            )
        if getattr(inner, "loss_scale_factor", None) is not None:
            raise ValueError(
                f"{own} cannot wrap an optimizer with loss_scale_factor: leave that out, "
                f"and put LossScaleOptimizer around {own}."
            )
        if growing := getattr(inner, "_growing", None):
            raise ValueError(
                f"{own} compares a fixed number of micro-batches, and gradient_accumulation_steps="
                f"{growing} of {inner.name} changes it: give it a number, such as "
                f"{max(growing.values())}."
            )
        if getattr(inner, "built", getattr(inner, "_built", False)):
            raise ValueError(
                f"{own} needs an optimizer that has not stepped yet, but {inner.name} is built. "
                "Make a new one, for instance with from_config(optimizer.get_config())."
            )

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """Steps of the inner optimizer."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable):
        if hasattr(self, "inner_optimizer"):
            self.inner_optimizer.iterations = variable
        else:  # in Keras 3's constructor, which makes one that counts nothing
            self._iterations = variable

    @property
    def variables(self) -> list:
        """Its own, then the inner optimizer's."""
        return [*self._variables, *self.inner_optimizer.variables]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "inner": self._serialize(self.inner_optimizer),
            "name": self.name,
            "smoothing": self.smoothing,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer again, of a file that has options which are gone, too."""
        config = dict(config)
        for name, default in ("previous_gradient", False), ("averaging", "paper"), ("groups", None):
            if (value := config.pop(name, default)) != default:
                raise ValueError(
                    f"{name}={value!r} is gone: take it out of the config. A model that was saved "
                    "with it loads with compile=False."
                )
        return cls(**{**config, "inner": cls._deserialize(config["inner"], custom_objects)})

    def finalize_variable_values(self, var_list):
        """See base class; the host's own optimizers do not say that they have made no update."""
        self.inner_optimizer.finalize_variable_values(var_list)
        if isinstance(self.inner_optimizer, Layerwise) or self._state is None:
            return
        before, self._ended_at = self._ended_at, self.updates
        if self._ended_at == before:
            waiting = as_int(self._state["micro_step"])
            warn_if_waiting(self.inner_optimizer.name, waiting, self.micro_batches)

    @property
    def updates(self) -> int:
        """Steps of the inner optimizer, as a number."""
        return step_of(self.inner_optimizer)

    def set_weights(self, weights):
        """See base class, which sets its own alone."""
        own = len(weights) if self._state is None else len(self._variables)
        super().set_weights(weights[:own])  # type: ignore[misc]
        if self._state is not None:
            self.inner_optimizer.set_weights(weights[own:])

    def _named_state(self):
        return named.of_measured(self)

    def continue_from(self, values: dict) -> None:
        """Goes on with name -> what another has measured; all else begins anew."""
        begins = {name: initial for name, (_, _, initial) in self._initial_state().items()}
        for name, own in self._named_state().scalars.items():
            initial = begins.get(name, "zeros")
            value = values[name] if name in values else self._host.initial(own, initial)
            self._host.put(own, value)

    def _divide(self, replicas: int, may_gather: bool):
        """Before the inner optimizer is built: counts the parts, and says who adds them up."""
        inner, self._replicas = self.inner_optimizer, replicas
        self.micro_batches = getattr(inner, "gradient_accumulation_steps", None) or 1
        self.parts = replicas * self.micro_batches
        if self.parts == 1:
            whom = "the inner optimizer"
            if not hasattr(inner, "gradient_accumulation_steps"):
                whom = "an inner optimizer of tf_lamb (tf_keras's own do not accumulate)"
            raise ValueError(
                f"{type(self).__name__} compares the gradients of the parts of a batch, but here a "
                "step has one part: one replica, and no gradient_accumulation_steps. Give "
                f"{whom} gradient_accumulation_steps=2 and batches of half the size, or train "
                "under a tf.distribute strategy."
            )
        self._gathers = may_gather and isinstance(inner, Layerwise) and self.micro_batches > 1
        if self._gathers:  # before they are measured, and not again
            inner.gradients_are_gathered = True

    def step(self, pairs: Sequence, apply: Callable, unfrozen: Sequence) -> None:
        """Measures gradients on their way to the inner optimizer, in the one order that is right.

        Pairs are of a gradient of this replica and its variable; `apply` has the inner optimizer
        step, and takes them with sums over replicas where those are not gathered.
        """
        pairs = self._without_frozen(pairs)
        gradients = [self._dense(*pair) for pair in pairs]
        variables = [variable for _, variable in pairs]
        positions = list(map(self._position, variables))
        missing = self._missing(variables, unfrozen)
        before = self._before_step()
        summed = None
        if self._gathers:
            self._gather(gradients, positions, missing)
        elif (reduced := self._sums(pairs)) is pairs:
            summed = gradients
        else:
            pairs = reduced
            summed = [self._dense(*pair) for pair in pairs]
        counts = self._measure(gradients, summed, positions, missing)
        apply(pairs)
        self._stepped(self._counted(counts, before))

    def _missing(self, variables, unfrozen):
        """The positions of variables without a gradient, of which the update takes the sums."""
        if not isinstance(self.inner_optimizer, Layerwise):
            return []
        missing = self.inner_optimizer.without_gradient(variables, unfrozen)
        return list(map(self._position, missing))

    def _before_step(self):
        """What is put back if the inner optimizer skips the step as a spike; None without."""
        inner = self.inner_optimizer
        if not (isinstance(inner, Layerwise) and inner._guard.window):
            return None
        return [v + 0 for v in (inner.iterations, *self._lasting())]

    def _lasting(self):
        """The variables of the state but those of the parts of an update."""
        of_parts = "micro_step", "squares"
        return [v for name, v in self._state.items() if name not in of_parts]

    def _counted(self, counts, before):
        """Whether the update was taken; a spike is no longer measured then."""
        if before is None:
            return counts
        xp, (step, *kept) = self._xp, before
        taken = self.inner_optimizer.iterations > step
        spike = xp.logical_and(counts, xp.logical_not(taken))
        own = self._lasting()
        values = [
            xp.where(spike, old, xp.convert_to_tensor(new))
            for old, new in zip(kept, own, strict=True)
        ]
        self._assign(own, values)
        return xp.logical_and(counts, taken)

    def _without_frozen(self, pairs):
        """The pairs of a gradient and its variable that the inner optimizer does not freeze."""
        inner = self.inner_optimizer
        return inner.without_frozen(pairs) if isinstance(inner, Layerwise) else pairs

    def _make_state(self, variables):
        """At the end of a build."""
        self._measured = range(len(variables))
        self._state = {name: self._add(name, *kind) for name, kind in self._initial_state().items()}
        self._measured_names = names_of(variables)

    def _initial_state(self) -> dict[str, tuple[tuple[int, ...], str, str]]:
        """Name -> shape, dtype and initializer."""
        return {
            "micro_step": ((), "int32", "zeros"),
            "squares": ((1,), "float32", "zeros"),  # of the micro-batches so far
            "variance": ((1,), "float32", "zeros"),
            "signal": ((1,), "float32", "zeros"),
            "count": ((), "float32", "zeros"),
        }

    def _measure(self, gradients, summed, positions, missing):
        """Brings the state up to this call; whether the call is an update, and a finite one."""
        xp = self._xp
        if summed is not None:
            summed = [xp.cast(g, "float32") for g in summed]
        state = {name: xp.convert_to_tensor(v) for name, v in self._state.items()}
        # More may wait than an update has: a list of weights was set that another number filled.
        is_update = state["micro_step"] >= self.micro_batches - 1
        summed_up = xp.maximum(state["micro_step"] + 1, self.micro_batches)
        micro_batches = xp.cast(summed_up, "float32")
        weigh = self._preconditioner([*positions, *missing])
        squares = state["squares"]  # where replicas gather, `_gather` has added this call's by now
        if not self._gathers:
            # Replica i has g_i/n: the mean of |g_i|^2 is n times the sum of these squares.
            own = self._squares(gradients, positions, weigh)
            squares = squares + self._replicas * self._sum_over_replicas(own)
        total = self._squares_of_mean(summed, positions, missing, weigh, is_update, micro_batches)
        parts = self._replicas * micro_batches
        moments = noise.moments(squares / micro_batches, total, parts=parts)
        new = {
            "micro_step": xp.where(is_update, 0, state["micro_step"] + 1),
            "squares": xp.where(is_update, xp.zeros_like(squares), squares),
            **self._averaged(xp, state, moments, is_update & self._is_measured()),
        }
        self._assign([self._state[name] for name in new], new.values())
        return xp.logical_and(is_update, xp.isfinite(xp.sum(total)))

    def _gather(self, gradients, positions, missing):
        """Has each replica add up its own gradients; an update finds the sums over replicas."""
        squares = self._squares(gradients, positions, self._preconditioner(positions))
        others = [self._accumulated(i) for i in missing]
        zeros = [self._xp.zeros(total.shape, total.dtype) for total in others]
        into = [*map(self._accumulated, positions), *others, self._state["squares"]]
        self.inner_optimizer.gather([*gradients, *zeros, self._replicas * squares], into)

    def _squares(self, gradients, positions, weigh):
        """|g|^2 of all that is measured."""
        xp = self._xp
        pairs = zip(gradients, positions, strict=True)
        squares = {i: self._squared_norm(weigh(g, i)) for g, i in pairs}
        known = (squares[i] for i in self._measured if i in squares)
        return xp.stack([sum(known, xp.zeros((), "float32"))])

    def _squares_of_mean(self, summed, positions, missing, weigh, is_update, micro_batches):
        """|mean g|^2 over all micro-batches; 0 before the last."""
        xp = self._xp
        if self.micro_batches == 1:
            return self._squares(self._summed(summed), positions, weigh)

        def of_mean():
            # What was added up before this micro-batch, and this one; gathered, it is in already.
            every = [*positions, *missing]
            sums = [xp.cast(self._accumulated(i), "float32") for i in every]
            for i, gradient in enumerate(() if self._gathers else summed):
                sums[i] = gradient + sums[i]
            means = [each / micro_batches for each in self._summed(sums)]
            return self._squares(means, every, weigh)

        return self._cond(is_update, of_mean, lambda: xp.zeros((1,), "float32"))

    def _preconditioner(self, positions):
        """A function of a gradient and its position that gives the one that is measured."""
        return lambda gradient, position: gradient

    def _is_measured(self):
        """Whether the averages take this step."""
        return True

    def _stepped(self, counts):
        """After every call; `counts` is what `_measure` returned."""

    def _averaged(self, xp, state, moments, when):
        """The averages of the state, with the moments of one step more."""
        kept = noise.Averages(state["variance"], state["signal"], state["count"])
        new = noise.average(xp, kept, *moments, theta=self.smoothing, when=when)
        return new._asdict()

    def noise_scale(self, batch_size: int) -> float:
        """The simple noise scale, in examples, where an update has `batch_size` of them.

        It is nan where the gradient drowned in noise, or nothing was measured yet.
        """
        variance, signal, _ = self.averages()
        return noise.noise_scale(variance, signal, batch_size)

    def averages(self) -> noise.Averages:
        """Variance and signal, and over how many steps, as numbers."""
        names = ("variance", "signal", "count")
        return noise.Averages(*(float(numpy_of(self._state[name]).sum()) for name in names))
