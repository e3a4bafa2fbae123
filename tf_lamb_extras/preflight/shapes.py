"""Describes a batch of data by its shapes alone: a model's inputs, and the targets of its loss."""

import contextlib
import numbers

import keras


def inputs(shapes, model, batch_size=None):
    """Returns the model's inputs, as `keras.KerasTensor`s in the structure of the shapes.

    Args:
        shapes: The argument `input_shapes` of `preflight`: a shape, or a list or dict of shapes.
        model: The model. If it knows its inputs, their dtypes are used where the shapes have none.
        batch_size: The examples of the batch, for shapes whose first axis is None. Defaults to
            None.

    Raises:
        ValueError: If something that is no shape is in place of a shape, or a shape is incomplete.
    """
    leaves = _read(shapes, "input_shapes")
    flat = keras.tree.flatten(leaves)
    known_dtypes = _known_dtypes(model, leaves, len(flat))
    dtypes = [leaf.dtype or dtype for leaf, dtype in zip(flat, known_dtypes, strict=True)]
    return _filled(leaves, dtypes, batch_size, "input_shapes")


def targets(shapes, batch_size=None):
    """Returns the targets of the loss, as `keras.KerasTensor`s.

    A target whose dtype is not given has Keras's default dtype of floats.

    Args:
        shapes: The argument `target_shapes` of `preflight`: a shape, or a list or dict of shapes.
        batch_size: The examples of the batch, for shapes whose first axis is None. Defaults to
            None.

    Raises:
        ValueError: If something that is no shape is in place of a shape, or a shape is incomplete.
    """
    leaves = _read(shapes, "target_shapes")
    dtypes = [leaf.dtype or keras.config.floatx() for leaf in keras.tree.flatten(leaves)]
    return _filled(leaves, dtypes, batch_size, "target_shapes")


def targets_of(loss, predictions):
    """Returns the targets that the loss takes for these predictions, as `keras.KerasTensor`s.

    Args:
        loss: A loss, as for `compile`; None gives no targets.
        predictions: The model's predictions, as objects with a shape and a dtype.

    Raises:
        ValueError: If the targets are not known, because the loss is not one of Keras's or does not
            take these predictions.
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
    """Returns the target that a loss of Keras takes for a prediction, as a `keras.KerasTensor`.

    Two targets are tried, and the first that the loss accepts is returned: floats in the shape of
    the prediction, and then class indices, which are integers in this shape without its last axis.

    Args:
        loss: The loss, as for `compile`.
        prediction: An object with the shape and the dtype of the prediction.

    Raises:
        ValueError: If the loss accepts neither, or is not one of Keras's.
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
    """Returns the batch size, the length of all first axes; raises ValueError if they differ."""
    lengths = {spec.shape[0] for spec in keras.tree.flatten(specs)}
    if len(lengths) != 1:
        raise ValueError(
            "the first axis of every shape is the batch, and of one batch there is one length, not "
            f"{sorted(lengths)}: give the same first axis to all of input_shapes and target_shapes"
        )
    return lengths.pop()


def resized(specs, batch_size):
    """Returns the same shapes with another batch size, in the same structure.

    Args:
        specs: A structure of `keras.KerasTensor`s.
        batch_size: The examples of the batch.
    """
    resize = lambda spec: keras.KerasTensor((batch_size, *spec.shape[1:]), spec.dtype)  # noqa: E731
    return keras.tree.map_structure(resize, specs)


class _Leaf:
    """Holds a shape, and its dtype if it is known.

    It is a class of its own because `keras.tree` would flatten a tuple of lengths.
    """

    def __init__(self, shape, dtype=None):
        self.shape = tuple(shape)
        self.dtype = dtype and keras.backend.standardize_dtype(dtype)


def _read(value, name):
    """Returns the user's shapes in the same structure, with a `_Leaf` in place of each shape.

    Args:
        value: The user's argument, or a part of it.
        name: The name of the argument, for the error.

    Raises:
        ValueError: For anything that is neither a shape nor a list or dict of shapes.
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
    """Returns whether a value is a list or tuple of integers, or of None for unknown lengths."""
    return isinstance(value, (list, tuple)) and all(
        length is None or isinstance(length, numbers.Integral) for length in value
    )


def _known_dtypes(model, read, count):
    """Returns a dtype for each of the user's shapes.

    It is the dtype of the model's input with the same name, or else with the same position. If the
    model does not know its inputs, it is Keras's default dtype of floats.

    Args:
        model: The model.
        read: The user's shapes, a structure of `_Leaf`s.
        count: The number of shapes.
    """
    try:
        model_inputs = model.inputs
    except AttributeError:  # a Sequential or a subclass that does not know its inputs
        model_inputs = []
    by_name = {tensor.name: tensor.dtype for tensor in model_inputs or ()}
    if isinstance(read, dict) and by_name.keys() >= read.keys():
        return [by_name[name] for name in sorted(read)]  # Keras flattens a dict in this order
    if model_inputs and len(model_inputs) == count:
        return [tensor.dtype for tensor in model_inputs]
    return [keras.config.floatx()] * count


def _filled(read, dtypes, batch_size, name):
    """Returns the shapes in the same structure, as `keras.KerasTensor`s without unknown lengths.

    Args:
        read: A structure of `_Leaf`s.
        dtypes: The dtypes of the leaves, in the order in which Keras flattens the structure.
        batch_size: The examples of the batch, for shapes whose first axis is None; or None.
        name: The name of the user's argument, for errors.

    Raises:
        ValueError: If a shape has no axis, if a length is unknown or below 1, or if the first
            length of a shape differs from `batch_size`.
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
