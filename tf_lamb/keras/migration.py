"""Migration for Keras 3: a peer among Keras's own optimizers.

Seams into Keras 3 (3.15.1): `Lamb._momentums`, `_velocities`, `_trainable_variables`, its state by
variable; `Muon.momentums`, `adam_velocities`, which of a matrix are None.
"""

import keras

from tf_lamb.api.migration import peers
from tf_lamb.api.migration.migrate import make_migrate_functions
from tf_lamb.api.migration.source import Source
from tf_lamb.api.variables import names_of, step_of
from tf_lamb.keras.family import LAMB
from tf_lamb.keras.optimizer import LayerwiseOptimizer


def _read(source):
    Muon = getattr(keras.optimizers, "Muon", ())  # not in every Keras 3
    if not isinstance(source, (keras.optimizers.Lamb, Muon)):
        raise TypeError(
            "source must be the path of a checkpoint or of an HDF5 file, a keras.optimizers.Lamb "
            f"or Muon or an optimizer of tf_lamb, not {source!r}. Legacy optimizers of tf_keras go "
            "into tf_lamb.tf_keras.migrate."
        )
    peer = peers.KERAS_MUON if isinstance(source, Muon) else peers.KERAS_LAMB
    if not source.built:
        raise ValueError(f"{peer.title} has no slots before it is built: train it first.")
    momenta, velocities = (
        (source.momentums, source.adam_velocities)
        if peer is peers.KERAS_MUON
        else (source._momentums, source._velocities)
    )
    state = zip(names_of(source._trainable_variables), momenta, velocities, strict=True)
    slots = {
        name: {"momentum": m.numpy()} | ({} if v is None else {"velocity": v.numpy()})
        for name, m, v in state
    }
    config = source.get_config()
    # It has no list to show, and without decay there was nothing to exclude from.
    more = {} if config["weight_decay"] or config.get("adam_weight_decay") else {"unsaid": ()}
    return Source.of_peer(peer, step_of(source), slots, config, beyond=config, **more)


def _checkpoints():
    from tf_lamb.tensorflow import checkpoints

    return checkpoints


migrate, from_addons = make_migrate_functions(
    LayerwiseOptimizer, LAMB, "For tf_keras there is tf_lamb.tf_keras.migrate.",
    _read, _checkpoints, keras.optimizers.schedules.deserialize,
)  # fmt: skip
