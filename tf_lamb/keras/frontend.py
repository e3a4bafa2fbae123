"""What the API needs of Keras 3.

Seams (3.15.1): `Lamb._momentums`, `_velocities`, `_trainable_variables`, its state by variable;
`Muon.momentums`, `adam_velocities`, which of a matrix are None; of both, `_iterations`, which
counts micro-batches, `_accumulated_gradients`, `_model_variables_moving_average`, and
`_distribution_strategy`, whose replicas each add up gradients of their own.
"""

import keras

from tf_lamb.api import frontends
from tf_lamb.api.data import mapped
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source
from tf_lamb.api.optimizers.named import of_micro_steps
from tf_lamb.api.stages import SEVERAL, replicas_of
from tf_lamb.api.variables import as_int, names_of, numpy_of, step_of
from tf_lamb.keras import arrays, family, layers, processes, schedules, seams, sharding, unlisted


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
    if isinstance(source, Muon) and not hasattr(source, "momentums"):
        raise ValueError(
            f"{peer.title} before Keras 3.13 (yours is {keras.__version__}) keeps other slots and "
            "scales its updates otherwise: nothing of it can go on here. Begin anew with "
            "tf_lamb.Muon. Nothing was changed."
        )
    config = source.get_config()
    kept, scalars = _kept_by(source, peer, config)
    known = {id(variable) for of_slot in kept.values() for variable in of_slot}
    known |= {id(source._iterations), id(source._learning_rate)}
    if config["use_ema"]:  # it averages at micro-batches, of which an update has several
        config["ema_momentum"] **= config["gradient_accumulation_steps"] or 1
    # It has no list to show, and without decay there was nothing to exclude from.
    more = {} if config["weight_decay"] or config.get("adam_weight_decay") else {"unsaid": ()}
    return Source.of_peer(
        peer,
        step_of(source),
        _slots(source, peer, kept, scalars),
        config,
        beyond=source.get_config(),
        scalars=scalars,
        others=tuple(v.path for v in source.variables if id(v) not in known),
        **more,
    )


def _kept_by(source, peer, config):
    """Name of a slot -> that of each variable, or None; and what there is once, by name."""
    is_muon = peer is peers.KERAS_MUON
    kept = {
        "momentum": source.momentums if is_muon else source._momentums,
        "velocity": source.adam_velocities if is_muon else source._velocities,
    }
    scalars = {}
    if steps := config["gradient_accumulation_steps"]:
        kept[of_micro_steps("accumulator", steps)] = source._accumulated_gradients
        waiting = as_int(source._iterations) % steps
        scalars[of_micro_steps("micro_step", steps)] = numpy_of(waiting)
    if config["use_ema"]:
        kept["average"] = source._model_variables_moving_average
        # Until its first update is done, each average is begun anew with the weights.
        scalars["has_averages"] = numpy_of(min(step_of(source), 1))
    return kept, scalars


def _slots(source, peer, kept, scalars):
    """Variable -> slot -> array, without sums that are none and averages that wait."""
    is_begun = {name.partition("_of_")[0]: value.any() for name, value in scalars.items()}
    slots: dict[str, dict] = {name: {} for name in names_of(source._trainable_variables)}
    for slot, of_slot in kept.items():
        sums = slot.startswith("accumulator")
        if is_begun.get("micro_step" if sums else f"has_{slot}s", True):
            for name, variable in zip(slots, of_slot, strict=True):
                if variable is not None:
                    slots[name][slot] = _total(source, variable) if sums else numpy_of(variable)
    return slots


def _total(source, accumulator):
    """What an accumulator has on all replicas."""
    if keras.backend.backend() != "tensorflow":
        return numpy_of(accumulator)
    copies = source._distribution_strategy.experimental_local_results(arrays.native(accumulator))
    return sum(map(numpy_of, copies))


def _checkpoints():
    from tf_lamb.tensorflow import checkpoints

    return checkpoints


frontends.register(
    frontends.Frontend(
        keras,
        family,
        layers,
        schedules,
        _devices,
        _fed,
        _on_batch,
        _state_of,
        _checkpoints,
        unlisted.unlisted,
    )
)
