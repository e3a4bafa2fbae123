"""The base class of `MeasureNoise` and `AdaScale` in Keras 3: an optimizer that wraps another.

This module uses some private API. Of Keras 3 (3.12.0 to 3.15.1) it uses `_variables`,
`_trainable_variables`, `_iterations`, `_accumulated_gradients` and `_get_variable_index`, in the
same way as the optimizers of Keras do.

Of the inner optimizer, which is the wrapped one, it uses `_all_reduce_sum_gradients`, to sum
gradients before they reach the inner optimizer; `_learning_rate`, which AdaScale replaces by a
schedule that multiplies the rate by the gain; and `_velocities`, the second moments of Adam.
"""

import contextlib

import keras
from keras import ops

from tf_lamb.api.noise import meter
from tf_lamb.api.noise.adascale import Rate
from tf_lamb.api.optimizers.frontend import Host
from tf_lamb.api.seams import use_rate
from tf_lamb.keras import arrays, host, overwritten, processes, seams, sums
from tf_lamb.keras.base import BaseOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

_ADAPTIVE = (keras.optimizers.Adam,)  # the classes with second moments; AdamW is a subclass


class _Rate(Rate, keras.optimizers.schedules.LearningRateSchedule): ...


class Backend(meter.Backend):
    """Gives a `NoiseMeter` the arrays, replicas and gradient sums of Keras 3.

    Args:
        inner: The inner optimizer, which is already built.
        variables: The variables that the wrapper is built for.
        strategy: The distribution strategy of the wrapper on TensorFlow; None on other backends.
        replicas, gathers: As in the base class.
    """

    xp = ops

    def __init__(self, inner, variables, strategy, replicas, gathers):
        self.replicas, self.gathers = replicas, gathers
        self._inner, self._variables, self._strategy = inner, variables, strategy

    def cond(self, condition, if_true, if_false):
        """See base class."""
        return arrays.cond(condition, if_true, if_false)

    def squared_norm(self, gradient):
        """See base class."""
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            return replicas.squared_norm(gradient)
        return ops.sum(ops.square(ops.cast(gradient, "float32")))

    def sum_over_replicas(self, squares):
        """See base class; on JAX and torch `squares` is returned as it is.

        On these backends it is already the sum over replicas.
        """
        if self.replicas == 1 or keras.backend.backend() != "tensorflow":
            return squares
        from tf_lamb.tensorflow import replicas

        return replicas.sum_over_replicas(squares)

    def sum_stacked(self, gradient):
        """See base class; only `per_replica`, on JAX, stacks the gradients of replicas."""
        is_stacked = self.replicas > 1 and keras.backend.backend() == "jax"
        return ops.sum(gradient, axis=0) if is_stacked else gradient

    def accumulated(self, position):
        """See base class."""
        index = self._inner._get_variable_index(self._variables[position])
        return self._inner._accumulated_gradients[index]

    def gather(self, arrays, accumulators):
        """See base class."""
        sums.accumulate(self._inner, arrays, accumulators)

    def assign(self, variables, values):
        """See base class."""
        if keras.backend.backend() != "tensorflow":
            for variable, value in zip(variables, values, strict=True):
                variable.assign(ops.cast(value, variable.dtype))
            return
        from tf_lamb.tensorflow import replicas

        replicas.assign(self._strategy, [arrays.native(v) for v in variables], values)


class MeasuringOptimizer(BaseOptimizer):
    """Has the variables in which the noise of gradients is measured.

    The inner optimizer, which it wraps, has the slots and updates the weights.
    """

    _host: Host = host
    # The number of replicas whose gradients are measured separately; on JAX `per_replica` sets it.
    _replicas = 1
    _to_dense = staticmethod(arrays.dense)
    _wrappable = keras.optimizers.Optimizer, "Keras 3, such as tf_lamb.keras.LAMB(), not"
    _serialize = staticmethod(keras.saving.serialize_keras_object)
    _deserialize = staticmethod(keras.saving.deserialize_keras_object)
    # AdaScale alone uses the four attributes below.
    _xp = ops
    _classes_taking_gain = (keras.optimizers.SGD, *_ADAPTIVE, LayerwiseOptimizer)
    _classes_with_second_moments = _ADAPTIVE
    _base_schedule = keras.optimizers.schedules.LearningRateSchedule

    def _wrap(self, inner, name):
        """Sets the inner optimizer, and keeps it from summing gradients over replicas again.

        Args:
            inner: The optimizer to wrap.
            name: The name of the wrapper.
        """
        seams.install()
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner
        if isinstance(inner, LayerwiseOptimizer):
            inner.gradients_are_summed = True
        elif keras.backend.backend() == "tensorflow":
            seams.disable_sum_over_replicas(inner)

    def _set_inner_rate(self, inner):
        """Replaces the inner optimizer's learning rate by AdaScale's: that rate times the gain."""
        use_rate(inner, _Rate(self, inner._learning_rate))

    @host.in_strategy
    def build(self, variables):
        """Builds the inner optimizer, and makes the variables of the measurements.

        Raises:
            ValueError: If a step has one replica and one micro-batch, so that there are no two
                gradients to compare.
        """
        if self.built or not variables:
            return
        processes.check_same_optimizer(self, variables)
        inner, strategy = self.inner_optimizer, None
        if keras.backend.backend() == "tensorflow":
            strategy = self._distribution_strategy
            self._replicas = strategy.num_replicas_in_sync
        gathers = self._count_parts(self._replicas, may_gather=strategy is not None)
        if not inner.built:
            inner.build(variables)
        super().build(variables)
        self._start_meter(
            Backend(inner, list(variables), strategy, self._replicas, gathers), variables
        )
        self._apply_deferred_weights()

    def _add_variable(self, name, shape, dtype, initializer, is_per_replica):
        """Adds a variable in which the noise of gradients is measured, and returns it.

        Args:
            name: The name of the variable.
            shape: The shape.
            dtype: The dtype.
            initializer: The name of an initializer.
            is_per_replica: Whether each replica gets its own copy; only on TensorFlow.
        """
        scope: contextlib.AbstractContextManager = contextlib.nullcontext()
        if is_per_replica:
            from tf_lamb.tensorflow import replicas

            scope = replicas.per_replica_variables()
        with scope:
            return self.add_variable(shape, initializer, dtype=dtype, name=name)

    def apply(self, grads, trainable_variables=None):
        """Measures the gradients, and takes a step of the inner optimizer.

        Before that step the gradients are summed over replicas, unless each replica accumulates its
        own gradients until the update.

        Args:
            grads: The gradients; None for a variable without one.
            trainable_variables: Their variables; None for those of the build.

        Raises:
            ValueError: If there are several replicas, and this is called outside of `strategy.run`.
        """
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            replicas.check_strategy(self._distribution_strategy, type(self).__name__)
        if not self.built:
            with keras.name_scope(self.name):
                self.build(list(trainable_variables))
        variables = list(trainable_variables or self._trainable_variables)
        self._check_variables_are_known(variables)
        overwriting_pairs, trained = overwritten.split_pairs(grads, variables)
        pairs = [*zip(*self._filter_empty_gradients(*trained), strict=True)]

        def apply_inner(pairs):
            # The "gradients" of the scales of float8 layers are their next values. They are passed
            # on to the inner optimizer, but are not measured.
            self.inner_optimizer.apply(*map(list, zip(*pairs, *overwriting_pairs, strict=True)))

        self.step(pairs, apply_inner, host.select_trainable(self._trainable_variables))

    def _sum_over_replicas(self, pairs):
        """Returns the pairs (gradient, variable), with gradients that are summed over replicas.

        With one replica, or on another backend than TensorFlow, it returns `pairs` itself.
        """
        if self._replicas == 1 or keras.backend.backend() != "tensorflow":
            return pairs
        all_reduce = type(self.inner_optimizer)._all_reduce_sum_gradients
        return list(all_reduce(self.inner_optimizer, pairs))

    def _position_of(self, variable):
        """Returns the position of a variable in the list that the optimizer was built for."""
        return self._get_variable_index(variable)
