"""The framework-independent base class of all optimizers: their build and their step."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_lamb.api.keras_schedules import to_float_scalar
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.reporting import Reporting
from tf_lamb.api.optimizers.storage import make_storage
from tf_lamb.api.variables import path_of, step_of, waiting_micro_batches
from tf_lamb.core import accumulation, schedules
from tf_lamb.core import plan as plans
from tf_lamb.core.messages import warn
from tf_lamb.core.recipes.recipe import batch_label
from tf_lamb.core.stored import NONFINITE, TAKEN, Scalars, Slot


class Layerwise(Reporting):
    """Builds an optimizer and takes its steps, whatever its rule and its framework.

    It is a mixin between a class such as `LAMB` and the optimizer base class of Keras 3 or of
    tf_keras. A class such as `LAMB` sets its `rule`, and overrides `slots_of` if its slots differ
    from variable to variable. `frontend.FrontendMembers` lists what the class for each Keras has
    to define. These are its base classes, and the objects that it holds:

        Configured      what a user sets: arguments, recipe, config
        Reporting       what a user reads: plan, trust ratios, skipped steps
        _planner        decides which variables have weight decay, are adapted, or are frozen
        _storage        holds the state arrays, such as slots; `named` saves and loads them
        _guard          counts skipped steps, and warns of them

    Attributes:
        gradients_are_summed: Whether the wrapper `MeasureNoise` or `AdaScale` has already summed
            the gradients over replicas.
        gradients_are_gathered: Whether that wrapper has already added the gradients to the
            accumulators.
    """

    gradients_are_summed = False
    gradients_are_gathered = False

    def slots_of(self, treatment: plans.Treatment, shape: tuple[int, ...]) -> list[Slot]:
        """Returns the slots of a variable, in the order in which the rule takes them.

        Args:
            treatment: What the plan decides for the variable, such as whether it has weight decay.
            shape: The shape of the variable.

        Returns:
            The slots; the first has the shape of the variable.
        """
        return list(map(Slot, self.rule.slots))

    def declare_slots(self, plan: plans.Plan) -> list[list[Slot]]:
        """Returns the slots of each variable of a plan, as one list for each variable.

        The list is empty for a variable that its layer overwrites, such as a scale of a float8
        layer.
        """
        pairs = enumerate(zip(plan.treatments, plan.shapes, strict=True))
        return [
            [] if index in plan.overwritten else self.slots_of(*treatment_and_shape)
            for index, treatment_and_shape in pairs
        ]

    def _is_frozen(self, variable):
        """Returns whether the `Plan` freezes a variable that the optimizer was built for.

        A frozen variable has the learning rate 0 in the argument `treatments`.
        """
        frozen = self._planner.frozen
        return bool(frozen) and self._index_of(variable) in frozen

    def without_frozen(self, pairs: Sequence) -> list:
        """Returns the pairs (gradient, variable) whose variable the plan does not freeze.

        Raises:
            ValueError: if every variable that has a gradient is frozen.
        """
        unfrozen = [pair for pair in pairs if not self._is_frozen(pair[1])]
        with_gradient, unfrozen_variables = (
            [variable for gradient, variable in group if gradient is not None]
            for group in (pairs, unfrozen)
        )
        if with_gradient and not unfrozen_variables:
            raise ValueError(
                f"{self.name} was given gradients of frozen variables alone: "
                f"treatments gives {path_of(with_gradient[0])}, for instance, the rate 0. Leave "
                "the step out, or narrow the pattern."
            )
        return unfrozen

    def without_gradient(self, variables: Sequence, unfrozen: Iterable) -> list:
        """Returns the variables that have no gradient now, but may have accumulated ones.

        An earlier micro-batch since the last update may have had a gradient of them. The next
        update uses that gradient, too.

        Args:
            variables: The variables that have a gradient in this micro-batch.
            unfrozen: All variables that are trainable now.

        Returns:
            The variables of `unfrozen` that are not in `variables` and that the plan does not
            freeze; none if the optimizer does not accumulate.
        """
        if not self._storage.accumulators:
            return []
        # A set, because torch's compiler (2.13) treats an iterator passed to `union` as empty.
        excluded = self._storage.plan.frozen | {
            self._index_of(with_gradient) for with_gradient in variables
        }
        return [variable for variable in unfrozen if self._index_of(variable) not in excluded]

    def _make_storage(self, variables, plan, averages):
        """Makes the variables that the optimizer keeps from step to step, such as slots.

        Args:
            variables: The variables that the optimizer trains.
            plan: Their plan.
            averages: Their moving averages, which Keras's own `build` has made; empty without
                `use_ema`.
        """
        self._storage = make_storage(self, variables, plan, averages)
        self._guard.build(self.add_variable, self._counter_dtype)
        if self._observes:
            self._storage.ratio_vectors = self._make_ratio_vectors()

    def _follow_loss_scale(self, move: Callable, scale: Callable) -> None:
        """Registers a dynamic loss scale, which is raised or lowered once per update.

        An update whose gradients overflow under the scale is skipped.

        Args:
            move: A function that raises or lowers the scale. Its arguments are two boolean scalars:
                whether the micro-batch ends an update, and whether gradients were not finite.
            scale: A function without arguments that returns the scale.
        """
        self._guard.follow_loss_scale(move, scale)
        if self._storage:
            self._guard.add_skip_counter(self.add_variable, self._counter_dtype)

    def _update_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of the class `Update` that every framework passes.

        They are, for example, the update rule, the function that clips gradients, and the number of
        micro-batches per update. `Update`, in `core.step`, takes a step for all variables at once.
        """
        accelerated = self._host.has_accelerator()
        return {
            "rule": functools.partial(self.rule.step, **self._settings.rule_arguments(accelerated)),
            "stacks_matrices": accelerated,
            "clip": self.clip_aggregated,
            "accumulation_steps": self.gradient_accumulation_steps,
            "nonfinite_message": self._guard.refusal,
            "deviations": self._guard.deviations,
        }

    def _layers_and_state(self, variables, missing=()):
        """Returns two arguments of an update: the layers of the plan, and the `State`.

        Args:
            variables: The variables that the update changes.
            missing: The variables among these that have no gradient in this micro-batch. Defaults
                to none.
        """
        storage, guard, native = self._storage, self._guard, self._host.native
        indices = list(map(self._index_of, variables))
        state = storage.state(indices, variables, self._averaged_positions(variables))._replace(
            skipped=list(map(native, guard.skip_counters)),
            spikes=list(map(native, guard.spike_variables)),
        )
        return storage.plan.layers(indices, map(self._index_of, missing)), state

    def _is_update(self):
        """Returns whether this micro-batch ends an update, as a boolean tensor."""
        steps = self._accumulation_stages or self.gradient_accumulation_steps
        if not steps:
            return self._xp.convert_to_tensor(True)
        micro_batches = self._host.native(self._storage.micro_step) + 1
        return accumulation.is_due(self._xp, steps, self.iterations, micro_batches)

    def _count_step(self, variables, outcome):
        """Counts the micro-batch, and the step if the micro-batch ended an update that was taken.

        It also raises or lowers a dynamic loss scale. With `use_ema`, it sets the moving averages
        that the update did not change, because their variables have no gradient or are frozen.

        Args:
            variables: The variables of the update.
            outcome: `TAKEN`, `NONFINITE` or `SPIKE`, a scalar.

        Returns:
            The result of `_add_iterations`, which counts the step.
        """
        xp, storage = self._xp, self._storage
        is_due = self._is_update()
        is_step_taken = is_due & xp.equal(outcome, TAKEN)
        if move_scale := self._guard.move_scale:
            move_scale(is_due, xp.equal(outcome, NONFINITE))
        if storage.micro_batches:
            storage.count_micro_batch(xp, is_due)
        if self.use_ema:
            storage.set_idle_averages(
                xp, self._host.put, self._averaged_positions(variables), is_step_taken
            )
        return self._add_iterations(is_step_taken)

    def _named_state(self) -> named.NamedState:
        """Returns the optimizer's variables that are saved and loaded, by name."""
        return named.named_state(self)

    def _scalars(self) -> Scalars:
        """Returns the `Scalars` of the next step, such as its learning rate and its number."""
        xp, t, frequency = self._xp, self.iterations + 1, self.ema_overwrite_frequency
        decay = self._settings.weight_decay
        return Scalars(
            lr=to_float_scalar(xp, self.learning_rate),
            t=t,
            is_update=self._is_update(),
            # The momentum is 0 in the first update, so each average begins with the weight after
            # that update, as in Keras 3. In tf_keras's own optimizers it begins with the weight at
            # the build, which may be a random one that a pretrained weight has replaced since.
            ema_momentum=xp.cast(
                self.use_ema and self._storage.has_averages > 0, self._average_dtype
            )
            * self.ema_momentum,
            ema_overwrites=xp.equal(t % frequency, 0) if frequency else xp.convert_to_tensor(False),
            decay=to_float_scalar(xp, decay(self.iterations)) if callable(decay) else None,
            micro_batches=self._storage.micro_step + 1 if self._storage.micro_batches else None,
            may_overflow=self._guard.is_searching(),
        )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Replaces weights by their averages at the end of training, and warns of skipped steps.

        Args:
            var_list: The variables to replace; without `use_ema` none is replaced.
        """
        warn_if_past_schedule_end(self, lambda: step_of(self))
        if named.has_averages(self):
            keys = {self._var_key(variable) for variable in var_list}
            for average, stored in self._storage.average_pairs():
                if self._var_key(stored.weight) in keys:
                    for copy in stored.weight_and_master:
                        self._host.put(copy, average)
        step, micro_batches = step_of(self), self.gradient_accumulation_steps or 1
        if stages := self._accumulation_stages:
            micro_batches = accumulation.total_micro_batches(stages, step, 1)
        self._guard.warn_at_end(
            step, waiting_micro_batches(self), micro_batches, self.nonfinite_weights
        )
        self._warn_at_end()

    def _warn_at_end(self):
        """Does nothing here; a subclass such as SOAP warns in it at the end of training."""


def warn_if_past_schedule_end(optimizer, steps: Callable[[], int]) -> None:
    """Warns, at the end of `fit`, if the last steps were taken at a learning rate of 0.

    Args:
        optimizer: The optimizer.
        steps: A function that returns the number of steps taken. It is called only where the
            schedule ends at 0, because it waits for the device.
    """
    end = schedules.zero_rate_step(optimizer._learning_rate)
    if end is None or (step_count := steps()) <= end:
        return
    recipe = optimizer._recipe
    origin = "" if recipe is None else f", as {recipe.title} at {batch_label(recipe)} has it"
    noun = "schedule" if recipe is None else "recipe"
    warn(
        f"{optimizer.name}: the learning rate was 0 in the last {step_count - end:,} of "
        f"{step_count:,} steps, because its schedule ends after {end:,}{origin}. Train with the "
        "batch and the "
        f"epochs that the {noun} was made for, or make the {noun} for those of this run."
    )
