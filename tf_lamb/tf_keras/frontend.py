"""Registers this package's modules and functions for tf_keras.

`tf_lamb.api` and `tf_lamb.find` find them by a model or an optimizer of tf_keras.

This module relies on an undocumented detail of tf_keras 2.20.1: `weights` of a
`tf_keras.optimizers.legacy.Optimizer` has the step counter and the slots (state arrays such as
Adam's m), and the name of a slot contains the name of its variable.
"""

import tf_keras

from tf_lamb.api import frontends
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source
from tf_lamb.api.stages import replicas_of
from tf_lamb.tensorflow import checkpoints, feeding, unlisted
from tf_lamb.tf_keras import family, layers, schedules


def _fit_input(model, batches, first_batch):
    """Returns batches as a `tf.data.Dataset`, which `fit` reads.

    Args:
        model: Ignored.
        batches: The iterator of batches.
        first_batch: A batch that is like all others, except for its size.
    """
    return feeding.make_dataset(batches, first_batch)


def _call_on_batch(method, batch):
    """Calls a method of a model, such as `train_on_batch`, with a batch; returns its logs."""
    return method(*batch, return_dict=True)


def _read_source(optimizer):
    """Reads a legacy optimizer into a `Source` for `migrate`; returns None for any other object.

    Raises:
        ValueError: If the optimizer has no slots yet.
    """
    if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
        return None
    name, step, slots = peers.legacy_slots(
        {variable.name: variable.numpy() for variable in optimizer.weights}
    )
    if not slots:
        raise ValueError(f"{optimizer._name} has no slots before its first step: train it first.")
    config = {name: _to_python_number(value) for name, value in optimizer.get_config().items()}
    peer = peers.legacy_peer(
        f"a {type(optimizer).__name__}",
        name,
        {slot for variable_slots in slots.values() for slot in variable_slots},
        config,
    )
    list_names = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
    # The optimizer has both lists as attributes, but leaves them out of its config.
    config = peers.NO_CLIPPING | config | {name: getattr(optimizer, name) for name in list_names}
    return Source.from_peer(peer, step, slots, config)


def _to_python_number(value):
    """Converts a NumPy number to a Python number; returns anything else unchanged."""
    return value.item() if hasattr(value, "item") else value


frontends.register(
    frontends.Frontend(
        tf_keras,
        family,
        layers,
        schedules,
        replicas_of,
        _fit_input,
        _call_on_batch,
        _read_source,
        lambda: checkpoints,
        unlisted.variables_below,
    )
)
