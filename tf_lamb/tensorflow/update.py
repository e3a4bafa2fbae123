"""The XLA-compiled update of many variables: what one replica does with aggregated gradients."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_lamb.core.plan import Treatment
from tf_lamb.tensorflow import namespace


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
    slots: Sequence[Sequence]  # by weight, then in the order of the rule
    accumulators: Sequence  # by weight, or empty
    averages: Sequence[tuple]  # pairs of an average and its weight, or empty


@dataclasses.dataclass(eq=False)
class Update:
    """Applies one rule to many variables, on one replica.

    XLA compiles one program a (shape, dtype, treatment), not one for the whole list: a network
    has hundreds of variables and a dozen shapes, and compile time follows the number of programs.

    Attributes:
        rule: the rule with its hyper-parameters bound, `rule(xp, g, w, *slots, lr=, t=, ...)`.
        clip: takes and returns the list of gradients; it sees the whole, aggregated gradient.
        accumulation_steps: micro-steps an update takes, or None.
        jit_compile: whether XLA compiles the programs.
    """

    rule: Callable
    clip: Callable
    accumulation_steps: int | None
    jit_compile: bool

    def __post_init__(self):
        self._programs: dict = {}
        self._traced = tf.function(self._run)

    def __call__(
        self, treatments: tuple[Treatment, ...], gradients, state: State, scalars: Scalars
    ):
        """One micro-step; `treatments` are aligned with the gradients."""
        # In a user's eager loop the whole step is one call; in a graph it is part of theirs.
        run = self._traced if tf.executing_eagerly() else self._run
        run(treatments, tuple(gradients), state, scalars)

    def _run(self, treatments, gradients, state, scalars):
        if not self.accumulation_steps:
            self._apply(treatments, gradients, state, scalars)
            return

        for accumulator, gradient in zip(state.accumulators, gradients, strict=True):
            accumulator.assign_add(tf.cast(gradient, accumulator.dtype))

        def apply():
            mean = [accumulator / self.accumulation_steps for accumulator in state.accumulators]
            self._apply(treatments, mean, state, scalars)
            for accumulator in state.accumulators:
                accumulator.assign(tf.zeros_like(accumulator))

        tf.cond(scalars.is_update, apply, lambda: None)

    def _apply(self, treatments, gradients, state, scalars):
        gradients = self.clip(list(gradients))
        for treatment, gradient, weight, slots in zip(
            treatments, gradients, state.weights, state.slots, strict=True
        ):
            program = self._program(treatment, weight)
            program(gradient, weight, slots, scalars.lr, scalars.t)
        if state.averages:
            self._average(state, scalars)

    def _program(self, treatment, weight):
        key = (treatment, tuple(weight.shape), weight.dtype)
        if key not in self._programs:

            def program(gradient, weight, slots, lr, t):
                self._update_variable(treatment, gradient, weight, slots, lr, t)

            if self.jit_compile:
                program = tf.function(program, jit_compile=True)
            self._programs[key] = program
        return self._programs[key]

    def _update_variable(self, treatment, gradient, weight, slots, lr, t):
        compute_dtype = tf.float64 if weight.dtype == tf.float64 else tf.float32
        g, w, lr, t = (tf.cast(x, compute_dtype) for x in (gradient, weight, lr, t))
        new = self.rule(
            namespace, g, w, *(tf.cast(s, compute_dtype) for s in slots),
            lr=lr, t=t, **dataclasses.asdict(treatment),
        )  # fmt: skip
        for variable, value in zip((weight, *slots), new, strict=True):
            variable.assign(tf.cast(value, variable.dtype))

    def _average(self, state, scalars):
        for average, weight in state.averages:
            m = tf.cast(scalars.ema_momentum, average.dtype)
            average.assign(m * average + (1 - m) * tf.cast(weight, average.dtype))

        def overwrite():
            for average, weight in state.averages:
                weight.assign(tf.cast(average, weight.dtype))

        tf.cond(scalars.ema_overwrites, overwrite, lambda: None)


def update_replicas(strategy, update: Update, treatments, gradients, state, scalars):
    """Runs the update on every replica, from a cross-replica context or without a strategy.

    Gradients are aggregated by now. One call hands each replica its own copy of every variable;
    the treatments were decided once, so they cannot differ between replicas.
    """

    def on_replica(_, gradients, state, scalars):
        update(treatments, gradients, state, scalars)

    strategy.extended.update(
        state.weights[0], on_replica, args=(gradients, state, scalars), group=False
    )
