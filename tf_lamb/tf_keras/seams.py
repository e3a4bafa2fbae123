"""Replaces parts of tf_keras alone; `api/seams.py` has the replacements for both Kerases.

The first optimizer of ours that is made calls `install`.

By itself tf_keras's `LossScaleOptimizer` looks at the gradients of every call, under accumulation
those of a micro-batch: it would drop one, count it, move its scale, and sum gradients over replicas
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
    """Changes tf_keras 2.20.1 once: `LossScaleOptimizerV3` around ours, and `_get_optimizer`.

    Around other optimizers `LossScaleOptimizerV3` works as ever.

    `save_own_variables`, `load_own_variables`: tf_keras's save and load the optimizer inside, by
    position, before ours can refuse it. From the first of ours on, they do so around others only; a
    scale is in checkpoints alone.

    `get_config`, `set_weights`, for HDF5: the config has the registered name of the class inside,
    and the weights are those of the optimizer inside.

    `_get_optimizer` of models notes the model that `compile` gives an optimizer to, so that the
    optimizer knows whose variables it trains. A patch of `compile` itself would come too late for
    the first optimizer, which is made while its arguments are evaluated.
    """
    tf_keras.Model._get_optimizer = _noting_model(tf_keras.Model._get_optimizer)
    wrapper = loss_scale_optimizer.LossScaleOptimizerV3
    where_ours_is_inside = functools.partial(named.where_inside, (Layerwise, MeasureNoise))
    wrapper.save_own_variables = where_ours_is_inside(_nothing, wrapper.save_own_variables)
    wrapper.load_own_variables = where_ours_is_inside(_nothing, wrapper.load_own_variables)
    wrapper.set_weights = where_ours_is_inside(_set_weights, wrapper.set_weights)
    wrapper.get_config = where_ours_is_inside(
        _by_registered_name(wrapper.get_config), wrapper.get_config
    )


def _noting_model(get_optimizer):
    """Returns `_get_optimizer`, which also notes the model of an optimizer."""

    def method(model, optimizer):
        optimizers = get_optimizer(model, optimizer)
        for part in tf.nest.flatten(optimizers):
            layout.note_model(part, model)
        return optimizers

    return method


def _nothing(wrapper, store):
    """Saves or loads nothing."""
    pass


def _set_weights(wrapper, weights):
    """Sets the weights of the optimizer inside."""
    wrapper.inner_optimizer.set_weights(weights)


def _by_registered_name(get_config):
    """Returns `get_config`, with the registered name of the class inside."""

    def method(wrapper):
        config = get_config(wrapper)
        return {**config, "inner_optimizer": host.by_registered_name(config["inner_optimizer"])}

    return method


def take_over_scale(scale) -> Callable:
    """Takes over a dynamic scale, and returns the function that moves it.

    The function takes whether an update is due, and whether it is skipped. In tf_keras 2.20.1
    `update` takes gradients, moves the scale, and says whether to apply them.
    """
    after_update = functools.partial(_after_update, scale.update)
    scale.update = _let_through
    return after_update


def _after_update(move, due, skipped):
    """Moves the scale as tf_keras does: its `update` gets a NaN after a skipped update, else 0."""

    def update():
        move([tf.where(skipped, math.nan, 0.0)])

    tf.cond(due, update, lambda: None)


def _let_through(gradients):
    """Replaces `update` of the scale: says that gradients are to be applied."""
    return None, True
