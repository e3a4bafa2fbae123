"""Defines MeasureNoise, which measures the noise of another optimizer's gradients."""

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

    Both are averaged over steps. Training does not change, with one exception: an optimizer of
    Keras 3 that clips does so after the replicas are summed, not before. The callback `NoiseScale`
    explains what the averages mean for the batch; `noise_scale(batch_size)` returns the numbers.

    Args:
        inner: An optimizer of this Keras; not yet wrapped for mixed precision.
        smoothing: theta of the averages, which reach back over 1/(1 - theta) steps.
            Defaults to 0.99 (GPT-NeoX).
        name: The name of the optimizer. Defaults to "measured".

    Attributes:
        inner_optimizer: The optimizer that steps.
        parts: The samples of the gradient in a step: replicas x micro-batches. Set by the build.
        micro_batches: The micro-batches of an update. Set by the build.
        smoothing: theta of the averages.

    Raises:
        ValueError, TypeError: at construction, for an optimizer that cannot be wrapped or an
            argument out of its range; at the build, if a step has only one part.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.MeasureNoise(tf_lamb.LAMB(gradient_accumulation_steps=4))
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - McCandlish et al., An Empirical Model of Large-Batch Training,
          https://arxiv.org/abs/1812.06162
    """

    saved_kind = "measured"  # the name of its state in files
    inner_optimizer: Any
    parts: int
    micro_batches: int
    name: str
    # A frontend defines the names that follow, except those with a value.
    _xp: Any  # its array namespace
    _host: Any  # its functions on gradients and variables
    _wraps: tuple[type, str]  # the optimizers of this Keras, and the words of a refusal for them
    _wrap: Callable  # takes the inner optimizer over
    _serialize: Callable
    _deserialize: Callable
    _variables: list  # those of this optimizer, without the inner one's
    _cond: Callable  # a branch in the frontend's graph
    _add: Callable  # name, shape, dtype, initializer -> a variable
    _state: Any = None  # name -> variable, after the build
    _ended_at = 0  # updates at the end of the last `fit`
    _measured: Sequence[int]  # the positions of the variables that are measured
    _squared_norm: Callable  # gradient -> its squared norm in float32
    _sum_over_replicas: Callable  # squares of each replica -> their sum
    _sums: Callable  # (gradient, variable) pairs -> pairs whose gradients are sums over replicas
    _dense: Callable  # a gradient and its variable -> the gradient as an array
    _position: Callable  # a variable -> its position among those of the build
    _accumulated: Callable  # position -> the sum of the micro-batches before
    _replicas: int
    _gathers = False  # whether each replica adds up its own gradients until the update sums them
    _summed: Callable  # per-replica gradients -> their sums over replicas
    _assign: Callable  # assigns values to variables, on every replica

    @arguments.answered
    def __init__(self, inner: Any, *, smoothing: float = 0.99, name: str = "measured"):
        self._check_inner(inner)
        self._wrap(inner, checks.text("name", name))
        self.smoothing = checks.number("smoothing", smoothing)

    def _check_inner(self, inner):
        """Raises ValueError or TypeError for an optimizer that cannot be wrapped."""
        wrapper, (accepted, description), name = (
            type(self).__name__,
            self._wraps,
            type(inner).__name__,
        )
        if not isinstance(inner, accepted):
            raise TypeError(f"{wrapper} wraps an optimizer of {description} {inner!r}.")
        if isinstance(inner, MeasureNoise):
            raise ValueError(
                f"{wrapper} cannot wrap {name}, which measures already. Take one of the two: "
                "AdaScale, whose noise scale is there as well, or MeasureNoise."
            )
        if unwrapped(inner) is not inner:
            raise ValueError(
                f"{wrapper} cannot wrap {name}, which wraps an optimizer itself: put "
                f"{wrapper} around that optimizer, and {name} outside."
            )
        if getattr(inner, "loss_scale_factor", None) is not None:
            raise ValueError(
                f"{wrapper} cannot wrap an optimizer with loss_scale_factor: leave that out, "
                f"and put LossScaleOptimizer around {wrapper}."
            )
        if growing := getattr(inner, "_growing", None):
            raise ValueError(
                f"{wrapper} compares a fixed number of micro-batches, and "
                f"gradient_accumulation_steps={growing} of {inner.name} changes it: give it a "
                f"number, such as {max(growing.values())}."
            )
        if getattr(inner, "built", getattr(inner, "_built", False)):
            raise ValueError(
                f"{wrapper} needs an optimizer that has not stepped yet, but {inner.name} is "
                "built. Make a new one, for instance with from_config(optimizer.get_config())."
            )

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """The steps of the inner optimizer, as its variable."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable):
        if hasattr(self, "inner_optimizer"):
            self.inner_optimizer.iterations = variable
        else:  # Keras 3's constructor sets a variable that counts nothing
            self._iterations = variable

    @property
    def variables(self) -> list:
        """Its own variables, then the inner optimizer's."""
        return [*self._variables, *self.inner_optimizer.variables]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "inner": self._serialize(self.inner_optimizer),
            "name": self.name,
            "smoothing": self.smoothing,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the optimizer from a config, also from one with options of earlier versions.

        Args:
            config: What `get_config` returned.
            custom_objects: Name -> class, for the inner optimizer. Defaults to None.

        Raises:
            ValueError: if an option that is gone has another value than its default.
        """
        config = dict(config)
        for name, default in ("previous_gradient", False), ("averaging", "paper"), ("groups", None):
            if (value := config.pop(name, default)) != default:
                raise ValueError(
                    f"{name}={value!r} is gone: take it out of the config. A model that was saved "
                    "with it loads with compile=False."
                )
        return cls(**{**config, "inner": cls._deserialize(config["inner"], custom_objects)})

    def finalize_variable_values(self, var_list):
        """See base class. Also warns if a host's own optimizer has made no update in `fit`."""
        self.inner_optimizer.finalize_variable_values(var_list)
        if isinstance(self.inner_optimizer, Layerwise) or self._state is None:
            return
        updates_before, self._ended_at = self._ended_at, self.updates
        if self._ended_at == updates_before:
            waiting = as_int(self._state["micro_step"])
            warn_if_waiting(self.inner_optimizer.name, waiting, self.micro_batches)

    @property
    def updates(self) -> int:
        """The steps of the inner optimizer, as a number."""
        return step_of(self.inner_optimizer)

    def set_weights(self, weights):
        """Sets its own variables, then the inner optimizer's, from a list of arrays."""
        own_count = len(weights) if self._state is None else len(self._variables)
        super().set_weights(weights[:own_count])  # type: ignore[misc]
        if self._state is not None:
            self.inner_optimizer.set_weights(weights[own_count:])

    def _named_state(self):
        """Returns its own state by name."""
        return named.of_measured(self)

    def continue_from(self, values: dict) -> None:
        """Continues another optimizer's measurement; state that is not in `values` starts anew.

        Args:
            values: Name of a state -> array.
        """
        initials = {name: initial for name, (_, _, initial) in self._initial_state().items()}
        for name, variable in self._named_state().scalars.items():
            initial = initials.get(name, "zeros")
            value = values[name] if name in values else self._host.initial(variable, initial)
            self._host.put(variable, value)

    def _divide(self, replicas: int, may_gather: bool):
        """Counts the parts of a step, and decides whether replicas add up their own gradients.

        Call it before the inner optimizer is built. It sets `parts` = replicas x micro-batches.
        """
        inner, self._replicas = self.inner_optimizer, replicas
        self.micro_batches = getattr(inner, "gradient_accumulation_steps", None) or 1
        self.parts = replicas * self.micro_batches
        if self.parts == 1:
            target = "the inner optimizer"
            if not hasattr(inner, "gradient_accumulation_steps"):
                target = "an inner optimizer of tf_lamb (tf_keras's own do not accumulate)"
            raise ValueError(
                f"{type(self).__name__} compares the gradients of the parts of a batch, but here a "
                "step has one part: one replica, and no gradient_accumulation_steps. Give "
                f"{target} gradient_accumulation_steps=2 and batches of half the size, or train "
                "under a tf.distribute strategy."
            )
        self._gathers = may_gather and isinstance(inner, Layerwise) and self.micro_batches > 1
        if self._gathers:  # `_gather` adds the gradients up, so the inner optimizer must not
            inner.gradients_are_gathered = True

    def step(self, pairs: Sequence, apply: Callable, unfrozen: Sequence) -> None:
        """Measures gradients, then has the inner optimizer step with them.

        The order of the calls matters: gathering before measuring, and measuring before the step.

        Args:
            pairs: (gradient of this replica, variable) pairs.
            apply: Has the inner optimizer step with such pairs. Their gradients are sums over
                replicas, unless each replica gathers its own.
            unfrozen: The variables that are not frozen.
        """
        pairs = self._without_frozen(pairs)
        gradients = [self._dense(*pair) for pair in pairs]
        variables = [variable for _, variable in pairs]
        positions = list(map(self._position, variables))
        missing = self._missing(variables, unfrozen)
        saved_values = self._before_step()
        sums = None
        if self._gathers:
            self._gather(gradients, positions, missing)
        elif (summed_pairs := self._sums(pairs)) is pairs:
            sums = gradients
        else:
            pairs = summed_pairs
            sums = [self._dense(*pair) for pair in pairs]
        counts = self._measure(gradients, sums, positions, missing)
        apply(pairs)
        self._stepped(self._counted(counts, saved_values))

    def _missing(self, variables, unfrozen):
        """Returns the positions of variables without a gradient, whose sums the update takes."""
        if not isinstance(self.inner_optimizer, Layerwise):
            return []
        missing = self.inner_optimizer.without_gradient(variables, unfrozen)
        return list(map(self._position, missing))

    def _before_step(self):
        """Returns values to put back if the step is skipped as a spike; None if none can be."""
        inner = self.inner_optimizer
        if not (isinstance(inner, Layerwise) and inner._guard.window):
            return None
        return [variable + 0 for variable in (inner.iterations, *self._lasting())]

    def _lasting(self):
        """Returns the variables of the state that outlast an update."""
        of_parts = "micro_step", "squares"
        return [variable for name, variable in self._state.items() if name not in of_parts]

    def _counted(self, counts, before):
        """Returns whether the update was taken; undoes the measurement of a skipped spike."""
        if before is None:
            return counts
        xp, (step, *values_before) = self._xp, before
        is_taken = self.inner_optimizer.iterations > step
        is_spike = xp.logical_and(counts, xp.logical_not(is_taken))
        variables = self._lasting()
        values = [
            xp.where(is_spike, value_before, xp.convert_to_tensor(variable))
            for value_before, variable in zip(values_before, variables, strict=True)
        ]
        self._assign(variables, values)
        return xp.logical_and(counts, is_taken)

    def _without_frozen(self, pairs):
        """Returns the (gradient, variable) pairs that the inner optimizer does not freeze."""
        inner = self.inner_optimizer
        return inner.without_frozen(pairs) if isinstance(inner, Layerwise) else pairs

    def _make_state(self, variables):
        """Makes the variables of the state, at the end of a build."""
        self._measured = range(len(variables))
        self._state = {
            name: self._add(name, *declaration)
            for name, declaration in self._initial_state().items()
        }
        self._measured_names = names_of(variables)

    def _initial_state(self) -> dict[str, tuple[tuple[int, ...], str, str]]:
        """Returns name -> (shape, dtype, initializer) of the state."""
        return {
            "micro_step": ((), "int32", "zeros"),
            "squares": ((1,), "float32", "zeros"),  # the sum over the micro-batches so far
            "variance": ((1,), "float32", "zeros"),
            "signal": ((1,), "float32", "zeros"),
            "count": ((), "float32", "zeros"),
        }

    def _measure(self, gradients, summed, positions, missing):
        """Updates the state; returns whether the call is an update with finite gradients."""
        xp = self._xp
        if summed is not None:
            summed = [xp.cast(gradient, "float32") for gradient in summed]
        state = {name: xp.convert_to_tensor(variable) for name, variable in self._state.items()}
        # More micro-batches may wait than an update has, after `set_weights` from another number.
        is_update = state["micro_step"] >= self.micro_batches - 1
        count = xp.maximum(state["micro_step"] + 1, self.micro_batches)
        micro_batches = xp.cast(count, "float32")
        precondition = self._preconditioner([*positions, *missing])
        squares = state["squares"]  # if replicas gather, `_gather` has added this call's already
        if not self._gathers:
            # Replica i has g_i/n, so the mean of |g_i|^2 is n times the sum of these squares.
            local_squares = self._squares(gradients, positions, precondition)
            squares = squares + self._replicas * self._sum_over_replicas(local_squares)
        square_of_mean = self._squares_of_mean(
            summed, positions, missing, precondition, is_update, micro_batches
        )
        parts = self._replicas * micro_batches
        moments = noise.moments(squares / micro_batches, square_of_mean, parts=parts)
        new_values = {
            "micro_step": xp.where(is_update, 0, state["micro_step"] + 1),
            "squares": xp.where(is_update, xp.zeros_like(squares), squares),
            **self._averaged(xp, state, moments, is_update & self._is_measured()),
        }
        self._assign([self._state[name] for name in new_values], new_values.values())
        return xp.logical_and(is_update, xp.isfinite(xp.sum(square_of_mean)))

    def _gather(self, gradients, positions, missing):
        """Has each replica add up its own gradients; an update sums them over replicas."""
        squares = self._squares(gradients, positions, self._preconditioner(positions))
        missing_sums = [self._accumulated(i) for i in missing]
        zeros = [
            self._xp.zeros(missing_sum.shape, missing_sum.dtype) for missing_sum in missing_sums
        ]
        targets = [*map(self._accumulated, positions), *missing_sums, self._state["squares"]]
        self.inner_optimizer.gather([*gradients, *zeros, self._replicas * squares], targets)

    def _squares(self, gradients, positions, weigh):
        """Returns |g|^2 over all measured variables, with shape (1,)."""
        xp = self._xp
        pairs = zip(gradients, positions, strict=True)
        squares = {i: self._squared_norm(weigh(gradient, i)) for gradient, i in pairs}
        measured = (squares[i] for i in self._measured if i in squares)
        return xp.stack([sum(measured, xp.zeros((), "float32"))])

    def _squares_of_mean(self, summed, positions, missing, weigh, is_update, micro_batches):
        """Returns |mean g|^2 over all micro-batches; 0 before the last one."""
        xp = self._xp
        if self.micro_batches == 1:
            return self._squares(self._summed(summed), positions, weigh)

        def squares_at_update():
            # Adds this micro-batch to the sums of those before, unless `_gather` has done so.
            all_positions = [*positions, *missing]
            sums = [xp.cast(self._accumulated(i), "float32") for i in all_positions]
            for i, gradient in enumerate(() if self._gathers else summed):
                sums[i] = gradient + sums[i]
            means = [total / micro_batches for total in self._summed(sums)]
            return self._squares(means, all_positions, weigh)

        return self._cond(is_update, squares_at_update, lambda: xp.zeros((1,), "float32"))

    def _preconditioner(self, positions):
        """Returns a function from a gradient and its position to the measured gradient."""
        return lambda gradient, position: gradient

    def _is_measured(self):
        """Returns whether the averages take this step."""
        return True

    def _stepped(self, counts):
        """Runs after every call; `counts` is what `_measure` returned, if the step was taken."""

    def _averaged(self, xp, state, moments, when):
        """Returns the averages of the state by name, with the moments of one more step."""
        averages = noise.Averages(state["variance"], state["signal"], state["count"])
        new_averages = noise.average(xp, averages, *moments, theta=self.smoothing, when=when)
        return new_averages._asdict()

    def noise_scale(self, batch_size: int) -> float:
        """Returns the simple noise scale, in examples.

        It is nan if the gradient drowned in noise, or if nothing was measured yet.

        Args:
            batch_size: The examples of an update.
        """
        variance, signal, _ = self.averages()
        return noise.noise_scale(variance, signal, batch_size)

    def averages(self) -> noise.Averages:
        """Returns variance, signal, and the number of steps that they average, as floats."""
        names = ("variance", "signal", "count")
        return noise.Averages(*(float(numpy_of(self._state[name]).sum()) for name in names))
