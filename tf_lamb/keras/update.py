"""The update in `keras.ops`, of all variables at once: what JAX compiles and torch runs.

On TensorFlow, `tf_lamb.tensorflow.update` stands in its place.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
from keras import ops

from tf_lamb.core import step
from tf_lamb.core.plan import paths_of
from tf_lamb.keras import host


@dataclasses.dataclass(eq=False)
class Update:
    """Applies one rule to many variables.

    Attributes:
        rule: the rule with its hyper-parameters bound, `rule(xp, g, w, *slots, lr=, t=, ...)`.
        clip: takes and returns the list of gradients; it sees the whole, aggregated gradient.
        accumulation_steps: micro-steps an update takes, or None.
        refusal: what is raised, with names, where a gradient is not finite; None raises nothing.
        assign: what gives a weight or a slot its new value: the optimizer's own method, which a
            subclass may have overridden.
        tell: called by a step that is skipped, with the steps taken and how many were skipped.
        noise: what rounding draws from; None where no slot is bfloat16.
    """

    rule: Callable
    clip: Callable
    accumulation_steps: int | None
    refusal: str | None
    assign: Callable
    tell: Callable
    noise: keras.random.SeedGenerator | None = None

    def __call__(self, plan, gradients, state, scalars):
        """One micro-step; the layers of the plan hold positions among the gradients.

        Returns:
            Whether it was the last of a step that was skipped.
        """
        apply = functools.partial(self._apply, plan, state=state, scalars=scalars)
        if not (state.accumulators or state.skipped):
            apply(gradients)
            return False
        due = is_update = scalars.is_update
        if state.accumulators:
            gradients = self._accumulate(gradients, state.accumulators, is_update)
        if state.skipped:
            finite = ops.stack([ops.isfinite(ops.sum(ops.square(g))) for g in gradients])
            due = is_update & ops.all(finite)
        if (known := host.known(due)) is None:
            self._within(due, functools.partial(apply, gradients), self._changed_by(state))
        elif known:
            apply(gradients)
        skipped = is_update & ~due
        if state.skipped:
            self._skip(skipped, finite, state, scalars, paths_of(plan))
        return skipped

    def _accumulate(self, gradients, accumulators, is_update):
        """The mean of the micro-batches so far; the accumulators begin anew after an update."""
        totals = [a + g for a, g in zip(accumulators, gradients, strict=True)]
        for accumulator, total in zip(accumulators, totals, strict=True):
            accumulator.assign(ops.where(is_update, ops.zeros_like(total), total))
        return [total / self.accumulation_steps for total in totals]

    def _changed_by(self, state):
        """All that a step changes, but for the counts."""
        noise = [self.noise.state] if self.noise else []
        stored = [v for each in state.stored for v in (each.weight, *each.slots, each.master)]
        averages = [variable for pair in state.averages for variable in pair]
        vectors = [vector for own in state.observed for vector in own]
        every = [*stored, *averages, *noise, *vectors]
        return list({id(v): v for v in every if v is not None}.values())

    @staticmethod
    def _within(due, apply, variables):
        """Takes the step in a branch of the program that is being traced."""

        def stepped():  # as values: a branch on JAX assigns to no variable
            with keras.StatelessScope([(v, v.value) for v in variables]) as scope:
                apply()
            return [scope.get_current_value(v) for v in variables]

        values = ops.cond(due, stepped, lambda: [v.value for v in variables])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _skip(self, skipped, finite, state, scalars, paths):
        (count,) = state.skipped
        count.assign_add(ops.cast(skipped, count.dtype))
        if host.known(skipped):  # in a program that JAX traces nobody knows
            self.tell(*map(ops.convert_to_numpy, (scalars.t - 1, count)))
        if self.refusal:
            host.refuse(skipped, finite, self.refusal, paths)

    def _apply(self, plan, gradients, *, state, scalars):
        gradients = self.clip(gradients)
        for layer in plan:
            own = [gradients[i] for i in layer.members]
            self.step_layer(layer, own, state, scalars)
        for average, weight in state.averages:
            average.assign(step.averaged(ops, average, weight, scalars.ema_momentum))
            new = ops.cast(average, weight.dtype)
            weight.assign(ops.where(scalars.ema_overwrites, new, weight.value))

    def step_layer(self, layer, gradients, state, scalars):
        """One step of the rule for one layer, whose gradients these are; on any backend."""
        stored, observed = state.of(layer)
        new = step.step(
            ops, self.rule, layer.treatments, gradients, stored, lr=scalars.lr, t=scalars.t,
            rounds_to=lambda wide, half: ops.cast(wide, half.dtype) == half,
            noise=lambda i, shape: keras.random.uniform(shape, seed=self.noise),
            observe=step.recorder(ops, observed, self.assign),
        )  # fmt: skip
        step.assign(self.assign, stored, new)
