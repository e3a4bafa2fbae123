"""The way into door 1: state and configs of other optimizers, continued by ours.

Seams into Keras 3 (3.15.1), all in this file:
    `Lamb._momentums`, `_velocities`, `_trainable_variables`: its state by variable.
    `_iterations`, `_get_variable_index`, `_accumulated_gradients`,
    `_model_variables_moving_average`: set here as the optimizers of this door use them.
"""

import os

import keras
from keras import ops

from tf_lamb.api.migration import peers
from tf_lamb.api.migration import source as migrate_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import path_of
from tf_lamb.keras.family import LAMB
from tf_lamb.keras.optimizer import LayerwiseOptimizer


def migrate(source, optimizer, model, *, weights=False, rename=None, fresh=()):
    """Continues the state of another optimizer: its moments and its step.

    Everything is read and checked first. Where something does not fit, one error names the
    variable and the way out, and nothing has been changed.

    Args:
        source: What to continue: the path of a `tf.train.Checkpoint` (its prefix, or its folder)
            or of an HDF5 file, written with LAMB of TensorFlow Addons, or LAMB or LARS of Model
            Garden; a `keras.optimizers.Lamb`; or an optimizer of this package, of either
            door.
        optimizer: One of this door, for instance `tf_lamb.keras.LAMB(...)`; built for the
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

    >>> import keras, tf_lamb
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> old = keras.optimizers.Lamb(1e-3)
    >>> old.build(model.trainable_variables)
    >>> print(tf_lamb.keras.migrate(old, tf_lamb.keras.LAMB(1e-3), model))
    LAMB continues keras.optimizers.Lamb after step 0...
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    if not isinstance(optimizer, LayerwiseOptimizer):
        raise TypeError(
            f"tf_lamb.keras.migrate continues with an optimizer of tf_lamb.keras, not with a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. For tf_keras there is "
            "tf_lamb.tf_keras.migrate."
        )
    prepared = migrate_.prepare(
        _read(source, model, weights), optimizer, model,
        weights=weights, rename=rename, fresh=fresh,
    )  # fmt: skip
    optimizer.build(model.trainable_variables)
    for variable in model.weights:
        if (value := prepared.weights.get(path_of(variable))) is not None:
            variable.assign(value)
    for variable in model.trainable_variables:
        _continue(optimizer, variable, prepared.slots[path_of(variable)])
    micro_steps = optimizer.gradient_accumulation_steps or 1
    optimizer._iterations.assign(prepared.report.step * micro_steps)
    return prepared.report


def _continue(optimizer, variable, values):
    index = optimizer._get_variable_index(variable)
    for slot, name in zip(optimizer._slots[index], optimizer.slot_names, strict=False):
        slot.assign(values.get(name, ops.zeros(slot.shape, slot.dtype)))
    if optimizer.gradient_accumulation_steps:
        accumulator = optimizer._accumulated_gradients[index]
        accumulator.assign(ops.zeros(accumulator.shape, accumulator.dtype))
    if optimizer.use_ema:
        average = optimizer._model_variables_moving_average[index]
        average.assign(values.get("average", ops.cast(variable, average.dtype)))


def _read(source, model, weights):
    if isinstance(source, (str, os.PathLike)):
        from tf_lamb.tensorflow import checkpoints

        return checkpoints.read(source, [path_of(v) for v in model.trainable_variables], weights)
    source = getattr(source, "inner_optimizer", source)
    if isinstance(source, Layerwise):
        return migrate_.of_ours(source)
    if isinstance(source, keras.optimizers.Lamb):
        return _read_lamb(source)
    raise TypeError(
        "source must be the path of a checkpoint or of an HDF5 file, a keras.optimizers.Lamb or an "
        f"optimizer of tf_lamb, not {source!r}. Legacy optimizers of tf_keras go into "
        "tf_lamb.tf_keras.migrate."
    )


def _read_lamb(source):
    if not source.built:
        raise ValueError("keras.optimizers.Lamb has no slots before it is built: train it first.")
    peer = peers.KERAS_LAMB
    state = zip(source._trainable_variables, source._momentums, source._velocities, strict=True)
    arguments = peer.arguments(source.get_config())
    slots = {path_of(w): {"momentum": m.numpy(), "velocity": v.numpy()} for w, m, v in state}
    return migrate_.Source(
        origin=peer.title,
        family=peer.family,
        step=int(ops.convert_to_numpy(source.iterations)),
        slots=peers.renamed(peer, slots),
        arguments=arguments,
        # It has no list to show, and without decay there was nothing to exclude from.
        unsaid=peer.unsaid(arguments) if arguments["weight_decay"] else (),
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
    >>> optimizer = tf_lamb.keras.from_addons(config, learning_rate=1e-3)
    """
    if isinstance(config, (str, os.PathLike)):
        from tf_lamb.tensorflow import checkpoints

        config = checkpoints.optimizer_config(config)
    arguments = peers.addons_arguments(config, arguments)
    if isinstance(rate := arguments.get("learning_rate"), dict):
        arguments["learning_rate"] = migrate_.schedule(keras.optimizers.schedules.deserialize, rate)
    return LAMB(**arguments)
