"""Defines MeasureNoise, which measures the noise of another optimizer's gradients."""

from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.elsewhere import Elsewhere
from tf_lamb.api.noise.meter import Backend, NoiseMeter
from tf_lamb.api.optimizers import arguments, named
from tf_lamb.api.optimizers.frontend import Host
from tf_lamb.api.optimizers.guard import warn_if_waiting
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import as_int, names_of, step_of, unwrapped
from tf_lamb.core import checks, noise


class MeasureNoise(Elsewhere):
    """Wraps an optimizer, which trains as before, and measures the noise of its gradients.

    The gradients g_i of the replicas, or of the micro-batches of an accumulated step, are n
    independent samples with the mean g:

        sigma^2 = (mean of |g_i|^2 - |g|^2) / (n - 1)        variance of the batch's gradient
        mu^2    = (n |g|^2 - mean of |g_i|^2) / (n - 1)      squared norm of the true gradient

    Both are averaged over steps. Training does not change, with one exception: an inner optimizer
    that is one of Keras 3's own (not of this package) and clips gradients now clips their sum over
    replicas, not each replica's. The callback `NoiseScale` reports what the averages mean for the
    batch size; `noise_scale(batch_size)` returns the noise scale.

    Args:
        inner: An optimizer of the Keras (Keras 3 or tf_keras) that this class belongs to, without a
            `LossScaleOptimizer` around it.
        smoothing: theta, the decay factor per step of the exponential averages. They reach back
            over about 1/(1 - theta) steps. Defaults to 0.99 (GPT-NeoX).
        name: The name of the optimizer. Defaults to "measured".

    Attributes:
        inner_optimizer: The optimizer that trains.
        parts: n, the samples of the gradient in a step: replicas x micro-batches. Set by the build.
        micro_batches: The number of micro-batches in an update. Set by the build.

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

    saved_kind = "measured"  # the name of the measured state in saved files
    _named_state = named.measured_state  # a method, which returns the measured state by name
    inner_optimizer: Any
    parts: int
    micro_batches: int
    name: str
    _meter: NoiseMeter
    _updates_at_end = 0  # the number of updates at the end of the last `fit`
    _measured_names: Sequence[str]  # the names of the variables of `build`
    # The subclasses in `tf_lamb.keras` and `tf_lamb.tf_keras` define the names that follow.
    _host: Host  # functions on variables of one Keras
    _wrappable: tuple[
        type, str
    ]  # the class of optimizers that can be wrapped, and its description for an error message
    _wrap: Callable  # sets the inner optimizer, and the name
    _serialize: Callable
    _deserialize: Callable
    _variables: list  # the measured state; the inner variables are not in it
    _add_variable: Callable  # name, shape, dtype, initializer, is_per_replica -> a variable
    _position_of: Callable  # a variable -> its position in the list passed to `build`
    _to_dense: Callable  # a gradient and its variable -> the gradient as an array
    _sum_over_replicas: (
        Callable  # (gradient, variable) pairs -> pairs whose gradients are sums over replicas
    )

    @arguments.answer_unknown_arguments
    def __init__(self, inner: Any, *, smoothing: float = 0.99, name: str = "measured"):
        self._check_inner(inner)
        self._wrap(inner, checks.text("name", name))
        self._meter = NoiseMeter(checks.number("smoothing", smoothing))

    def _check_inner(self, inner):
        """Raises ValueError or TypeError for an optimizer that cannot be wrapped."""
        wrapper, (accepted_classes, description), name = (
            type(self).__name__,
            self._wrappable,
            type(inner).__name__,
        )
        if not isinstance(inner, accepted_classes):
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
        if stages := getattr(inner, "_accumulation_stages", None):
            raise ValueError(
                f"{wrapper} compares a fixed number of micro-batches, and "
                f"gradient_accumulation_steps={stages} of {inner.name} changes it: give it a "
                f"number, such as {max(stages.values())}."
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
        """The variable in which the inner optimizer counts its steps."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable):
        if hasattr(self, "inner_optimizer"):
            self.inner_optimizer.iterations = variable
        else:  # Keras 3's constructor sets a variable, which is never used
            self._iterations = variable

    @property
    def smoothing(self) -> float:
        """theta, the decay factor per step of the exponential averages behind the noise scale."""
        return self._meter.smoothing

    @smoothing.setter
    def smoothing(self, value):
        self._meter.smoothing = value

    @property
    def variables(self) -> list:
        """The variables of the noise measurement, then those of the inner optimizer."""
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
        """Makes the optimizer from a config, also from that of an earlier version.

        Args:
            config: What `get_config` returned.
            custom_objects: Name -> class, for the inner optimizer. Defaults to None.

        Raises:
            ValueError: if the config has an option that was removed since, with another value than
                the default.
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
        """Calls the same method of the inner optimizer, at the end of `fit`.

        Warns if the inner optimizer is one of Keras itself and has made no update in this `fit`. An
        optimizer of this package gives that warning itself.
        """
        self.inner_optimizer.finalize_variable_values(var_list)
        if isinstance(self.inner_optimizer, Layerwise) or not self._meter.state:
            return
        updates_before, self._updates_at_end = self._updates_at_end, self.updates
        if self._updates_at_end == updates_before:
            waiting = as_int(self._meter.state["micro_step"])
            warn_if_waiting(self.inner_optimizer.name, waiting, self.micro_batches)

    @property
    def updates(self) -> int:
        """The number of steps of the inner optimizer."""
        return step_of(self.inner_optimizer)

    def set_weights(self, weights):
        """Sets the variables, in the order of `variables`, from a list of arrays."""
        measurement_count = len(self._variables) if self._meter.state else len(weights)
        super().set_weights(weights[:measurement_count])  # type: ignore[misc]
        if self._meter.state:
            self.inner_optimizer.set_weights(weights[measurement_count:])

    def continue_from(self, values: dict) -> None:
        """Sets the measured state to that of another optimizer, so that its measurement continues.

        Args:
            values: Name of a variable of the measured state -> array. Variables that are not in it
                get their initial values.
        """
        declarations = self._meter.declarations
        initials = {name: initial for name, (_, _, initial) in declarations.items()}
        for name, variable in self._named_state().scalars.items():
            initial = initials.get(name, "zeros")
            value = values[name] if name in values else self._host.initial_value(variable, initial)
            self._host.put(variable, value)

    def _count_parts(self, replicas: int, may_gather: bool) -> bool:
        """Sets `parts` and `micro_batches`; decides whether replicas add up their own gradients.

        `parts` is replicas x micro-batches. The function has to be called before the inner
        optimizer is built.

        Args:
            replicas: The number of replicas.
            may_gather: Whether each replica can add up its own gradients in this framework.

        Returns:
            Whether each replica adds up its own gradients over micro-batches, until the update sums
            them over replicas.

        Raises:
            ValueError: if a step has only one part.
        """
        inner = self.inner_optimizer
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
        gathers = may_gather and isinstance(inner, Layerwise) and self.micro_batches > 1
        if gathers:  # the meter adds the gradients up, so the inner optimizer must not
            inner.gradients_are_gathered = True
        return gathers

    def _start_meter(self, backend: Backend, variables: Sequence):
        """Makes the variables of the noise meter; called at the end of `build`.

        Args:
            backend: The `Backend`, with the functions of the framework that the meter calls.
            variables: The variables that the optimizer is built for.
        """
        state = {
            name: self._add_variable(name, *declaration, backend.gathers and name == "squares")
            for name, declaration in self._meter.declarations.items()
        }
        self._measured_names = names_of(variables)
        self._meter.start(backend, state, self.micro_batches)

    def step(self, pairs: Sequence, apply: Callable, unfrozen: Sequence) -> None:
        """Measures the gradients of a micro-batch, then passes them to the inner optimizer.

        The order matters: gradients are added up before the measurement, and the measurement comes
        before the step of the inner optimizer.

        Args:
            pairs: (gradient of this replica, variable) pairs.
            apply: A function that passes such pairs to the inner optimizer. Their gradients are
                sums over replicas, unless each replica adds up its own over micro-batches.
            unfrozen: The variables that are not frozen.
        """
        meter, inner = self._meter, self.inner_optimizer

        def by_position(pairs):
            return {
                self._position_of(variable): self._to_dense(g, variable) for g, variable in pairs
            }

        pairs = without_frozen(inner, pairs)
        gradients = by_position(pairs)
        missing = list(map(self._position_of, without_gradient(inner, pairs, unfrozen)))
        may_skip = isinstance(inner, Layerwise) and bool(inner._guard.window)
        if may_skip:
            steps_before, values_before = inner.iterations + 0, meter.lasting_values()
        sums = None
        if meter.gathers:
            meter.gather(gradients, missing)
        elif (summed_pairs := self._sum_over_replicas(pairs)) is pairs:
            sums = gradients
        else:
            pairs = summed_pairs
            sums = by_position(pairs)
        is_update = meter.measure(gradients, sums, missing)
        apply(pairs)
        if may_skip:
            is_taken = inner.iterations > steps_before
            is_update = meter.undo_skipped(values_before, is_update, is_taken)
        meter.finish(is_update)

    def noise_scale(self, batch_size: int) -> float:
        """Returns the simple noise scale, in examples.

        It is nan if noise hides the mean gradient, so that the signal is not above 0, or if nothing
        was measured yet.

        Args:
            batch_size: The examples of an update.
        """
        variance, signal, _ = self.averages()
        return noise.noise_scale(variance, signal, batch_size)

    def averages(self) -> noise.Averages:
        """Returns the averages sigma^2 and mu^2, and the number of steps averaged, as floats."""
        return self._meter.averages()


def without_frozen(inner: Any, pairs: Sequence) -> Sequence:
    """Returns the (gradient, variable) pairs whose variable the inner optimizer does not freeze."""
    return inner.without_frozen(pairs) if isinstance(inner, Layerwise) else pairs


def without_gradient(inner: Any, pairs: Sequence, unfrozen: Sequence) -> Sequence:
    """Returns the variables without a gradient in this micro-batch that may have had one earlier.

    Their accumulators may hold gradients of earlier micro-batches, which the update uses. The list
    is empty if the inner optimizer is one of Keras itself.

    Args:
        inner: The inner optimizer.
        pairs: The (gradient, variable) pairs of this micro-batch.
        unfrozen: The variables that are not frozen.
    """
    if not isinstance(inner, Layerwise):
        return []
    return inner.without_gradient([variable for _, variable in pairs], unfrozen)
