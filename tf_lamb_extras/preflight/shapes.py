"""Describes a batch of data by its shapes alone: a model's inputs, and the targets of its loss."""

import contextlib
import numbers

import keras


def inputs(shapes, model, batch_size=None):
    """Returns the model's inputs, as `keras.KerasTensor`s in the structure of the shapes.

    Args:
        shapes: The argument `input_shapes`: a shape, or a list or dict of shapes.
        model: The model. If it knows its inputs, their dtypes are used where the shapes have none.
        batch_size: The examples of the batch, for shapes whose first axis is None. Defaults to
            None.

    Raises:
        ValueError: If something else is in place of a shape, or a shape is incomplete.
    """
    leaves = _read(shapes, "input_shapes")
    flat = keras.tree.flatten(leaves)
    known_dtypes = _known_dtypes(model, leaves, len(flat))
    dtypes = [leaf.dtype or dtype for leaf, dtype in zip(flat, known_dtypes, strict=True)]
    return _filled(leaves, dtypes, batch_size, "input_shapes")


def targets(shapes, batch_size=None):
    """Returns the targets of the loss, as `keras.KerasTensor`s, floats by default.

    Args:
        shapes: The argument `target_shapes`, in the form of `input_shapes`.
        batch_size: The examples of the batch, for shapes whose first axis is None. Defaults to
            None.

    Raises:
        ValueError: If something else is in place of a shape, or a shape is incomplete.
    """
    leaves = _read(shapes, "target_shapes")
    dtypes = [leaf.dtype or keras.config.floatx() for leaf in keras.tree.flatten(leaves)]
    return _filled(leaves, dtypes, batch_size, "target_shapes")


def targets_of(loss, predictions):
    """Returns the targets that the loss takes for these predictions, as `keras.KerasTensor`s.

    Args:
        loss: A loss, as for `compile`; None gives no targets.
        predictions: The model's predictions, by shape.

    Raises:
        ValueError: If the targets are not known, because the loss is not one of Keras's.
    """
    if loss is None:
        return None
    if isinstance(loss, dict) and isinstance(predictions, dict):
        return {name: targets_of(parts, predictions[name]) for name, parts in loss.items()}
    if isinstance(loss, (list, tuple)) and len(loss) == len(keras.tree.flatten(predictions)):
        parts = zip(loss, keras.tree.flatten(predictions), strict=True)
        return [targets_of(part, prediction) for part, prediction in parts]
    return keras.tree.map_structure(lambda parts: _target_of(loss, parts), predictions)


def _target_of(loss, prediction):
    """Returns the target that one of Keras's losses takes for a prediction.

    It is the first of two that the loss accepts: floats in the shape of the prediction, and class
    indices, which are integers in this shape without its last axis. Raises ValueError if the loss
    accepts neither or is not one of Keras's.
    """
    import jax

    function = keras.losses.get(loss) if isinstance(loss, str) else loss
    if str(getattr(getattr(function, "fn", function), "__module__", None)).startswith("keras."):
        shape = prediction.shape
        for target in ((shape, keras.config.floatx()), (shape[:-1], "int32")):
            with contextlib.suppress(Exception):
                jax.eval_shape(function, jax.ShapeDtypeStruct(*target), prediction)
                return keras.KerasTensor(*target)
    raise ValueError(
        f"which targets the loss {loss!r} takes is not known: say target_shapes=..., whole batches "
        "as in input_shapes"
    )


def batch_of(specs) -> int:
    """Returns the length that all first axes have; raises ValueError if the lengths differ."""
    lengths = {spec.shape[0] for spec in keras.tree.flatten(specs)}
    if len(lengths) != 1:
        raise ValueError(
            "the first axis of every shape is the batch, and of one batch there is one length, not "
            f"{sorted(lengths)}: give the same first axis to all of input_shapes and target_shapes"
        )
    return lengths.pop()


def resized(specs, batch_size):
    """Returns the same structure with another batch size.

    Args:
        specs: A structure of `keras.KerasTensor`s.
        batch_size: The examples of the batch.
    """
    resize = lambda spec: keras.KerasTensor((batch_size, *spec.shape[1:]), spec.dtype)  # noqa: E731
    return keras.tree.map_structure(resize, specs)


class _Leaf:
    """Holds a shape, and its dtype if known; `keras.tree` would flatten a tuple instead."""

    def __init__(self, shape, dtype=None):
        self.shape = tuple(shape)
        self.dtype = dtype and keras.backend.standardize_dtype(dtype)


def _read(value, name):
    """Returns the user's structure with a `_Leaf` for each shape.

    Raises ValueError for anything that is neither a shape nor a list or dict of shapes.
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _Leaf(value.shape, value.dtype)
    if isinstance(value, dict) and value:
        return {key: _read(item, name) for key, item in value.items()}
    if _is_shape(value):
        return _Leaf(value)
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and _is_shape(value[0]) and isinstance(value[1], (str, type)):
            return _Leaf(*value)
        return [_read(item, name) for item in value]
    raise ValueError(
        f"{name}={value!r} is no shape of a whole batch: write (4096, 128), a list or a dict of "
        "such, or a pair such as ((4096, 128), 'int32')"
    )


def _is_shape(value):
    """Returns whether a value is a list or tuple of lengths."""
    return isinstance(value, (list, tuple)) and all(
        length is None or isinstance(length, numbers.Integral) for length in value
    )


def _known_dtypes(model, read, count):
    """Returns a dtype for each of `count` inputs: the model's, by name or order, or the default."""
    try:
        model_inputs = model.inputs
    except AttributeError:  # a Sequential or a subclass that does not know its inputs
        model_inputs = []
    by_name = {tensor.name: tensor.dtype for tensor in model_inputs or ()}
    if isinstance(read, dict) and by_name.keys() >= read.keys():
        return [by_name[name] for name in sorted(read)]  # as Keras flattens a dict
    if model_inputs and len(model_inputs) == count:
        return [tensor.dtype for tensor in model_inputs]
    return [keras.config.floatx()] * count


def _filled(read, dtypes, batch_size, name):
    """Returns the structure with a `keras.KerasTensor` of known lengths for each leaf.

    Args:
        read: A structure of `_Leaf`s.
        dtypes: The dtypes of the leaves, in the order in which Keras flattens the structure.
        batch_size: The examples of the batch, for shapes whose first axis is None; or None.
        name: The name of the user's argument, for errors.

    Raises:
        ValueError: If a length is unknown, or not that of the batch.
    """

    def fill(leaf, dtype):
        shape = leaf.shape
        if not shape:
            raise ValueError(f"{name} has a shape (), without a batch axis: its first is the batch")
        if shape[0] is None:
            shape = (batch_size, *shape[1:])
        elif batch_size not in (None, shape[0]):
            raise ValueError(
                f"{name} has a shape {shape} and batch_size={batch_size}: the first axis is the "
                "batch, so leave batch_size out, or write None there"
            )
        if any(length is None or length < 1 for length in shape):
            raise ValueError(
                f"{name} has a shape {leaf.shape}: a TPU needs every length. Write the whole batch "
                "first, or None and batch_size=..., and a fixed length for every other axis"
            )
        return keras.KerasTensor(tuple(int(length) for length in shape), dtype)

    leaves = zip(keras.tree.flatten(read), dtypes, strict=True)
    return keras.tree.pack_sequence_as(read, [fill(*pair) for pair in leaves])
