"""Splits the arrays of an update over the mesh of `keras.distribution`, on JAX alone.

With `shard_update`, each device of the data axis stores a share of the arrays that the optimizer
keeps for a variable, and computes that share of the update (Xu et al., arXiv 2004.13336). With
`per_replica`, the gradients of all replicas are stacked on a first axis, which is split along the
data axis.

Seam (private API) of Keras 3 (3.12.0 to 3.15.1): `Variable._layout`, which is None without a
distribution.
"""

import math

import keras
from keras.distribution import TensorLayout

from tf_lamb.api.variables import is_overwritten, names_of, path_of
from tf_lamb.core.messages import warn

# A variable that cannot be split causes a warning if it has more than this fraction of all
# parameters.
_WARNED_FRACTION = 0.01


def is_distributed():
    """Returns whether Keras runs on JAX and a `keras.distribution` is set."""
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is not None


def data_axis(caller):
    """Returns the distribution that is set, the name of its data axis, and its number of devices.

    Args:
        caller: The function or argument that needs the distribution, for the message.

    Raises:
        ValueError: If no distribution is set, or Keras does not run on JAX.
    """
    if not is_distributed():
        backend = keras.backend.backend()
        reason = "there is no distribution" if backend == "jax" else f"Keras runs on {backend!r}"
        raise ValueError(
            f"{caller} needs Keras's JAX backend and several devices, and {reason}: call keras."
            "distribution.set_distribution(keras.distribution.DataParallel()) before the model is "
            "made, or leave it out."
        )
    distribution = keras.distribution.distribution()
    mesh, name = distribution.device_mesh, distribution.batch_dim_name
    return distribution, name, mesh.shape[list(mesh.axis_names).index(name)]


def axes_of(variable):
    """Returns, for each axis of a variable, the axis of the mesh that splits it, or None."""
    layout = getattr(variable, "_layout", None)
    # The layout is a `TensorLayout` of Keras, which has `axes`, or a sharding of JAX, with `spec`.
    spec = getattr(layout, "axes", None) or getattr(layout, "spec", None)
    axes = list(spec or ())
    return axes + [None] * (len(variable.shape) - len(axes))


def is_split(variables):
    """Returns whether any of the variables is split over devices."""
    return any(axis is not None for variable in variables for axis in axes_of(variable))


def check_whole(variables, name):
    """Raises if a variable is split over devices on torch.

    On torch, Keras 3.16 makes a `DTensor` of each variable that `ModelParallel` splits, and torch's
    FSDP makes one of every weight. The optimizer does not support these, because it would have to
    gather a weight from all processes wherever it reads its value. With `DataParallel` variables
    are plain tensors, and their gradients are summed before the step.

    Args:
        variables: The variables to build for.
        name: The name of the optimizer, for the message.

    Raises:
        ValueError: If a variable is a `DTensor`.
    """
    if keras.backend.backend() != "torch":
        return
    for variable in variables:
        if hasattr(variable.value, "placements"):  # only torch's `DTensor` has this attribute
            raise ValueError(
                f"{name} takes whole variables on torch, and {path_of(variable)!r} is a DTensor, "
                "whose parts may lie in several processes: set keras.distribution.DataParallel() "
                "before the model is made, or train with ModelParallel on JAX. No step was taken."
            )


class Shares:
    """Makes the layouts of `shard_update`, which split one axis of an array along the data axis.

    The axis is the first one whose length is a multiple of the number of devices and that the
    model does not split already.

    Args:
        variables: All variables that the optimizer is built for.

    Raises:
        ValueError: If there is no distribution, or no variable has an axis that the devices divide.
    """

    def __init__(self, variables):
        self._distribution, self._axis_name, self._device_count = data_axis("shard_update=True")
        unshared = [
            variable for variable in variables if self._axis_name not in self._axes(variable)
        ]
        self._check_can_split(unshared, variables)

    def _check_can_split(self, unshared, variables):
        """Raises if no variable can be split, and warns of large variables that cannot.

        Args:
            unshared: The variables that cannot be split.
            variables: All variables.

        Raises:
            ValueError: If no variable can be split, and there are several devices.
        """
        if len(unshared) == len(variables) and self._device_count > 1:
            raise ValueError(
                "shard_update=True has nothing to share out: no axis of any variable divides by "
                f"the {self._device_count} devices of the data axis {self._axis_name!r}. Leave it "
                "out."
            )
        sizes = {
            name: math.prod(variable.shape)
            for name, variable in zip(names_of(unshared), unshared, strict=True)
        }
        threshold = _WARNED_FRACTION * sum(math.prod(variable.shape) for variable in variables)
        if large := {path: size for path, size in sizes.items() if size > threshold}:
            description = ", ".join(f"{path} ({size:,} parameters)" for path, size in large.items())
            warn(
                f"shard_update=True leaves what accompanies {description} whole on each of the "
                f"{self._device_count} devices, 4 bytes a parameter and slot: no axis of it "
                f"divides by {self._device_count}. Pad it to a multiple, or train on another "
                "number of devices."
            )

    def layout(self, variable, shape=None):
        """Returns the layout of the slots of a variable.

        Args:
            variable: The variable.
            shape: The shape of the slots; None is that of the variable.
        """
        axes = self._axes(variable, shape)
        return TensorLayout(axes, self._distribution.device_mesh)

    def _axes(self, variable, shape=None):
        """Returns how the slots of a variable are split over the mesh of devices.

        The result has an entry for each axis of the slots: the name of the mesh axis that splits
        it, or None. `shape` is the shape of the slots; None is that of the variable.
        """
        axes = axes_of(variable) if shape is None else [None] * len(shape)
        return _split_first_axis(
            variable.shape if shape is None else shape, axes, self._axis_name, self._device_count
        )


def _split_first_axis(shape, axes, name, device_count):
    """Returns how to split an array along the data axis of the mesh.

    It splits the first axis that is not split yet and whose length the devices divide. If an axis
    is already split along the data axis, nothing changes.

    Args:
        shape: The shape of the array.
        axes: For each axis of the array, the axis of the mesh that splits it, or None.
        name: The name of the data axis.
        device_count: The number of devices of the data axis.

    Returns:
        The new `axes`.
    """
    axes = list(axes)
    for i, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        if name not in axes and axis is None and size and size % device_count == 0:
            axes[i] = name
    return axes


def replicated_layout(rank):
    """Returns the layout of an array that each device has whole; None without a distribution."""
    if not is_distributed():
        return None
    return TensorLayout([None] * rank, keras.distribution.distribution().device_mesh)


def is_on_cpus():
    """Returns whether the devices of the mesh are CPUs.

    They may be devices of another machine, for which this process only compiles.
    """
    return "cpu" in str(keras.distribution.distribution().device_mesh.devices.flat[0]).lower()


def device_count():
    """Returns the number of devices of the data axis; 1 without a distribution."""
    return data_axis("")[2] if is_distributed() else 1


def distribute_stacks(function, is_shared):
    """Wraps a function of stacked matrices, so that each device works on some of the matrices.

    The devices are those of the data axis. Each matrix is whole on one device, so no product is
    split or computed twice. Each result is sent to the other devices once. The stack is padded with
    zeros to a multiple of the number of devices.

    Args:
        function: The function of stacks, see `core/stacks.py`.
        is_shared: Whether each device stores a share of every matrix, in the arguments as well as
            in the results. If not, each device stores every matrix whole.
    """
    distribution, name, device_count = data_axis("a stack")

    def distribute(stack, axes):
        layout = TensorLayout(axes, distribution.device_mesh)
        return keras.distribution.distribute_tensor(stack, layout)

    def distribute_as_stored(stack):
        axes = [None] * len(stack.shape)
        if is_shared:
            axes[1:] = _split_first_axis(stack.shape[1:], axes[1:], name, device_count)
        return distribute(stack, axes)

    def distributed_function(xp, *stacks, **settings):
        matrix_count = stacks[0].shape[0]

        def distribute_to_devices(stack):
            rest_rank = len(stack.shape) - 1
            padded = keras.ops.pad(
                stack, [(0, -matrix_count % device_count), *[(0, 0)] * rest_rank]
            )
            # The stack first gets the layout in which its matrices are stored. Otherwise XLA would
            # split matrices that are whole on every device, to exchange their parts.
            return distribute(distribute_as_stored(padded), [name, *[None] * rest_rank])

        return [
            distribute_as_stored(result)[:matrix_count]
            for result in function(xp, *map(distribute_to_devices, stacks), **settings)
        ]

    return distributed_function


def layout_and_shape(variable, name, shape, shares, replicas):
    """Returns the layout and the shape of an array that the optimizer keeps for a variable.

    Args:
        variable: The variable.
        name: The name of the array, such as "m", or "gradient_accumulator", as Keras has it.
        shape: The shape of the array; None is that of the variable.
        shares: The `Shares` of the optimizer; None without `shard_update`.
        replicas: The number of replicas whose gradients are stacked on a first axis; 1 if gradients
            are already summed over replicas.

    Returns:
        A pair: the layout, which is None without a distribution; and the shape.
    """
    layout = getattr(variable, "_layout", None)
    if is_overwritten(variable):
        pass  # its accumulator is a maximum, not a sum, so it stays whole on each device
    elif replicas > 1 and name == "gradient_accumulator":  # seam: the name that Keras gives it
        return per_replica_layout(variable), (replicas, *variable.shape)
    elif shares:
        layout = shares.layout(variable, shape)
    elif shape is not None:
        layout = replicated_layout(len(shape))
    return layout, variable.shape if shape is None else shape


def per_replica_layout(variable):
    """Returns the layout of an array with one part per device of the data axis, on a first axis."""
    distribution, name, _ = data_axis("per_replica()")
    axes = [None if axis == name else axis for axis in axes_of(variable)]
    return TensorLayout([name, *axes], distribution.device_mesh)


def convert_gradient_sums(accumulator, part, value):
    """Converts saved gradient sums, one for each replica, to another number of replicas.

    An update only uses their total, so the first replica gets it, and the others get zeros.

    Args:
        accumulator: The accumulator of this optimizer.
        part: The `named.Part` of the variable whose gradients are added up in `accumulator`.
        value: The saved array.

    Returns:
        The new value of the accumulator; None if the shapes are not those of gradient sums.
    """
    rank = len(part.shape)
    if any(
        tuple(array.shape)[len(array.shape) - rank :] != part.shape
        for array in (accumulator, value)
    ):
        return None
    total = value.sum(axis=0) if value.ndim > rank else value
    if len(accumulator.shape) == rank:
        return total
    parts = keras.ops.convert_to_numpy(keras.ops.zeros(accumulator.shape, accumulator.dtype)).copy()
    parts[0] = total
    return parts


def with_layout_of(variable, array):
    """Returns an array with the sharding of a variable.

    Args:
        variable: The variable.
        array: The array, of the same rank.
    """
    array = keras.ops.convert_to_tensor(array)
    return keras.distribution.distribute_tensor(array, variable._layout)


def gather_shares(variable, shares, scalar):
    """Gathers the shares of a variable's new value, and returns it in the variable's layout.

    On TPUs, a zero is added to the gathered array. Without the addition, the gathering would write
    directly into the donated buffer of the variable, and libtpu would copy the old value before it
    and the new value after it.

    Args:
        variable: The variable.
        shares: The new value, of which each device has a share.
        scalar: Any scalar that is an argument of the compiled program. The zero is computed from
            it, so that XLA cannot remove the addition.
    """
    import jax

    array, scalar = with_layout_of(variable, shares), keras.ops.convert_to_tensor(scalar)
    if not isinstance(scalar, jax.core.Tracer):
        return array

    # The result is 0, because `bits` or `~bits` has a sign bit of 0. XLA does not find that out, so
    # it does not remove the addition.
    def opaque_zero(scalar):
        bits = jax.lax.bitcast_convert_type(scalar.astype("float32"), "int32")
        return ((bits >> 31) & (~bits >> 31)).astype(array.dtype)

    return jax.lax.platform_dependent(
        array, scalar, tpu=lambda array, scalar: array + opaque_zero(scalar),
        default=lambda array, scalar: array,
    )  # fmt: skip
