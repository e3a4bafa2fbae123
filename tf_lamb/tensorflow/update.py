"""The XLA-compiled update of many variables: what one replica does with aggregated gradients."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_lamb.core import layers, rounding
from tf_lamb.core.plan.plan import Layer
from tf_lamb.tensorflow import namespace, nonfinite, observing, servers, target


class Scalars(NamedTuple):
    """What changes from step to step, as tensors: a step compiles nothing new."""

    lr: Any
    t: Any  # the number of the optimizer step, from 1
    is_update: Any  # False while gradients only accumulate
    ema_momentum: Any
    ema_overwrites: Any  # whether the averages replace the weights after this step


class State(NamedTuple):
    """The variables of one replica."""

    weights: Sequence  # aligned with the gradients
    slots: Sequence[Sequence]  # by weight, in the order of the rule; a float32 master comes last
    accumulators: Sequence  # by weight, or empty
    averages: Sequence[tuple]  # pairs of an average and its weight, or empty
    observed: Sequence[tuple] = ()  # by weight, what shows its trust ratio; empty if nobody looks
    skipped: Sequence = ()  # what counts skipped steps; empty if none is skipped


@dataclasses.dataclass(eq=False)
class Update:
    """Applies one rule to many variables, on one replica.

    One program is traced a (shape, dtype, treatment), not one for the whole list: a network has
    hundreds of variables and a dozen shapes, and the first step follows the number of programs. XLA
    compiles those that are large enough to gain by it.

    Attributes:
        rule: the rule with its hyper-parameters bound, `rule(xp, g, w, *slots, lr=, t=, ...)`.
        slot_count: how many slots the rule has.
        clip: takes and returns the list of gradients; it sees the whole, aggregated gradient.
        accumulation_steps: micro-steps an update takes, or None.
        jit_compile: whether XLA compiles the programs of large layers.
        refusal: what is raised, with names, where a gradient is not finite; None raises nothing.
        assign: what gives a weight or a slot its new value: in Keras 3 the optimizer's own method,
            which a subclass may have overridden.
        tell: called by a step that is skipped, with the steps taken and how many were skipped.
    """

    rule: Callable
    slot_count: int
    clip: Callable
    accumulation_steps: int | None
    jit_compile: bool
    refusal: str | None = None
    assign: Callable = lambda variable, value: variable.assign(value)
    tell: Callable | None = None

    def __post_init__(self):
        self._programs: dict = {}
        self._steps: dict = {}  # by plan: a function would be traced anew for each equal tuple

    @property
    def is_traced(self) -> bool:
        """Whether any step has been traced."""
        return bool(self._programs)

    def __call__(self, plan: tuple[Layer, ...], gradients, state: State, scalars: Scalars):
        """One micro-step; the layers of the plan hold positions among the gradients.

        Returns:
            Whether it was the last of a step that was skipped: then nothing but the count and the
            accumulators, which begin anew, has changed.
        """
        step = functools.partial(self._run, plan)
        # In a user's eager loop the whole step is one call; in a graph it is part of theirs.
        if tf.executing_eagerly():
            if plan not in self._steps:
                self._steps[plan] = tf.function(step, autograph=False)
            step = self._steps[plan]
        return step(tuple(gradients), state, scalars)

    def _run(self, plan, gradients, state, scalars):
        if not self.accumulation_steps:
            return self._apply_if_finite(plan, gradients, state, scalars)

        for accumulator, gradient in zip(state.accumulators, gradients, strict=True):
            accumulator.assign_add(tf.cast(gradient, accumulator.dtype))

        def apply():
            mean = [accumulator / self.accumulation_steps for accumulator in state.accumulators]
            cleared = [each.assign(tf.zeros_like(each)) for each in state.accumulators]
            with tf.control_dependencies(cleared):
                return self._apply_if_finite(plan, mean, state, scalars)

        return tf.cond(scalars.is_update, apply, lambda: tf.constant(False))

    def _apply_if_finite(self, plan, gradients, state, scalars):
        """One step; returns whether it was skipped."""
        if not state.skipped:
            self._apply(plan, gradients, state, scalars)
            return tf.constant(False)
        finite = nonfinite.are_finite(gradients)
        refused = []
        if self.refusal:
            paths = {
                i: p for layer in plan for i, p in zip(layer.members, layer.paths, strict=True)
            }
            refused = [
                nonfinite.refuse(finite, self.refusal, [p for _, p in sorted(paths.items())])
            ]
        with tf.control_dependencies(refused):
            finite = tf.reduce_all(finite)
            tf.cond(
                finite,
                lambda: self._apply(plan, gradients, state, scalars),
                lambda: nonfinite.count(*state.skipped, scalars.t - 1, self.tell),
            )
            return tf.logical_not(finite)

    def _apply(self, plan, gradients, state, scalars):
        gradients = self.clip(list(gradients))
        # Inside a conditional, libtpu would copy whatever one layer waits for.
        one_by_one = target.is_tpu() and not (state.skipped or self.accumulation_steps)
        last = None
        for layer in plan:
            own, weights, slots = (
                [each[i] for i in layer.members] for each in (gradients, state.weights, state.slots)
            )
            observed = [state.observed[i] for i in layer.members] if state.observed else []
            if one_by_one and last is not None:
                own = [g + tf.cast(target.zero_after(last), g.dtype) for g in own]
            with servers.beside(weights[0]):
                self._program(layer, weights, slots, observed)(
                    tf.constant(layer.number), own, weights, slots, observed, scalars.lr, scalars.t
                )
            last = weights[0]
        if state.averages:
            self._average(state, scalars)

    def _program(self, layer, weights, slots, observed):
        variables = [*weights, *(each for own in (*slots, *observed) for each in own)]
        key = (layer.treatments, *((tuple(v.shape), v.dtype) for v in variables))
        if key not in self._programs:

            def program(number, gradients, weights, slots, observed, lr, t):
                self._step(layer.treatments, number, gradients, weights, slots, observed, lr, t)

            # On a TPU the step is one program already, and its variables are no arguments. XLA
            # takes the variables of one device, and those of a step may lie on several servers.
            if not target.is_tpu() and not servers.are_used():
                size = sum(w.shape.num_elements() for w in weights)
                # TensorFlow's own kernels may add in another order on each replica, whose copies
                # would part by a last bit.
                replicas = tf.distribute.get_strategy().num_replicas_in_sync
                compiled = self.jit_compile and (size >= target.LARGE or replicas > 1)
                program = tf.function(program, jit_compile=compiled or None, autograph=False)
            self._programs[key] = program
        return self._programs[key]

    def _step(self, treatments, number, gradients, weights, slots, observed, lr, t):
        dtype = tf.float64 if any(w.dtype == tf.float64 for w in weights) else tf.float32
        states = [
            [self._weight(w, s, dtype), *(tf.cast(slot, dtype) for slot in s[: self.slot_count])]
            for w, s in zip(weights, slots, strict=True)
        ]
        new_states = layers.step(
            namespace, self.rule, treatments, [tf.cast(g, dtype) for g in gradients], states,
            lr=tf.cast(lr, dtype), t=tf.cast(t, dtype), observe=observing.recorder(observed),
        )  # fmt: skip
        for w, s, (new_w, *new_s) in zip(weights, slots, new_states, strict=True):
            self.assign(w, tf.cast(new_w, w.dtype))
            for i, (slot, value) in enumerate(zip(s, [*new_s, new_w], strict=False)):
                if slot.dtype == tf.bfloat16:
                    # The same on every replica, and in a run that is resumed.
                    seed = tf.stack([tf.cast(t, tf.int32), number * 8 + i])
                    noise = tf.random.stateless_uniform(value.shape, seed)
                    value = rounding.stochastic(namespace, value, noise)
                self.assign(slot, tf.cast(value, slot.dtype))

    def _weight(self, weight, slots, dtype):
        value = tf.cast(weight, dtype)
        if len(slots) == self.slot_count:
            return value
        kept = tf.convert_to_tensor(slots[-1])
        # As bits: XLA of TensorFlow 2.16 drops the rounding of a cast there and back.
        rounded, now = (tf.bitcast(tf.cast(x, weight.dtype), tf.uint16) for x in (kept, weight))
        return rounding.master(namespace, kept, value, rounded == now)

    def _average(self, state, scalars):
        for average, weight in state.averages:
            m = tf.cast(scalars.ema_momentum, average.dtype)
            average.assign(m * average + (1 - m) * tf.cast(weight, average.dtype))

        def overwrite():
            for average, weight in state.averages:
                weight.assign(tf.cast(average, weight.dtype))

        tf.cond(scalars.ema_overwrites, overwrite, lambda: None)


def update_replicas(strategy, update: Update, plan, gradients, state, scalars):
    """Runs the update on every replica, from a cross-replica context or without a strategy.

    Gradients are aggregated by now. One call hands each replica its own copy of every variable;
    the treatments were decided once, so they cannot differ between replicas, and neither can
    what `Update` returns.
    """
    copies = strategy.experimental_local_results

    # Rewriting this package's own code for AutoGraph would be half of the first step.
    @tf.autograph.experimental.do_not_convert
    def on_replica(weight, gradients, scalars):
        # A `tf.function` takes a replica's copy as an argument, but captures a mirrored variable:
        # a program would then work on the variables that it was traced with, whatever it is given.
        replica = next((i for i, w in enumerate(copies(state.weights[0])) if w is weight), None)
        if replica is None:  # a TPU's, where nothing is traced apart
            own = state
        else:
            own = tf.nest.map_structure(lambda variable: copies(variable)[replica], state)
        return update(plan, gradients, own, scalars)

    of_replicas = strategy.extended.update(
        state.weights[0], on_replica, args=(gradients, scalars), group=False
    )
    return of_replicas[0]
