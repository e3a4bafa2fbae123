"""The base class of every optimizer for tf_keras: all that it asks of one, but the rule."""

import functools

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core import accumulation
from tf_lamb.tensorflow import namespace, replicas, tracking
from tf_lamb.tensorflow.summaries import vector_like
from tf_lamb.tensorflow.update import Update, dense
from tf_lamb.tf_keras import host, schedules, seams

interim = tf.__internal__.distribute.interim


def aggregates_as_tf_keras(optimizer):
    """Whether gradients are summed over replicas by no other method, and none changes the sums."""
    method = getattr(optimizer.aggregate_gradients, "__func__", None)
    own = method is LayerwiseOptimizer.aggregate_gradients
    return own and "apply_gradients" not in vars(optimizer)


class LayerwiseOptimizer(Layerwise, tf_keras.optimizers.Optimizer):
    """tf_keras's base class, put right, and what an update takes from it and gives back."""

    _xp = namespace
    _host = host
    _schedules = schedules
    _counts = tf.int64
    _widest = tf.float64  # the dtype that holds the averages of all variables
    _missing: tuple = ()  # variables without a gradient, while gradients accumulate
    _built_for: tuple = ()  # the variables of the latest call of `build`

    def __init__(self, learning_rate, **arguments):
        seams.install()
        settings = self._settings_of(arguments)
        if settings.loss_scale_factor is not None:
            raise ValueError(
                f"loss_scale_factor={settings.loss_scale_factor:g} is an argument of Keras 3. In "
                "tf_keras, put tf_keras.mixed_precision.LossScaleOptimizer around the optimizer."
            )
        own = settings.host()
        if own["name"] is None:
            name = type(self).__name__.lower()
            uid = tf_keras.backend.get_uid(name) - 1
            own["name"] = f"{name}_{uid}" if uid else name
        super().__init__(**own)
        steps = settings.gradient_accumulation_steps
        self.gradient_accumulation_steps = accumulation.largest(steps)
        learning_rate = settings_.learning_rate(learning_rate, host.Schedule)
        self._keep_settings(settings, learning_rate)
        self._learning_rate = self._build_learning_rate(learning_rate)

    @host.in_strategy
    def build(self, var_list):
        """Makes the slots and the plan; warns of a pattern that matches no variable."""
        self.__dict__["_built_for"] = tuple(var_list)  # no checkpoint is to hold it
        if getattr(self, "_built", False):
            self._check_built_for(var_list, self._index_dict)
            return
        plan = self._make_plan(var_list)
        replicas.refuse_parts(var_list, plan, self.clipnorm)
        super().build(var_list)
        averages = self._model_variables_moving_average if self.use_ema else ()
        self._make_storage(list(map(host.native, var_list)), plan, averages)
        jit_compile, gains = self._settings.jit_compile, self.rule.gains_by_xla
        self._update = Update(jit_compile=jit_compile, gains=gains, **self._for_update())
        self._make_shown()
        self._built = True
        tracking.restore_deferred(self)

    def _make_accumulators(self, variables):
        with replicas.per_replica_variables():
            return [self.add_variable_from_reference(v, "gradient_accumulator") for v in variables]

    def _take_loss_scale(self, scale):
        self._follow_loss_scale(seams.take_over_scale(scale), scale)

    def update_step(self, gradient, variable):
        """One step of the rule for one variable, on its replica."""
        (layer,), state = self._work([variable])
        self._update.step_layer(layer, [gradient], state, self._scalars())

    @tf.autograph.experimental.do_not_convert  # rewriting this package would take seconds
    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Applies as tf_keras does, but what is frozen; sums over replicas once an update."""
        pairs = host.with_all(self, list(grads_and_vars))
        unfrozen = [variable for _, variable in pairs]
        if pairs:
            with tf.name_scope(name or self.name), tf.init_scope():
                self.build(unfrozen)
        pairs = self.without_frozen(pairs)
        if pairs and self.gradient_accumulation_steps:
            aggregate = kwargs.pop("experimental_aggregate_gradients", True)
            skip = skip_gradients_aggregation or not aggregate
            pairs = self.own_parts(pairs, aggregated=skip)
            skip_gradients_aggregation = True
            given = [v for g, v in pairs if g is not None]
            self._missing = tuple(self.without_gradient(given, unfrozen))
        return super().apply_gradients(pairs, name, skip_gradients_aggregation, **kwargs)

    def own_parts(self, pairs, aggregated=False):
        """Pairs with gradients of which the sum over replicas is what accumulates."""
        if not aggregated:
            if aggregates_as_tf_keras(self):
                return pairs
            pairs = self.aggregate_gradients(pairs)
        n = self._distribution_strategy.num_replicas_in_sync
        return pairs if n == 1 else host.of_each(pairs, lambda gradient: gradient / n)

    def gather(self, gradients, accumulators):
        """Has each replica add up gradients of its own; at an update accumulators get the sums."""
        replicas.gather(self._distribution_strategy, accumulators, gradients, self._is_update)

    def _internal_apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        gradients = [host.at_least_float32(dense(g, v)) for g, v in pairs]
        missing = self._missing  # in this micro-batch; the update takes what they have added up
        plan, state = self._work([*variables, *missing], missing)
        count = functools.partial(self._count, [*variables, *missing])
        if self.gradient_accumulation_steps:
            zeros = [tf.zeros(total.shape, total.dtype) for total in state.accumulators]
            if not self.gradients_are_gathered:
                self.gather([*gradients, *zeros[len(gradients) :]], state.accumulators)
            gradients = []
        update = functools.partial(self._update, plan, state, self._scalars, count)
        strategy = tf.distribute.get_strategy()
        result = interim.maybe_merge_call(update, strategy, tuple(gradients))
        for variable in missing:
            if variable.constraint is not None:  # tf_keras sees to the others
                variable.assign(variable.constraint(variable))
        return result

    def _averaged(self, variables):
        return set(map(self._index_of, variables))

    def _add_iterations(self, stepped):
        return self.iterations.assign_add(tf.cast(stepped, tf.int64))

    def _vector_like(self, variable, name):
        return vector_like(variable, self._distribution_strategy, name)

    def has_traced_a_step(self) -> bool:
        """Whether some step has been traced, which does not learn what it was not traced with."""
        update = getattr(self, "_update", None)
        return update is not None and update.is_traced

    def _index_of(self, variable):
        return self._index_dict[self._var_key(variable)]

    save_own_variables = host.save_own_variables
    load_own_variables = host.load_own_variables
    set_weights = host.set_weights
    _track_trackable = host.track_trackable
    _trackable_children = host.trackable_children
    _lookup_dependency = host.lookup_dependency

    # -- what tf_keras does otherwise --------------------------------------------------------------

    def add_variable_from_reference(
        self, model_variable, variable_name, shape=None, initial_value=None
    ):
        """Adds one as in tf_keras, but a half-precision variable's slots are float32."""
        dtype = host.native(model_variable).dtype
        dtype = tf.float32 if dtype in host.HALF else dtype
        if initial_value is None:
            return self.add_variable_like(model_variable, variable_name, dtype, shape)
        return self._add_with_value(model_variable, variable_name, tf.cast(initial_value, dtype))

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros"):
        """Adds a variable of that dtype where the given one lives; by default zeros like it."""
        shape = variable.shape if shape is None else shape
        value = tf_keras.initializers.get(initial)(shape, tf.as_dtype(dtype))
        return self._add_with_value(variable, name, value)

    def _add_with_value(self, variable, name, value):
        if host.native(variable).dtype == value.dtype:
            return super().add_variable_from_reference(variable, name, initial_value=value)
        with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
            own = tf.Variable(value, name=f"{name}/{variable._shared_name}", trainable=False)
        self._variables.append(own)
        return own

    def aggregate_gradients(self, grads_and_vars):
        """Aggregates as in tf_keras; while gradients accumulate, a loss scale gets n times its own.

        Their mean is the sum, which is taken once an update.
        """
        pairs = list(grads_and_vars)
        accumulates = self.gradient_accumulation_steps and aggregates_as_tf_keras(self)
        if not (accumulates and host.is_in_loss_scale(self)):
            return super().aggregate_gradients(pairs)
        n = self._distribution_strategy.num_replicas_in_sync
        return host.of_each(pairs, lambda gradient: n * gradient)

    def _clip_gradients(self, grads):
        """No-op: gradients are not aggregated yet."""
        return grads

    def clip_aggregated(self, gradients):
        """Clips the aggregated gradients as tf_keras does."""
        return super()._clip_gradients(gradients)

    def _apply_weight_decay(self, variables):
        """No-op: the rule applies weight decay."""

    @property
    def learning_rate(self):
        """The learning rate of the next step; a schedule is read at the present `iterations`."""
        if isinstance(self._learning_rate, host.Schedule):
            return self._learning_rate(self.iterations)
        return self._learning_rate

    learning_rate = learning_rate.setter(tf_keras.optimizers.Optimizer.learning_rate.fset)

    def _build_learning_rate(self, learning_rate):
        if callable(learning_rate) and not isinstance(learning_rate, host.Schedule):
            learning_rate = host.AsSchedule(learning_rate)
        return super()._build_learning_rate(learning_rate)

    def _get_hyper(self, name, dtype=None):
        value = getattr(self, name)
        return value if dtype is None else tf.cast(value, dtype)

    def _rate_in_config(self):
        """The learning rate in a config: a number, or a serialized schedule."""
        if isinstance(self._learning_rate, host.AsSchedule):
            return float(self.learning_rate)
        rate = self._serialize_hyperparameter(self._learning_rate)
        return rate if isinstance(rate, dict) else float(rate)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer again."""
        if "learning_rate" in config:
            rate = host.by_registered_name(config["learning_rate"])
            config = {**config, "learning_rate": rate}
        return super().from_config(config, custom_objects)
