"""The base class of every optimizer for Keras 3; a subclass adds its update rule.

It uses `_distribution_strategy`, private API of Keras 3 (3.15.1).
"""

import contextlib
import functools

import keras
from keras import ops

from tf_lamb.api.keras_schedules import to_float_scalar
from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.optimizers.planner import check_built_for
from tf_lamb.api.variables import is_overwritten, path_of
from tf_lamb.core import accumulation
from tf_lamb.core.rules.shared import clip_to_bounds
from tf_lamb.core.stored import TAKEN
from tf_lamb.keras import (
    arrays,
    averages,
    host,
    overwritten,
    processes,
    schedules,
    seams,
    sharding,
    sums,
    update,
)
from tf_lamb.keras.base import BaseOptimizer


class LayerwiseOptimizer(Layerwise, BaseOptimizer):
    """Joins the framework-independent `Layerwise` with Keras's base class, and runs updates."""

    _xp = ops
    _host = host
    _schedules = schedules
    _counter_dtype = "int32"
    _shares = None  # with `shard_update` a `sharding.Shares`, which splits arrays over devices
    _hides_trust_ratios = False  # whether `variables` leaves observed trust ratios out
    _replicas = 1  # the number of replicas whose gradients `apply` gets stacked; 1 if summed

    def __init__(self, learning_rate, **arguments):
        seams.install()
        settings = self._settings_of(arguments)
        schedule = keras.optimizers.schedules.LearningRateSchedule
        learning_rate = settings_.learning_rate(learning_rate, schedule)
        super().__init__(
            learning_rate,
            gradient_accumulation_steps=accumulation.max_micro_batches(
                settings.gradient_accumulation_steps
            ),
            loss_scale_factor=settings.loss_scale_factor,
            **settings.host_arguments(),
        )
        self._store_settings(settings, learning_rate)

    @host.in_strategy
    def build(self, variables):
        """Makes the plan, the slots and the update; warns of a pattern that matches no variable.

        Raises:
            ValueError: If the optimizer is already built for other variables, or a variable is
                split over devices on torch.
        """
        if not variables:
            return
        if self.built:
            check_built_for(self, variables, self._trainable_variables_indices)
            return
        sharding.check_whole(variables, self.name)
        processes.check_same_optimizer(self, variables)
        # If the optimizer was made from a config, its model's weights may be loaded from a file
        # after this build. So the planner must not warn about present weights near zero.
        plan = self._planner.build(variables, will_load=self._is_from_config)
        if self._settings.shard_update and sharding.is_distributed():
            self._shares = sharding.Shares([v for v in variables if not is_overwritten(v)])
        super().build(variables)
        self._make_storage(variables, plan, self._moving_averages if self.use_ema else ())
        self._average_dtype = averages.average_dtype(variables)
        self._update = update.make_update(
            self.rule,
            self._settings.jit_compile,
            self._trainable_variables,
            self._shares is not None,
            self._update_arguments() | {"assign": self.assign},
        )
        self._apply_deferred_weights()

    def add_variable(self, shape, initializer="zeros", dtype=None, **kwargs):
        """Adds and returns a variable as Keras does, but in float32 for a dtype in half precision.

        Args:
            shape: The shape of the variable.
            initializer: The name of an initializer, or an initializer.
            dtype: The dtype; None is Keras's default.
            **kwargs: Passed on to Keras.
        """
        if dtype is not None and keras.backend.is_float_dtype(dtype):
            dtype = arrays.compute_dtype(dtype)
        return super().add_variable(shape, initializer, dtype, **kwargs)

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        """Adds and returns a variable like another one, as Keras does, but at least in float32.

        On TensorFlow, each replica has its own copy of an accumulator of gradients.

        Args:
            reference_variable: The variable that gives the shape, the dtype and the place.
            name: The name of the new variable.
            initializer: Ignored: the new variable begins with zeros.
        """
        scope: contextlib.AbstractContextManager = contextlib.nullcontext()
        is_accumulator = name == "gradient_accumulator" and not is_overwritten(reference_variable)
        if is_accumulator and keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            scope = replicas.per_replica_variables()
        dtype = arrays.compute_dtype(reference_variable.dtype)
        with scope:
            return self.add_variable_like(reference_variable, name, dtype)

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros"):
        """Adds a variable to the optimizer, on the devices of another variable, and returns it.

        Args:
            variable: The other variable. `sharding.layout_and_shape` decides how the new one is
                split over devices.
            name: The end of the new variable's name, which begins with the path of `variable`.
            dtype: The dtype.
            shape: The shape. Defaults to None: that of `variable`.
            initial: The name of an initializer. Defaults to "zeros".
        """
        layout, shape = sharding.layout_and_shape(
            variable, name, shape, self._shares, self._replicas
        )
        placement: contextlib.AbstractContextManager = contextlib.nullcontext()
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            placement = replicas.colocated_with(
                self._distribution_strategy, arrays.native(variable), dtype
            )
        with placement:
            name = f"{path_of(variable).replace('/', '_')}_{name}"
            return super().add_variable(shape, initial, dtype, layout=layout, name=name)

    def update_step(self, gradient, variable, learning_rate):
        """Takes one step of the rule for one variable.

        Args:
            gradient: The gradient.
            variable: The variable.
            learning_rate: The learning rate, a scalar.
        """
        (layer,), state = self._layers_and_state([variable])
        scalars = self._scalars()._replace(lr=to_float_scalar(ops, learning_rate))
        self._update.step_layer(layer, [gradient], state, scalars)

    def apply(self, grads, trainable_variables=None):
        """Applies gradients as the base class does.

        A step that is taken also overwrites the scales and histories of float8 layers.

        Args:
            grads: The gradients; None for a variable without one.
            trainable_variables: Their variables; None for those of the build.
        """
        variables = (
            self._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        if len(grads) != len(variables) or not any(map(is_overwritten, variables)):
            return super().apply(grads, trainable_variables)
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
        self._check_variables_are_known(variables)
        overwriting_pairs, trained = overwritten.split_pairs(grads, variables)
        is_update, old_iterations = self._is_update(), self._iterations + 0
        if any(gradient is not None for gradient in trained[0]):
            super().apply(*trained)
        else:
            self._backend_apply_gradients([], [])
            self._iterations.assign_add(1)
        overwritten.overwrite(self, overwriting_pairs, is_update, self._iterations > old_iterations)

    def _overwrite_variables_directly_with_gradients(self, grads, vars):
        """Returns gradients and variables without those of variables that the plan freezes.

        Keras calls this method before it applies constraints, which frozen variables must not get.
        Keras's version overwrites the variables of float8 layers; here `apply` does so.
        """
        pairs = self.without_frozen(list(zip(grads, vars, strict=True)))
        return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

    def _backend_apply_gradients(self, grads, trainable_variables):
        """Runs the update, on the variables that have a gradient and on some others.

        The others have no gradient in this micro-batch, but may have accumulated gradients of
        earlier ones.

        Args:
            grads: The gradients of this micro-batch.
            trainable_variables: Their variables.
        """
        pairs = zip(grads, trainable_variables, strict=True)
        gradients = [ops.cast(arrays.dense(g, v), arrays.compute_dtype(v.dtype)) for g, v in pairs]
        trainable = host.select_trainable(self._trainable_variables)
        without_gradient = self.without_gradient(trainable_variables, trainable)
        accumulators = (self._storage.accumulators[self._index_of(v)] for v in without_gradient)
        gradients += [ops.zeros(total.shape, total.dtype) for total in accumulators]
        if self._settings.shard_update and not self._shares:
            # This call raises an error that says why the update cannot be sharded.
            sharding.data_axis(f"shard_update=True of {self.name}")
        trained = [*trainable_variables, *without_gradient]
        if not trained:
            self._count_step(trained, TAKEN)
            return
        layers, state = self._layers_and_state(trained, without_gradient)
        if keras.backend.backend() == "tensorflow":
            gradients = sums.aggregate(self, gradients, state.accumulators)
        apply_update = functools.partial(
            self._update, layers, state, self._scalars, functools.partial(self._count_step, trained)
        )
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            strategy, merge_call = replicas.merge_call_for(state.stored[0].weight)
            merge_call(apply_update, strategy, tuple(gradients))
        else:
            # Inside `torch.autocast`, torch would compute matrix products in half precision.
            with arrays.without_autocast():
                apply_update(gradients)
        for variable in (v for v in without_gradient if v.constraint is not None):
            # Keras's `apply` applies the constraints of variables that have a gradient now.
            variable.assign(variable.constraint(variable))

    def _add_iterations(self, is_step_taken):
        """Subtracts 1 from `_iterations` unless `is_step_taken`, because Keras always adds 1."""
        iterations = arrays.native(self._iterations)
        iterations.assign_sub(1 - ops.cast(is_step_taken, iterations.dtype))

    def _averaged_positions(self, variables):
        """Returns the positions of the variables whose moving averages a step updates.

        These are the given variables and, as in Keras, all other trainable variables of the
        optimizer that the plan does not freeze.
        """
        frozen = self._storage.plan.frozen
        positions = enumerate(self._trainable_variables)
        trainable = {i for i, v in positions if v.trainable and i not in frozen}
        # A set, because torch's compiler (2.13) treats an iterator passed to `union` as empty.
        return trainable | {self._get_variable_index(v) for v in variables}

    def finalize_variable_values(self, var_list):
        """Replaces weights by averages, and warns, at the end of `fit`, as the base class does.

        It does nothing if a step of `fit` on JAX has failed, which leaves variables without arrays.
        """
        if not host.is_deleted(self._iterations):
            super().finalize_variable_values(var_list)

    def _rate_in_config(self):
        """Returns the learning rate as `get_config` of Keras has it: a number or a config."""
        rate = self._learning_rate
        has_number = self._user_rate is not None and isinstance(rate, keras.Variable)
        if has_number and host.is_deleted(rate):  # a failed `fit` on JAX leaves it without value
            return self._user_rate
        return keras.optimizers.Optimizer.get_config(self)["learning_rate"]

    _index_of = keras.optimizers.Optimizer._get_variable_index

    # -- members that differ from Keras's ----------------------------------------------------------

    @property
    def variables(self):
        """Keras's list of variables; on JAX, the variables that record trust ratios follow."""
        keras_variables = super().variables
        if self._hides_trust_ratios or not self._storage or keras.backend.backend() != "jax":
            return keras_variables
        # On JAX, Keras passes these variables to the compiled step, which can change no others.
        return [*keras_variables, *self._storage.vectors()]

    _model_variables_moving_average = averages.swappable_averages

    @property
    def iterations(self):
        """The variable that counts optimizer steps; Keras's own counts micro-batches."""
        return self._iterations

    @iterations.setter
    def iterations(self, variable):
        self._iterations = variable

    def _clip_gradients(self, grads):
        """Returns the gradients as they are; the update clips them after the sum over replicas."""
        return grads

    def clip_aggregated(self, gradients):
        """Returns the aggregated gradients, clipped as Keras does it, in their own dtypes."""
        max_norm = self.global_clipnorm
        if not max_norm:
            return super()._clip_gradients(gradients)
        # seam: behaviour of Keras 3.15.1. Its `clip_by_global_norm` is not called, because it uses
        # `ops.minimum`, which on torch rounds float64 to float32.
        norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(g)) for g in gradients])))
        scale = max_norm * clip_to_bounds(ops, 1.0 / norm, (0.0, 1.0 / max_norm)) + (norm - norm)
        return [gradient * scale for gradient in gradients]

    def _apply_weight_decay(self, variables):
        """Does nothing: the rule applies weight decay."""

    def _get_current_learning_rate(self):
        """Returns the learning rate of the next step."""
        # A schedule gets the number of optimizer steps; Keras would pass that of micro-batches.
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()
