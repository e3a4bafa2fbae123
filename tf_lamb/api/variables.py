"""Reads variables and optimizers of Keras 3 and tf_keras; finds optimizers inside wrappers.

A wrapper is an optimizer around another one, such as `LossScaleOptimizer`.
"""

from tf_lamb.core.patterns import stable_path, unique_names

# The attributes in which wrappers hold the inner optimizer: the first in `LossScaleOptimizer`,
# `AdaScale` and others, the second in `ExponentialMovingAverage` of Model Garden
# (tf-models-official 2.20.0).
_INNER_ATTRIBUTES = ("inner_optimizer", "_optimizer")


def unwrapped(optimizer, kind: type | tuple = ()):
    """Returns the optimizer inside all wrappers, or the outermost one that is of class `kind`.

    Args:
        optimizer: An optimizer, or a wrapper.
        kind: A class, or a tuple of classes, at which to stop. Defaults to none.
    """
    *_, innermost = _walk_inward(optimizer, kind)
    return innermost


def wrappers_of(optimizer) -> list:
    """Returns the wrappers of an optimizer, outermost first."""
    *wrappers, _ = _walk_inward(optimizer, ())
    return wrappers


def _walk_inward(optimizer, kind):
    """Yields an optimizer, then the optimizer that it wraps, and so on inwards.

    It ends after the first optimizer of the class `kind`, or after one that wraps no other.
    """
    while True:
        yield optimizer
        inner = [
            candidate
            for name in _INNER_ATTRIBUTES
            if (candidate := getattr(optimizer, name, None)) is not None
        ]
        if isinstance(optimizer, kind) or not inner:
            return
        optimizer = inner[0]


def optimizers_inside(optimizer) -> list:
    """Returns an optimizer and all optimizers inside it, also the parts of a `MultiOptimizer`."""
    wrapped = list(_walk_inward(optimizer, ()))
    parts = getattr(wrapped[-1], "optimizers", ())
    return [*wrapped, *(member for part in parts for member in optimizers_inside(part))]


def is_ours(optimizer) -> bool:
    """Returns whether an optimizer is one of this package, for either Keras; False for wrappers."""
    return hasattr(optimizer, "slots_of")


def our_optimizer(optimizer, callback: str, subject: str):
    """Returns the optimizer of this package inside its wrappers.

    Args:
        optimizer: An optimizer, or a wrapper.
        callback: The name of the callback that needs it, for the error.
        subject: What the callback does, and with which optimizers, for the error.

    Raises:
        TypeError: if the innermost optimizer is not one of this package.
    """
    innermost = unwrapped(optimizer)
    if not is_ours(innermost):
        raise TypeError(
            f"{callback} {subject}, not {type(innermost).__module__}."
            f"{type(innermost).__qualname__}: compile with one of them, or leave {callback} out."
        )
    return innermost


def path_of(variable) -> str:
    """Returns the path of a variable.

    For a variable of Keras 3 it is `variable.path`. For one of TensorFlow it is `variable.name`
    without the parts of the name that differ between replicas or between shards.
    """
    if path := getattr(variable, "path", None):
        return path
    name = variable.name
    if hasattr(variable, "_sharded_container"):  # a shard on one of several parameter servers
        name = name.rpartition("/part_")[0]
    return stable_path(name)


def is_overwritten(variable) -> bool:
    """Returns whether Keras assigns the "gradient" of a variable to it, as its next value.

    It does so for the scales of Keras 3's float8 layers.
    """
    return getattr(variable, "overwrite_with_gradient", False)


def names_of(variables) -> list[str]:
    """Returns the path of each variable, with a number added if several variables have it."""
    return unique_names([path_of(variable) for variable in variables])


def variables_of(optimizer) -> list:
    """Returns the variables of an optimizer.

    In tf_keras's wrappers and legacy optimizers `variables` is a method.
    """
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def step_of(optimizer) -> int:
    """Returns the number of optimizer steps done; waits for the device."""
    return as_int(optimizer.iterations)


def waiting_micro_batches(optimizer) -> int:
    """Returns the number of micro-batches whose gradients wait for the next update.

    It waits for the device.
    """
    storage = getattr(unwrapped(optimizer), "_storage", None)
    return as_int(storage.micro_step) if storage and storage.micro_batches else 0


def as_int(scalar) -> int:
    """Returns a scalar, or a variable of either Keras, as an int; waits for the device."""
    return int(value_of(scalar))


def root_mean_square(array) -> float:
    """Returns the root of the mean square of a NumPy array, computed in float32 at least."""
    wide = array.astype("float64" if array.dtype == "float64" else "float32")
    return float((wide * wide).mean() ** 0.5)


def value_of(variable):
    """Returns the value of a tensor, or of a variable of either Keras; waits for the device.

    It is a NumPy array on TensorFlow and torch; an array of JAX is returned as it is.
    """
    inner = getattr(variable, "value", None)  # the backend's tensor in a variable of Keras 3
    value = variable if inner is None or callable(inner) else inner
    if hasattr(value, "detach"):
        return _array_of_torch(value)
    return value.numpy() if hasattr(value, "numpy") else value


def _array_of_torch(tensor):
    """Returns a NumPy copy of a tensor of torch.

    `Variable.numpy()` of Keras 3.15.1 is not used, because on torch it causes a deprecation warning
    of NumPy 2.
    """
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # torch cannot convert it to NumPy
        return tensor.float().numpy().astype("bfloat16")
    return tensor.numpy().copy()


def numpy_of(variable):
    """Returns a NumPy copy of a tensor, or of a variable of either Keras."""
    import numpy as np

    return np.array(value_of(variable))


class Snapshot:
    """Holds variables, and values that `put_back` assigns to them.

    Args:
        variables: Variables of either Keras.
        values: Their values. Defaults to None: copies of the present ones.

    Attributes:
        variables: The variables, as a list.
        values: A value for each variable, in the same order.
    """

    def __init__(self, variables, values=None):
        self.variables = list(variables)
        self.values = (
            [numpy_of(variable) for variable in self.variables] if values is None else values
        )

    def put_back(self) -> None:
        """Assigns the values to the variables."""
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)
