"""Keras 3's `LossScaleOptimizer` around an optimizer of ours: it is right once an update.

By itself the wrapper looks at the gradients of every call and drops what is not finite, so that
nobody inside learns of it; under accumulation a call is a micro-batch. Here every call goes
through. The optimizer inside skips an update whose gradients are not finite, and counts it; the
scale moves by what became of the update.

Seams into that wrapper (Keras 3.12.0 to 3.15.1):
    `build`, `apply`, `stateless_apply`, `dynamic_scale`, `step_counter`: with `stateless_apply` of
        Keras's base class, which calls `apply`.
    `save_own_variables`, `load_own_variables`: it saves and loads the variables of what is inside
        with its own, by position, before an optimizer of ours can refuse them. From the first of
        ours on, it does so for others only. Its own are the first in files of before.
    `set_weights`: of HDF5's weights it sets its own alone, though those of what is inside come with
        them.
"""

import functools

import keras
from keras import ops

from tf_lamb.api.variables import is_overwritten, unwrapped
from tf_lamb.keras import arrays, host


def stepping(build):
    """The methods of the wrapper that step, around an optimizer of ours; `build` is its own."""
    checked = _checked(keras.optimizers.Optimizer.stateless_apply)
    return {"build": _built_by(build), "apply": _apply, "stateless_apply": checked}


def _built_by(build):
    def method(wrapper, variables):
        unwrapped(wrapper)._take_loss_scale(
            functools.partial(_move, wrapper), lambda: wrapper.dynamic_scale
        )
        build(wrapper, variables)

    return method


def _checked(stateless_apply):
    def method(wrapper, *arguments):
        host.check_model(wrapper.inner_optimizer)
        return stateless_apply(wrapper, *arguments)

    return method


def _apply(wrapper, grads, trainable_variables=None):
    if not wrapper.built:
        with keras.name_scope(wrapper.name):
            wrapper.build(trainable_variables)
    scale = ops.convert_to_tensor(wrapper.dynamic_scale)
    unscaled = [
        g if g is None or is_overwritten(v) else ops.divide(g, scale)
        for g, v in zip(grads, trainable_variables or wrapper._trainable_variables, strict=True)
    ]
    wrapper.inner_optimizer.apply(unscaled, trainable_variables)


def _move(wrapper, due, overflowed):
    """Halves the scale where an update is due and overflows; doubles it after many that do not."""
    scale, steps = map(arrays.native, (wrapper.dynamic_scale, wrapper.step_counter))
    now, taken = map(ops.convert_to_tensor, (scale, steps))
    grows = ~overflowed & (taken >= wrapper.dynamic_growth_steps - 1)
    steps.assign(ops.where(due, ops.where(overflowed | grows, 0, taken + 1), taken))
    factor = ops.where(overflowed, 0.5, ops.where(grows, 2.0, 1.0))
    scale.assign(ops.where(due, now * ops.cast(factor, now.dtype), now))


_SCALE = ("step_counter", "dynamic_scale")  # what a loss scale is; the learning rate is not its own


def _save(wrapper, store):
    if wrapper.built:
        for name in _SCALE:
            store[name] = ops.convert_to_numpy(getattr(wrapper, name))


def _load(wrapper, store):
    if not wrapper.built:
        return
    own, keys = wrapper._variables, list(store.keys())
    for name in _SCALE:
        variable = getattr(wrapper, name)
        if name not in keys:  # of before, with all that is inside; 4 are of what was not built
            name = str(next(i for i, each in enumerate(own) if each is variable))
        if name in _SCALE or len(keys) > len(own):
            variable.assign(store[name][()])  # of HDF5, too


def _set_weights(wrapper, weights):
    keras.optimizers.Optimizer.set_weights(wrapper, weights)
    wrapper.inner_optimizer.set_weights(weights[len(wrapper._variables) :])


# The methods that save and load.
FILES = {"save_own_variables": _save, "load_own_variables": _load, "set_weights": _set_weights}
