"""Reads optimizers of the legacy Keras interface from files: `tf.train.Checkpoint` and HDF5.

Seams, all in this file: of TensorFlow (2.15 to 2.20) the object graph of a checkpoint, which alone
has the names, `slot_variables` of an optimizer's node and `full_name` of a variable; of Keras 2.15
the groups and attributes of HDF5.
"""

import contextlib
import json
import os
import re
import zipfile

import h5py

from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source

_NUMBERS = ("f", "V")  # kinds of NumPy; bfloat16 is a V
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_FILE_OF_CHECKPOINT = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


def read(path, paths, weights) -> Source:
    """The source that a path leads to, with the weights of the model if they are wanted.

    Args:
        path: of an HDF5 file, of a checkpoint (its prefix, or one of its files), of a folder with
            checkpoints, or of a SavedModel's folder.
        paths: of the variables that are wanted; of several optimizers, theirs is taken.
    """
    path = _FILE_OF_CHECKPOINT.sub("", os.fspath(path))
    if os.path.isfile(path):
        return _read_hdf5(path, weights)
    import tensorflow as tf  # here, so that HDF5 can be read without it

    prefix = path
    if os.path.isdir(path):  # of checkpoints, or else a SavedModel's
        prefix = tf.train.latest_checkpoint(path) or os.path.join(path, "variables", "variables")
    if not os.path.exists(prefix + ".index"):
        raise FileNotFoundError(
            f"There is neither an HDF5 file nor a checkpoint nor a SavedModel at {path!r}. A "
            "checkpoint is named by its prefix, such as 'model_dir/ckpt-1', without '.index'."
        )
    return _read_checkpoint(tf, prefix, paths, weights)


def optimizer_config(path):
    """The serialized optimizer in an HDF5 file."""
    with _opened(os.fspath(path)) as file:
        return _optimizer_config(file, path)


def _no_slots(origin, why):
    return ValueError(
        f"{origin} holds no slots of an optimizer: {why} Save "
        "tf.train.Checkpoint(model=model, optimizer=optimizer), or the compiled model as .h5, "
        "where it was trained. Nothing was changed."
    )


def _without_slots(origin, nodes):
    """The error for a checkpoint without slots, by what its optimizer is."""
    names = {child.local_name for node in nodes for child in node.children}
    if "_iterations" not in names and "iterations" not in names:
        return _no_slots(
            origin, "it was written without the model, whose variables they hang on, or by none."
        )
    return ValueError(
        f"{origin} was written by an optimizer of the newer interface, of Keras 3 say, whose slots "
        "have no names in it. Restore it into an optimizer like the one that was saved, "
        "old.build(model.trainable_variables) and then tf.train.Checkpoint(model=model, "
        "optimizer=old).restore(path), and pass old. Nothing was changed."
    )


def _broken(origin, error):
    return ValueError(
        f"{origin} cannot be read; it is cut short or damaged: {error} Copy it again, or take an "
        "earlier one. Nothing was changed."
    )


def _read_checkpoint(tf, prefix, paths, weights):
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    origin = f"the checkpoint {prefix!r}"
    try:
        reader = tf.train.load_checkpoint(prefix)
        keys = reader.get_variable_to_shape_map()
        if _GRAPH not in keys:
            raise _no_slots(origin, "it is name-based, of TensorFlow 1.")
        nodes = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH)).nodes
        optimizers = [node for node in nodes if node.slot_variables]
        stepping = [node for node in optimizers if not _averages(node)]
        if not stepping:
            raise _without_slots(origin, nodes)
        tables = [_slot_keys(node, nodes, keys) for node in stepping]
        best = max(range(len(tables)), key=lambda i: len(set(tables[i]) & set(paths)))
        hypers = {child.local_name: nodes[child.node_id] for child in stepping[best].children}
        values = {
            name: reader.get_tensor(key)
            for name, node in hypers.items()
            if (key := _key(node)) in keys
        }
        slots = {
            variable: {slot: reader.get_tensor(key) for slot, key in table.items()}
            for variable, table in tables[best].items()
        }
        averages = {
            variable: reader.get_tensor(table["average"])
            for node in optimizers
            if _averages(node)
            for variable, table in _slot_keys(node, nodes, keys).items()
        }
        model_weights = _weights(reader, nodes, optimizers, keys) if weights else None
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        raise _broken(origin, getattr(error, "message", error)) from error
    if "iter" not in values:
        raise _no_slots(origin, "it has no step counter.")
    name = hypers["iter"].attributes[0].full_name.rpartition("/")[0]
    source_config = {k: float(v) for k, v in values.items() if k != "iter"}
    step = peers.step_of(values["iter"])
    source = _source(origin, name, step, slots, source_config, model_weights)
    return source.averaged(averages) if averages else source


def _averages(node):
    """Whether it is Model Garden's ExponentialMovingAverage, which wraps what steps."""
    return any(child.local_name == "ema_base_optimizer" for child in node.children)


def _key(node):
    return next((a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"), None)


def _slot_keys(optimizer, nodes, keys):
    """Variable -> slot -> key in the checkpoint, of the keys that are there."""
    table: dict = {}
    for slot in optimizer.slot_variables:
        variable = nodes[slot.original_variable_node_id].attributes[0].full_name
        own = table.setdefault(variable, {})
        if slot.slot_name in own:
            raise ValueError(
                f"Two variables of the checkpoint are named {variable!r}: they cannot be told "
                "apart. Give each layer a name of its own before saving. Nothing was changed."
            )
        if (key := _key(nodes[slot.slot_variable_node_id])) in keys:
            own[slot.slot_name] = key
    return table


def _weights(reader, nodes, optimizers, keys):
    """Everything that is neither a slot nor a part of an optimizer."""
    other = {s.slot_variable_node_id for node in optimizers for s in node.slot_variables}
    other |= {child.node_id for node in optimizers for child in node.children}
    variables = [n for i, n in enumerate(nodes) if i not in other and _key(n) in keys]
    return {node.attributes[0].full_name: reader.get_tensor(_key(node)) for node in variables}


@contextlib.contextmanager
def _opened(path):
    if zipfile.is_zipfile(path):
        raise _no_slots(
            f"the file {path!r}",
            "a .keras file of TensorFlow 2.15 never has any; of a later one, load the model and "
            "pass model.optimizer.",
        )
    try:
        with h5py.File(path) as file:
            yield file
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise _broken(f"the HDF5 file {path!r}", error) from error


def _optimizer_config(file, path):
    if "training_config" not in file.attrs:
        raise _no_slots(f"the HDF5 file {path!r}", "the model was not compiled when it was saved.")
    try:
        config = json.loads(file.attrs["training_config"])["optimizer_config"]
        if isinstance(config["config"], dict):
            return config
        why = f"its optimizer has the arguments {config['config']!r}"
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    raise ValueError(
        f"The training_config of the HDF5 file {path!r} is none that Keras writes ({why}). Save "
        "the compiled model again where it was trained. Nothing was changed."
    )


def _read_hdf5(path, weights):
    origin = f"the HDF5 file {path!r}"
    with _opened(path) as file:
        config = _optimizer_config(file, path)["config"]
        named = _named(file["optimizer_weights"]) if "optimizer_weights" in file else {}
        layers = file["model_weights"].values() if weights else ()
        model_weights = {name: value for layer in layers for name, value in _named(layer).items()}
    name, step, slots = peers.legacy_slots(named)
    if not slots:
        raise _no_slots(origin, "it was saved without an optimizer, or by one that keeps others.")
    source_config = peers.NO_CLIPPING | config
    bare = {name.rpartition(":")[0]: value for name, value in model_weights.items()}
    return _source(origin, name, step, slots, source_config, bare if weights else None)


def _named(group):
    """The arrays of a group by name; a name without its array is left out."""
    # "weight_names", or "weight_names0", "weight_names1", ...
    numbers = (key.removeprefix("weight_names") for key in group.attrs if "weight_names" in key)
    pieces = sorted((n for n in numbers if not n or n.isdecimal()), key=lambda n: int(n or 0))
    names = [name for piece in pieces for name in group.attrs[f"weight_names{piece}"]]
    names = [name.decode() if isinstance(name, bytes) else name for name in names]
    return {name: group[name][()] for name in names if name in group}


def _source(origin, name, step, slots, source_config, weights):
    for variable, values in slots.items():
        for slot, value in values.items():
            if getattr(getattr(value, "dtype", None), "kind", "") not in _NUMBERS:
                raise _broken(origin, f"{slot!r} of {variable!r} is no array of numbers.")
    kinds = {slot for values in slots.values() for slot in values}
    peer = peers.of_legacy(origin, name, kinds, source_config)
    origin = f"{peer.title} from {origin}"
    return Source.of_peer(peer, step, slots, source_config, origin=origin, weights=weights)
