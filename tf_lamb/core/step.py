"""Takes one step of one layer: casts the stored arrays, applies the rule, rounds the results.

A layer is a whole variable, a variable cut into slices, or several joined variables. Also in here
is the moving average of weights. Variables are read and assigned by the code of each framework,
`tf_lamb.keras.update` and `tf_lamb.tensorflow.update`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from itertools import accumulate, count, pairwise
from math import prod

from tf_lamb.core.rounding import round_stochastically, rounding_noise
from tf_lamb.core.stacks import Step
from tf_lamb.core.stored import Scalars, Stored, select_stored


@dataclasses.dataclass(eq=False, kw_only=True)
class Update:
    """Applies one rule to many variables; the base class of the updates of each framework.

    A subclass defines `__call__`, which takes one micro-step: it adds the gradients of one
    micro-batch up, and makes the update if this was the last micro-batch of it. Its arguments are

        plan        the layers, whose `members` are positions in the list of gradients
        state       the `State`: the variables that a step changes
        scalars     a function that returns the `Scalars` of the step
        count       a function of the outcome of the step, whose result is returned; the outcome is
                    `TAKEN`, too, if this micro-step makes no update
        gradients   the gradients, in the order of the state

    Attributes:
        rule: The rule, with its hyper-parameters bound.
        clip: A function that clips the list of all gradients, which are summed over replicas and
            averaged over micro-batches by then.
        accumulation_steps: The largest number of micro-steps of an update; None without gradient
            accumulation.
        nonfinite_message: The beginning of the error for gradients that are not finite, which ends
            with the names of their variables; None if they raise no error.
        assign: A function that assigns a new value to a weight or a slot. In Keras 3 the user may
            override it.
        deviations: A gradient norm is a spike if it is above the mean of the norms before by more
            than this number of standard deviations.
        stacks_matrices: Whether matrices of one shape are computed together, as one stacked array.
    """

    rule: Callable
    clip: Callable
    accumulation_steps: int | None
    nonfinite_message: str | None
    assign: Callable
    deviations: float
    stacks_matrices: bool

    def mean(self, xp, total, scalars: Scalars):
        """Computes the mean gradient of an update's micro-batches.

        Args:
            xp: An array namespace.
            total: The sum of their gradients.
            scalars: The scalars of the step.
        """
        return total / xp.cast(scalars.micro_batches, total.dtype)


def step(
    xp, rule, treatments, gradients, stored, *, lr, t, layer_number, bitcast, decay=None,
    observe=None, has_gradient=(),
) -> Step:  # fmt: skip
    """Takes one step of a rule for one layer, as a generator that `stacks.run_batched` runs.

    Args:
        xp: An array namespace.
        rule: The rule, with its hyper-parameters bound.
        treatments: The `Treatment` of each variable of the layer.
        gradients: The gradient of each variable.
        stored: The `Stored` weight, slots and master of each variable.
        lr: The learning rate of the layer.
        t: The number of the optimizer step, from 1.
        layer_number: A number that no other layer of the model has; it seeds the noise of
            rounding.
        bitcast: A function of an array and the name of a dtype, which returns the same bits in that
            dtype.
        decay: The value of the schedule of weight decay in this step, which multiplies the decay of
            each treatment. Defaults to None: no schedule.
        observe: The result of `make_recorder`, which a rule with a trust ratio calls once, while it
            is traced. Defaults to None.
        has_gradient: The result of `which_have_gradients`. In a layer of several variables, one
            without a gradient stays as it is, and the norms of the layer are those of the other
            variables. Defaults to an empty sequence.

    Returns:
        The `Stored` arrays to assign to each variable.
    """
    dtype = (
        "float64" if any(variable.weight.dtype == "float64" for variable in stored) else "float32"
    )

    def widen(array):
        return xp.cast(array, dtype)

    states = [
        [_working_weight(xp, variable, widen, bitcast), *(widen(slot) for slot in variable.slots)]
        for variable in stored
    ]
    if observe:
        rule = functools.partial(rule, observe=observe)
    # A layer of one variable changes nothing if it has no gradient: the `Update` sees to that.
    flags = enumerate(has_gradient) if len(stored) > 1 else ()
    known_flags = [(i, flag) for i, flag in flags if flag is not None]
    for i, flag in known_flags:
        states[i] = [xp.where(flag, x, xp.zeros_like(x)) for x in states[i]]
    gradients = list(map(widen, gradients))
    scalars = {"lr": widen(lr), "t": widen(t), "decay": None if decay is None else widen(decay)}
    new_states = yield from apply_rule(xp, rule, treatments, gradients, states, **scalars)
    slot_position = count()  # in the layer, since each slot is rounded with its own noise

    def narrow(value, dtype):
        if dtype != "bfloat16":
            return xp.cast(value, dtype)
        noise = rounding_noise(xp, tuple(value.shape), t, layer_number, next(slot_position))
        return round_stochastically(xp, xp.cast(value, "float32"), noise, bitcast)

    new_stored = [
        Stored(
            xp.cast(weight, old.weight.dtype),
            [narrow(value, slot.dtype) for slot, value in zip(old.slots, slots, strict=True)],
            None if old.master is None else weight,
        )
        for old, (weight, *slots) in zip(stored, new_states, strict=True)
    ]
    for i, flag in known_flags:

        def select(new, old, flag=flag):
            return xp.where(flag, new, xp.convert_to_tensor(old))

        new_stored[i] = select_stored(select, new_stored[i], stored[i])
    return new_stored


def which_have_gradients(xp, layer, gradients) -> list:
    """Computes which variables of a layer have a gradient in this update.

    A variable without a gradient in the last micro-batch of an update may have had one in an
    earlier micro-batch. It counts as without a gradient if the sum over all micro-batches is all
    zeros.

    Args:
        xp: An array namespace.
        layer: The layer.
        gradients: The gradient of each variable of the layer, from all micro-batches.

    Returns:
        For each variable a boolean scalar, or None if its gradient cannot be missing.
    """
    return [
        xp.any(gradient != 0) if is_missing else None
        for is_missing, gradient in zip(layer.may_lack_gradient, gradients, strict=True)
    ]


def make_recorder(xp, observed, assign) -> Callable | None:
    """Makes the function by which a rule records its norms and trust ratio.

    Args:
        xp: An array namespace.
        observed: For each variable of the layer, a tuple of the variable that the four numbers of
            `summarize_ratios` are recorded in, or an empty tuple.
        assign: A function that assigns a value to such a variable.

    Returns:
        The function, with the arguments of `summarize_ratios` after `xp`; None if nothing is
        recorded.
    """
    vectors = [vector for variable_vectors in observed for vector in variable_vectors]
    if not vectors:
        return None

    def observe(*norms_and_ratio):
        values = [xp.cast(scalar, "float32") for scalar in summarize_ratios(xp, *norms_and_ratio)]
        # Two variables must not share an array, because JAX donates the buffer of each variable.
        for vector in vectors:
            assign(vector, xp.stack(values))

    return observe


def summarize_ratios(xp, weight_norm, update_norm, ratio, clipped):
    """Computes the four scalars that are recorded for a layer, or for all slices of a variable.

    Args:
        xp: An array namespace.
        weight_norm: The norm of the weight, of each slice.
        update_norm: The norm of the update, of each slice.
        ratio: The trust ratio of each slice.
        clipped: Whether a bound changed the ratio, for each slice.

    Returns:
        The means of the weight norms, of the update norms and of the ratios, and the number of
        ratios that a bound changed.
    """
    clipped = xp.sum(xp.where(clipped, 1.0, 0.0))
    means = (xp.sum(x) / prod(ratio.shape) for x in (weight_norm, update_norm, ratio))
    return *means, clipped


def moving_average(xp, average, stored, momentum, bitcast):
    """Computes the moving average of a weight after a step, or of its master if it has one.

    Args:
        xp: An array namespace.
        average: The average before the step.
        stored: The `Stored` arrays of the variable, after the step.
        momentum: The momentum of the average.
        bitcast: As in `step`.
    """

    def widen(array):
        return xp.cast(array, average.dtype)

    m = widen(momentum)
    return m * average + (1 - m) * _working_weight(xp, stored, widen, bitcast)


def _working_weight(xp, stored, widen, bitcast):
    """Returns the array that a step works on: the master if it still rounds to the weight.

    Otherwise it is the weight: there is no master, or something else, such as the loading of a
    file, has set the weight since the last step.
    """
    weight = widen(stored.weight)
    if stored.master is None:
        return weight
    master = xp.convert_to_tensor(stored.master)  # it is zeros before the first step
    # Bits are compared, because some versions of XLA drop a cast to fewer bits and back.
    rounded_master = bitcast(xp.cast(master, stored.weight.dtype), "int16")
    is_master_current = xp.equal(rounded_master, bitcast(stored.weight, "int16"))
    return xp.where(is_master_current, master, weight)


def apply_rule(xp, rule, treatments, gradients, states, *, lr, t, decay=None) -> Step:
    """Applies a rule to a layer.

    An array in the shape of its variable is brought into the layout in which the rule sees the
    variable (`core/layouts.py`), and back afterwards. Any other array, such as a factor of SOAP, is
    passed to the rule, and returned, as it is.

    Args:
        xp: An array namespace.
        rule: The rule, with its hyper-parameters bound.
        treatments: The `Treatment` of each variable of the layer.
        gradients: The gradient of each variable.
        states: For each variable a list of its weight and its slots.
        lr: The learning rate.
        t: The number of the optimizer step, from 1.
        decay: As in `step`.

    Returns:
        For each variable a list of its new weight and its new slots.
    """
    if len(states) > 1:
        return _apply_joined(xp, rule, treatments, gradients, states, lr=lr, t=t, decay=decay)
    (treatment,), (gradient,), (state,) = treatments, gradients, states
    shape = tuple(state[0].shape)
    if 0 in shape:  # the variable is empty, so there is nothing to step
        return [state]

    def to_layout(array):
        return _to_layout(xp, array, treatment) if tuple(array.shape) == shape else array

    new_arrays = rule(
        xp, _to_layout(xp, gradient, treatment), *map(to_layout, state), lr=lr, t=t,
        decay=_decay_of_step(treatment.decay, decay), adapt=treatment.adapt, axes=treatment.axes,
    )  # fmt: skip
    if inspect.isgenerator(new_arrays):
        new_arrays = yield from new_arrays
    return [
        [
            _from_layout(xp, array, treatment, shape) if tuple(old.shape) == shape else array
            for old, array in zip(state, new_arrays, strict=True)
        ]
    ]


def _decay_of_step(base_decay, schedule_value):
    """Returns the weight decay of one variable in this step.

    The number 0 stays a Python number, so that rules leave decay out of the program.

    Args:
        base_decay: The `decay` of the variable's treatment; an array if joined variables differ in
            it.
        schedule_value: The value of the schedule in this step; None without a schedule.
    """
    is_none = isinstance(base_decay, float) and base_decay == 0
    return base_decay if schedule_value is None or is_none else base_decay * schedule_value


def _to_layout(xp, array, treatment):
    """Returns an array of a variable in the layout in which the rule sees it."""
    if treatment.split_shape:
        array = xp.reshape(array, treatment.split_shape)
    if treatment.order:
        array = xp.transpose(array, treatment.order)
    return xp.reshape(array, treatment.view) if treatment.view else array


def _from_layout(xp, array, treatment, shape):
    """Undoes `_to_layout`: returns an array in the shape of its variable."""
    if order := treatment.order:
        split_shape = treatment.split_shape or shape
        array = xp.reshape(array, [split_shape[axis] for axis in order])
        array = xp.transpose(array, [order.index(axis) for axis in range(len(order))])
    return xp.reshape(array, shape) if treatment.view else array


def _apply_joined(xp, rule, treatments, gradients, states, *, lr, t, decay):
    """Applies a rule to a layer of several variables, joined in one long vector.

    That is possible because the rules whose variables can be joined are elementwise, except for
    their norms. The arguments are those of `apply_rule`.
    """

    def join(arrays):
        return xp.concatenate([xp.reshape(array, (-1,)) for array in arrays])

    weights = [state[0] for state in states]
    joined_decay = treatments[0].decay
    if any(treatment.decay != joined_decay for treatment in treatments):
        joined_decay = join(
            [
                treatment.decay * xp.ones_like(w)
                for treatment, w in zip(treatments, weights, strict=True)
            ]
        )
    vectors = [join(gradients), *map(join, zip(*states, strict=True))]
    new_arrays = rule(
        xp,
        *vectors,
        lr=lr,
        t=t,
        decay=_decay_of_step(joined_decay, decay),
        adapt=treatments[0].adapt,
    )
    ends = accumulate((prod(w.shape) for w in weights), initial=0)
    return [
        [xp.reshape(array[start:end], w.shape) for array in new_arrays]
        for w, (start, end) in zip(weights, pairwise(ends), strict=True)
    ]
