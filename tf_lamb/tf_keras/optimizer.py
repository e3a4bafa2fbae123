"""The base class of every optimizer for tf_keras: all that it asks of one, but the rule."""

import functools

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise, with_base_rate
from tf_lamb.api.optimizers.storage import Storage
from tf_lamb.core import accumulation
from tf_lamb.core.step import NONFINITE, TAKEN
from tf_lamb.tensorflow import namespace, replicas
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

    def build(self, var_list):
        """Makes the slots and the plan; warns of a pattern that matches no variable."""
        self.__dict__["_built_for"] = tuple(var_list)  # no checkpoint is to hold it
        if getattr(self, "_built", False):
            self._check_built_for(var_list, self._index_dict)
            return
        plan = self._make_plan(var_list)
        replicas.refuse_parts(var_list, plan, self.clipnorm)
        super().build(var_list)
        declared = [self.slots_of(*each) for each in zip(plan.treatments, plan.shapes, strict=True)]
        every = zip(var_list, declared, strict=True)
        made = [(self._add_slots(*each), self._add_master(each[0])) for each in every]
        slots, masters = map(list, zip(*made, strict=True))
        storage = Storage(plan, declared, list(map(host.native, var_list)), slots, masters)
        if self.use_ema:
            storage.averages = self._model_variables_moving_average
            storage.has_averages = self.add_variable((), tf.int64, name="has_averages")
        if steps := self.gradient_accumulation_steps:
            storage.steps = "growing" if self._growing else steps  # sums go on under other stages
            storage.micro_step = self.add_variable((), tf.int64, name="micro_step")
            with replicas.per_replica_variables():
                storage.accumulators = [
                    self.add_variable_from_reference(v, "gradient_accumulator") for v in var_list
                ]
        self._storage = storage
        self._count_skipped()
        if window := self._guard.window:
            self._guard.norms = self.add_variable((window,), tf.float32, name="gradient_norms")
            self._guard.spiked = self.add_variable((), tf.int64, name="spiked_steps")
        self._update = Update(
            rule=self._bound_rule,
            clip=self.clip_aggregated,
            accumulation_steps=self.gradient_accumulation_steps,
            jit_compile=self._settings.jit_compile,
            gains=self.gains_by_xla,
            refusal=self._guard.refusal,
            tell=self._guard.warn_if_repeated,
            deviations=self._guard.deviations,
        )
        self._make_observed()
        self._built = True
        host.restore_deferred(self)

    def _count_skipped(self):
        if self._guard.is_on and self._guard.counter is None:
            self._guard.counter = self.add_variable((), tf.int64, name="skipped_steps")

    def _take_loss_scale(self, scale):
        """Has a dynamic loss scale move once an update, which is skipped where it is too large."""
        self._guard.scaled(seams.take_over_scale(scale), scale)
        if getattr(self, "_built", False):
            self._count_skipped()

    def _add_slots(self, variable, declared):
        is_double, chosen = host.native(variable).dtype == tf.float64, self._settings.dtypes.slots
        made = []
        for slot in declared:
            dtype = tf.as_dtype("float64" if is_double else slot.dtype or chosen)
            shape = variable.shape if slot.shape is None else slot.shape
            initial = tf_keras.initializers.get(slot.initial)(shape, dtype)
            made.append(self.add_variable_like(variable, slot.name, dtype, initial))
        return made

    def _add_master(self, variable):
        """The float32 master of a half-precision variable; None where there is to be none."""
        if self._settings.dtypes.masters and variable.dtype in host.HALF:
            return self.add_variable_like(variable, "master", tf.float32)
        return None

    def update_step(self, gradient, variable):
        """One step of the rule for one variable, on its replica."""
        (layer,), state = self._work([variable])
        self._update.step_layer(layer, [gradient], state, self._scalars())

    @tf.autograph.experimental.do_not_convert  # rewriting this package would take seconds
    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Applies as tf_keras does; accumulated gradients cross replicas once an update.

        What is frozen is left out before tf_keras comes to its constraint.
        """
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

    def _is_update(self):
        if not self.gradient_accumulation_steps:
            return tf.constant(True)
        if stages := self._growing:
            count = accumulation.count(namespace, stages, self.iterations)
            return self._storage.micro_step + 1 >= tf.cast(count, tf.int64)
        return tf.equal(self._storage.micro_step + 1, self.gradient_accumulation_steps)

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

    def _count(self, trained, became):
        due, storage = self._is_update(), self._storage
        stepped = due & tf.equal(became, TAKEN)
        if move_scale := self._guard.move_scale:
            overflowed = tf.equal(became, NONFINITE)
            tf.cond(due, lambda: move_scale(overflowed), lambda: None)
        if steps := self.gradient_accumulation_steps:
            done = storage.micro_step + 1
            next_ = tf.where(due, tf.zeros_like(done), done) if self._growing else done % steps
            storage.micro_step.assign(next_)
        if self.use_ema:
            made, frozen = storage.has_averages > 0, storage.plan.frozen
            others = set(range(len(storage.weights))) - set(map(self._index_of, trained)) - frozen
            for average, stored in storage.averaged(others):  # theirs, too, begin with the first
                average.assign(tf.where(made, average, tf.cast(stored.weight, average.dtype)))
            for average, stored in storage.averaged(frozen):
                average.assign(tf.cast(stored.weight, average.dtype))
            storage.has_averages.assign(
                tf.maximum(storage.has_averages, tf.cast(stepped, tf.int64))
            )
        return self.iterations.assign_add(tf.cast(stepped, tf.int64))

    def _work(self, variables, missing=()):
        """The layers and the state that an update takes besides gradients and scalars."""
        indices = list(map(self._index_of, variables))
        state = self._storage.state(indices, list(map(host.native, variables)), set(indices))
        state = state._replace(
            observed=self._observer.of(indices),
            skipped=self._guard.counters,
            spikes=self._guard.spikes,
        )
        return self._storage.plan.layers(indices, map(self._index_of, missing)), state

    def _vector_like(self, variable, name):
        return vector_like(variable, self._distribution_strategy, name)

    def has_traced_a_step(self) -> bool:
        """Whether some step has been traced, which does not learn what it was not traced with."""
        update = getattr(self, "_update", None)
        return update is not None and update.is_traced

    def get_config(self):
        """The constructor's arguments, exclusions and all."""
        with with_base_rate(self):
            return self._config(self._host_learning_rate())

    def _index_of(self, variable):
        return self._index_dict[self._var_key(variable)]

    def _named_state(self):
        return named.of(self)

    save_own_variables = host.save_own_variables
    load_own_variables = host.load_own_variables
    set_weights = host.set_weights
    _track_trackable = host.track_trackable
    _trackable_children = host.trackable_children

    # -- what tf_keras does otherwise --------------------------------------------------------------

    def add_variable_from_reference(
        self, model_variable, variable_name, shape=None, initial_value=None
    ):
        """Adds one as in tf_keras, but a half-precision variable's slots are float32."""
        dtype = host.native(model_variable).dtype
        dtype = tf.float32 if dtype in host.HALF else dtype
        if initial_value is None and shape is not None:
            initial_value = tf.zeros(shape, dtype)
        return self.add_variable_like(model_variable, variable_name, dtype, initial_value)

    def add_variable_like(self, model_variable, name, dtype, initial_value=None):
        """Adds a variable of that dtype where the given one lives; by default zeros like it."""
        if initial_value is None:
            initial_value = tf.zeros(model_variable.shape, dtype)
        if host.native(model_variable).dtype == dtype:
            return super().add_variable_from_reference(
                model_variable, name, initial_value=initial_value
            )
        with tf.distribute.get_strategy().extended.colocate_vars_with(model_variable):
            variable = tf.Variable(
                tf.cast(initial_value, dtype),
                name=f"{name}/{model_variable._shared_name}",
                trainable=False,
            )
        self._variables.append(variable)
        return variable

    def aggregate_gradients(self, grads_and_vars):
        """Aggregates as in tf_keras, but for a loss scale that asks while gradients accumulate.

        It gets those of the replica times the number of replicas: their mean is the sum, which is
        taken once an update.
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

    def _host_learning_rate(self):
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
