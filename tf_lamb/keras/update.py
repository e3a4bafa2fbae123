"""The update in `keras.ops`, of all variables at once: what JAX compiles and torch runs.

On TensorFlow, `tf_lamb.tensorflow.update` stands in its place.
"""

import keras
from keras import ops

from tf_lamb.api.variables import path_of
from tf_lamb.core import layers, rounding
from tf_lamb.keras import host


class Updating:
    """Mixed into the optimizers of this door."""

    def _apply_if_due(self, gradients, variables):
        """Takes the step if micro-batches are complete and their gradients finite."""
        scalars = self._scalars()
        due = is_update = scalars["is_update"]
        if self.gradient_accumulation_steps:
            gradients = self._accumulate(gradients, variables, is_update)
        if self._is_guarded:
            finite = ops.stack([ops.isfinite(ops.sum(ops.square(g))) for g in gradients])
            due = is_update & ops.all(finite)

        if (known := host.known(due)) is None:
            self._apply_within(due, gradients, variables, scalars)
        elif known:
            self._apply_once(gradients, variables, scalars)
        if self._is_guarded:
            self._skip(is_update & ~due, finite, variables)

    def _apply_within(self, due, gradients, variables, scalars):
        """Takes the step in a branch of the program that is being traced."""
        state = self._state()
        values = ops.cond(
            due,
            lambda: self._stepped(state, gradients, variables, scalars),
            lambda: [v.value for v in state],
        )
        for variable, value in zip(state, values, strict=True):
            variable.assign(value)

    def _accumulate(self, gradients, variables, is_update):
        """The mean of the micro-batches so far; the accumulators begin anew after an update."""
        accumulators = [self._accumulated_gradients[self._get_variable_index(v)] for v in variables]
        totals = [a + g for a, g in zip(accumulators, gradients, strict=True)]
        for accumulator, total in zip(accumulators, totals, strict=True):
            accumulator.assign(ops.where(is_update, ops.zeros_like(total), total))
        return [total / self._micro_steps for total in totals]

    def _state(self):
        """All that a step changes, but for the counts."""
        slots = (slot for each in self._slots for slot in each)
        averages = (average for average, _ in self._averages())
        noise = [self._noise.state] if self._settings.slot_dtype == "bfloat16" else []
        return [*self._trainable_variables, *slots, *averages, *noise, *self._observed_variables]

    def _stepped(self, state, gradients, variables, scalars):
        """What the step makes of the state, as values: a branch on JAX assigns to no variable."""
        with keras.StatelessScope([(v, v.value) for v in state]) as scope:
            self._apply_once(gradients, variables, scalars)
        return [scope.get_current_value(v) for v in state]

    def _skip(self, skipped, finite, variables):
        count = self._skipped()
        count.assign_add(ops.cast(skipped, count.dtype))
        if host.known(skipped):  # in a program that JAX traces nobody knows
            self._tell_row(*map(ops.convert_to_numpy, (self.iterations, count)))
        steps = ops.cast(skipped, self._iterations.dtype) * self._micro_steps
        self._iterations.assign_sub(steps)
        if refusal := self._refusal():
            host.refuse(skipped, finite, refusal, [path_of(v) for v in variables])

    def _apply_once(self, gradients, variables, scalars):
        gradients = self.clip_aggregated(gradients)
        for layer in self._plan.layers(self._get_variable_index(v) for v in variables):
            members = ([each[i] for i in layer.members] for each in (gradients, variables))
            self._step(layer, *members, scalars["lr"], scalars["t"])
        for average, variable in self._averages():
            m = ops.cast(scalars["ema_momentum"], average.dtype)
            average.assign(m * average + (1 - m) * ops.cast(variable, average.dtype))
            averaged = ops.cast(average, variable.dtype)
            variable.assign(ops.where(scalars["ema_overwrites"], averaged, variable.value))

    def _step(self, layer, gradients, variables, learning_rate, t):
        """One step of the rule for one layer, on any backend."""
        dtype = max(host.compute_dtype(v.dtype) for v in variables)  # "float64" > "float32"
        slots = [self._slots[self._get_variable_index(v)] for v in variables]
        count = len(self.slot_names)
        states = [
            [self._weight(v, s, dtype), *(ops.cast(slot, dtype) for slot in s[:count])]
            for v, s in zip(variables, slots, strict=True)
        ]
        new_states = layers.step(
            ops, self._bound_rule, layer.treatments, [ops.cast(g, dtype) for g in gradients],
            states, lr=ops.cast(learning_rate, dtype), t=ops.cast(t, dtype),
            observe=self._recorder(variables),
        )  # fmt: skip
        for variable, own, (weight, *values) in zip(variables, slots, new_states, strict=True):
            self.assign(variable, ops.cast(weight, variable.dtype))
            for slot, value in zip(own, [*values, weight], strict=False):
                if slot.dtype == "bfloat16":
                    noise = keras.random.uniform(value.shape, seed=self._noise)
                    value = rounding.stochastic(ops, value, noise)
                self.assign(slot, ops.cast(value, slot.dtype))

    def _weight(self, variable, slots, dtype):
        weight = ops.cast(variable, dtype)
        if len(slots) == len(self.slot_names):
            return weight
        kept = ops.convert_to_tensor(slots[-1])
        rounded = ops.cast(ops.cast(kept, variable.dtype), dtype)
        return rounding.master(ops, kept, weight, rounded == weight)
