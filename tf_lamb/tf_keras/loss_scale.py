"""An optimizer of ours inside of tf_keras's `LossScaleOptimizer`, which is right once an update.

By itself that looks at the gradients of every call, and under accumulation a call is a micro-batch:
it would drop one of them, add 1 to `iterations` for it, move its scale, and sum gradients over
replicas before each look. Here every call goes through. The optimizer inside skips an update whose
gradients are not finite, on all replicas alike, and the scale moves by what became of the update.

Seams into tf_keras (2.20.1):
    `_track_trackable`: with it the wrapper has its dynamic scale saved beside the optimizer's
        state, as "loss_scale". See `saved.py`.
    `update` of that scale: takes gradients, moves it, and says whether to apply them.
    `_is_wrapped_by_loss_scale_optimizer`: what the wrapper sets, of a fixed scale, too.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf


def is_around(optimizer) -> bool:
    """Whether a loss scale stands around the optimizer, which then sees its gradients first."""
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def taken_over(scale) -> Callable:
    """What moves a dynamic scale from now on, called once an update with whether it was skipped."""
    after_update = functools.partial(_after_update, scale.update)
    scale.update = _let_through
    return after_update


def _after_update(move, skipped):
    move([tf.where(skipped, math.nan, 0.0)])


def _let_through(gradients):
    return None, True
