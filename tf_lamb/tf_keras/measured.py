"""What Measured and AdaScale share in door 2: an optimizer that stands around another.

Seams into tf_keras (2.20.1), as its own LossScaleOptimizer has them:
    `aggregate_gradients` and `apply_gradients(skip_gradients_aggregation=)`, both public.
    `_built`, `_index_dict`, `_var_key`, `_distribution_strategy`, `_variables`: used as
        tf_keras's own optimizers use them.
"""

import tensorflow as tf
import tf_keras

from tf_lamb.core.layerwise import path_of
from tf_lamb.core.measuring import refuse_wrapper
from tf_lamb.tensorflow import namespace, replicas


class MeasuringOptimizer(tf_keras.optimizers.Optimizer):
    """Owns the variables of what was measured, and hands all else on to the inner optimizer."""

    def _wrap(self, inner, name):
        refuse(type(self).__name__, inner)
        self.inner_optimizer = inner
        super().__init__(name=name, jit_compile=False)

    def build(self, var_list):
        """Builds the inner optimizer, too; refuses where a step has only one part."""
        if getattr(self, "_built", False):
            self._refuse_strangers(var_list)
            return
        self._replicas = self.inner_optimizer._distribution_strategy.num_replicas_in_sync
        steps = getattr(self.inner_optimizer, "gradient_accumulation_steps", None)
        self._count_parts(self._replicas, steps or 1)
        self.inner_optimizer.build(var_list)
        super().build(var_list)
        self._members_by_group = self._members([path_of(v) for v in var_list])
        self._state = {
            name: self.add_variable(shape, tf.as_dtype(dtype), initializer, f"{self.name}_{name}")
            for name, (shape, dtype, initializer) in self._initial_state().items()
        }
        self._measured_variables = list(var_list)
        self._previous = []
        if self.biased:
            self._previous = [
                self.add_variable_from_reference(v, "previous_gradient") for v in var_list
            ]
        self._built = True

    def _refuse_strangers(self, variables):
        for variable in variables:
            if self._var_key(variable) not in self._index_dict:
                raise ValueError(
                    f"{self.name} was built for other variables than {path_of(variable)!r}. Make a "
                    "new optimizer for a new model, for instance "
                    f"{type(self).__name__}.from_config(optimizer.get_config())."
                )

    @property
    def iterations(self):
        """Steps of the inner optimizer."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable):
        self.inner_optimizer.iterations = variable

    def _create_iteration_variable(self):
        """Silent: the inner optimizer counts."""

    @property
    def variables(self):
        """Its own, then the inner optimizer's."""
        return tf_keras.optimizers.Optimizer.variables.fget(self) + self.inner_optimizer.variables

    @property
    def learning_rate(self):
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Measures the gradients, and hands their sum over replicas to the inner optimizer."""
        pairs = list(grads_and_vars)
        replicas.refuse_other(self.inner_optimizer._distribution_strategy, type(self).__name__)
        with tf.init_scope():
            self.build([v for _, v in pairs])
        aggregate = kwargs.pop("experimental_aggregate_gradients", True)
        skip = skip_gradients_aggregation or not aggregate
        if skip and self._replicas > 1:
            raise ValueError(
                f"{type(self).__name__} has to see the gradients of the replicas before they are "
                "summed: call apply_gradients without skip_gradients_aggregation. tf_keras's "
                "LossScaleOptimizer, of mixed_float16, sums them first: use mixed_bfloat16."
            )
        missing = [(g, v) for g, v in pairs if g is None]  # the inner optimizer says so
        pairs = [(g, v) for g, v in pairs if g is not None]
        if not pairs:
            return self.inner_optimizer.apply_gradients(missing, skip_gradients_aggregation=True)
        dense = [tf.convert_to_tensor(g) for g, _ in pairs]
        variables = [v for _, v in pairs]
        if self._replicas > 1:
            pairs = list(self.inner_optimizer.aggregate_gradients(pairs))
        else:
            pairs = list(zip(dense, variables, strict=True))
        counts = self._measure(dense, [g for g, _ in pairs], variables)
        self.inner_optimizer.apply_gradients(
            pairs + missing, name=name, skip_gradients_aggregation=True
        )
        self._stepped(counts)
        return self.iterations

    def _stepped(self, counts):
        """After every call; `counts` says whether it was an update, and a finite one."""

    def _measure(self, gradients, summed, variables):
        """Brings the state up to this call; says whether it was an update, and a finite one."""
        positions = [self._index_dict[self._var_key(v)] for v in variables]
        summed = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in summed]
        state = {name: tf.convert_to_tensor(v) for name, v in self._state.items()}
        is_update = tf.equal(state["micro_step"], self.micro_batches - 1)
        weigh = self._preconditioner(positions)

        if self.biased:
            before = [tf.cast(self._previous[i], tf.float32) for i in positions]
            local = (self._squares(before, positions, weigh)
                     + self._squares(summed, positions, weigh)) / 2  # fmt: skip
            mean = [(g + b) / 2 for g, b in zip(summed, before, strict=True)]
            total = self._squares(mean, positions, weigh)
            finite = tf.math.is_finite(tf.reduce_sum(total))
            kept = [tf.where(finite, g, b) for g, b in zip(summed, before, strict=True)]
            self._assign([self._previous[i] for i in positions], kept)
        else:
            local = self._mean_over_replicas(self._squares(gradients, positions, weigh))
            total = self._squares_of_mean(summed, positions, weigh, is_update)
        new = self._advance(namespace, state, local, total, is_update, self._is_measured())
        self._assign([self._state[name] for name in new], new.values())
        return is_update & tf.math.is_finite(tf.reduce_sum(total))

    def _squares(self, gradients, positions, weigh):
        """|g|^2 by group."""
        squares = {
            i: replicas.squared_norm(weigh(g, i)) for g, i in zip(gradients, positions, strict=True)
        }
        return tf.stack(
            [sum((squares[i] for i in each if i in squares), tf.zeros(()))
             for each in self._members_by_group]
        )  # fmt: skip

    def _squares_of_mean(self, summed, positions, weigh, is_update):
        if self.micro_batches == 1:
            return self._squares(summed, positions, weigh)
        accumulated = self.inner_optimizer._accumulators

        def of_mean():
            mean = [
                (g + tf.cast(accumulated[i], tf.float32)) / self.micro_batches
                for g, i in zip(summed, positions, strict=True)
            ]
            return self._squares(mean, positions, weigh)

        return tf.cond(is_update, of_mean, lambda: tf.zeros((len(self.group_names),)))

    def _preconditioner(self, positions):
        return lambda gradient, position: gradient

    def _is_measured(self):
        return True

    def _mean_over_replicas(self, squares):
        """Replica i has g_i/n, so that the sum is the mean: the mean of |g_i|^2 is n times it."""
        return self._replicas * replicas.sum_over_replicas(squares)

    def _assign(self, variables, values):
        replicas.assign(self.inner_optimizer._distribution_strategy, variables, values)

    def _as_numpy(self, variable):
        return variable.numpy()

    def finalize_variable_values(self, var_list):
        """See base class."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self):
        """The constructor's arguments, the inner optimizer as its own config."""
        return {"inner": tf_keras.optimizers.serialize(self.inner_optimizer), **self._arguments()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer again."""
        inner = config["inner"]
        if not isinstance(inner, tf_keras.optimizers.Optimizer):
            inner = tf_keras.optimizers.deserialize(inner, custom_objects)
        return cls(**{**config, "inner": inner})


def refuse(wrapper, inner):
    """Says why an optimizer cannot be wrapped, if it cannot."""
    if not isinstance(inner, tf_keras.optimizers.Optimizer):
        raise TypeError(
            f"{wrapper} stands around an optimizer of tf_keras, such as tf_lamb.tf_keras.LAMB(), "
            f"and not a legacy one; this is {inner!r}."
        )
    refuse_wrapper(wrapper, inner)
    if getattr(inner, "_built", False):
        raise ValueError(
            f"{wrapper} needs an optimizer that has not stepped yet, but {inner.name} is built. "
            "Make a new one, for instance with from_config(optimizer.get_config())."
        )
