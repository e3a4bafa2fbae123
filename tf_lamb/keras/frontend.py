"""What the API needs of Keras 3.

Seams (3.15.1): `Lamb._momentums`, `_velocities`, `_trainable_variables`, its state by variable;
`Muon.momentums`, `adam_velocities`, which of a matrix are None.
"""

import keras

from tf_lamb.api import frontends
from tf_lamb.api.data import mapped
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source
from tf_lamb.api.stages import SEVERAL, replicas_of
from tf_lamb.api.variables import names_of, step_of
from tf_lamb.keras import family, layers, processes, schedules, seams, sharding


def _devices(model):
    if (count := len(processes.members())) > 1:
        raise ValueError(SEVERAL.format(count))
    if sharding.is_distributed():
        *_, devices = sharding.data_axis("fit_stages")
        return devices
    return replicas_of(model)


def _fed(model, batches, first):
    """On TensorFlow as a dataset."""
    if keras.backend.backend() != "tensorflow":
        return batches if isinstance(first, tuple) else seams.bare(batches)
    from tf_lamb.tensorflow import feeding

    # seam: Keras 3.12.0 to 3.15.1, `_maybe_symbolic_build`.
    return feeding.dataset(batches, first, is_tried=model._distribute_strategy is not None)


def _tensor(array):
    return array if array.dtype.kind in "OSU" else keras.ops.convert_to_tensor(array)


def _on_batch(method, batch):
    """Calls the method of a model with what its steps are given by `fit`."""
    if keras.backend.backend() == "torch":  # where Keras would hand them arrays of NumPy's
        batch = mapped(_tensor, batch)
    with seams.parts_may_lack():
        return method(*batch, return_dict=True)


def _state_of(source):
    Muon = getattr(keras.optimizers, "Muon", ())  # not in every Keras 3
    if not isinstance(source, (keras.optimizers.Lamb, Muon)):
        return None
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


frontends.register(
    frontends.Frontend(
        keras, family, layers, schedules, _devices, _fed, _on_batch, _state_of, _checkpoints
    )
)
