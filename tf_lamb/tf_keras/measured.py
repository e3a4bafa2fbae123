"""The base class of `MeasureNoise` and `AdaScale` in tf_keras: an optimizer that wraps another.

This module uses some private API. Of tf_keras 2.20.1 it uses `_built`, `_index_dict`, `_var_key`,
`_distribution_strategy` and `_variables`, in the same way as the optimizers of tf_keras do.

Of the inner optimizer, which is the wrapped one, it uses `_build_learning_rate`; `_learning_rate`,
which AdaScale replaces by a schedule that multiplies the rate by the gain; and `_velocities`, the
second moments of Adam.
"""

import contextlib

import tensorflow as tf
import tf_keras

from tf_lamb.api.noise import meter
from tf_lamb.api.noise.adascale import Rate
from tf_lamb.api.noise.measured import without_frozen
from tf_lamb.api.optimizers.frontend import Host
from tf_lamb.api.optimizers.planner import check_built_for
from tf_lamb.api.seams import use_rate
from tf_lamb.tensorflow import namespace, replicas, tracking
from tf_lamb.tensorflow.update import dense
from tf_lamb.tf_keras import host, seams
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer, aggregates_as_tf_keras

_ADAPTIVE = (tf_keras.optimizers.Adam, tf_keras.optimizers.AdamW)


class _Rate(Rate, tf_keras.optimizers.schedules.LearningRateSchedule): ...


class Backend(meter.Backend):
    """Implements, for tf_keras, the functions on arrays and replicas that a `NoiseMeter` calls.

    Args:
        inner: The inner optimizer, already built.
        replicas: The number of replicas.
        gathers: Whether each replica adds up its own gradients over micro-batches, and only an
            update sums them over replicas.
    """

    xp = namespace

    def __init__(self, inner, replicas, gathers):
        self.replicas, self.gathers = replicas, gathers
        self._inner = inner

    def cond(self, condition, if_true, if_false):
        """Calls one of two functions, as `condition` says, and returns its result."""
        return tf.cond(condition, if_true, if_false)

    def squared_norm(self, gradient):
        """Returns |g|^2 of a gradient g, in float32."""
        return replicas.squared_norm(gradient)

    def sum_over_replicas(self, squares):
        """Returns the sum over replicas of `squares`, a squared norm on each replica."""
        return replicas.sum_over_replicas(squares)

    def sum_stacked(self, gradient):
        """Returns the gradient: in tf_keras, no axis of it stands for replicas."""
        return gradient

    def accumulated(self, position):
        """Returns the sum of a variable's gradients in earlier micro-batches.

        If `gathers` is true, the result is the accumulator itself.
        """
        total = self._inner._storage.accumulators[position]
        return total if self.gathers else self.replicas * total

    def gather(self, arrays, accumulators):
        """Adds arrays to this replica's accumulators, which an update sums over replicas."""
        self._inner.accumulate(arrays, accumulators)

    def assign(self, variables, values):
        """Assigns the values to the variables, on every replica."""
        replicas.assign(self._inner._distribution_strategy, variables, values)


class MeasuringOptimizer(tf_keras.optimizers.Optimizer):
    """Holds the variables of the noise measurement, and passes gradients to an inner optimizer."""

    _host: Host = host
    _wrappable = (
        tf_keras.optimizers.Optimizer,
        "tf_keras, such as tf_lamb.tf_keras.LAMB(), and not a legacy one; this is",
    )
    _serialize = staticmethod(tf_keras.optimizers.serialize)
    _to_dense = staticmethod(dense)
    _built_for: tuple = ()  # the variables of the latest call of `build`
    # Only AdaScale uses these four.
    _xp = namespace
    _classes_taking_gain = (tf_keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
    _classes_with_second_moments = _ADAPTIVE
    _base_schedule = tf_keras.optimizers.schedules.LearningRateSchedule

    save_own_variables = host.save_own_variables
    load_own_variables = host.load_own_variables
    set_weights = host.set_weights
    _track_trackable = host.track_trackable
    _trackable_children = host.trackable_children
    _lookup_dependency = host.lookup_dependency

    def _wrap(self, inner, name):
        """Sets the inner optimizer, and the name of this one."""
        seams.install()
        self.inner_optimizer = inner
        super().__init__(name=name, jit_compile=False)

    def _set_inner_rate(self, inner):
        """Replaces the inner optimizer's learning rate by AdaScale's, which includes the gain."""
        self._base_learning_rate = inner._learning_rate  # saved in checkpoints under this name
        use_rate(inner, inner._build_learning_rate(_Rate(self, inner._learning_rate)))

    @host.in_strategy
    def build(self, var_list):
        """Builds the inner optimizer, and makes the variables of the measurements.

        Raises:
            ValueError: If a step has one replica and one micro-batch, and so nothing to compare, or
                if the optimizer is built for other variables.
        """
        # It is written into `__dict__`, because `__setattr__` would add it to checkpoints.
        self.__dict__["_built_for"] = tuple(var_list)
        if getattr(self, "_built", False):
            check_built_for(self, var_list, self._index_dict)
            return
        inner = self.inner_optimizer
        self._replicas = inner._distribution_strategy.num_replicas_in_sync
        gathers = self._count_parts(self._replicas, may_gather=aggregates_as_tf_keras(inner))
        inner.build(var_list)
        super().build(var_list)
        self._start_meter(Backend(inner, self._replicas, gathers), var_list)
        self._built = True
        tracking.restore_deferred(self)

    def _take_loss_scale(self, scale):
        """Passes a dynamic loss scale on to an inner optimizer of this package.

        Such an optimizer itself skips updates that are not finite. If the inner optimizer is one of
        another package, `LossScaleOptimizer` keeps control of the scale.
        """
        if isinstance(self.inner_optimizer, LayerwiseOptimizer):
            self.inner_optimizer._take_loss_scale(scale)

    def _add_variable(self, name, shape, dtype, initializer, is_per_replica):
        """Adds a variable of the measurements, and returns it.

        Args:
            name: The name of the variable.
            shape: The shape.
            dtype: The dtype.
            initializer: The name of an initializer.
            is_per_replica: Whether each replica gets its own copy.
        """
        with replicas.per_replica_variables() if is_per_replica else contextlib.nullcontext():
            return self.add_variable(shape, tf.as_dtype(dtype), initializer, f"{self.name}_{name}")

    def _create_iteration_variable(self):
        """Makes no variable, because the inner optimizer counts the steps."""

    @tf.autograph.experimental.do_not_convert  # converting the code would take seconds
    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Measures the noise of the gradients, then takes a step with the inner optimizer.

        The inner optimizer gets gradients that are summed over replicas, unless each replica adds
        up its own gradients and only an update sums them.

        Args:
            grads_and_vars: Pairs of a gradient, or None, and its variable.
            name: Passed on to the inner optimizer.
            skip_gradients_aggregation: Whether the gradients are summed over replicas already.
            **kwargs: `experimental_aggregate_gradients`, tf_keras's older argument, the negation of
                `skip_gradients_aggregation`.

        Returns:
            The variable that counts the steps; the inner optimizer's result if all variables are
            frozen.

        Raises:
            ValueError: If gradients of several replicas are summed already, or if the optimizer was
                made outside of the strategy.
        """
        pairs = host.with_missing_gradients(self, list(grads_and_vars))
        trainable_variables = [variable for _, variable in pairs]
        replicas.check_strategy(self.inner_optimizer._distribution_strategy, type(self).__name__)
        with tf.init_scope():
            self.build(trainable_variables)
        aggregate = kwargs.pop("experimental_aggregate_gradients", True)
        is_aggregated = skip_gradients_aggregation or not aggregate
        if is_aggregated and self._replicas > 1:
            raise ValueError(
                f"{type(self).__name__} has to see the gradients of the replicas before they are "
                "summed: call apply_gradients without skip_gradients_aggregation. tf_keras's "
                "LossScaleOptimizer, of mixed_float16, sums them first: use mixed_bfloat16."
            )
        missing_pairs = [(g, v) for g, v in pairs if g is None]
        pairs = [(g, v) for g, v in pairs if g is not None]

        def apply_inner(pairs):
            self.inner_optimizer.apply_gradients(
                [*pairs, *missing_pairs], name=name, skip_gradients_aggregation=True
            )

        if not without_frozen(self.inner_optimizer, pairs):
            return self.inner_optimizer.apply_gradients(
                missing_pairs, skip_gradients_aggregation=True
            )
        self.step(pairs, apply_inner, trainable_variables)
        return self.iterations

    def _sum_over_replicas(self, pairs):
        """Sums the gradient of each pair over replicas."""
        inner = self.inner_optimizer
        return list(inner.aggregate_gradients(pairs)) if self._replicas > 1 else pairs

    def _position_of(self, variable):
        """Returns the position of a variable in the list that `build` was called with."""
        return self._index_dict[self._var_key(variable)]

    @staticmethod
    def _deserialize(inner, custom_objects):
        """Makes the inner optimizer from its config; returns it if it is an optimizer already."""
        if isinstance(inner, tf_keras.optimizers.Optimizer):
            return inner
        return tf_keras.optimizers.deserialize(
            host.with_registered_class_name(inner), custom_objects
        )
