"""One step of one layer: casts stored arrays, applies the rule, and rounds the results.

A layer is a variable as it is, cut into slices, or joined with others. Also in here is the moving
average of weights. The frontends read and assign variables.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from itertools import accumulate, count, pairwise
from math import prod

from tf_lamb.core.rounding import rounding_noise, stochastically_rounded
from tf_lamb.core.stacks import Step
from tf_lamb.core.stored import Scalars, Stored, select_stored


@dataclasses.dataclass(eq=False, kw_only=True)
class Update:
    """Applies one rule to many variables; the base class of the updates of each framework.

    It is called at each micro-step with the layers of a plan, which hold positions among the
    gradients; a `State`; a function that returns the `Scalars`; a function that takes the outcome
    of the step that this micro-step ends (`TAKEN` if it ends none), and whose result is returned;
    and the gradients.

    Attributes:
        rule: The rule, with its hyper-parameters bound.
        clip: A function that clips a list of gradients, which are whole and aggregated.
        accumulation_steps: The most micro-steps that an update takes; None without accumulation.
        refusal: The beginning of the error, before names, if a gradient is not finite; None if
            that raises nothing.
        assign: A function that assigns a new value to a weight or a slot. In Keras 3 the user may
            override it.
        deviations: By how many standard deviations the norm of a spike is above the mean of the
            norms before.
        stacks: Whether matrices of one shape are worked on as one array.
    """

    rule: Callable
    clip: Callable
    accumulation_steps: int | None
    refusal: str | None
    assign: Callable
    deviations: float
    stacks: bool

    def mean(self, xp, total, scalars: Scalars):
        """Computes the mean gradient of an update's micro-batches.

        Args:
            xp: An array namespace.
            total: The sum of their gradients.
            scalars: The scalars of the step.
        """
        return total / xp.cast(scalars.micro_batches, total.dtype)


def step(
    xp, rule, treatments, gradients, stored, *, lr, t, number, bitcast, decay=None, observe=None,
    present=(),
) -> Step:  # fmt: skip
    """Makes one step of a rule for one layer, which `stacks.together` runs beside others.

    Args:
        xp: An array namespace.
        rule: The rule, with its hyper-parameters bound.
        treatments: The treatment of each variable of the layer.
        gradients: The gradient of each variable.
        stored: The stored state of each variable.
        lr: The learning rate of the layer.
        t: The number of the optimizer step, from 1.
        number: A number that no other layer of the model has.
        bitcast: A function of an array and the name of a dtype, which returns the same bits in that
            dtype.
        decay: None, or a scalar that multiplies the decay of each treatment.
        observe: None, or a function that a rule with a trust ratio calls once, while it is traced.
        present: The result of `present_in`. A variable without a gradient stays as it is, and the
            norms of its layer are those of the others.

    Returns:
        The `Stored` arrays to assign to each variable.
    """
    dtype = (
        "float64" if any(variable.weight.dtype == "float64" for variable in stored) else "float32"
    )

    def wide(array):
        return xp.cast(array, dtype)

    states = [
        [_weight(xp, variable, wide, bitcast), *(wide(slot) for slot in variable.slots)]
        for variable in stored
    ]
    if observe:
        rule = functools.partial(rule, observe=observe)
    # A layer of one variable rests as a whole, which the frontend decides.
    joined = enumerate(present) if len(stored) > 1 else ()
    may_rest = [(i, has_gradient) for i, has_gradient in joined if has_gradient is not None]
    for i, has_gradient in may_rest:
        states[i] = [xp.where(has_gradient, x, xp.zeros_like(x)) for x in states[i]]
    gradients = list(map(wide, gradients))
    scalars = {"lr": wide(lr), "t": wide(t), "decay": None if decay is None else wide(decay)}
    new_states = yield from apply_rule(xp, rule, treatments, gradients, states, **scalars)
    position = count()  # of a slot in the layer, because each is rounded with its own noise

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

        new[i] = select_stored(select, new[i], stored[i])
    return new


def present_in(xp, layer, gradients) -> list:
    """Computes which of a layer's gradients that may be missing are not all zeros.

    A variable that has no gradient in the last micro-batch of an update rests if its sum of those
    before is all zeros, as it is where none of them had a gradient.

    Args:
        xp: An array namespace.
        layer: The layer.
        gradients: The gradient of each of its variables.

    Returns:
        For each variable a boolean scalar, or None if its gradient cannot be missing.
    """
    return [
        xp.any(gradient != 0) if is_missing else None
        for is_missing, gradient in zip(layer.missing, gradients, strict=True)
    ]


def recorder(xp, observed, assign) -> Callable | None:
    """Makes the function by which a rule records its trust ratio in the vectors of a layer.

    Args:
        xp: An array namespace.
        observed: For each variable of the layer a tuple of its vector, or an empty tuple.
        assign: A function that assigns a value to a vector.

    Returns:
        The function, or None if there are no vectors.
    """
    vectors = [vector for of_variable in observed for vector in of_variable]
    if not vectors:
        return None

    def observe(*norms_and_ratio):
        values = [xp.cast(scalar, "float32") for scalar in summary(xp, *norms_and_ratio)]
        # Each vector gets an array of its own, because JAX donates the buffer of each variable.
        for vector in vectors:
            assign(vector, xp.stack(values))

    return observe


def summary(xp, weight_norm, update_norm, ratio, clipped):
    """Computes the four scalars that are recorded for a layer, or for all slices of a variable.

    Args:
        xp: An array namespace.
        weight_norm: The norm of the weight, of each slice.
        update_norm: The norm of the update, of each slice.
        ratio: The trust ratio of each slice.
        clipped: Whether a bound changed the ratio, for each slice.

    Returns:
        The means of the norms and of the ratios, and the number of ratios that were changed.
    """
    clipped = xp.sum(xp.where(clipped, 1.0, 0.0))
    means = (xp.sum(x) / prod(ratio.shape) for x in (weight_norm, update_norm, ratio))
    return *means, clipped


def averaged(xp, average, stored, momentum, bitcast):
    """Computes the moving average of a weight after a step, or of its master if it has one.

    Args:
        xp: An array namespace.
        average: The average before.
        stored: The stored state of the variable, after the step.
        momentum: The momentum of the average.
        bitcast: As in `step`.
    """

    def wide(array):
        return xp.cast(array, average.dtype)

    m = wide(momentum)
    return m * average + (1 - m) * _weight(xp, stored, wide, bitcast)


def _weight(xp, stored, wide, bitcast):
    """Returns the array that a step works on: the master, unless the weight was set since."""
    weight = wide(stored.weight)
    if stored.master is None:
        return weight
    master = xp.convert_to_tensor(stored.master)  # it is zeros before the first step
    # Bits are compared, because some versions of XLA drop the rounding of a cast there and back.
    rounded = bitcast(xp.cast(master, stored.weight.dtype), "int16")
    is_rounded = xp.equal(rounded, bitcast(stored.weight, "int16"))
    return xp.where(is_rounded, master, weight)


def apply_rule(xp, rule, treatments, gradients, states, *, lr, t, decay=None) -> Step:
    """Applies a rule to a layer.

    An array in the shape of its variable is laid out as the rule sees it, and back afterwards. Any
    other array is passed to the rule, and returned by it, as it is.

    Args:
        xp: An array namespace.
        rule: The rule, with its hyper-parameters bound.
        treatments: The treatment of each variable of the layer.
        gradients: The gradient of each variable.
        states: For each variable a list of its weight and its slots.
        lr: The learning rate.
        t: The number of the optimizer step, from 1.
        decay: None, or a scalar that multiplies the decay of each treatment.

    Returns:
        The new states.
    """
    if len(states) > 1:
        return _joined(xp, rule, treatments, gradients, states, lr=lr, t=t, decay=decay)
    (treatment,), (gradient,), (state,) = treatments, gradients, states
    shape = tuple(state[0].shape)
    if 0 in shape:  # the variable is empty, so there is nothing to step
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
    """Returns the weight decay of one variable in this step.

    The number 0 stays a Python number, so that rules leave decay out of the program.

    Args:
        own: The decay of the variable; its factor where decay follows a schedule.
        scheduled: The value of the schedule in this step; None without a schedule.
    """
    is_none = isinstance(own, float) and own == 0
    return own if scheduled is None or is_none else own * scheduled


def _laid_out(xp, array, treatment):
    """Returns an array of a variable in the layout in which the rule sees it."""
    if treatment.cut:
        array = xp.reshape(array, treatment.cut)
    if treatment.order:
        array = xp.transpose(array, treatment.order)
    return xp.reshape(array, treatment.view) if treatment.view else array


def _as_stored(xp, array, treatment, shape):
    """Undoes `_laid_out`: returns an array in the shape of its variable."""
    if order := treatment.order:
        cut = treatment.cut or shape
        array = xp.reshape(array, [cut[axis] for axis in order])
        array = xp.transpose(array, [order.index(axis) for axis in range(len(order))])
    return xp.reshape(array, shape) if treatment.view else array


def _joined(xp, rule, treatments, gradients, states, *, lr, t, decay):
    """Applies a rule to a layer of several variables as one long vector.

    That is possible because rules are elementwise, except for their norms.
    """

    def join(arrays):
        return xp.concatenate([xp.reshape(array, (-1,)) for array in arrays])

    weights = [state[0] for state in states]
    own_decay = treatments[0].decay
    if any(treatment.decay != own_decay for treatment in treatments):
        own_decay = join(
            [
                treated.decay * xp.ones_like(w)
                for treated, w in zip(treatments, weights, strict=True)
            ]
        )
    vectors = [join(gradients), *map(join, zip(*states, strict=True))]
    new = rule(xp, *vectors, lr=lr, t=t, decay=_decay(own_decay, decay), adapt=treatments[0].adapt)
    ends = accumulate((prod(w.shape) for w in weights), initial=0)
    return [
        [xp.reshape(array[start:end], w.shape) for array in new]
        for w, (start, end) in zip(weights, pairwise(ends), strict=True)
    ]
