"""Defines the data of an optimizer step: the stored arrays, the scalars, and the outcomes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Scalars(NamedTuple):
    """Holds the numbers that change from step to step.

    They are tensors, because a compiled step would be compiled again for each new Python number.

    Attributes:
        lr: The learning rate.
        t: The number of the optimizer step, from 1.
        is_update: Whether this step is an update; False while gradients only accumulate.
        ema_momentum: The momentum of the moving averages in this step.
        ema_overwrites: Whether the averages replace the weights after this step.
        decay: The weight decay of this step from a schedule. Defaults to None: no schedule.
        micro_batches: The number of micro-batches whose gradients have been added up, including
            this one. Defaults to None: each micro-batch is an update.
        may_overflow: Whether a dynamic loss scale is above 1. Then gradients that overflow are
            expected and raise no error. Defaults to False.
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
        shape: The shape of the array. Defaults to None: that of the variable. A slot with None is
            reshaped for the rule in the same way as the variable.
        initial: The name of a Keras initializer. Defaults to "zeros".
        dtype: The dtype. Defaults to None: the dtype that the user sets for slots. The slots of a
            float64 variable are always float64.
    """

    name: str
    shape: tuple[int, ...] | None = None
    initial: str = "zeros"
    dtype: str | None = None


class Stored(NamedTuple):
    """Holds the weight, the slots and the master of one variable.

    Attributes:
        weight: The variable itself.
        slots: The arrays that the update rule keeps, such as Adam's m and v, in the order of the
            rule; the first has the shape of the weight.
        master: The float32 copy of a variable in half precision, on which steps are computed. None
            if there is no such copy, which is the default.
    """

    weight: Any
    slots: Sequence
    master: Any = None

    @property
    def weight_and_master(self) -> list:
        """A list of the weight and, if there is one, its float32 copy."""
        return [self.weight] if self.master is None else [self.weight, self.master]


class State(NamedTuple):
    """Holds the variables that a step changes.

    Attributes:
        stored: The `Stored` of each variable that has a gradient, in the order of the gradients.
        accumulators: For each gradient its sum over micro-batches; empty without gradient
            accumulation.
        averages: Pairs of a moving average of a weight and the `Stored` of that weight; empty
            without averages.
        observed: For each gradient a tuple with the variable in which the trust ratio is recorded,
            or an empty tuple; empty if no trust ratio is recorded.
        skipped: The counter of skipped steps, in a list; empty if the optimizer never skips a step.
        spikes: The gradient norms of past steps and the counter of spikes; empty if the optimizer
            does not look for spikes.
        dropped_accumulators: The accumulators of variables that are no longer trained. An update
            sets them to zero and does not use them.
    """

    stored: Sequence[Stored]
    accumulators: Sequence = ()
    averages: Sequence[tuple] = ()
    observed: Sequence[tuple] = ()
    skipped: Sequence = ()
    spikes: Sequence = ()
    dropped_accumulators: Sequence = ()

    def of_layer(self, layer) -> tuple[list[Stored], list[tuple]]:
        """Returns the entries of `stored`, and those of `observed`, for the variables of a layer.

        Args:
            layer: A `Layer` of the plan.
        """
        stored = [self.stored[i] for i in layer.members]
        return stored, [self.observed[i] for i in layer.members] if self.observed else []


# The outcomes of a step: taken; skipped because a gradient is not finite; skipped because the norm
# of the gradients is a spike.
TAKEN, NONFINITE, SPIKE = range(3)


def select_stored(choose: Callable, new: Stored, old: Stored) -> Stored:
    """Applies a function to each array of a variable, with the new and the old value.

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
    """Assigns new values to a variable, to its slots, and to its float32 copy if it has one.

    Args:
        assign: A function of a variable and a value, which assigns the value to the variable.
        old: The variables to assign to.
        new: The new values.
    """
    assign(old.weight, new.weight)
    for slot, value in zip(old.slots, new.slots, strict=True):
        assign(slot, value)
    if old.master is not None:
        assign(old.master, new.master)


def stack_stored(xp, stored: Sequence[Stored]) -> Stored:
    """Stacks the arrays of variables of the same shapes and dtypes along a new first axis.

    Args:
        xp: An array namespace such as NumPy.
        stored: The `Stored` of each variable.

    Returns:
        A `Stored` of stacked arrays.
    """
    weights, slots, masters = zip(*stored, strict=True)
    return Stored(
        xp.stack(weights),
        [xp.stack(arrays) for arrays in zip(*slots, strict=True)],
        None if masters[0] is None else xp.stack(masters),
    )


def unstack_stored(xp, stack: Stored) -> list[Stored]:
    """Undoes `stack_stored`: returns the `Stored` of each variable.

    Args:
        xp: An array namespace such as NumPy.
        stack: A `Stored` of stacked arrays.
    """

    def unstack(array):
        # One operation of TensorFlow takes a tenth of the tracing that one for each index takes.
        return xp.unstack(array) if hasattr(xp, "unstack") else list(array)

    weights, slots = unstack(stack.weight), map(unstack, stack.slots)
    masters = [None] * len(weights) if stack.master is None else unstack(stack.master)
    return [
        Stored(weight, arrays, master)
        for weight, *arrays, master in zip(weights, *slots, masters, strict=True)
    ]
