"""A batch of data by its shapes alone: what a model takes, and what its loss compares with."""

import contextlib
import numbers

import keras


def inputs(shapes, model, batch_size=None):
    """The model's inputs, as `keras.KerasTensor`s in the structure of the shapes.

    The model says the dtypes that the leaves leave out, if it knows its inputs.
    """
    read = _read(shapes, "input_shapes")
    flat = keras.tree.flatten(read)
    known = _known_dtypes(model, read, len(flat))
    dtypes = [leaf.dtype or dtype for leaf, dtype in zip(flat, known, strict=True)]
    return _filled(read, dtypes, batch_size, "input_shapes")


def targets(shapes, batch_size=None):
    """The targets of the loss, from shapes as those of the inputs; as a rule of floats."""
    read = _read(shapes, "target_shapes")
    dtypes = [leaf.dtype or keras.config.floatx() for leaf in keras.tree.flatten(read)]
    return _filled(read, dtypes, batch_size, "target_shapes")


def targets_of(loss, predictions):
    """The targets that the loss takes for such predictions, or an error where that is not known."""
    if loss is None:
        return None
    if isinstance(loss, dict) and isinstance(predictions, dict):
        return {name: targets_of(each, predictions[name]) for name, each in loss.items()}
    if isinstance(loss, (list, tuple)) and len(loss) == len(keras.tree.flatten(predictions)):
        each = zip(loss, keras.tree.flatten(predictions), strict=True)
        return [targets_of(one, prediction) for one, prediction in each]
    return keras.tree.map_structure(lambda each: _target_of(loss, each), predictions)


def _target_of(loss, prediction):
    """The first that one of Keras's own losses takes: what is like it, or numbers of classes."""
    import jax

    own = keras.losses.get(loss) if isinstance(loss, str) else loss
    if str(getattr(getattr(own, "fn", own), "__module__", None)).startswith("keras."):
        shape = prediction.shape
        for target in ((shape, keras.config.floatx()), (shape[:-1], "int32")):
            with contextlib.suppress(Exception):
                jax.eval_shape(own, jax.ShapeDtypeStruct(*target), prediction)
                return keras.KerasTensor(*target)
    raise ValueError(
        f"which targets the loss {loss!r} takes is not known: say target_shapes=..., whole batches "
        "as in input_shapes"
    )


def batch_of(specs) -> int:
    """The length of the first axis, which all have in common."""
    lengths = {spec.shape[0] for spec in keras.tree.flatten(specs)}
    if len(lengths) != 1:
        raise ValueError(
            "the first axis of every shape is the batch, and of one batch there is one length, not "
            f"{sorted(lengths)}: give the same first axis to all of input_shapes and target_shapes"
        )
    return lengths.pop()


def resized(specs, batch_size):
    """The same with another batch."""
    change = lambda s: keras.KerasTensor((batch_size, *s.shape[1:]), s.dtype)  # noqa: E731
    return keras.tree.map_structure(change, specs)


class _Leaf:
    """A shape and a dtype, if it is known; no structure to Keras."""

    def __init__(self, shape, dtype=None):
        self.shape = tuple(shape)
        self.dtype = dtype and keras.backend.standardize_dtype(dtype)


def _read(value, name):
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _Leaf(value.shape, value.dtype)
    if isinstance(value, dict) and value:
        return {key: _read(each, name) for key, each in value.items()}
    if _is_shape(value):
        return _Leaf(value)
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and _is_shape(value[0]) and isinstance(value[1], (str, type)):
            return _Leaf(*value)
        return [_read(each, name) for each in value]
    raise ValueError(
        f"{name}={value!r} is no shape of a whole batch: write (4096, 128), a list or a dict of "
        "such, or a pair such as ((4096, 128), 'int32')"
    )


def _is_shape(value):
    return isinstance(value, (list, tuple)) and all(
        length is None or isinstance(length, numbers.Integral) for length in value
    )


def _known_dtypes(model, read, count):
    """The dtypes of a model's own inputs by name or by place, else Keras's default."""
    try:
        own = model.inputs
    except AttributeError:  # a Sequential or a subclass that does not know them
        own = []
    by_name = {tensor.name: tensor.dtype for tensor in own or ()}
    if isinstance(read, dict) and by_name.keys() >= read.keys():
        return [by_name[name] for name in sorted(read)]  # as Keras flattens a dict
    if own and len(own) == count:
        return [tensor.dtype for tensor in own]
    return [keras.config.floatx()] * count


def _filled(read, dtypes, batch_size, name):
    """Every leaf as a `keras.KerasTensor` without unknown lengths."""

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
    return keras.tree.pack_sequence_as(read, [fill(*each) for each in leaves])
