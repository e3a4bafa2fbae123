"""Replaces parts of tf_keras; `api/seams.py` replaces what tf_keras and Keras 3 have alike.

The first optimizer that this package makes calls `install`, which changes classes of tf_keras.

tf_keras's `LossScaleOptimizer` sums the gradients of each batch over replicas and checks whether
they are finite. If gradients accumulate, it would drop a single micro-batch, count this as a step
and change its loss scale. So around an optimizer of this package, it is changed to pass every batch
on. The inner optimizer decides whether to skip an update, with the same result on all replicas, and
the loss scale changes according to this result.
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
    """Changes `LossScaleOptimizerV3` and `Model` of tf_keras 2.20.1, at its first call.

    A `LossScaleOptimizerV3` around an optimizer of another package works as before. These members
    are replaced:

    `save_own_variables`, `load_own_variables`: tf_keras's versions save and load the variables of
    the inner optimizer by position, so that an optimizer of this package could not refuse a state
    that does not fit. Around such an optimizer the new versions do nothing, because the inner
    optimizer's own methods save and load its variables by name. So the loss scale is saved in
    TensorFlow's checkpoints only.

    `get_config`, `set_weights`, for HDF5 files: the config has the registered name of the inner
    optimizer's class, and the weights are those of the inner optimizer.

    `Model._get_optimizer` also records the model that `compile` gives an optimizer to, so that the
    optimizer knows whose variables it trains. A patch of `compile` itself would come too late for
    the first optimizer: `install` runs while the arguments of `compile` are evaluated.
    """
    tf_keras.Model._get_optimizer = _recording_model(tf_keras.Model._get_optimizer)
    wrapper = loss_scale_optimizer.LossScaleOptimizerV3
    if_ours_is_inside = functools.partial(named.method_by_inner_class, (Layerwise, MeasureNoise))
    wrapper.save_own_variables = if_ours_is_inside(_do_nothing, wrapper.save_own_variables)
    wrapper.load_own_variables = if_ours_is_inside(_do_nothing, wrapper.load_own_variables)
    wrapper.set_weights = if_ours_is_inside(_set_inner_weights, wrapper.set_weights)
    wrapper.get_config = if_ours_is_inside(
        _with_registered_class_name(wrapper.get_config), wrapper.get_config
    )


def _recording_model(get_optimizer):
    """Wraps `Model._get_optimizer`, so that it also records the model of each optimizer."""

    def method(model, optimizer):
        optimizers = get_optimizer(model, optimizer)
        for single_optimizer in tf.nest.flatten(optimizers):
            layout.record_model(single_optimizer, model)
        return optimizers

    return method


def _do_nothing(wrapper, store):
    """Replaces `save_own_variables` and `load_own_variables` of the wrapper, and does nothing.

    The inner optimizer's own methods save and load its variables by name.
    """
    pass


def _set_inner_weights(wrapper, weights):
    """Replaces `set_weights` of `LossScaleOptimizer`: sets the weights of the inner optimizer."""
    wrapper.inner_optimizer.set_weights(weights)


def _with_registered_class_name(get_config):
    """Wraps `get_config`: the config gets the registered name of the inner optimizer's class."""

    def method(wrapper):
        config = get_config(wrapper)
        return {
            **config,
            "inner_optimizer": host.with_registered_class_name(config["inner_optimizer"]),
        }

    return method


def take_over_scale(scale) -> Callable:
    """Takes control of a dynamic loss scale, and returns a function that changes it.

    The returned function takes two boolean scalars: whether an update is due, and whether it is
    skipped. In tf_keras 2.20.1, the method `update` of a scale takes gradients, changes the scale
    according to them, and returns whether to apply them. Here it is replaced by a function that
    changes nothing and returns that all gradients are to be applied.
    """
    change_scale = functools.partial(_change_scale, scale.update)
    scale.update = _apply_always
    return change_scale


def _change_scale(update_scale, is_update, is_skipped):
    """Changes the loss scale as tf_keras does, by a call of its `update`.

    Args:
        update_scale: The original `update` of the scale. It is called with NaN as the gradient if
            the update is skipped, else with 0.
        is_update: Whether an update is due, a boolean scalar. If not, nothing is changed.
        is_skipped: Whether the update is skipped, a boolean scalar.
    """

    def change():
        update_scale([tf.where(is_skipped, math.nan, 0.0)])

    tf.cond(is_update, change, lambda: None)


def _apply_always(gradients):
    """Replaces `update` of a loss scale: changes nothing, and returns True for "apply"."""
    return None, True
