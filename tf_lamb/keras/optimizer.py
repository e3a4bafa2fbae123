"""The base class of every optimizer for Keras 3: all that it asks of one, but the rule.

Seam into Keras 3 (3.15.1): `_distribution_strategy`.
"""

import functools
from typing import cast

import keras
from keras import ops

from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise, with_base_rate
from tf_lamb.api.optimizers.observation import UNSEEN
from tf_lamb.api.variables import is_overwritten
from tf_lamb.core import accumulation
from tf_lamb.core.plan import Plan
from tf_lamb.core.step import NONFINITE, TAKEN, State, Stored
from tf_lamb.keras import host, loss_scale, processes, saved, schedules, sharding, update


class LayerwiseOptimizer(Layerwise, host.HostOptimizer):
    """Owns variables, casting, clipping, distribution and config."""

    _xp = ops
    _schedules = schedules
    _shares = None  # how `shard_update` lays out what accompanies variables
    _replicas = 1  # whose gradients are not summed yet, on JAX

    def __init__(self, learning_rate, **arguments):
        loss_scale.have_wrappers_leave_ours_alone()
        settings = self._settings_of(arguments)
        schedule = keras.optimizers.schedules.LearningRateSchedule
        learning_rate = settings_.learning_rate(learning_rate, schedule)
        super().__init__(
            learning_rate,
            gradient_accumulation_steps=accumulation.largest(settings.gradient_accumulation_steps),
            loss_scale_factor=settings.loss_scale_factor,
            **settings.host(),
        )
        self._keep_settings(settings, learning_rate)

    def build(self, variables):
        """Makes the slots and the plan; warns of a pattern that matches no variable."""
        if not variables:
            return
        if self.built:
            self._check_built_for(variables, self._trainable_variables_indices)
            return
        processes.agree_on(self, variables)
        self._make_plan(variables)
        if self._settings.shard_update and sharding.is_distributed():
            self._shares = sharding.Shares(variables)
        super().build(variables)
        made = [(self._add_slots(i, v), self._add_master(v)) for i, v in enumerate(variables)]
        self._slots, self._masters = map(list, zip(*made, strict=True))
        if self.use_ema:
            self._has_averages = self.add_variable((), dtype="int32", name="has_averages")
        if self.gradient_accumulation_steps:
            self._micro_step = self.add_variable((), dtype="int32", name="micro_step")
        self._count_skipped()
        if window := self._guard.window:
            self._guard.norms = self.add_variable((window,), dtype="float32", name="gradient_norms")
            self._guard.spiked = self.add_variable((), dtype="int32", name="spiked_steps")
        self._make_observed()
        self._update = self._make_update()
        self._set_weights_of_files()

    def _count_skipped(self):
        if self._guard.is_on and self._guard.counter is None:
            self._guard.counter = self.add_variable((), dtype="int32", name="skipped_steps")

    def _take_loss_scale(self, move, scale):
        """Has a dynamic loss scale move once an update, which is skipped where it is too large."""
        self._guard.scaled(move, scale)
        if self.built:
            self._count_skipped()

    def _add_slots(self, index, variable):
        if is_overwritten(variable):
            return ()
        is_double = host.compute_dtype(variable.dtype) == "float64"
        chosen = self._settings.dtypes.slots
        return tuple(
            self.add_variable_like(
                variable,
                slot.name,
                "float64" if is_double else slot.dtype or chosen,
                slot.shape,
                slot.initial,
            )
            for slot in self._slots_at(index)
        )

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros", layout=None):
        """Adds a variable like the given one; a device's share of it where the update is shared."""
        if self._replicas > 1 and name == "gradient_accumulator":  # seam: as Keras names it
            shape = (self._replicas, *variable.shape)
            layout = sharding.per_replica_layout(variable)
        elif self._shares:
            layout = self._shares.layout(variable, shape)
        return super().add_variable_like(variable, name, dtype, shape, initial, layout)

    def _make_update(self):
        arguments = {
            "rule": self._bound_rule,
            "clip": self.clip_aggregated,
            "accumulation_steps": self.gradient_accumulation_steps,
            "refusal": self._guard.refusal,
            "assign": self.assign,
            "tell": self._guard.warn_if_repeated,
            "deviations": self._guard.deviations,
        }
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.update import Update

            arguments |= {"jit_compile": self._settings.jit_compile, "gains": self.gains_by_xla}
            return Update(**arguments)
        return update.Update(
            is_shared=self._shares is not None,
            # A stack of matrices that are split over devices in several ways would be gathered.
            stacks=host.has_accelerator() and not sharding.is_split(self._trainable_variables),
            **arguments,
        )

    def update_step(self, gradient, variable, learning_rate):
        """One step of the rule for one variable."""
        (layer,), state = self._work([variable])
        scalars = self._scalars()._replace(lr=learning_rate)
        self._update.step_layer(layer, [gradient], state, scalars)

    def _overwrite_variables_directly_with_gradients(self, grads, vars):
        """As in Keras; and leaves out what is frozen, before Keras comes to its constraint."""
        others = super()._overwrite_variables_directly_with_gradients(grads, vars)
        pairs = self.without_frozen(list(zip(*others, strict=True)))
        return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

    def _backend_apply_gradients(self, grads, trainable_variables):
        pairs = zip(grads, trainable_variables, strict=True)
        gradients = [ops.cast(host.dense(g, v), host.compute_dtype(v.dtype)) for g, v in pairs]
        missing, sums = host.without_gradient(self, trainable_variables)
        gradients += [ops.zeros(each.shape, each.dtype) for each in sums]
        if self._settings.shard_update and not self._shares:
            sharding.data_axis(f"shard_update=True of {self.name}")  # says why it cannot be
        trained = [*trainable_variables, *missing]
        plan, state = self._work(trained, missing)
        if keras.backend.backend() == "tensorflow":
            gradients = self._aggregated(gradients, state.accumulators)
        count = functools.partial(self._count, trained)
        self._update(plan, gradients, state, self._scalars, count)
        for variable in (v for v in missing if v.constraint is not None):
            variable.assign(variable.constraint(variable))  # `apply` sees to the others

    def _work(self, variables, missing=()):
        """The layers and the state that an update takes besides gradients and scalars."""
        indices = [self._get_variable_index(v) for v in variables]
        own = host.native
        sums = self._accumulators
        state = State(
            [
                Stored(own(v), [own(slot) for slot in self._slots[i]], own(self._masters[i]))
                for i, v in zip(indices, variables, strict=True)
            ],
            [own(sums[i]) for i in indices] if sums else [],
            [
                (own(average), Stored(own(v), (), own(master)))
                for average, (v, _, master) in self._averages(self._averaged(variables))
            ],
            self._observer.of(indices),
            [own(counter) for counter in self._guard.counters],
            [own(variable) for variable in self._guard.spikes],
        )
        plan = cast(Plan, self.plan)  # it is built
        return plan.layers(indices, map(self._get_variable_index, missing)), state

    def _aggregated(self, gradients, accumulators):
        """The sums over replicas on TensorFlow; none where the accumulators have taken them."""
        if self.gradient_accumulation_steps:
            self.gather(gradients, accumulators)
            return []
        pairs = self._all_reduce_sum_gradients([(g, None) for g in gradients])
        return [gradient for gradient, _ in pairs]

    def _is_update(self):
        if not self.gradient_accumulation_steps:
            return ops.full((), True, "bool")
        if stages := self._growing:
            count = accumulation.count(ops, stages, self.iterations)
            return ops.greater_equal(self._micro_step + 1, count)
        return ops.equal(self._micro_step + 1, self.gradient_accumulation_steps)

    def _count(self, trained, became):
        """Only updates are counted: neither a micro-step before one, nor a step that is skipped."""
        due = self._is_update()
        stepped = due & ops.equal(became, TAKEN)
        if self._guard.move_scale:
            self._guard.move_scale(due, ops.equal(became, NONFINITE))
        iterations = host.native(self._iterations)
        iterations.assign_sub(1 - ops.cast(stepped, iterations.dtype))  # Keras adds 1, always
        if steps := self.gradient_accumulation_steps:
            micro_step = host.native(self._micro_step)
            done = micro_step + 1
            micro_step.assign(ops.where(due, 0, done) if self._growing else done % steps)
        if self.use_ema:
            made = host.native(self._has_averages)
            frozen = cast(Plan, self.plan).frozen
            waiting = set(range(len(self._slots))) - frozen - self._averaged(trained)
            for average, stored in self._averages(waiting):  # theirs, too, begin with the first
                kept = ops.convert_to_tensor(average)
                average.assign(ops.where(made > 0, kept, ops.cast(stored.weight, average.dtype)))
            for average, stored in self._averages(frozen):
                host.take(average, stored.weight)
            made.assign(ops.maximum(made, ops.cast(stepped, made.dtype)))

    def _averaged(self, variables):
        """The positions whose averages move with these: of all that is trainable, as in Keras."""
        frozen = cast(Plan, self.plan).frozen
        every = enumerate(self._trainable_variables)
        others = {i for i, v in every if v.trainable and i not in frozen}
        return others.union(map(self._get_variable_index, variables))

    @property
    def _widest(self):
        """The dtype that holds the averages of all variables."""
        dtypes = {host.compute_dtype(v.dtype) for v in self._trainable_variables}
        return "float64" if "float64" in dtypes else "float32"

    @property
    def _accumulators(self):
        """By variable, or none."""
        return self._accumulated_gradients if self.gradient_accumulation_steps else ()

    def _averages(self, of=None):
        """Pairs of an average and its `Stored`, without slots; of these positions, or of all."""
        if not self.use_ema:
            return []
        every = zip(self._moving_averages, self._trainable_variables, self._masters, strict=True)
        return [
            (average, Stored(variable, (), master))
            for i, (average, variable, master) in enumerate(every)
            if average is not None and (of is None or i in of)
        ]

    def finalize_variable_values(self, var_list):
        """See base class; a step of `fit` on JAX that has failed leaves nothing to finish."""
        if not host.is_deleted(self._iterations):
            super().finalize_variable_values(var_list)

    def _overwrite_model_variables_with_average_value(self, var_list):
        known = {self._var_key(v) for v in var_list}
        for average, stored in self._averages():
            if self._var_key(stored.weight) in known:
                for each in stored.copies:
                    host.take(each, average)

    def get_config(self):
        """The constructor's arguments, exclusions and all."""
        with with_base_rate(self):
            return self._config(super().get_config()["learning_rate"])

    def _on_show(self):
        return self._observer.variables if keras.backend.backend() == "jax" else []

    def _vector_like(self, variable, name):
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.summaries import vector_like

            with saved.outside_of_any_graph():
                return vector_like(host.native(variable), self._distribution_strategy, name)
        return keras.Variable(UNSEEN, dtype="float32", trainable=False, name=name)

    def _index_of(self, variable):
        return self._get_variable_index(variable)

    @staticmethod
    def _put(variable, value):
        host.take(variable, value)
