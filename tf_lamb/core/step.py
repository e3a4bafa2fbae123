"""One step of one layer, on what is stored: cast, master weight, rule, rounding; and the average.

A layer is a variable as it is, cut into slices, or joined with others. Frontends read and assign.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate, count, pairwise
from math import prod
from typing import Any, NamedTuple

from tf_lamb.core.stacks import Step


class Scalars(NamedTuple):
    """The numbers that change from step to step, as tensors: a step compiles nothing new."""

    lr: Any
    t: Any  # the number of the optimizer step, from 1
    is_update: Any  # False while gradients only accumulate
    ema_momentum: Any
    ema_overwrites: Any  # whether the averages replace the weights after this step
    decay: Any = None  # weight decay, where it follows a schedule
    micro_batches: Any = None  # those that have been added up, where an update takes several
    is_searching: Any = False  # whether a loss scale is, so that a step that overflows is no fault


class Slot(NamedTuple):
    """What a rule keeps of a variable from step to step."""

    name: str  # the rule's
    shape: tuple[int, ...] | None = None  # None for its variable's, as which it is laid out then
    initial: str = "zeros"  # the name of an initializer, as Keras has them
    dtype: str | None = None  # None for the user's choice; of a float64 variable it is float64


class Stored(NamedTuple):
    """The stored state of one variable."""

    weight: Any
    slots: Sequence  # in the order of the rule; the first has the shape of the weight
    master: Any = None  # the weight in float32, beside one in half precision

    @property
    def copies(self) -> list:
        """The weight, and its master where there is one."""
        return [self.weight] if self.master is None else [self.weight, self.master]


class State(NamedTuple):
    """The variables that a step changes."""

    stored: Sequence[Stored]  # aligned with the gradients
    accumulators: Sequence = ()  # by gradient, or empty
    averages: Sequence[tuple] = ()  # pairs of an average and its `Stored`, or empty
    observed: Sequence[tuple] = ()  # by gradient, what shows its trust ratio; empty if nobody looks
    skipped: Sequence = ()  # what counts skipped steps; empty if none is skipped
    spikes: Sequence = ()  # the norms of past steps and what counts spikes; empty if none is one
    dropped: Sequence = ()  # accumulators of what is frozen now: an update clears them alone

    def of(self, layer) -> tuple[list[Stored], list[tuple]]:
        """The stored state and the observation vectors of the variables of a layer."""
        stored = [self.stored[i] for i in layer.members]
        return stored, [self.observed[i] for i in layer.members] if self.observed else []


TAKEN, NONFINITE, SPIKE = range(3)  # what became of a step


@dataclasses.dataclass(eq=False, kw_only=True)
class Update:
    """Applies one rule to many variables; the base of what each framework has.

    It is called at each micro-step with the layers of a plan, which hold positions among the
    gradients, a `State`, a function that gives the `Scalars`, one that takes what became of the
    step that it was the last of, `TAKEN` before, whose result is returned, and the gradients.
    """

    rule: Callable  # its hyper-parameters bound
    clip: Callable  # takes and returns the list of gradients, whole and aggregated
    accumulation_steps: int | None  # micro-steps an update takes, at most
    refusal: str | None  # raised, with names, where a gradient is not finite; None raises nothing
    assign: Callable  # gives a weight or a slot its new value: in Keras 3 the user may override it
    deviations: float  # by which the norm of a spike is above the mean of those before
    stacks: bool  # matrices of one shape are worked on as one array

    def mean(self, xp, total, scalars: Scalars):
        """The mean gradient of an update's micro-batches, whose sum is given."""
        return total / xp.cast(scalars.micro_batches, total.dtype)


def step(
    xp, rule, treatments, gradients, stored, *, lr, t, number, bitcast, decay=None, observe=None,
    present=(),
) -> Step:  # fmt: skip
    """One step of a rule for one layer, which `stacks.together` runs beside others.

    Args:
        treatments, gradients, stored: of each variable of the layer; returned is what to store.
        number: tells the layer from every other of the model.
        bitcast: takes an array and the name of a dtype, and gives the same bits in that dtype.
        decay: None, or the array that multiplies the decay of each treatment.
        observe: None, or what a rule with a trust ratio calls once, while it is traced.
        present: see `present_in`. A variable without a gradient stays as it is, and the norms of
            its layer are those of the others.
    """
    dtype = "float64" if any(variable.weight.dtype == "float64" for variable in stored) else "float32"

    def wide(array):
        return xp.cast(array, dtype)

    states = [
        [_weight(xp, variable, wide, bitcast), *(wide(slot) for slot in variable.slots)] for variable in stored
    ]
    if observe:
        rule = functools.partial(rule, observe=observe)
    # Of a layer of one variable the whole step is taken, or not.
    joined = enumerate(present) if len(stored) > 1 else ()
    may_rest = [(i, has_gradient) for i, has_gradient in joined if has_gradient is not None]
    for i, has_gradient in may_rest:
        states[i] = [xp.where(has_gradient, x, xp.zeros_like(x)) for x in states[i]]
    gradients = list(map(wide, gradients))
    scalars = {"lr": wide(lr), "t": wide(t), "decay": None if decay is None else wide(decay)}
    new_states = yield from apply_rule(xp, rule, treatments, gradients, states, **scalars)
    position = count()  # of a slot in the layer: each is rounded with noise of its own

    def narrow(value, dtype):
        if dtype != "bfloat16":
            return xp.cast(value, dtype)
        noise = rounding_noise(xp, tuple(value.shape), t, number, next(position))
        return stochastically_rounded(xp, xp.cast(value, "float32"), noise, bitcast)

    new = [
        Stored(
            xp.cast(weight, old.weight.dtype),
            [narrow(value, slot.dtype) for slot, value in zip(old.slots, slots, strict=True)],
            None if old.master is None else weight,
        )
        for old, (weight, *slots) in zip(stored, new_states, strict=True)
    ]
    for i, has_gradient in may_rest:

        def select(new, old, is_due=has_gradient):
            return xp.where(is_due, new, xp.convert_to_tensor(old))

        new[i] = chosen(select, new[i], stored[i])
    return new


def present_in(xp, layer, gradients) -> list:
    """By variable of a layer, whether a gradient that may be missing is not all zeros; or None."""
    return [
        xp.any(gradient != 0) if is_missing else None
        for is_missing, gradient in zip(layer.missing, gradients, strict=True)
    ]


def recorder(xp, observed, assign) -> Callable | None:
    """The function by which a rule leaves its ratio in the vectors of a layer, if it has any."""
    vectors = [vector for of_variable in observed for vector in of_variable]
    if not vectors:
        return None

    def observe(*norms_and_ratio):
        values = [xp.cast(scalar, "float32") for scalar in summary(xp, *norms_and_ratio)]
        for vector in vectors:  # an array each: JAX donates the buffer of each variable by itself
            assign(vector, xp.stack(values))

    return observe


def summary(xp, weight_norm, update_norm, ratio, clipped):
    """The four scalars of a layer, or of all slices of a variable: three means and a count."""
    clipped = xp.sum(xp.where(clipped, 1.0, 0.0))
    means = (xp.sum(x) / prod(ratio.shape) for x in (weight_norm, update_norm, ratio))
    return *means, clipped


def chosen(choose: Callable, new: Stored, old: Stored) -> Stored:
    """The result of `choose` for each new array and the old one."""
    return Stored(
        choose(new.weight, old.weight),
        [choose(*pair) for pair in zip(new.slots, old.slots, strict=True)],
        None if new.master is None else choose(new.master, old.master),
    )


def assign(assign: Callable, old: Stored, new: Stored) -> None:
    """Has what is kept of a variable take its new values."""
    assign(old.weight, new.weight)
    for slot, value in zip(old.slots, new.slots, strict=True):
        assign(slot, value)
    if old.master is not None:
        assign(old.master, new.master)


def averaged(xp, average, stored, momentum, bitcast):
    """The moving average of a weight after a step; of its master where there is one."""

    def wide(array):
        return xp.cast(array, average.dtype)

    m = wide(momentum)
    return m * average + (1 - m) * _weight(xp, stored, wide, bitcast)


def _weight(xp, stored, wide, bitcast):
    """The array that a step works on: the master, unless the weight was loaded or set since."""
    weight = wide(stored.weight)
    if stored.master is None:
        return weight
    master = xp.convert_to_tensor(stored.master)  # zeros before the first step
    # As bits: some versions of XLA drop the rounding of a cast there and back.
    rounded = bitcast(xp.cast(master, stored.weight.dtype), "int16")
    is_rounded = xp.equal(rounded, bitcast(stored.weight, "int16"))
    return xp.where(is_rounded, master, weight)


def apply_rule(xp, rule, treatments, gradients, states, *, lr, t, decay=None) -> Step:
    """The states of a layer's variables, each its weight and then its slots, after the rule.

    What has the shape of its variable is laid out as the rule sees it, and back; all else goes to
    the rule, and comes from it, as it is.
    """
    if len(states) > 1:
        return _joined(xp, rule, treatments, gradients, states, lr=lr, t=t, decay=decay)
    (treatment,), (gradient,), (state,) = treatments, gradients, states
    shape = tuple(state[0].shape)
    if 0 in shape:  # no norm, and nothing to step
        return [state]

    def laid_out(array):
        return _laid_out(xp, array, treatment) if tuple(array.shape) == shape else array

    new = rule(
        xp, _laid_out(xp, gradient, treatment), *map(laid_out, state), lr=lr, t=t,
        decay=_decay(treatment.decay, decay), adapt=treatment.adapt, axes=treatment.axes,
    )  # fmt: skip
    if inspect.isgenerator(new):
        new = yield from new
    return [
        [
            _as_stored(xp, array, treatment, shape) if tuple(old.shape) == shape else array
            for old, array in zip(state, new, strict=True)
        ]
    ]


def _decay(own, scheduled):
    """The decay of a step; the number 0 stays one, with which no rule computes."""
    is_none = isinstance(own, float) and own == 0
    return own if scheduled is None or is_none else own * scheduled


def _laid_out(xp, array, treatment):
    """An array of a variable as the rule sees it."""
    if treatment.order:
        array = xp.transpose(array, treatment.order)
    return xp.reshape(array, treatment.view) if treatment.view else array


def _as_stored(xp, array, treatment, shape):
    """The array again in the shape of its variable."""
    order = treatment.order
    if not order:
        return xp.reshape(array, shape) if treatment.view else array
    array = xp.reshape(array, [shape[axis] for axis in order])
    return xp.transpose(array, [order.index(axis) for axis in range(len(order))])


def _joined(xp, rule, treatments, gradients, states, *, lr, t, decay):
    """Rules are elementwise but for their norms, so a layer of several is one long vector."""

    def join(arrays):
        return xp.concatenate([xp.reshape(array, (-1,)) for array in arrays])

    weights = [state[0] for state in states]
    own_decay = treatments[0].decay
    if any(treatment.decay != own_decay for treatment in treatments):
        own_decay = join(
            [treated.decay * xp.ones_like(w) for treated, w in zip(treatments, weights, strict=True)]
        )
    vectors = [join(gradients), *map(join, zip(*states, strict=True))]
    new = rule(xp, *vectors, lr=lr, t=t, decay=_decay(own_decay, decay), adapt=treatments[0].adapt)
    ends = accumulate((prod(w.shape) for w in weights), initial=0)
    return [
        [xp.reshape(array[start:end], w.shape) for array in new]
        for w, (start, end) in zip(weights, pairwise(ends), strict=True)
    ]


# -- stochastic rounding to bfloat16, in which a slot may be kept ----------------------------------
# An average that decays by 0.1 % a step stands still in bfloat16 when it is rounded to the nearest.
# All is arithmetic of int32, which wraps around and is exact: the same in every framework, compiled
# or not, however an array is spread over devices, and in a run that is resumed.

_LARGEST = 0x7F7F  # the bits of bfloat16's largest number; those of infinity are one more


def stochastically_rounded(xp, x, noise, bitcast):
    """One of the two neighbours of x in bfloat16, so that the mean over the noise is x.

    bfloat16 is the upper half of float32's bits, and numbers of one sign are in the order of their
    bits. Noise that is added to the lower half carries into the upper one as often as x is near to
    the neighbour of the larger magnitude. Infinities and NaN stay as they are; what is beyond the
    largest number of bfloat16 becomes that number. The noise is that of `rounding_noise`.
    """
    upper = xp.right_shift(bitcast(x, "int32") + noise, 16)  # the sign comes along
    upper = xp.where((upper & 0x7FFF) > _LARGEST, upper - 1, upper)
    neighbour = bitcast(xp.cast(upper, "int16"), "bfloat16")
    return xp.where(xp.isfinite(x), neighbour, xp.cast(x, "bfloat16"))


def rounding_noise(xp, shape, t, number, slot):
    """Uniform numbers from 0 to 2^16 - 1 in int32: another array for each step, layer and slot.

    `t` and `number` are scalars, `shape` and `slot` known while tracing. Two slots share an array
    of random bits, and have a half of each.
    """
    pair, half = divmod(slot, 2)
    seed = _mixed(xp, xp.reshape(xp.cast(t, "int32"), (1,)))
    seed = _mixed(xp, seed + number + 0x10000 * pair)
    bits = _mixed(xp, _positions(xp, shape, seed))
    return xp.reshape(xp.right_shift(bits, 16 * half) & 0xFFFF, shape)


def _positions(xp, shape, start):
    """Numbers elements as a sum over axes: each of several devices can number its own part."""
    for axis, size in enumerate(shape):
        inner = shape[axis + 1 :]
        offsets = xp.arange(size, dtype="int32") * prod(inner)
        start = start + xp.reshape(offsets, (size, *(1 for _ in inner)))
    return start


def _mixed(xp, x):
    """A permutation of int32 of which each bit of the result depends on all bits of x.

    Source: `lowbias32` of Wellons, "Prospecting for hash functions" (2018).
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        x = (x ^ _logical_shift(xp, x, shift)) * factor
    return x ^ _logical_shift(xp, x, 16)


def _logical_shift(xp, x, by):
    return xp.right_shift(x, by) & ((1 << (32 - by)) - 1)
