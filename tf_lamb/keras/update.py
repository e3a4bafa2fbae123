"""The update in `keras.ops`, of all variables at once: what JAX compiles and torch runs.

On TensorFlow, `tf_lamb.tensorflow.update` stands in its place.
"""

import dataclasses
import functools
from typing import Any

import keras
from keras import ops

from tf_lamb.core import spikes, stacks, step
from tf_lamb.core.plan import paths_of
from tf_lamb.core.step import NONFINITE, SPIKE, TAKEN
from tf_lamb.keras import arrays, host, sharding


@dataclasses.dataclass(frozen=True)
class Choice:
    """Whether new values are taken: selected, for into a branch XLA would copy the old ones."""

    due: Any = None  # a scalar; None where they are taken in any case

    def of(self, new, old):
        """The new value if it is due, else the old one."""
        return new if self.due is None else ops.where(self.due, new, ops.convert_to_tensor(old))

    def assign(self, variable, value):
        """Gives a variable its new value if it is due."""
        variable.assign(self.of(value, variable.value))

    def __and__(self, due):
        return Choice(due if self.due is None else self.due & due)


ALWAYS = Choice()


@dataclasses.dataclass(eq=False, kw_only=True)
class Update(step.Update):
    """Applies one rule to many variables."""

    is_shared: bool = False  # each device works on its share of the variables
    deals: bool = False  # each device works on some of them

    # In the order in which they run:
    #   __call__          reads the scalars, adds the micro-batch up, and counts at the end
    #   _within           takes the step in a branch of the program, where one may not be due
    #   _apply_if_finite  sums replicas and looks at the gradients: a step that is skipped is
    #                     computed, and its results are not chosen (`Choice`)
    #   _apply            clips, and runs the rule of each layer, matrices of one shape together
    #   _step             is that rule's.

    def __call__(self, plan, state, scalars, count, gradients):
        """See base class."""
        scalars = scalars()
        take = functools.partial(self._apply_if_finite, plan, state=state, scalars=scalars)
        if self.is_shared:
            made = zip(gradients, state.stored, strict=True)
            gradients = [self._made_whole(g, each.weight) for g, each in made]
        if state.accumulators:
            totals = self._accumulate(gradients, state, scalars.is_update)
            none = ops.zeros((len(gradients),), "bool"), ops.full((), False, "bool")
            apply = functools.partial(take, totals)
            finite, spike = self._within(scalars.is_update, apply, state, none)
        else:
            finite, spike = take(gradients)
        if not state.skipped:
            return count(TAKEN)
        skipped = scalars.is_update & ~ops.all(finite)
        self._skip(skipped, finite, state, scalars, paths_of(plan))
        became = ops.where(skipped, NONFINITE, TAKEN)
        if not state.spikes:
            return count(became)
        counter = state.spikes[1]
        counter.assign_add(ops.cast(spike, counter.dtype))
        return count(ops.where(spike, SPIKE, became))

    @staticmethod
    def _made_whole(gradient, weight):
        """The gradient, laid out as its weight before its share is taken.

        If XLA is told of the share alone, it may make the gradient in shares, too, and keep whole
        what that is made of: the gradient of a vocabulary's logits, say.
        """
        is_per_replica = len(gradient.shape) > len(weight.shape)
        return gradient if is_per_replica else sharding.like(weight, gradient)

    @staticmethod
    def _accumulate(gradients, state, is_update):
        """The sums of the micro-batches so far; all accumulators begin anew after an update."""
        totals = [a + g for a, g in zip(state.accumulators, gradients, strict=True)]
        others = [each.value for each in state.dropped]
        every = zip([*state.accumulators, *state.dropped], [*totals, *others], strict=True)
        for accumulator, total in every:
            accumulator.assign(ops.where(is_update, ops.zeros_like(total), total))
        return totals

    def _apply_if_finite(self, plan, gradients, *, state, scalars):
        """One step; returns which gradients are finite, and whether their norm is a spike."""
        gradients = [
            self._aggregated(g, stored, scalars)
            for g, stored in zip(gradients, state.stored, strict=True)
        ]
        spike = ops.full((), False, "bool")
        if not state.skipped:
            self._apply(plan, gradients, state, scalars, ALWAYS)
            return ops.ones((len(gradients),), "bool"), spike
        finite = ops.stack([ops.isfinite(ops.sum(ops.square(g))) for g in gradients])
        due = ops.all(finite)
        if state.spikes:
            spike = due & self._watch(gradients, state.spikes[0])
            due = due & ~spike
        known = arrays.concrete_bool(due)
        if known is not False:
            self._apply(plan, gradients, state, scalars, ALWAYS if known else Choice(due))
        return finite, spike

    def _watch(self, gradients, window):
        """Whether the norm is a spike; it enters the window."""
        norm, before = spikes.norm_of(ops, gradients), ops.convert_to_tensor(window)
        spike, kept = spikes.watched(ops, before, norm, deviations=self.deviations)
        window.assign(kept)
        return spike

    def _aggregated(self, gradient, stored, scalars):
        """The mean over micro-batches, the sum over replicas: each device's share of it."""
        if len(gradient.shape) > len(stored.weight.shape):
            gradient = ops.sum(gradient, axis=0)
        if self.accumulation_steps:
            gradient = self.mean(ops, gradient, scalars)
        return self._share(gradient, stored)

    def _share(self, array, stored):
        """The share of an array like the weight that a device works on."""
        return self._like(stored.slots[0], array) if stored.slots else array

    def _like(self, variable, array):
        """The array, laid out as the variable is."""
        return sharding.like(variable, array) if self.is_shared else array

    def _changed_by(self, state):
        """All that a step changes, but for the counts."""
        stored = [v for each in state.stored for v in (each.weight, *each.slots, each.master)]
        averages = [average for average, _ in state.averages]
        vectors = [vector for own in state.observed for vector in own]
        every = [*stored, *averages, *vectors, *state.spikes[:1]]
        return list({id(v): v for v in every if v is not None}.values())

    def _within(self, due, apply, state, otherwise):
        """Takes the step if it is due, in a branch of the program where one is being traced.

        Returns:
            What the step returns, or what stands for it.
        """
        if (known := arrays.concrete_bool(due)) is not None:
            return apply() if known else otherwise
        variables = self._changed_by(state)

        def stepped():  # as values: a branch on JAX assigns to no variable
            with keras.StatelessScope([(v, v.value) for v in variables]) as scope:
                result = apply()
            # Laid out in here: what is gathered behind the branch is gathered where none is due.
            values = (self._like(v, scope.get_current_value(v)) for v in variables)
            return result, list(values)

        result, values = ops.cond(due, stepped, lambda: (otherwise, [v.value for v in variables]))
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return result

    def _skip(self, skipped, finite, state, scalars, paths):
        (count,) = state.skipped
        count.assign_add(ops.cast(skipped, count.dtype))
        if self.refusal:
            refused = ops.logical_and(skipped, ops.logical_not(scalars.is_searching))
            host.refuse(refused, finite, self.refusal, paths)

    def _apply(self, plan, gradients, state, scalars, choice):
        gradients = self.clip(gradients)
        steps = [
            self._step(layer, [gradients[i] for i in layer.members], state, scalars, choice)
            for layer in plan
        ]
        dealt = functools.partial(sharding.dealt, is_shared=self.is_shared) if self.deals else None
        for own in [steps] if self.stacks else [[each] for each in steps]:
            stacks.together(arrays, own, dealt)
        for average, stored in state.averages:
            self._average(average, stored, scalars, choice)

    def _average(self, average, stored, scalars, choice):
        own = stored._replace(weight=self._like(average, stored.weight))
        new = step.averaged(ops, average, own, scalars.ema_momentum, arrays.bitcast)
        choice.assign(average, new)
        for each in stored.copies:
            own = ops.where(scalars.ema_overwrites, ops.cast(average, each.dtype), each.value)
            choice.assign(each, own)

    def step_layer(self, layer, gradients, state, scalars):
        """One step of the rule for one layer, whose gradients these are; on any backend."""
        with arrays.uncast():
            stacks.alone(arrays, self._step(layer, gradients, state, scalars, ALWAYS))

    def _step(self, layer, gradients, state, scalars, choice):
        stored, observed = state.of(layer)
        present = step.present_in(ops, layer, gradients)
        if layer.may_rest:
            choice &= ops.any(ops.stack(present))
        # A device works on its share of each weight; slots are stored as such shares.
        at_hand = [each._replace(weight=self._share(each.weight, each)) for each in stored]
        new = yield from step.step(
            arrays, self.rule, layer.treatments, gradients, at_hand,
            lr=layer.rate(scalars.lr), t=scalars.t, number=layer.number, bitcast=arrays.bitcast,
            decay=scalars.decay,
            observe=step.recorder(ops, observed, choice.assign), present=present,
        )  # fmt: skip
        for old, own, each in zip(stored, at_hand, new, strict=True):
            kept = step.chosen(choice.of, each, own)
            # Gathered as late as can be, when it is chosen.
            weight = self._share(kept.weight, old)
            if self.is_shared:
                weight = sharding.all_gathered(old.weight, weight, scalars.lr)
            step.assign(self.assign, old, kept._replace(weight=weight))
