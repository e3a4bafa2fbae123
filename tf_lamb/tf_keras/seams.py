"""What is replaced of tf_keras, or of a user's objects of it; nothing else does so.

The first optimizer of ours that is made calls `install`; what both Kerases share is in
`api/seams.py`.

By itself tf_keras's `LossScaleOptimizer` looks at the gradients of every call, under accumulation
of a micro-batch: it would drop one, count it, move its scale, and sum gradients over replicas
before each look. Around ours every call goes through: the optimizer inside skips an update, on all
replicas alike, and the scale moves by what became of the update.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf
import tf_keras
from tf_keras.src.mixed_precision import loss_scale_optimizer

from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import layout, named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.tf_keras import host


@functools.cache
def install():
    """Changes `LossScaleOptimizerV3` of tf_keras 2.20.1 around ours, once; others are as ever.

    `save_own_variables`, `load_own_variables`: with them it saves and loads what is inside, by
        position, before an optimizer of ours can refuse it. From the first of ours on, it does so
        for others only; a scale is in checkpoints alone.
    `get_config`, `set_weights`: of HDF5; what is inside has the name of its class there, and the
        weights are those of what is inside.

    `_get_optimizer` of models: what `compile` takes as the optimizer is not told whose variables it
        trains, and notes it here. A patch of `compile` itself would come too late for the first
        optimizer, which is made while its arguments are evaluated.
    """
    tf_keras.Model._get_optimizer = _noting_model(tf_keras.Model._get_optimizer)
    wrapper = loss_scale_optimizer.LossScaleOptimizerV3
    inside = functools.partial(named.where_inside, (Layerwise, MeasureNoise))
    wrapper.save_own_variables = inside(_nothing, wrapper.save_own_variables)
    wrapper.load_own_variables = inside(_nothing, wrapper.load_own_variables)
    wrapper.set_weights = inside(_set_weights, wrapper.set_weights)
    wrapper.get_config = inside(_by_registered_name(wrapper.get_config), wrapper.get_config)


def _noting_model(get_optimizer):
    def method(model, optimizer):
        taken = get_optimizer(model, optimizer)
        for each in tf.nest.flatten(taken):
            layout.note_model(each, model)
        return taken

    return method


def _nothing(wrapper, store):
    pass


def _set_weights(wrapper, weights):
    wrapper.inner_optimizer.set_weights(weights)


def _by_registered_name(get_config):
    def method(wrapper):
        config = get_config(wrapper)
        return {**config, "inner_optimizer": host.by_registered_name(config["inner_optimizer"])}

    return method


def take_over_scale(scale) -> Callable:
    """The function that moves a dynamic scale: whether an update is due, and whether it is skipped.

    In tf_keras 2.20.1 `update` takes gradients, moves the scale, and says whether to apply them.
    """
    after_update = functools.partial(_after_update, scale.update)
    scale.update = _let_through
    return after_update


def _after_update(move, due, skipped):
    def update():
        move([tf.where(skipped, math.nan, 0.0)])

    tf.cond(due, update, lambda: None)


def _let_through(gradients):
    return None, True
