"""Access to variables and optimizers of either Keras, and to what wraps an optimizer."""

from tf_lamb.core.patterns import stable_path, unique

# Of wrappers such as `LossScaleOptimizer`, and (tf-models-official 2.20.0) of averaging.
_NAMES = ("inner_optimizer", "_optimizer")


def unwrapped(optimizer, kind: type | tuple = ()):
    """The innermost optimizer of wrappers, or the first of a kind on the way there."""
    *_, last = _inwards(optimizer, kind)
    return last


def wrappers_of(optimizer) -> list:
    """What wraps an optimizer, outermost first."""
    *wrappers, _ = _inwards(optimizer, ())
    return wrappers


def _inwards(optimizer, kind):
    """The optimizer and what is inside, to the innermost, or the first of a kind."""
    while True:
        yield optimizer
        inner = [each for name in _NAMES if (each := getattr(optimizer, name, None)) is not None]
        if isinstance(optimizer, kind) or not inner:
            return
        optimizer = inner[0]


def inside(optimizer) -> list:
    """An optimizer and all that it wraps; of Keras's `MultiOptimizer`, each part."""
    wrapped = list(_inwards(optimizer, ()))
    parts = getattr(wrapped[-1], "optimizers", ())
    return [*wrapped, *(member for part in parts for member in inside(part))]


def is_ours(optimizer) -> bool:
    """Whether an optimizer, without what wraps it, is one of this package, in either Keras."""
    return hasattr(optimizer, "slots_of")


def path_of(variable) -> str:
    """`variable.path` in Keras 3; of a TensorFlow variable, its name without what varies."""
    if path := getattr(variable, "path", None):
        return path
    name = variable.name
    if hasattr(variable, "_sharded_container"):  # a part, on one of several parameter servers
        name = name.rpartition("/part_")[0]
    return stable_path(name)


def is_overwritten(variable) -> bool:
    """Whether its "gradient" is its next value, as of the scales of Keras 3's float8 layers."""
    return getattr(variable, "overwrite_with_gradient", False)


def names_of(variables) -> list[str]:
    """The path of each; a path that several have with its number, in this order."""
    return unique([path_of(v) for v in variables])


def variables_of(optimizer) -> list:
    """Its variables; those of tf_keras's wrappers and legacy optimizers are a method."""
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def step_of(optimizer) -> int:
    """The optimizer steps done; waits for the device."""
    return as_int(optimizer.iterations)


def waiting_in(optimizer) -> int:
    """The micro-batches that wait for the rest of their update; waits for the device."""
    storage = getattr(unwrapped(optimizer), "_storage", None)
    return as_int(storage.micro_step) if storage and storage.steps else 0


def as_int(scalar) -> int:
    """The number in a scalar, or in a variable of either Keras; waits for the device."""
    return int(value_of(scalar))


def root_mean_square(array) -> float:
    """Of all elements of a NumPy array, in float32 at least."""
    wide = array.astype("float64" if array.dtype == "float64" else "float32")
    return float((wide * wide).mean() ** 0.5)


def value_of(variable):
    """What a tensor, or a variable of either Keras, holds; waits for the device."""
    inner = getattr(variable, "value", None)  # of Keras 3's variable what its backend holds
    value = variable if inner is None or callable(inner) else inner
    if hasattr(value, "detach"):
        return _array_of_torch(value)
    return value.numpy() if hasattr(value, "numpy") else value


def _array_of_torch(tensor):
    """A copy; by `Variable.numpy()` Keras 3.15.1 does what NumPy 2 deprecates."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # which torch gives to NumPy in no way
        return tensor.float().numpy().astype("bfloat16")
    return tensor.numpy().copy()


def numpy_of(variable):
    """What a tensor, or a variable of either Keras, holds, as an array of NumPy's; a copy."""
    import numpy as np

    return np.array(value_of(variable))


class Snapshot:
    """Variables, and the values that they are to have again."""

    def __init__(self, variables, values=None):
        self.variables = list(variables)
        self.values = [numpy_of(v) for v in self.variables] if values is None else values

    def put_back(self) -> None:
        """Gives the variables these values."""
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)
