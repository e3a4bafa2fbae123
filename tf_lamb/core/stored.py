"""Defines the data of a step: the arrays stored for each variable, the scalars, the outcomes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Scalars(NamedTuple):
    """Holds the numbers that change from step to step.

    They are tensors, so that new numbers do not compile the step again.

    Attributes:
        lr: The learning rate.
        t: The number of the optimizer step, from 1.
        is_update: Whether this step is an update; False while gradients only accumulate.
        ema_momentum: The momentum of the moving averages in this step.
        ema_overwrites: Whether the averages replace the weights after this step.
        decay: The weight decay if it follows a schedule. Defaults to None.
        micro_batches: The number of micro-batches that have been added up, this one included, if an
            update takes several. Defaults to None.
        may_overflow: Whether a dynamic loss scale is above 1, so that a step that overflows is no
            error. Defaults to False.
    """

    lr: Any
    t: Any
    is_update: Any
    ema_momentum: Any
    ema_overwrites: Any
    decay: Any = None
    micro_batches: Any = None
    may_overflow: Any = False


class Slot(NamedTuple):
    """Describes an array that a rule keeps for a variable from step to step, such as Adam's m.

    Attributes:
        name: The name of the slot in the rule.
        shape: The shape of the array. Defaults to None: that of the variable. Then the rule sees
            the slot in the same layout as the variable.
        initial: The name of a Keras initializer. Defaults to "zeros".
        dtype: The dtype. Defaults to None: the user's choice. It is float64 for a float64 variable
            in any case.
    """

    name: str
    shape: tuple[int, ...] | None = None
    initial: str = "zeros"
    dtype: str | None = None


class Stored(NamedTuple):
    """Holds the weight, the slots and the master of one variable.

    Attributes:
        weight: The variable itself.
        slots: The slots, in the order of the rule; the first has the shape of the weight.
        master: The weight in float32, if the variable is in half precision and has a master.
            Defaults to None.
    """

    weight: Any
    slots: Sequence
    master: Any = None

    @property
    def weight_and_master(self) -> list:
        """The weight, and its master if there is one."""
        return [self.weight] if self.master is None else [self.weight, self.master]


class State(NamedTuple):
    """Holds the variables that a step changes.

    Attributes:
        stored: The `Stored` of each variable that has a gradient, in the order of the gradients.
        accumulators: For each gradient its sum over micro-batches; empty without gradient
            accumulation.
        averages: Pairs of a moving average of a weight and the `Stored` of that weight; empty
            without averages.
        observed: For each gradient a tuple of the variable that its trust ratio is recorded in, or
            an empty tuple; empty if trust ratios are not observed.
        skipped: The counter of skipped steps, in a list; empty if no step is skipped.
        spikes: The gradient norms of past steps and the counter of spikes; empty if no spike is
            skipped.
        dropped_accumulators: The accumulators of variables that are not trained any more. An update
            only clears them.
    """

    stored: Sequence[Stored]
    accumulators: Sequence = ()
    averages: Sequence[tuple] = ()
    observed: Sequence[tuple] = ()
    skipped: Sequence = ()
    spikes: Sequence = ()
    dropped_accumulators: Sequence = ()

    def of_layer(self, layer) -> tuple[list[Stored], list[tuple]]:
        """Returns the parts of `stored` and of `observed` for the variables of a layer."""
        stored = [self.stored[i] for i in layer.members]
        return stored, [self.observed[i] for i in layer.members] if self.observed else []


# The outcomes of a step: taken, or skipped for gradients that are not finite or for a spike.
TAKEN, NONFINITE, SPIKE = range(3)


def select_stored(choose: Callable, new: Stored, old: Stored) -> Stored:
    """Applies a function to each new array of a variable and the old array in its place.

    Args:
        choose: A function of the new and the old array.
        new: The new arrays of a variable.
        old: The old arrays of the variable.

    Returns:
        The results, as a `Stored`.
    """
    return Stored(
        choose(new.weight, old.weight),
        [choose(*pair) for pair in zip(new.slots, old.slots, strict=True)],
        None if new.master is None else choose(new.master, old.master),
    )


def assign_stored(assign: Callable, old: Stored, new: Stored) -> None:
    """Assigns new values to a variable's weight, slots and master.

    Args:
        assign: A function that assigns a value to a variable.
        old: The variables.
        new: The new values.
    """
    assign(old.weight, new.weight)
    for slot, value in zip(old.slots, new.slots, strict=True):
        assign(slot, value)
    if old.master is not None:
        assign(old.master, new.master)
