"""The arrays that an optimizer keeps for its variables from step to step."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.frontend import LayerwiseMembers, Variable
from tf_lamb.api.variables import is_overwritten
from tf_lamb.core.plan import Plan
from tf_lamb.core.stored import Slot, State, Stored


@dataclasses.dataclass
class Storage:
    """Holds the arrays that an optimizer keeps for each variable, and its scalars.

    Sequences are in the order of the variables that the optimizer was built for. The class is a
    plain one, so that Keras and TensorFlow do not track what it holds.

    Attributes:
        plan: The optimizer's `Plan`: for each variable, its weight decay, whether it is frozen, ...
        declared_slots: The slots of each variable, as its rule declares them.
        weights: The variables that the optimizer trains.
        slots: The slot arrays of each variable, in the order of the rule. A variable that its layer
            overwrites, such as the scale of a float8 layer, has none.
        masters: For each variable its float32 master copy; None if it has none.
        averages: For each variable its moving average; None if it has none. Empty without
            `use_ema`.
        accumulators: The sum of each variable's gradients over micro-batches; empty without
            accumulation.
        micro_step: The counter of micro-batches in this update; None without accumulation.
        has_averages: A scalar that is 0 before the first update, while the averages are still equal
            to the weights, and 1 afterwards; None without `use_ema`.
        micro_batches: The number of micro-batches per update; "growing" if it changes during
            training. It is part of the names under which accumulators are saved. None without
            accumulation.
        ratio_vectors: For each variable a tuple with one vector, in which a step records the trust
            ratio and the norms of the variable; the tuple is empty if the variable has no trust
            ratio. The whole sequence is empty if the optimizer does not record trust ratios.
        native: A function from a variable of Keras to the variable that an update reads and
            assigns: on TensorFlow the `tf.Variable` inside it, otherwise itself.
    """

    plan: Plan
    declared_slots: Sequence[Sequence[Slot]]
    weights: Sequence[Variable]
    slots: Sequence[Sequence[Variable]]
    masters: Sequence[Variable | None]
    averages: Sequence[Variable | None] = ()
    accumulators: Sequence[Variable] = ()
    micro_step: Variable | None = None
    has_averages: Variable | None = None
    micro_batches: int | str | None = None
    ratio_vectors: Sequence[tuple] = ()
    native: Callable[[Variable | None], Any] = lambda variable: variable

    def state(
        self, indices: Sequence[int], weights: Sequence, averaged_positions: set[int]
    ) -> State:
        """Returns the variables that a step changes.

        Args:
            indices: The positions of the variables that have a gradient, in the list that the
                optimizer was built for.
            weights: The variables at these positions.
            averaged_positions: The positions of the variables whose moving averages this step
                updates.

        Returns:
            The `State` of the step. Its `dropped_accumulators` are those of variables that are
            neither at `indices` nor frozen by the plan.
        """
        native, sums = self.native, self.accumulators
        without_gradient = set(range(len(sums))) - self.plan.frozen - set(indices)
        return State(
            [
                Stored(
                    native(weight),
                    [native(slot) for slot in self.slots[i]],
                    native(self.masters[i]),
                )
                for i, weight in zip(indices, weights, strict=True)
            ],
            [native(sums[i]) for i in indices] if sums else [],
            [
                (native(average), Stored(native(weight), (), native(master)))
                for average, (weight, _, master) in self.average_pairs(averaged_positions)
            ],
            [self.ratio_vectors[i] for i in indices] if self.ratio_vectors else [],
            dropped_accumulators=[native(sums[i]) for i in sorted(without_gradient)],
        )

    def count_micro_batch(self, xp: Any, is_due: Any) -> None:
        """Adds 1 to the counter of micro-batches, or sets it to 0 after the last of an update.

        Args:
            xp: The array namespace.
            is_due: Whether the micro-batch ends an update, a boolean scalar.
        """
        micro_step = self.native(self.micro_step)
        micro_batches = micro_step + 1
        micro_step.assign(xp.where(is_due, xp.zeros_like(micro_batches), micro_batches))

    def set_idle_averages(
        self, xp: Any, put: Callable, updated_positions: set[int], is_step_taken: Any
    ) -> None:
        """Sets the moving averages that this step does not update, and `has_averages`.

        Before the first update, each of these averages is set to its weight. The average of a
        frozen variable is set to its weight in every step.

        Args:
            xp: The array namespace.
            put: A function that assigns a value to a variable.
            updated_positions: The positions of the variables whose averages the step updates.
            is_step_taken: Whether an update was taken, a boolean scalar.
        """
        has_averages, frozen = self.native(self.has_averages), self.plan.frozen
        idle_positions = set(range(len(self.weights))) - frozen - updated_positions
        for average, stored in self.average_pairs(idle_positions):
            current, initial = map(xp.convert_to_tensor, (average, self.native(stored.weight)))
            average.assign(xp.where(has_averages > 0, current, xp.cast(initial, current.dtype)))
        for average, stored in self.average_pairs(frozen):
            put(average, stored.weight)
        has_averages.assign(xp.maximum(has_averages, xp.cast(is_step_taken, has_averages.dtype)))

    def vectors(self) -> list:
        """Returns all vectors in which steps record trust ratios, in one list."""
        return [
            vector for vectors_of_variable in self.ratio_vectors for vector in vectors_of_variable
        ]

    def average_pairs(self, positions: Iterable[int] | None = None) -> list[tuple[Any, Stored]]:
        """Returns pairs (moving average, `Stored` of its variable); that `Stored` has no slots.

        Args:
            positions: The positions of the variables. Defaults to None: all variables. Those
                without an average are left out.
        """
        positions = range(len(self.weights)) if positions is None else set(positions)
        triples = zip(self.averages, self.weights, self.masters, strict=False)
        return [
            (average, Stored(weight, (), master))
            for i, (average, weight, master) in enumerate(triples)
            if average is not None and i in positions
        ]

    def slots_of(self, index: int) -> dict[str, Variable]:
        """Returns a dict of the slots of a variable by name, with its "average" if there is one."""
        names = (slot.name for slot in self.declared_slots[index])
        slots = dict(zip(names, self.slots[index], strict=True))
        return {**slots, **dict(("average", average) for average, _ in self.average_pairs({index}))}

    def scalars(self) -> dict[str, Variable]:
        """Returns the scalar variables of this object, by the names under which they are saved."""
        scalars: dict[str, Variable] = {}
        if self.micro_batches and self.micro_step is not None:
            scalars[named.name_with_micro_steps("micro_step", self.micro_batches)] = self.micro_step
        if self.has_averages is not None:
            scalars["has_averages"] = self.has_averages
        return scalars

    def parts(self) -> list[named.Part]:
        """Returns for each variable the `named.Part` that is saved: its arrays by name."""
        parts = []
        for i, (name, shape) in enumerate(zip(self.plan.names, self.plan.shapes, strict=True)):
            arrays = self.slots_of(i)
            if (master := self.masters[i]) is not None:
                arrays["master"] = master
            if self.micro_batches:
                arrays[named.name_with_micro_steps("accumulator", self.micro_batches)] = (
                    self.accumulators[i]
                )
            initial = {slot.name: slot.initial for slot in self.declared_slots[i]}
            parts.append(named.Part(name, shape, arrays, initial))
        return parts


def make_storage(
    optimizer: LayerwiseMembers, variables: Sequence, plan: Plan, averages: Sequence
) -> Storage:
    """Makes the slots, masters, sums and counters of an optimizer in its build.

    Args:
        optimizer: The optimizer.
        variables: The variables that it trains.
        plan: The plan for these variables.
        averages: The moving averages, which Keras's `build` has made; empty without `use_ema`.

    Returns:
        The storage.
    """
    declared_slots = optimizer.declare_slots(plan)
    slots, masters = [], []
    for variable, slots_of_variable in zip(variables, declared_slots, strict=True):
        slots.append(_add_slots(optimizer, variable, slots_of_variable))
        masters.append(_add_master(optimizer, variable))
    native = optimizer._host.native
    storage = Storage(plan, declared_slots, variables, slots, masters, native=native)
    if optimizer.use_ema:
        storage.averages = averages
        storage.has_averages = _add_counter(optimizer, "has_averages")
    if steps := optimizer.gradient_accumulation_steps:
        # `micro_batches` is part of the saved name of an accumulator. It does not contain the
        # stages of a growing batch, so that an optimizer with other stages can load the sum.
        storage.micro_batches = "growing" if optimizer._accumulation_stages else steps
        storage.micro_step = _add_counter(optimizer, "micro_step")
        storage.accumulators = optimizer._host.accumulators(optimizer, variables)
    return storage


def _add_counter(optimizer: LayerwiseMembers, name: str) -> Variable:
    """Adds a scalar variable in the dtype of counters to the optimizer, and returns it."""
    return optimizer.add_variable((), dtype=optimizer._counter_dtype, name=name)


def _add_slots(
    optimizer: LayerwiseMembers, variable: Variable, declared_slots: Sequence[Slot]
) -> tuple[Variable, ...]:
    """Adds the slots of a variable to the optimizer, and returns them as a tuple.

    Slots of a float64 variable are in float64. Others have the dtype that the rule declares, or the
    one that the user chose by `dtypes`.
    """
    is_double = optimizer._host.native(variable).dtype == "float64"
    chosen_dtype = optimizer._settings.dtypes.slots
    return tuple(
        optimizer.add_variable_like(
            variable,
            slot.name,
            "float64" if is_double else slot.dtype or chosen_dtype,
            slot.shape,
            slot.initial,
        )
        for slot in declared_slots
    )


def _add_master(optimizer: LayerwiseMembers, variable: Variable) -> Variable | None:
    """Adds the float32 master copy of a half-precision variable, and returns it.

    Returns None if `dtypes` asks for no masters, if the variable is not in half precision, or if
    its layer overwrites it.
    """
    is_half = optimizer._host.native(variable).dtype in ("float16", "bfloat16")
    if optimizer._settings.dtypes.masters and is_half and not is_overwritten(variable):
        return optimizer.add_variable_like(variable, "master", "float32")
    return None
