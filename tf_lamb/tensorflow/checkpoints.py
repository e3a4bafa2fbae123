"""Reads legacy Keras optimizers from files: `tf.train.Checkpoint` and HDF5.

A legacy optimizer is a subclass of `tf_keras.optimizers.legacy.Optimizer`. A slot is a state array
that it keeps for one variable. This module relies on two private formats:

- In TensorFlow 2.15 to 2.20, the object graph of a checkpoint, because only the graph contains
  names: `slot_variables` of an optimizer's node, and `full_name` of a variable.
- In Keras 2.15, the groups and attributes of an HDF5 file.
"""

import contextlib
import json
import os
import re
import zipfile

import h5py

from tf_lamb.api.migration import peers
from tf_lamb.api.migration.peers import Source

_NUMBER_KINDS = ("f", "V")  # the kinds of NumPy dtypes that slots may have; bfloat16 is of kind V
_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Children of the root of an object graph that is a model and no `tf.train.Checkpoint` of objects.
_CHILDREN_OF_MODELS = {"root", "keras_api"}
_MOST_NAMES = 3  # an object with more variables, such as a frozen model, is named as a whole
_CHECKPOINT_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


def read(path, paths, with_weights) -> Source:
    """Returns the optimizer in a file as a `Source`, with the model's weights if they are wanted.

    Args:
        path: The path of an HDF5 file, of a checkpoint (its prefix, or one of its files), of a
            folder with checkpoints, or of the folder of a SavedModel.
        paths: The paths of the variables whose slots are wanted. If a checkpoint has several
            optimizers, the one with slots of most of these variables is read.
        with_weights: Whether to read the weights of the model.

    Raises:
        FileNotFoundError: If there is no file of these kinds at the path.
        ValueError: If the file cannot be read, or holds no slots.
    """
    path = _CHECKPOINT_FILE.sub("", os.fspath(path))
    if os.path.isfile(path):
        return _read_hdf5(path, with_weights)
    import tensorflow as tf  # imported here, so that HDF5 can be read without it

    prefix = path
    if os.path.isdir(path):  # a folder of checkpoints, or else of a SavedModel
        prefix = tf.train.latest_checkpoint(path) or os.path.join(path, "variables", "variables")
    if not os.path.exists(prefix + ".index"):
        raise FileNotFoundError(
            f"There is neither an HDF5 file nor a checkpoint nor a SavedModel at {path!r}. A "
            "checkpoint is named by its prefix, such as 'model_dir/ckpt-1', without '.index'."
        )
    return _read_checkpoint(tf, prefix, paths, with_weights)


def optimizer_config(path):
    """Returns the serialized optimizer in an HDF5 file.

    Args:
        path: The path of the file.

    Raises:
        FileNotFoundError: If there is no file at the path.
        ValueError: If the file cannot be read, or holds no optimizer.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no HDF5 file at {path!r}.")
    with _open_hdf5(path) as file:
        return _optimizer_config(file, path)


def _no_slots_error(origin, reason):
    """Returns the error for a file with no optimizer state to migrate.

    `reason` ends its first sentence.
    """
    return ValueError(
        f"{origin} holds no slots of an optimizer: {reason} Save "
        "tf.train.Checkpoint(model=model, optimizer=optimizer), or the compiled model as .h5, "
        "where it was trained. Nothing was changed."
    )


def _newer_interface_error(origin, way):
    """Returns the error for a file of an optimizer of the newer interface.

    Args:
        origin: What was read, as text.
        way: The calls that restore the state into an object `old`.
    """
    return ValueError(
        f"{origin} was written by an optimizer of the newer interface, of Keras 3 or tf_keras, "
        f"whose slots have no names in it that migrate reads: {way} Nothing was changed."
    )


def _no_slots_in_checkpoint_error(origin, prefix, nodes):
    """Returns the error for a checkpoint without slots; its text depends on what wrote it.

    Args:
        origin: What was read, as text.
        prefix: The path of the checkpoint, without a suffix.
        nodes: All nodes of its object graph.
    """
    names = {child.local_name for node in nodes for child in node.children}
    if "_iterations" not in names and "iterations" not in names:
        return _no_slots_error(
            origin, "it was written without the model, whose variables they hang on, or by none."
        )
    build = "old.build(model.trainable_variables)"
    if _is_of_model(nodes[0]):
        restore = f"model.compile(old), {build} and then tf.train.Checkpoint(model)"
        weights, path = ", which sets the weights, too", repr(prefix)
    else:
        restore = f"{build} and then tf.train.Checkpoint(model=model, optimizer=old)"
        weights, path = "", "path"
    return _newer_interface_error(
        origin,
        f"restore it into an optimizer like the one that was saved, {restore}.restore({path})"
        f"{weights}, and pass old.",
    )


def _is_of_model(root):
    """Returns whether the root of a graph is a compiled model, as in a SavedModel.

    The root may else be a `tf.train.Checkpoint` of a model and its optimizer.
    """
    names = {child.local_name for child in root.children}
    has_layers = any(name.startswith(("layer-", "layer_with_weights-")) for name in names)
    return "optimizer" in names and (has_layers or bool(names & _CHILDREN_OF_MODELS))


def _damage_error(origin, error):
    """Returns the error for a damaged file."""
    return ValueError(
        f"{origin} cannot be read; it is cut short or damaged: {error} Copy it again, or take an "
        "earlier one. Nothing was changed."
    )


def _read_checkpoint(tf, prefix, paths, with_weights):
    """Reads a checkpoint into a `Source`; raises ValueError if it is damaged or has no slots."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    origin = f"the checkpoint {prefix!r}"
    try:
        reader = tf.train.load_checkpoint(prefix)
        checkpoint_keys = reader.get_variable_to_shape_map()
        if _GRAPH_KEY not in checkpoint_keys:
            raise _no_slots_error(origin, "it is name-based, of TensorFlow 1.")
        nodes = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH_KEY)).nodes
        optimizer_nodes = [node for node in nodes if node.slot_variables]
        stepping_nodes = [node for node in optimizer_nodes if not _is_averaging(node)]
        if not stepping_nodes:
            raise _no_slots_in_checkpoint_error(origin, prefix, nodes)
        key_tables = [_slot_keys(node, nodes, checkpoint_keys) for node in stepping_nodes]
        best_index = max(range(len(key_tables)), key=lambda i: len(set(key_tables[i]) & set(paths)))
        child_nodes = {
            child.local_name: nodes[child.node_id] for child in stepping_nodes[best_index].children
        }
        values = {
            name: reader.get_tensor(key)
            for name, node in child_nodes.items()
            if (key := _value_key(node)) in checkpoint_keys
        }
        slots = {
            variable: {slot: reader.get_tensor(key) for slot, key in table.items()}
            for variable, table in key_tables[best_index].items()
        }
        averages = {
            variable: reader.get_tensor(table["average"])
            for node in optimizer_nodes
            if _is_averaging(node)
            for variable, table in _slot_keys(node, nodes, checkpoint_keys).items()
        }
        own_variables = _own_variables(nodes, checkpoint_keys)
        model_weights = (
            _read_model_weights(reader, nodes, optimizer_nodes, checkpoint_keys)
            if with_weights
            else None
        )
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        raise _damage_error(origin, getattr(error, "message", error)) from error
    if "iter" not in values:
        raise _no_slots_error(origin, "it has no step counter.")
    name = child_nodes["iter"].attributes[0].full_name.rpartition("/")[0]
    source_config = {k: float(v) for k, v in values.items() if k != "iter"}
    step = peers.step_of(values["iter"])
    source = _make_source(
        origin, name, step, slots, source_config, model_weights, own_variables=own_variables
    )
    return source.with_averages(averages) if averages else source


def _is_averaging(node):
    """Returns whether a node of the graph is Model Garden's `ExponentialMovingAverage`."""
    return any(child.local_name == "ema_base_optimizer" for child in node.children)


def _value_key(node):
    """Returns the key of a node's value in the checkpoint; None if the node has no value."""
    return next((a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"), None)


def _slot_keys(optimizer, nodes, checkpoint_keys):
    """Returns name of a variable -> name of a slot -> key in the checkpoint.

    Args:
        optimizer: The node of the optimizer in the object graph.
        nodes: All nodes of the object graph.
        checkpoint_keys: The keys of the checkpoint. A slot whose key is not among them is left out.

    Raises:
        ValueError: If two variables have the same name.
    """
    keys_by_variable: dict = {}
    for slot in optimizer.slot_variables:
        variable = nodes[slot.original_variable_node_id].attributes[0].full_name
        slot_keys = keys_by_variable.setdefault(variable, {})
        if slot.slot_name in slot_keys:
            raise ValueError(
                f"Two variables of the checkpoint are named {variable!r}: they cannot be told "
                "apart. Give each layer a name of its own before saving. Nothing was changed."
            )
        if (key := _value_key(nodes[slot.slot_variable_node_id])) in checkpoint_keys:
            slot_keys[slot.slot_name] = key
    return keys_by_variable


def _own_variables(nodes, checkpoint_keys):
    """Returns the paths of variables that are neither of the trained model nor of an optimizer.

    One is "step" in a file of `tf.train.Checkpoint(step=tf.Variable(0), model=..., optimizer=...)`.

    Args:
        nodes: All nodes of the object graph.
        checkpoint_keys: The keys of the checkpoint.
    """
    children = [child for child in nodes[0].children if child.local_name != "save_counter"]
    if _CHILDREN_OF_MODELS & {child.local_name for child in children}:
        return ()
    of_training = set()
    for node_id, node in enumerate(nodes):
        if node.slot_variables:
            of_training |= {node_id, *(child.node_id for child in node.children)}
            of_training |= {slot.original_variable_node_id for slot in node.slot_variables}
    paths: list[str] = []
    for child in children:
        path_by_id = _paths_below(child, nodes)
        if of_training & path_by_id.keys():
            continue  # the model, an optimizer, or what has one of them
        names = [
            path
            for node_id, path in path_by_id.items()
            if _value_key(nodes[node_id]) in checkpoint_keys
        ]
        are_many = len(names) > _MOST_NAMES
        paths += [f"{child.local_name}/... ({len(names)} variables)"] if are_many else names
    return tuple(paths)


def _paths_below(child, nodes):
    """Returns id -> path of a child of the root, and of all nodes that it refers to."""
    paths: dict[int, str] = {}
    pending = [(child.node_id, child.local_name)]
    while pending:
        node_id, path = pending.pop()
        if node_id not in paths:
            paths[node_id] = path
            pending += [
                (below.node_id, f"{path}/{below.local_name}") for below in nodes[node_id].children
            ]
    return paths


def _read_model_weights(reader, nodes, optimizer_nodes, checkpoint_keys):
    """Returns name -> array for all variables that are neither slots nor parts of an optimizer."""
    optimizer_ids = {
        slot.slot_variable_node_id for node in optimizer_nodes for slot in node.slot_variables
    }
    optimizer_ids |= {child.node_id for node in optimizer_nodes for child in node.children}
    variables = [
        n
        for i, n in enumerate(nodes)
        if i not in optimizer_ids and _value_key(n) in checkpoint_keys
    ]
    return {node.attributes[0].full_name: reader.get_tensor(_value_key(node)) for node in variables}


@contextlib.contextmanager
def _open_hdf5(path):
    """Opens an HDF5 file in a `with` block.

    Raises:
        ValueError: If the file is a .keras file, or if reading it in the block fails.
    """
    if zipfile.is_zipfile(path):
        raise _no_slots_error(
            f"the file {path!r}",
            "a .keras file of TensorFlow 2.15 never has any; of a later one, load the model and "
            "pass model.optimizer.",
        )
    try:
        with h5py.File(path) as file:
            yield file
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise _damage_error(f"the HDF5 file {path!r}", error) from error


def _optimizer_config(file, path):
    """Returns the serialized optimizer in an open HDF5 file; raises ValueError if it has none."""
    if "training_config" not in file.attrs:
        raise _no_slots_error(
            f"the HDF5 file {path!r}", "the model was not compiled when it was saved."
        )
    try:
        config = json.loads(file.attrs["training_config"])["optimizer_config"]
        if isinstance(config["config"], dict):
            return config
        reason = f"its optimizer has the arguments {config['config']!r}"
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise ValueError(
        f"The training_config of the HDF5 file {path!r} is none that Keras writes ({reason}). Save "
        "the compiled model again where it was trained. Nothing was changed."
    )


def _read_hdf5(path, with_weights):
    """Reads an HDF5 file into a `Source`; raises ValueError if it is damaged or has no slots."""
    origin = f"the HDF5 file {path!r}"
    with _open_hdf5(path) as file:
        config = _optimizer_config(file, path)["config"]
        arrays = _read_arrays(file["optimizer_weights"]) if "optimizer_weights" in file else {}
        layers = file["model_weights"].values() if with_weights else ()
        model_weights = {
            name: value for layer in layers for name, value in _read_arrays(layer).items()
        }
    name, step, slots = peers.legacy_slots(arrays)
    if not slots and any(key.rpartition("/")[2].startswith("iteration") for key in arrays):
        raise _newer_interface_error(origin, "load the model, and pass model.optimizer.")
    if not slots:
        raise _no_slots_error(
            origin, "it was saved without an optimizer, or by one that keeps others."
        )
    source_config = peers.NO_CLIPPING | config
    weights_by_path = {name.rpartition(":")[0]: value for name, value in model_weights.items()}
    return _make_source(
        origin, name, step, slots, source_config, weights_by_path if with_weights else None
    )


def _read_arrays(group):
    """Returns the arrays of an HDF5 group by name; leaves out names that have no array."""
    # The names are in the attribute "weight_names", or in "weight_names0", "weight_names1", ... if
    # they are too many for one attribute.
    all_suffixes = (
        key.removeprefix("weight_names") for key in group.attrs if "weight_names" in key
    )
    suffixes = sorted(
        (suffix for suffix in all_suffixes if not suffix or suffix.isdecimal()),
        key=lambda suffix: int(suffix or 0),
    )
    names = [name for suffix in suffixes for name in group.attrs[f"weight_names{suffix}"]]
    names = [name.decode() if isinstance(name, bytes) else name for name in names]
    return {name: group[name][()] for name in names if name in group}


def _make_source(origin, name, step, slots, source_config, weights, own_variables=()):
    """Makes a `Source` from the state that was read from a file.

    Args:
        origin: What was read, as text for errors, such as "the checkpoint 'run/ckpt-1'".
        name: The name of the optimizer in it.
        step: The number of optimizer steps done.
        slots: Name of a variable -> name of a slot -> array.
        source_config: The arguments of the optimizer, by its own names.
        weights: Name of a variable -> array, or None.
        own_variables: Paths of variables that are neither of the model nor of an optimizer.
            Defaults to none.

    Raises:
        ValueError: If a slot is no array of numbers, or if the optimizer is not one that `migrate`
            can continue.
    """
    for variable, values in slots.items():
        for slot, value in values.items():
            if getattr(getattr(value, "dtype", None), "kind", "") not in _NUMBER_KINDS:
                raise _damage_error(origin, f"{slot!r} of {variable!r} is no array of numbers.")
    slot_names = {slot for values in slots.values() for slot in values}
    peer = peers.legacy_peer(origin, name, slot_names, source_config)
    origin = f"{peer.title} from {origin}"
    return Source.from_peer(
        peer, step, slots, source_config, origin=origin, weights=weights,
        own_variables=own_variables,
    )  # fmt: skip
