"""Registers the modules and functions for Keras 3 that `tf_lamb.api` and `tf_lamb.find` use.

Seams (uses of private API) of Keras 3 (3.15.1), in its `Lamb` and `Muon`, which `migrate` reads:
    `Lamb._momentums`, `_velocities`: its slots, one for each of `_trainable_variables`.
    `Muon.momentums`, `adam_velocities`: its slots; in `adam_velocities` a matrix has None.
    In both classes, `_iterations`, which counts micro-batches; `_accumulated_gradients`;
        `_model_variables_moving_average`; and `_distribution_strategy`, under which each replica
        adds up its own gradients.
"""

import keras

from tf_lamb.api import frontends
from tf_lamb.api.data import map_arrays
from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source
from tf_lamb.api.optimizers.named import name_with_micro_steps
from tf_lamb.api.stages import SEVERAL_PROCESSES_MESSAGE, replicas_of
from tf_lamb.api.variables import as_int, names_of, numpy_of, step_of
from tf_lamb.keras import arrays, family, layers, processes, schedules, seams, sharding, unlisted


def _device_count(model):
    """Returns the number of devices that share a training step of the model.

    Raises:
        ValueError: If several processes train the model.
    """
    if (count := len(processes.mesh_process_ids())) > 1:
        raise ValueError(SEVERAL_PROCESSES_MESSAGE.format(count))
    if sharding.is_distributed():
        *_, device_count = sharding.data_axis("fit_stages")
        return device_count
    return replicas_of(model)


def _fit_input(model, batches, first_batch):
    """Returns batches in a form that `fit` reads: on TensorFlow, a dataset.

    Args:
        model: The model that `fit` trains.
        batches: The iterator of batches.
        first_batch: A batch that is like all others, except for its size.
    """
    if keras.backend.backend() != "tensorflow":
        return batches if isinstance(first_batch, tuple) else seams.adapter_without_targets(batches)
    from tf_lamb.tensorflow import feeding

    # seam: private API of Keras 3.12.0 to 3.15.1, `_maybe_symbolic_build`. With a strategy, `fit`
    # takes a first batch to build the model, and then reads the dataset from the beginning again.
    return feeding.make_dataset(
        batches, first_batch, is_read_twice=model._distribute_strategy is not None
    )


def _to_tensor(array):
    """Returns a NumPy array as a tensor; one of strings or objects is returned as it is."""
    return array if array.dtype.kind in "OSU" else keras.ops.convert_to_tensor(array)


def _call_on_batch(method, batch):
    """Calls a method of a model, such as `train_on_batch`, with a batch; returns its logs."""
    if keras.backend.backend() == "torch":  # Keras would pass NumPy arrays to the step
        batch = map_arrays(_to_tensor, batch)
    with seams.allow_missing_parts():
        return method(*batch, return_dict=True)


def _read_source(optimizer):
    """Reads a `Lamb` or `Muon` of Keras into a `Source` for `migrate`; returns None for others.

    Raises:
        ValueError: If the optimizer is not built, or is a `Muon` of Keras before 3.13.
    """
    Muon = getattr(keras.optimizers, "Muon", ())  # old versions of Keras 3 lack it
    if not isinstance(optimizer, (keras.optimizers.Lamb, Muon)):
        return None
    peer = peers.KERAS_MUON if isinstance(optimizer, Muon) else peers.KERAS_LAMB
    if not optimizer.built:
        raise ValueError(f"{peer.title} has no slots before it is built: train it first.")
    if isinstance(optimizer, Muon) and not hasattr(optimizer, "momentums"):
        raise ValueError(
            f"{peer.title} before Keras 3.13 (yours is {keras.__version__}) keeps other slots and "
            "scales its updates otherwise: nothing of it can go on here. Begin anew with "
            "tf_lamb.Muon. Nothing was changed."
        )
    config = optimizer.get_config()
    slot_variables, scalars = _slots_and_scalars(optimizer, peer, config)
    used_ids = {id(variable) for variables in slot_variables.values() for variable in variables}
    used_ids |= {id(optimizer._iterations), id(optimizer._learning_rate)}
    # Keras averages weights at every micro-batch, this package at every update. So the momentum of
    # an update is that of a micro-batch to the power of the number of micro-batches.
    if config["use_ema"]:
        config["ema_momentum"] **= config["gradient_accumulation_steps"] or 1
    # The config of Keras's optimizers does not hold what is excluded from decay, so the report of
    # `migrate` asks the user to check it. Without decay there is nothing to check.
    options = (
        {}
        if config["weight_decay"] or config.get("adam_weight_decay")
        else {"omitted_arguments": ()}
    )
    return Source.from_peer(
        peer,
        step_of(optimizer),
        _slot_arrays(optimizer, slot_variables, scalars),
        config,
        all_arguments=optimizer.get_config(),
        scalars=scalars,
        dropped_state=tuple(v.path for v in optimizer.variables if id(v) not in used_ids),
        **options,
    )


def _slots_and_scalars(optimizer, peer, config):
    """Returns the slots and the scalars that an optimizer of Keras keeps.

    Args:
        optimizer: The optimizer, a `Lamb` or `Muon` of Keras.
        peer: Its `Peer`.
        config: Its config.

    Returns:
        Two dicts. The first maps the name of a slot to a list with one variable for each trained
        variable, or None if a trained variable does not have that slot. The second maps the name of
        a scalar to its value in NumPy.
    """
    is_muon = peer is peers.KERAS_MUON
    slot_variables = {
        "momentum": optimizer.momentums if is_muon else optimizer._momentums,
        "velocity": optimizer.adam_velocities if is_muon else optimizer._velocities,
    }
    scalars = {}
    if steps := config["gradient_accumulation_steps"]:
        slot_variables[name_with_micro_steps("accumulator", steps)] = (
            optimizer._accumulated_gradients
        )
        micro_step = as_int(optimizer._iterations) % steps
        scalars[name_with_micro_steps("micro_step", steps)] = numpy_of(micro_step)
    if config["use_ema"]:
        slot_variables["average"] = optimizer._model_variables_moving_average
        # 0 before the first update. Until then Keras sets each average to its weight, so there is
        # nothing to take over.
        scalars["has_averages"] = numpy_of(min(step_of(optimizer), 1))
    return slot_variables, scalars


def _slot_arrays(optimizer, slot_variables, scalars):
    """Reads the slots of an optimizer of Keras into NumPy arrays.

    Args:
        optimizer: The optimizer.
        slot_variables: The slots as `_slots_and_scalars` returns them.
        scalars: The scalars as `_slots_and_scalars` returns them. If they say that the optimizer
            has averaged nothing, or accumulated nothing yet, those slots are left out.

    Returns:
        Path of a variable -> name of a slot -> array.
    """
    is_nonzero = {name.partition("_of_")[0]: value.any() for name, value in scalars.items()}
    slots: dict[str, dict] = {name: {} for name in names_of(optimizer._trainable_variables)}
    for slot, variables in slot_variables.items():
        is_accumulator = slot.startswith("accumulator")
        if is_nonzero.get("micro_step" if is_accumulator else f"has_{slot}s", True):
            for name, variable in zip(slots, variables, strict=True):
                if variable is not None:
                    slots[name][slot] = (
                        _sum_over_replicas(optimizer, variable)
                        if is_accumulator
                        else numpy_of(variable)
                    )
    return slots


def _sum_over_replicas(optimizer, accumulator):
    """Returns the sum over all replicas of a gradient accumulator, as a NumPy array.

    On TensorFlow each replica adds up its own gradients. On JAX and torch there is one accumulator.
    """
    if keras.backend.backend() != "tensorflow":
        return numpy_of(accumulator)
    copies = optimizer._distribution_strategy.experimental_local_results(arrays.native(accumulator))
    return sum(map(numpy_of, copies))


def _import_checkpoints():
    """Returns the module that reads optimizers from files.

    It is imported only here, because importing it loads TensorFlow.
    """
    from tf_lamb.tensorflow import checkpoints

    return checkpoints


frontends.register(
    frontends.Frontend(
        keras,
        family,
        layers,
        schedules,
        _device_count,
        _fit_input,
        _call_on_batch,
        _read_source,
        _import_checkpoints,
        unlisted.unlisted_state,
    )
)
