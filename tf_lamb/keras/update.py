"""The update of all variables at once, in `keras.ops`, for the backends JAX and torch.

On TensorFlow, `tf_lamb.tensorflow.update` takes its place.
"""

import dataclasses
import functools
from typing import Any

import keras
from keras import ops

from tf_lamb.core import spikes, stacks, step
from tf_lamb.core.plan import paths_of
from tf_lamb.core.stored import NONFINITE, SPIKE, TAKEN, assign_stored, select_stored
from tf_lamb.keras import arrays, host, sharding


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chooses between new and old values of variables, so that a skipped step changes nothing.

    A skipped step is computed like any other one. If a branch of the program left it out, XLA would
    copy all variables into that branch.

    Attributes:
        is_due: A boolean scalar, whether new values are chosen. Defaults to None: always.
    """

    is_due: Any = None

    def choose(self, new, old):
        """Returns the new value if `is_due` is true, else the old one.

        Args:
            new: The new value.
            old: The old value, an array or a variable.
        """
        return (
            new if self.is_due is None else ops.where(self.is_due, new, ops.convert_to_tensor(old))
        )

    def assign(self, variable, value):
        """Assigns the new value to a variable if `is_due` is true: if this step takes an update.

        Args:
            variable: The variable.
            value: The new value.
        """
        variable.assign(self.choose(value, variable.value))

    def __and__(self, is_due):
        """Returns a `Choice` of new values only if `is_due`, a boolean scalar, is true as well."""
        return Choice(is_due if self.is_due is None else self.is_due & is_due)


ALWAYS = Choice()


@dataclasses.dataclass(eq=False, kw_only=True)
class KerasUpdate(step.Update):
    """Applies one rule to many variables.

    Attributes:
        is_shared: Whether each device computes a share of the update of every variable, as
            `shard_update` asks for. Defaults to False.
        distributes_stacks: Whether each device works on some of the stacked matrices. Defaults to
            False.
    """

    is_shared: bool = False
    distributes_stacks: bool = False

    # In the order in which they run:
    #   __call__          reads the scalars, adds the gradients to the accumulators, and counts the
    #                     step at the end
    #   _step_if_due      takes the step only if this micro-batch ends an update
    #   _apply_if_finite  sums over replicas and checks the gradients; a step that is skipped is
    #                     computed, but its results are not assigned (`Choice`)
    #   _apply            clips, and runs the rule of each layer, matrices of one shape together
    #   _step             runs the rule of one layer.

    def __call__(self, plan, state, scalars, count, gradients):
        """Takes in a micro-batch, and takes a step if it ends an update; see the base class.

        Args:
            plan: The layers of the plan.
            state: The `State` of the update.
            scalars: A function that returns the `Scalars`.
            count: A function of the step's outcome, `TAKEN`, `NONFINITE` or `SPIKE`. Its result is
                returned.
            gradients: The gradients, in the order of `state.stored`.
        """
        scalars = scalars()
        take_step = functools.partial(self._apply_if_finite, plan, state=state, scalars=scalars)
        if self.is_shared:
            pairs = zip(gradients, state.stored, strict=True)
            gradients = [self._with_layout_of_weight(g, stored.weight) for g, stored in pairs]
        if state.accumulators:
            totals = self._accumulate(gradients, state, scalars.is_update)
            no_step_result = ops.zeros((len(gradients),), "bool"), ops.full((), False, "bool")
            apply_totals = functools.partial(take_step, totals)
            is_finite, is_spike = self._step_if_due(
                scalars.is_update, apply_totals, state, no_step_result
            )
        else:
            is_finite, is_spike = take_step(gradients)
        if not state.skipped:
            return count(TAKEN)
        is_skipped = scalars.is_update & ~ops.all(is_finite)
        self._count_skipped(is_skipped, is_finite, state, scalars, paths_of(plan))
        outcome = ops.where(is_skipped, NONFINITE, TAKEN)
        if not state.spikes:
            return count(outcome)
        counter = state.spikes[1]
        counter.assign_add(ops.cast(is_spike, counter.dtype))
        return count(ops.where(is_spike, SPIKE, outcome))

    @staticmethod
    def _with_layout_of_weight(gradient, weight):
        """Returns a gradient with the sharding of its weight, before each device takes its share.

        Without this step XLA may compute the gradient itself in shares. To do so, it gathers the
        inputs of that computation, such as the gradient of a vocabulary's logits, on every device.
        A gradient with an axis of replicas is returned as it is.
        """
        is_per_replica = len(gradient.shape) > len(weight.shape)
        return gradient if is_per_replica else sharding.with_layout_of(weight, gradient)

    @staticmethod
    def _accumulate(gradients, state, is_update):
        """Returns the sums of the micro-batches so far, and assigns them to the accumulators.

        A micro-batch that ends an update sets all accumulators to zero instead.
        """
        totals = [a + g for a, g in zip(state.accumulators, gradients, strict=True)]
        dropped_totals = [dropped.value for dropped in state.dropped_accumulators]
        pairs = zip(
            [*state.accumulators, *state.dropped_accumulators],
            [*totals, *dropped_totals],
            strict=True,
        )
        for accumulator, total in pairs:
            accumulator.assign(ops.where(is_update, ops.zeros_like(total), total))
        return totals

    def _apply_if_finite(self, plan, gradients, *, state, scalars):
        """Takes one step, unless a gradient is not finite or the norm of all is a spike.

        Returns:
            A boolean vector, which gradients are finite; and a boolean scalar, whether the norm is
            a spike.
        """
        gradients = [
            self._aggregate(g, stored, scalars)
            for g, stored in zip(gradients, state.stored, strict=True)
        ]
        is_spike = ops.full((), False, "bool")
        if not state.skipped:
            self._apply(plan, gradients, state, scalars, ALWAYS)
            return ops.ones((len(gradients),), "bool"), is_spike
        is_finite = ops.stack([ops.isfinite(ops.sum(ops.square(g))) for g in gradients])
        is_due = ops.all(is_finite)
        if state.spikes:
            is_spike = is_due & self._watch(gradients, state.spikes[0])
            is_due = is_due & ~is_spike
        due_value = arrays.concrete_bool(is_due)
        if due_value is not False:
            self._apply(plan, gradients, state, scalars, ALWAYS if due_value else Choice(is_due))
        return is_finite, is_spike

    def _watch(self, gradients, window):
        """Returns whether the norm of the gradients is a spike, and adds the norm to the window.

        Args:
            gradients: The gradients of all variables.
            window: The variable with the norms of the latest steps (`core/spikes.py`).
        """
        norm, old_window = spikes.global_norm(ops, gradients), ops.convert_to_tensor(window)
        is_spike, new_window = spikes.detect_spike(
            ops, old_window, norm, deviations=self.deviations
        )
        window.assign(new_window)
        return is_spike

    def _aggregate(self, gradient, stored, scalars):
        """Returns the gradient that the rule gets.

        It is the sum over replicas of the mean over micro-batches.

        With `is_shared`, it has the sharding of the slots.
        """
        if len(gradient.shape) > len(stored.weight.shape):
            gradient = ops.sum(gradient, axis=0)
        if self.accumulation_steps:
            gradient = self.mean(ops, gradient, scalars)
        return self._as_share(gradient, stored)

    def _as_share(self, array, stored):
        """Returns an array that has the shape of a weight, such as its gradient.

        With `is_shared`, the array is sharded over the devices in the same way as the weight's
        slots.
        """
        return self._with_layout_of(stored.slots[0], array) if stored.slots else array

    def _with_layout_of(self, variable, array):
        """Returns an array; with `is_shared`, it is sharded over the devices as a variable is."""
        return sharding.with_layout_of(variable, array) if self.is_shared else array

    def _changed_variables(self, state):
        """Returns all variables that a step changes, except for counters."""
        stored = [v for entry in state.stored for v in (entry.weight, *entry.slots, entry.master)]
        averages = [average for average, _ in state.averages]
        vectors = [vector for observed in state.observed for vector in observed]
        variables = [*stored, *averages, *vectors, *state.spikes[:1]]
        return list({id(v): v for v in variables if v is not None}.values())

    def _step_if_due(self, is_due, apply, state, result_without_step):
        """Takes the step if it is due. While a program is traced, the step becomes a branch of it.

        Args:
            is_due: Whether the step is due, a boolean scalar.
            apply: A function without arguments that takes the step.
            state: The `State` of the update.
            result_without_step: What to return if the step is not due.

        Returns:
            The result of the step, or `result_without_step` in its place.
        """
        if (due_value := arrays.concrete_bool(is_due)) is not None:
            return apply() if due_value else result_without_step
        variables = self._changed_variables(state)

        # It returns the new values, because a branch of a JAX program cannot assign to variables.
        def run_step():
            with keras.StatelessScope([(v, v.value) for v in variables]) as scope:
                result = apply()
            # The values get their layout inside the branch. After the branch, XLA would gather the
            # shares in every micro-batch, even if no step is due.
            values = (self._with_layout_of(v, scope.get_current_value(v)) for v in variables)
            return result, list(values)

        result, values = ops.cond(
            is_due, run_step, lambda: (result_without_step, [v.value for v in variables])
        )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return result

    def _count_skipped(self, is_skipped, is_finite, state, scalars, paths):
        """Counts a skipped step, and raises if `on_nonfinite` asks for that.

        Args:
            is_skipped: Whether the step is skipped, a boolean scalar.
            is_finite: Whether each gradient is finite, a boolean vector.
            state: The `State` of the update.
            scalars: The `Scalars`. If `may_overflow` is true, nothing is raised, because a dynamic
                loss scale may be the cause.
            paths: The paths of the variables, in the order of `is_finite`.
        """
        (counter,) = state.skipped
        counter.assign_add(ops.cast(is_skipped, counter.dtype))
        if self.nonfinite_message:
            is_refused = ops.logical_and(is_skipped, ops.logical_not(scalars.may_overflow))
            host.raise_if_skipped(is_refused, is_finite, self.nonfinite_message, paths)

    def _apply(self, plan, gradients, state, scalars, choice):
        """Clips the gradients, runs the rule of each layer, and updates averages of the weights."""
        gradients = self.clip(gradients)
        steps = [
            self._step(layer, [gradients[i] for i in layer.members], state, scalars, choice)
            for layer in plan
        ]
        distribute = (
            functools.partial(sharding.distribute_stacks, is_shared=self.is_shared)
            if self.distributes_stacks
            else None
        )
        for group in (
            [steps] if self.stacks_matrices else [[step_of_layer] for step_of_layer in steps]
        ):
            stacks.run_batched(arrays, group, distribute)
        for average, stored in state.averages:
            self._average(average, stored, scalars, choice)

    def _average(self, average, stored, scalars, choice):
        """Updates the moving average of a weight.

        If `scalars.ema_overwrites` is true, the weight and its master become the average.
        """
        stored_like_average = stored._replace(weight=self._with_layout_of(average, stored.weight))
        new_average = step.moving_average(
            ops, average, stored_like_average, scalars.ema_momentum, arrays.bitcast
        )
        choice.assign(average, new_average)
        for copy in stored.weight_and_master:
            new_copy = ops.where(scalars.ema_overwrites, ops.cast(average, copy.dtype), copy.value)
            choice.assign(copy, new_copy)

    def step_layer(self, layer, gradients, state, scalars):
        """Takes one step of the rule for one layer.

        Args:
            layer: The layer.
            gradients: The gradients of its variables.
            state: The `State`, in the order of the layer's variables.
            scalars: The `Scalars`.
        """
        with arrays.without_autocast():
            stacks.run_single(arrays, self._step(layer, gradients, state, scalars, ALWAYS))

    def _step(self, layer, gradients, state, scalars, choice):
        """Runs the rule for one layer, and assigns the results that `choice` chooses.

        It is a generator, so that `stacks.run_batched` can compute matrices of one shape together.
        """
        stored, observed = state.of_layer(layer)
        has_gradient = step.which_have_gradients(ops, layer, gradients)
        if layer.may_rest:
            choice &= ops.any(ops.stack(has_gradient))
        # With `is_shared`, a device works on its share of each weight, because it stores only that
        # share of the slots.
        shares = [entry._replace(weight=self._as_share(entry.weight, entry)) for entry in stored]
        new_entries = yield from step.step(
            arrays, self.rule, layer.treatments, gradients, shares,
            lr=layer.rate(scalars.lr), t=scalars.t, layer_number=layer.number,
            bitcast=arrays.bitcast, decay=scalars.decay,
            observe=step.make_recorder(ops, observed, choice.assign), has_gradient=has_gradient,
        )  # fmt: skip
        for stored_entry, share, new_entry in zip(stored, shares, new_entries, strict=True):
            chosen = select_stored(choice.choose, new_entry, share)
            # The new or the old weight is chosen before the shares are gathered, because then each
            # device computes the choice for its share only.
            weight = self._as_share(chosen.weight, stored_entry)
            if self.is_shared:
                weight = sharding.gather_shares(stored_entry.weight, weight, scalars.lr)
            assign_stored(self.assign, stored_entry, chosen._replace(weight=weight))


def make_update(rule, jit_compile, variables, is_shared, arguments):
    """Makes the object that applies updates on the present backend.

    Args:
        rule: The `Rule` of the optimizer.
        jit_compile: Whether TensorFlow may compile the update by XLA.
        variables: The variables that the optimizer trains.
        is_shared: Whether `shard_update` gives each device a share of the update.
        arguments: The keyword arguments of the update on every backend.

    Returns:
        A `TensorFlowUpdate`, or on another backend a `KerasUpdate`.
    """
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import TensorFlowUpdate

        return TensorFlowUpdate(
            jit_compile=jit_compile,
            gains_by_xla=rule.gains_by_xla,
            stacks_if_adapt=rule.stacks_if_adapt,
            **arguments,
        )
    # Matrices that the model splits over devices are not stacked. They may be split along different
    # axes, and XLA would then gather the whole stack on every device.
    may_stack = not sharding.is_split(variables)
    distributes_stacks = (
        may_stack and sharding.device_count() > 1 and (is_shared or rule.gains_by_sharding)
    )
    stacks_matrices = may_stack and (
        distributes_stacks or (arguments["stacks_matrices"] and not is_shared)
    )
    return KerasUpdate(
        is_shared=is_shared,
        distributes_stacks=distributes_stacks,
        **(arguments | {"stacks_matrices": stacks_matrices}),
    )
