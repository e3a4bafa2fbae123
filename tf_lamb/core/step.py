"""Takes one step of one layer: casts the stored arrays, applies the rule, rounds the results.

A layer is a whole variable, a variable cut into slices, or several variables that share one trust
ratio. The module also computes the moving average of weights. The code of each framework,
`tf_lamb.keras.update` and `tf_lamb.tensorflow.update`, reads the variables and assigns the results.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from itertools import accumulate, count, pairwise
from math import prod

from tf_lamb.core.rounding import round_stochastically, rounding_noise
from tf_lamb.core.stacks import Step
from tf_lamb.core.stored import (
    Scalars,
    Stored,
    select_stored,
    stack_stored,
    unstack_stored,
)


@dataclasses.dataclass(eq=False, kw_only=True)
class Update:
    """Applies one rule to many variables; the base class of the updates of each framework.

    A subclass defines `__call__`, which adds the gradients of one micro-batch to their sums. If the
    micro-batch is the last of an update, it then updates the variables. Its arguments are

        plan        the layers, whose `members` are positions in the list of gradients
        state       the `State`: the variables that a step changes
        scalars     a function that returns the `Scalars` of the step
        count       a function that is called with `TAKEN`, `NONFINITE` or `SPIKE`, the outcome of
                    the step; without an update, with `TAKEN`. `__call__` returns its result
        gradients   the gradients, in the order of `state.stored`

    Attributes:
        rule: The rule, with its hyper-parameters bound.
        clip: A function that clips the list of all gradients, after they were summed over replicas
            and averaged over micro-batches.
        accumulation_steps: The largest number of micro-batches of an update; None without gradient
            accumulation.
        nonfinite_message: The beginning of the error for gradients that are not finite; the names
            of their variables are added. None if such gradients raise no error.
        assign: A function that assigns a new value to a weight or a slot. In Keras 3 the user may
            override it.
        deviations: A gradient norm is a spike if it is above the mean of the norms of earlier steps
            by more than this number of standard deviations.
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
        """Computes the mean gradient of the micro-batches of an update.

        Args:
            xp: An array namespace such as NumPy.
            total: The sum of the gradients of these micro-batches.
            scalars: The `Scalars` of the step, which hold the number of micro-batches.
        """
        return total / xp.cast(scalars.micro_batches, total.dtype)


def step(
    xp, rule, treatments, gradients, stored, *, lr, t, layer_number, bitcast, decay=None,
    observe=None, has_gradient=(),
) -> Step:  # fmt: skip
    """Takes one step of a rule for one layer, as a generator that `stacks.run_batched` runs.

    Args:
        xp: An array namespace such as NumPy.
        rule: The rule, with its hyper-parameters bound.
        treatments: The `Treatment` of each variable of the layer: its layout and weight decay.
        gradients: The gradient of each variable.
        stored: The `Stored` arrays of each variable: weight, slots and float32 copy of the weight.
        lr: The learning rate of the layer.
        t: The number of the optimizer step, from 1.
        layer_number: A number that no other layer of the model has. It seeds the noise with which
            slots are rounded to bfloat16.
        bitcast: A function of an array and the name of a dtype, which returns the same bits in that
            dtype.
        decay: The value of the schedule of weight decay in this step, which is multiplied by the
            `decay` of each `Treatment`. Defaults to None: no schedule.
        observe: The result of `make_recorder`: a function that a rule with a trust ratio calls once
            per step with its norms and ratio. Defaults to None.
        has_gradient: The result of `which_have_gradients`. In a layer of several variables, a
            variable without a gradient stays as it is and is left out of the norms of the layer.
            Defaults to an empty sequence.

    Returns:
        The `Stored` arrays to assign to each variable.
    """
    dtype = _dtype_of_step(stored)

    def widen(array):
        return xp.cast(array, dtype)

    states = [
        [_working_weight(xp, variable, widen, bitcast), *(widen(slot) for slot in variable.slots)]
        for variable in stored
    ]
    if observe:
        rule = functools.partial(rule, observe=observe)
    # The flag of a layer of one variable is not needed here: if the gradient is missing, the
    # `Update` keeps the old values of the whole layer.
    flags = enumerate(has_gradient) if len(stored) > 1 else ()
    known_flags = [(i, flag) for i, flag in flags if flag is not None]
    for i, flag in known_flags:
        states[i] = [xp.where(flag, x, xp.zeros_like(x)) for x in states[i]]
    gradients = list(map(widen, gradients))
    scalars = {"lr": widen(lr), "t": widen(t), "decay": None if decay is None else widen(decay)}
    new_states = yield from apply_rule(xp, rule, treatments, gradients, states, **scalars)
    slot_position = count()  # numbers the slots of the layer: each is rounded with its own noise

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


def step_stack(
    xp, rule, treatment, gradients, stored, *, lr, t, bitcast, decay=None, observers=()
) -> Step:  # fmt: skip
    """Takes one step of a rule for several layers of one variable each, as one stacked array.

    Small layers take more time for the calls than for the arithmetic. Their arrays are therefore
    stacked along a new first axis, and the rule sees one variable, whose slices along that axis
    have norms of their own.

    Args:
        xp: An array namespace such as NumPy.
        rule: The rule, with its hyper-parameters bound; `Rule.stacks_if_adapt` says whether
            it may be used here.
        treatment: The `Treatment` that all layers share.
        gradients: The gradient of each layer.
        stored: The `Stored` of each layer, of the same shapes and dtypes. No slot is bfloat16,
            because the noise with which a slot is rounded belongs to one layer.
        lr, t, bitcast, decay: As for `step`.
        observers: For each layer the result of `make_recorder`. Defaults to an empty sequence.

    Returns:
        The new `Stored` of each layer, as a generator's result.
    """
    stack = stack_stored(xp, stored)
    # The gradients may differ in their dtypes.
    dtype = _dtype_of_step([stack])
    stacked_gradient = xp.stack([xp.cast(gradient, dtype) for gradient in gradients])

    def observe(*norms_and_ratio):
        for i, observe_layer in enumerate(observers):
            observe_layer(*(array[i] for array in norms_and_ratio))

    (new_stack,) = yield from step(
        xp, rule, [treatment.stacked(len(stored), stack.weight.shape[1:])],
        [stacked_gradient], [stack], lr=lr, t=t, layer_number=0, bitcast=bitcast, decay=decay,
        observe=observe if any(observers) else None,
    )  # fmt: skip
    return unstack_stored(xp, new_stack)


def _dtype_of_step(stored) -> str:
    """Returns the dtype in which a layer's step is computed: float64 if one of its weights is."""
    is_double = any(variable.weight.dtype == "float64" for variable in stored)
    return "float64" if is_double else "float32"


def which_have_gradients(xp, layer, gradients) -> list:
    """Computes which variables of a layer have a gradient in this update.

    A variable that has no gradient in the last micro-batch of an update may have had one in an
    earlier micro-batch. Therefore its gradient counts as missing only if the sum over all
    micro-batches is all zeros.

    Args:
        xp: An array namespace such as NumPy.
        layer: The `Layer`, whose `may_lack_gradient` says which gradients may be missing.
        gradients: The gradient of each variable of the layer, summed over all micro-batches.

    Returns:
        For each variable a boolean scalar, or None if its gradient cannot be missing.
    """
    return [
        xp.any(gradient != 0) if is_missing else None
        for is_missing, gradient in zip(layer.may_lack_gradient, gradients, strict=True)
    ]


def make_recorder(xp, observed, assign) -> Callable | None:
    """Makes the function that a rule calls to record its norms and trust ratio.

    Args:
        xp: An array namespace such as NumPy.
        observed: For each variable of the layer, a tuple that holds one more variable, a vector in
            which the four results of `summarize_ratios` are stored; an empty tuple if nothing is
            recorded for the variable.
        assign: A function that assigns a value to such a vector.

    Returns:
        The function, with the arguments of `summarize_ratios` except `xp`; None if all tuples are
        empty.
    """
    vectors = [vector for variable_vectors in observed for vector in variable_vectors]
    if not vectors:
        return None

    def observe(*norms_and_ratio):
        values = [xp.cast(scalar, "float32") for scalar in summarize_ratios(xp, *norms_and_ratio)]
        # Each vector gets an array of its own, because JAX donates the buffer of each variable.
        for vector in vectors:
            assign(vector, xp.stack(values))

    return observe


def summarize_ratios(xp, weight_norm, update_norm, ratio, clipped):
    """Computes the four scalars that are recorded for a layer, or for all slices of a variable.

    Args:
        xp: An array namespace such as NumPy.
        weight_norm: The norm of the weight, or of each slice of the weight.
        update_norm: The norm of the update, or of each slice of the update.
        ratio: The trust ratio, or that of each slice.
        clipped: Whether a bound changed the ratio, or the ratio of each slice.

    Returns:
        The means of the weight norms, of the update norms and of the ratios, and the number of
        ratios that a bound changed.
    """
    clipped = xp.sum(xp.where(clipped, 1.0, 0.0))
    means = (xp.sum(x) / prod(ratio.shape) for x in (weight_norm, update_norm, ratio))
    return *means, clipped


def moving_average(xp, average, stored, momentum, bitcast):
    """Computes the exponential moving average of a weight after a step.

    If a weight in half precision has a float32 copy, the copy is averaged instead.

    Args:
        xp: An array namespace such as NumPy.
        average: The average before the step.
        stored: The `Stored` arrays of the variable, after the step.
        momentum: The share of its old value that the average keeps.
        bitcast: A function of an array and the name of a dtype, which returns the same bits in that
            dtype.

    Returns:
        The new average, in the dtype of the old one.
    """

    def widen(array):
        return xp.cast(array, average.dtype)

    m = widen(momentum)
    return m * average + (1 - m) * _working_weight(xp, stored, widen, bitcast)


def _working_weight(xp, stored, widen, bitcast):
    """Returns the array that a step works on: the weight or its float32 copy, the master.

    The master is returned if it rounds to the weight. If it does not, something other than a step,
    such as the loading of a file, has set the weight, and the master is out of date.

    Args:
        xp: An array namespace such as NumPy.
        stored: The `Stored` arrays of the variable.
        widen: A function that casts an array to the dtype of the computation.
        bitcast: As in `step`.
    """
    weight = widen(stored.weight)
    if stored.master is None:
        return weight
    # Before the first step the master is zeros, so that the weight is used.
    master = xp.convert_to_tensor(stored.master)
    # Bits are compared, because some versions of XLA remove a cast to fewer bits and back.
    rounded_master = bitcast(xp.cast(master, stored.weight.dtype), "int16")
    is_master_current = xp.equal(rounded_master, bitcast(stored.weight, "int16"))
    return xp.where(is_master_current, master, weight)


def apply_rule(xp, rule, treatments, gradients, states, *, lr, t, decay=None) -> Step:
    """Applies a rule to a layer, as a generator that `stacks.run_batched` runs.

    The variables of a layer of several are joined to one vector (`_apply_joined`). For a layer of
    one variable, an array in the shape of its variable is brought into the layout in which the rule
    sees the variable (`core/layouts.py`), and back afterwards. Any other array, such as a
    preconditioner of SOAP, is passed to the rule, and returned, as it is.

    Args:
        xp: An array namespace such as NumPy.
        rule: The rule, with its hyper-parameters bound.
        treatments: The `Treatment` of each variable of the layer: its layout and weight decay.
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

    A decay of 0.0 stays a Python number. A rule then leaves weight decay out of the computation.

    Args:
        base_decay: The `decay` of the variable's `Treatment`; an array for joined variables whose
            decays differ.
        schedule_value: The value of the schedule of weight decay in this step; None without one.
    """
    is_none = isinstance(base_decay, float) and base_decay == 0
    return base_decay if schedule_value is None or is_none else base_decay * schedule_value


def _to_layout(xp, array, treatment):
    """Reshapes and transposes an array of a variable to the shape in which the rule sees it."""
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
    """Applies a rule to a layer of several variables, which are concatenated to one vector.

    The shapes may be dropped, because the rules that allow such layers compute each element by
    itself, apart from norms. The arguments and the result are those of `apply_rule`.
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
