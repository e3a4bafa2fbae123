"""Migration for tf_keras: peers among its legacy optimizers.

Seam into tf_keras (2.20.1): `optimizers.legacy.Optimizer.weights`, counter and slots, whose names
hold their variable's.
"""

import tf_keras

from tf_lamb.api.migration import peers
from tf_lamb.api.migration.migrate import make_migrate_functions
from tf_lamb.api.migration.source import Source
from tf_lamb.tensorflow import checkpoints
from tf_lamb.tf_keras.family import LAMB
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer


def _read(source):
    if not isinstance(source, tf_keras.optimizers.legacy.Optimizer):
        raise TypeError(
            "source must be the path of a checkpoint or of an HDF5 file, a legacy LAMB or LARS of "
            f"Model Garden or an optimizer of tf_lamb, not {source!r}. keras.optimizers.Lamb goes "
            "into tf_lamb.keras.migrate."
        )
    name, step, slots = peers.legacy_slots({w.name: w.numpy() for w in source.weights})
    if not slots:
        raise ValueError(f"{source._name} has no slots before its first step: train it first.")
    config = source.get_config()
    peer = peers.of_legacy(
        f"a {type(source).__name__}", name, {s for own in slots.values() for s in own}, config
    )
    lists = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
    # Its config drops both, the object has them.
    config = peers.NO_CLIPPING | config | {name: getattr(source, name) for name in lists}
    return Source.of_peer(peer, step, slots, config)


migrate, from_addons = make_migrate_functions(
    LayerwiseOptimizer, LAMB, "For Keras 3 there is tf_lamb.keras.migrate.",
    _read, lambda: checkpoints, tf_keras.optimizers.schedules.deserialize,
)  # fmt: skip
