"""The base class of every optimizer for tf_keras: all that it asks of one, but the rule."""

import functools
from typing import cast

import tensorflow as tf
import tf_keras

from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise, with_base_rate
from tf_lamb.core import accumulation
from tf_lamb.core.plan import Plan
from tf_lamb.core.step import NONFINITE, TAKEN, State, Stored
from tf_lamb.tensorflow import namespace, replicas
from tf_lamb.tensorflow.summaries import fetch, vector_like
from tf_lamb.tensorflow.update import Update, array_of, dense, finite_variables
from tf_lamb.tf_keras import host, schedules


class LayerwiseOptimizer(Layerwise, host.HostOptimizer):
    """Owns variables, casting, clipping, accumulation, averaging, distribution and config."""

    _xp = namespace
    _schedules = schedules
    _widest = tf.float64  # the dtype that holds the averages of all variables
    _fetch = staticmethod(fetch)
    _missing: tuple = ()  # variables without a gradient, while gradients accumulate

    def __init__(self, learning_rate, **arguments):
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
        if getattr(self, "_built", False):
            self._check_built_for(var_list, self._index_dict)
            return
        self._make_plan(var_list)
        replicas.refuse_parts(var_list, self.plan, self.clipnorm)
        super().build(var_list)
        self.__dict__["_of_build"] = tuple(map(host.native, var_list))  # which the model tracks
        made = [(self._add_slots(i, v), self._add_master(v)) for i, v in enumerate(var_list)]
        self._slots, self._masters = map(list, zip(*made, strict=True))
        if self.use_ema:
            self._has_averages = self.add_variable((), tf.int64, name="has_averages")
        if self.gradient_accumulation_steps:
            self._micro_step = self.add_variable((), tf.int64, name="micro_step")
            with replicas.per_replica_variables():
                self._accumulators = [
                    self.add_variable_from_reference(v, "gradient_accumulator") for v in var_list
                ]
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
        self._restore_deferred()

    def _count_skipped(self):
        if self._guard.is_on and self._guard.counter is None:
            self._guard.counter = self.add_variable((), tf.int64, name="skipped_steps")

    def _take_loss_scale(self, scale):
        """Has a dynamic loss scale move once an update, which is skipped where it is too large."""
        self._guard.scaled(host.take_over_scale(scale), scale)
        if getattr(self, "_built", False):
            self._count_skipped()

    def _add_slots(self, index, variable):
        is_double = host.native(variable).dtype == tf.float64
        made = []
        for slot in self._slots_at(index):
            dtype = tf.as_dtype(
                "float64" if is_double else slot.dtype or self._settings.dtypes.slots
            )
            shape = variable.shape if slot.shape is None else slot.shape
            initial = tf_keras.initializers.get(slot.initial)(shape, dtype)
            made.append(self.add_variable_like(variable, slot.name, dtype, initial))
        return made

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
        pairs = list(grads_and_vars)
        if pairs:
            with tf.name_scope(name or self.name), tf.init_scope():
                self.build([v for _, v in pairs])
        pairs = self.without_frozen(pairs)
        if pairs and self.gradient_accumulation_steps:
            aggregate = kwargs.pop("experimental_aggregate_gradients", True)
            skip = skip_gradients_aggregation or not aggregate
            pairs = self.own_parts(pairs, aggregated=skip)
            skip_gradients_aggregation = True
            self._missing = self.without_gradient([v for g, v in pairs if g is not None])
        return super().apply_gradients(pairs, name, skip_gradients_aggregation, **kwargs)

    def without_gradient(self, variables):
        """The other variables that accumulate: they have a gradient of None, or are left out."""
        given = cast(Plan, self.plan).frozen.union(map(self._index_of, variables))
        return tuple(v for i, v in enumerate(self._of_build) if i not in given)

    def own_parts(self, pairs, aggregated=False):
        """Pairs with gradients of which the sum over replicas is what accumulates."""
        if not aggregated:
            if host.aggregates_as_tf_keras(self):
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
            return self._micro_step + 1 >= tf.cast(count, tf.int64)
        return tf.equal(self._micro_step + 1, self.gradient_accumulation_steps)

    def _internal_apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        gradients = [host.at_least_float32(dense(g, v)) for g, v in pairs]
        missing = self._missing  # in this micro-batch; the update takes what they have added up
        plan, state = self._work([*variables, *missing], missing)
        count = functools.partial(self._count, [*variables, *missing])
        if self.gradient_accumulation_steps:
            zeros = [tf.zeros(total.shape, total.dtype) for total in state.accumulators]
            self.gather([*gradients, *zeros[len(gradients) :]], state.accumulators)
            gradients = []
        result = self._update(plan, gradients, state, self._scalars, count)
        for variable in missing:
            if variable.constraint is not None:  # tf_keras sees to the others
                variable.assign(variable.constraint(variable))
        return result

    def _count(self, trained, became):
        due = self._is_update()
        stepped = due & tf.equal(became, TAKEN)
        if move_scale := self._guard.move_scale:
            overflowed = tf.equal(became, NONFINITE)
            tf.cond(due, lambda: move_scale(overflowed), lambda: None)
        if steps := self.gradient_accumulation_steps:
            done = self._micro_step + 1
            next_ = tf.where(due, tf.zeros_like(done), done) if self._growing else done % steps
            self._micro_step.assign(next_)
        if self.use_ema:
            made = self._has_averages > 0
            frozen = cast(Plan, self.plan).frozen
            waiting = set(range(len(self._slots))) - set(map(self._index_of, trained)) - frozen
            for average, stored in self._averages(waiting):  # theirs, too, begin with the first
                average.assign(tf.where(made, average, tf.cast(stored.weight, average.dtype)))
            for average, stored in self._averages(frozen):
                average.assign(tf.cast(stored.weight, average.dtype))
            self._has_averages.assign(tf.maximum(self._has_averages, tf.cast(stepped, tf.int64)))
        return self.iterations.assign_add(tf.cast(stepped, tf.int64))

    def _work(self, variables, missing=()):
        """The layers and the state that an update takes besides gradients and scalars."""
        indices = list(map(self._index_of, variables))
        weights = [host.native(v) for v in variables]
        accumulators = self._accumulators if self.gradient_accumulation_steps else None
        state = State(
            [
                Stored(w, list(self._slots[i]), self._masters[i])
                for i, w in zip(indices, weights, strict=True)
            ],
            [accumulators[i] for i in indices] if accumulators else [],
            self._averages(indices),
            self._observer.of(indices),
            self._guard.counters,
            self._guard.spikes,
        )
        plan = cast(Plan, self.plan)  # it is built
        return plan.layers(indices, map(self._index_of, missing)), state

    def _averages(self, of):
        """Pairs of an average and its `Stored`, without slots, of these positions."""
        if not self.use_ema:
            return []
        averages, weights = self._model_variables_moving_average, self._of_build
        return [(averages[i], Stored(weights[i], (), self._masters[i])) for i in sorted(of)]

    def _overwrite_model_variables_with_average_value(self, var_list):
        for average, stored in self._averages(map(self._index_of, var_list)):
            for each in stored.copies:
                each.assign(tf.cast(average, each.dtype))

    def _vector_like(self, variable, name):
        return vector_like(variable, self._distribution_strategy, name)

    @staticmethod
    def _which_are_finite(variables):
        return finite_variables([host.native(v) for v in variables])

    @staticmethod
    def _array_of(variable):
        return array_of(host.native(variable))

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

    @staticmethod
    def _put(variable, value):
        own = host.native(variable)
        own.assign(tf.cast(value, own.dtype))
