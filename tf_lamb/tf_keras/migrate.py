"""The way into door 2: state and configs of other optimizers, continued by ours.

Seams into tf_keras (2.20.1), all in this file:
    `optimizers.legacy.Optimizer.weights`: counter and slots, whose names hold their variable's.
    `_index_dict`, `_var_key`, `_accumulators`, `_model_variables_moving_average`: set here as the
        optimizers of this door use them.
"""

import os

import tensorflow as tf
import tf_keras

from tf_lamb.api.migration import peers
from tf_lamb.api.migration import source as migrate_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import path_of
from tf_lamb.tensorflow import checkpoints
from tf_lamb.tf_keras.family import LAMB
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer, _native


def migrate(source, optimizer, model, *, weights=False, rename=None, fresh=()):
    """Continues the state of another optimizer: its moments and its step.

    Everything is read and checked first. Where something does not fit, one error names the
    variable and the way out, and nothing has been changed.

    Args:
        source: What to continue: the path of a `tf.train.Checkpoint` (its prefix, or its folder)
            or of an HDF5 file, written with LAMB of TensorFlow Addons, or LAMB or LARS of Model
            Garden; such a legacy optimizer itself; or an optimizer of this package, of either
            door.
        optimizer: One of this door, for instance `tf_lamb.tf_keras.LAMB(...)`; built for the
            model's trainable variables if it is not yet. Its arguments stay its own.
        model: The model that it trains, with its variables made.
        weights: Whether to set the model's weights from the file, too. Defaults to False: they
            are left as they are.
        rename: Dict from the path of a variable to its name in the source, where names differ
            by more than the name of the model. Defaults to None.
        fresh: Paths of variables that the source never updated, whose state begins at zero.
            Defaults to none.

    Returns:
        A report; print it. It says what matched and what did not, and which arguments would keep
        the behaviour where it changes.

    Raises:
        ValueError: where the source is damaged, holds no slots, or is of another model or family.
        FileNotFoundError: where there is nothing at the path.
        TypeError: for another kind of source or optimizer.

    Example:

    >>> import tf_keras, tf_lamb
    >>> from official.modeling.optimization import lamb
    >>> model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(2)])
    >>> old = lamb.LAMB(1e-3, weight_decay_rate=0.01)
    >>> _ = old.apply_gradients((v, v) for v in model.trainable_variables)
    >>> new = tf_lamb.tf_keras.LAMB(1e-3, weight_decay=0.01)
    >>> print(tf_lamb.tf_keras.migrate(old, new, model))
    LAMB continues Model Garden LAMB after step 1...
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    if not isinstance(optimizer, LayerwiseOptimizer):
        raise TypeError(
            "tf_lamb.tf_keras.migrate continues with an optimizer of tf_lamb.tf_keras, not with a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. For Keras 3 there is "
            "tf_lamb.keras.migrate."
        )
    prepared = migrate_.prepare(
        _read(source, model, weights), optimizer, model,
        weights=weights, rename=rename, fresh=fresh,
    )  # fmt: skip
    optimizer.build(model.trainable_variables)
    for variable in model.weights:
        if (value := prepared.weights.get(path_of(variable))) is not None:
            _assign(variable, value)
    for variable in model.trainable_variables:
        _continue(optimizer, variable, prepared.slots[path_of(variable)])
    if optimizer.gradient_accumulation_steps:
        optimizer._micro_step.assign(0)
    optimizer.iterations.assign(prepared.report.step)
    return prepared.report


def _assign(variable, value):
    variable = _native(variable)
    variable.assign(tf.cast(value, variable.dtype))


def _continue(optimizer, variable, values):
    index = optimizer._index_dict[optimizer._var_key(variable)]
    for slot, name in zip(optimizer._slots[index], optimizer.slot_names, strict=False):
        _assign(slot, values.get(name, tf.zeros(slot.shape)))
    if optimizer.gradient_accumulation_steps:
        _assign(optimizer._accumulators[index], tf.zeros(variable.shape))
    if optimizer.use_ema:
        average = optimizer._model_variables_moving_average[index]
        _assign(average, values.get("average", tf.convert_to_tensor(_native(variable))))


def _read(source, model, weights):
    if isinstance(source, (str, os.PathLike)):
        return checkpoints.read(source, [path_of(v) for v in model.trainable_variables], weights)
    source = getattr(source, "inner_optimizer", source)
    if isinstance(source, Layerwise):
        return migrate_.of_ours(source)
    if isinstance(source, tf_keras.optimizers.legacy.Optimizer):
        return _read_legacy(source)
    raise TypeError(
        "source must be the path of a checkpoint or of an HDF5 file, a legacy LAMB or LARS of "
        f"Model Garden or an optimizer of tf_lamb, not {source!r}. keras.optimizers.Lamb goes into "
        "tf_lamb.keras.migrate."
    )


def _read_legacy(source):
    name, step, slots = peers.legacy_slots({w.name: w.numpy() for w in source.weights})
    if not slots:
        raise ValueError(f"{source._name} has no slots before its first step: train it first.")
    config = source.get_config()
    peer = peers.of_legacy(
        f"a {type(source).__name__}", name, {s for own in slots.values() for s in own}, config
    )
    lists = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
    # Its config drops both, the object has them.
    said = peers.NO_CLIPPING | config | {name: getattr(source, name) for name in lists}
    return migrate_.Source(
        origin=peer.title,
        family=peer.family,
        step=step,
        slots=peers.renamed(peer, slots),
        arguments=peer.arguments(said),
    )


def from_addons(config, **arguments):
    """The LAMB that a serialized `Addons>LAMB` asks for.

    Both forms are read, of TensorFlow Addons (`exclude_from_layer_adaptation` and all) and of
    Model Garden, which registers its LAMB under the same name and drops its exclusion lists. The
    name is not registered: whoever loads a model with it says so, by calling this.

    Args:
        config: What `serialize` returned, `{"class_name": "Addons>LAMB", "config": {...}}` or the
            newer form with "registered_name"; or the path of an HDF5 file that holds it.
        **arguments: Of `LAMB`, instead of the config's or beside them.

    Returns:
        A `LAMB` of this door.

    Raises:
        ValueError: for another class; for an argument that LAMB does not have; for a config of
            Model Garden, if both exclusion lists are not given.

    Example:

    >>> import tf_lamb
    >>> config = {"class_name": "Addons>LAMB", "config": {"weight_decay": 0.01}}
    >>> optimizer = tf_lamb.tf_keras.from_addons(config, learning_rate=1e-3)
    """
    if isinstance(config, (str, os.PathLike)):
        from tf_lamb.tensorflow import checkpoints

        config = checkpoints.optimizer_config(config)
    arguments = peers.addons_arguments(config, arguments)
    if isinstance(rate := arguments.get("learning_rate"), dict):
        arguments["learning_rate"] = migrate_.schedule(
            tf_keras.optimizers.schedules.deserialize, rate
        )
    return LAMB(**arguments)
