"""The base class of every optimizer for tf_keras; a subclass adds its update rule."""

import functools

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.optimizers.planner import check_built_for
from tf_lamb.core import accumulation
from tf_lamb.tensorflow import namespace, replicas, tracking
from tf_lamb.tensorflow.update import TensorFlowUpdate, dense
from tf_lamb.tf_keras import host, schedules, seams
from tf_lamb.tf_keras.base import BaseOptimizer


def aggregates_as_tf_keras(optimizer):
    """Returns whether neither `aggregate_gradients` nor `apply_gradients` was replaced.

    Only then is it `LayerwiseOptimizer.aggregate_gradients` that sums the gradients over replicas.
    A subclass or a user may have replaced this method, or a user `apply_gradients` of the object.
    """
    method = getattr(optimizer.aggregate_gradients, "__func__", None)
    is_inherited = method is LayerwiseOptimizer.aggregate_gradients
    return is_inherited and "apply_gradients" not in vars(optimizer)


class LayerwiseOptimizer(Layerwise, BaseOptimizer):
    """Joins the framework-independent class `Layerwise` with tf_keras's `Optimizer`."""

    _xp = namespace
    _host = host
    _schedules = schedules
    _counter_dtype = tf.int64
    _average_dtype = tf.float64  # wide enough for the moving average of any variable
    # The variables without a gradient in the present micro-batch, if gradients accumulate.
    _variables_without_gradient: tuple = ()
    _built_for: tuple = ()  # the variables of the latest call of `build`

    def __init__(self, learning_rate, **arguments):
        seams.install()
        settings = self._settings_of(arguments)
        host_arguments = settings.host_arguments()
        if host_arguments["name"] is None:
            name = type(self).__name__.lower()
            uid = tf_keras.backend.get_uid(name) - 1
            host_arguments["name"] = f"{name}_{uid}" if uid else name
        super().__init__(**host_arguments)
        steps = settings.gradient_accumulation_steps
        self.gradient_accumulation_steps = accumulation.max_micro_batches(steps)
        learning_rate = settings_.learning_rate(learning_rate, host.Schedule)
        self._store_settings(settings, learning_rate)
        self._learning_rate = self._build_learning_rate(learning_rate)

    @classmethod
    def _settings_of(cls, arguments):
        """See base class; tf_keras has no `loss_scale_factor`."""
        settings = super()._settings_of(arguments)
        if settings.loss_scale_factor is not None:
            raise ValueError(
                f"loss_scale_factor={settings.loss_scale_factor:g} is an argument of Keras 3. In "
                "tf_keras, put tf_keras.mixed_precision.LossScaleOptimizer around the optimizer."
            )
        return settings

    @host.in_strategy
    def build(self, var_list):
        """Makes the slots, and the plan that says how each variable is updated.

        Warns if a pattern in the optimizer's arguments matches no variable.

        Raises:
            ValueError: If the optimizer was built for other variables, or if an update needs the
                norm of a variable that is split over parameter servers.
        """
        # It is written into `__dict__`, because `__setattr__` would add it to checkpoints.
        self.__dict__["_built_for"] = tuple(var_list)
        if getattr(self, "_built", False):
            check_built_for(self, var_list, self._index_dict)
            return
        plan = self._planner.build(var_list, will_load=self._is_from_config)
        replicas.refuse_split_variables(var_list, plan, self.clipnorm)
        super().build(var_list)
        averages = self._model_variables_moving_average if self.use_ema else ()
        self._make_storage(list(map(host.native, var_list)), plan, averages)
        self._update = TensorFlowUpdate(
            jit_compile=self._settings.jit_compile,
            gains_by_xla=self.rule.gains_by_xla,
            stacks_if_adapt=self.rule.stacks_if_adapt,
            **self._update_arguments(),
        )
        self._built = True
        tracking.restore_deferred(self)

    def _take_loss_scale(self, scale):
        """Takes control of a dynamic loss scale, so that it changes once per update.

        tf_keras itself would change it at every micro-batch.
        """
        self._follow_loss_scale(seams.take_over_scale(scale), scale)

    def update_step(self, gradient, variable):
        """Takes one step of the update rule for one variable, on the present replica.

        Args:
            gradient: The gradient.
            variable: The variable.
        """
        (layer,), state = self._layers_and_state([variable])
        self._update.step_layer(layer, [gradient], state, self._scalars())

    @tf.autograph.experimental.do_not_convert  # converting the code would take seconds
    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Applies gradients as tf_keras does, except to frozen variables.

        If gradients accumulate, they are summed over replicas only once per update.

        Args:
            grads_and_vars: Pairs of a gradient, or None, and its variable.
            name: The name of the scope; None is that of the optimizer.
            skip_gradients_aggregation: Whether the gradients are summed over replicas already.
            **kwargs: `experimental_aggregate_gradients`, tf_keras's older argument, the negation of
                `skip_gradients_aggregation`.

        Returns:
            The result of tf_keras's own method.
        """
        pairs = host.with_missing_gradients(self, list(grads_and_vars))
        trainable_variables = [variable for _, variable in pairs]
        if pairs:
            with tf.name_scope(name or self.name), tf.init_scope():
                self.build(trainable_variables)
        pairs = self.without_frozen(pairs)
        if pairs and self.gradient_accumulation_steps:
            aggregate = kwargs.pop("experimental_aggregate_gradients", True)
            is_aggregated = skip_gradients_aggregation or not aggregate
            pairs = self.replica_parts(pairs, is_aggregated=is_aggregated)
            skip_gradients_aggregation = True
            with_gradient = [v for g, v in pairs if g is not None]
            self._variables_without_gradient = tuple(
                self.without_gradient(with_gradient, trainable_variables)
            )
        return super().apply_gradients(pairs, name, skip_gradients_aggregation, **kwargs)

    def replica_parts(self, pairs, is_aggregated=False):
        """Returns pairs with gradients whose sum over replicas is the gradient of the whole batch.

        Gradients that are already summed over replicas are divided by the number of replicas,
        because an update sums the accumulators of all replicas.

        Args:
            pairs: Pairs of a gradient and its variable.
            is_aggregated: Whether the gradients are summed over replicas already.
        """
        if not is_aggregated:
            if aggregates_as_tf_keras(self):
                return pairs
            pairs = self.aggregate_gradients(pairs)
        replica_count = self._distribution_strategy.num_replicas_in_sync
        return (
            pairs
            if replica_count == 1
            else host.map_gradients(pairs, lambda gradient: gradient / replica_count)
        )

    def accumulate(self, gradients, accumulators):
        """Adds the gradients of this replica to its accumulators.

        If this micro-batch ends an update, the accumulators of all replicas are then set to their
        sum.

        Args:
            gradients: The gradients of this replica.
            accumulators: The accumulator of each gradient.
        """
        replicas.accumulate(self._distribution_strategy, accumulators, gradients, self._is_update)

    def _internal_apply_gradients(self, grads_and_vars):
        """Runs the update of all variables that have a gradient in one of the micro-batches.

        These include variables that have no gradient in the last micro-batch, but in an earlier
        one.
        """
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        gradients = [host.at_least_float32(dense(g, v)) for g, v in pairs]
        # Variables without a gradient in this micro-batch are updated as well, by the sums of their
        # gradients in earlier micro-batches.
        without_gradient = self._variables_without_gradient
        layers, state = self._layers_and_state([*variables, *without_gradient], without_gradient)
        count = functools.partial(self._count_step, [*variables, *without_gradient])
        if self.gradient_accumulation_steps:
            zeros = [tf.zeros(total.shape, total.dtype) for total in state.accumulators]
            if not self.gradients_are_gathered:
                self.accumulate([*gradients, *zeros[len(gradients) :]], state.accumulators)
            gradients = []
        update = functools.partial(self._update, layers, state, self._scalars, count)
        strategy, merge_call = replicas.merge_call_for(state.stored[0].weight)
        result = merge_call(update, strategy, tuple(gradients))
        for variable in without_gradient:
            if variable.constraint is not None:  # tf_keras itself constrains the others
                variable.assign(variable.constraint(variable))
        return result

    def _averaged_positions(self, variables):
        """Returns the positions, among all variables, of those whose averages a step updates."""
        return set(map(self._index_of, variables))

    def _add_iterations(self, is_step_taken):
        """Adds 1 to `iterations` if the boolean scalar is true; returns the new value."""
        return self.iterations.assign_add(tf.cast(is_step_taken, tf.int64))

    def has_traced_a_step(self) -> bool:
        """Returns whether some step has been traced.

        A traced step ignores settings that are changed afterwards.
        """
        update = getattr(self, "_update", None)
        return update is not None and update.is_traced

    def _index_of(self, variable):
        """Returns the position of a variable in the list that `build` was called with."""
        return self._index_dict[self._var_key(variable)]

    save_own_variables = host.save_own_variables
    load_own_variables = host.load_own_variables
    set_weights = host.set_weights
    _track_trackable = host.track_trackable
    _trackable_children = host.trackable_children
    _lookup_dependency = host.lookup_dependency

    # -- further members that behave differently from tf_keras's -----------------------------------

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros"):
        """Adds a variable on the devices of another one, and returns it.

        Args:
            variable: The other variable.
            name: The name of the new variable.
            dtype: The dtype.
            shape: The shape; None takes the shape of `variable`.
            initial: The name of an initializer.
        """
        shape = variable.shape if shape is None else shape
        value = tf_keras.initializers.get(initial)(shape, tf.as_dtype(dtype))
        return self._add_with_value(variable, name, value)

    def aggregate_gradients(self, grads_and_vars):
        """Sums gradients over replicas as tf_keras does, except for one case.

        If gradients accumulate inside a `LossScaleOptimizer`, they are not summed here, but once
        per update. The wrapper then gets the gradients of its replica times n, the number of
        replicas, and `replica_parts` divides them by n again.
        """
        pairs = list(grads_and_vars)
        accumulates = self.gradient_accumulation_steps and aggregates_as_tf_keras(self)
        if not (accumulates and host.is_in_loss_scale(self)):
            return super().aggregate_gradients(pairs)
        replica_count = self._distribution_strategy.num_replicas_in_sync
        return host.map_gradients(pairs, lambda gradient: replica_count * gradient)

    def _clip_gradients(self, grads):
        """Returns the gradients unchanged; the update clips them after the sum over replicas."""
        return grads

    def clip_aggregated(self, gradients):
        """Clips gradients that are summed over replicas, as tf_keras clips gradients."""
        return super()._clip_gradients(gradients)

    def _apply_weight_decay(self, variables):
        """Does nothing: the rule applies weight decay."""

    def _rate_in_config(self):
        """Returns the learning rate in a config: a number, or a serialized schedule."""
        if isinstance(self._learning_rate, host.CallableSchedule):
            return float(self.learning_rate)
        rate = self._serialize_hyperparameter(self._learning_rate)
        return rate if isinstance(rate, dict) else float(rate)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes an optimizer from a config.

        Args:
            config: A result of `get_config`.
            custom_objects: Class name -> class, for classes that are not registered.
        """
        if "learning_rate" in config:
            rate = host.with_registered_class_name(config["learning_rate"])
            config = {**config, "learning_rate": rate}
        return super().from_config(config, custom_objects)
