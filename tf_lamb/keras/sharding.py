"""Layouts of an update's arrays on the mesh of `keras.distribution`: on JAX alone.

`shard_update` gives each device of the data axis a share of whatever accompanies a variable, and of
the work (Xu et al., arXiv 2004.13336). Gradients of replicas that are not summed yet have one more
axis in front, which the data axis splits.

Seam into Keras 3 (3.12.0 to 3.15.1): `Variable._layout`, which is None without a distribution.
"""

import math

import keras
from keras.distribution import TensorLayout

from tf_lamb.api.variables import names_of
from tf_lamb.core.messages import warn

_LARGE = 0.01  # of all parameters


def is_distributed():
    """Whether `keras.distribution` is in force, which trains on JAX alone."""
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is not None


def data_axis(what):
    """The distribution in force, the name of its data axis, and how many devices that has.

    Raises:
        ValueError: where there is none, for what would need one.
    """
    if not is_distributed():
        backend = keras.backend.backend()
        why = "there is no distribution" if backend == "jax" else f"Keras runs on {backend!r}"
        raise ValueError(
            f"{what} needs Keras's JAX backend and several devices, and {why}: call keras."
            "distribution.set_distribution(keras.distribution.DataParallel()) before the model is "
            "made, or leave it out."
        )
    distribution = keras.distribution.distribution()
    mesh, name = distribution.device_mesh, distribution.batch_dim_name
    return distribution, name, mesh.shape[list(mesh.axis_names).index(name)]


def axes_of(variable):
    """The axis of the mesh that splits each axis of a variable, or None."""
    layout = getattr(variable, "_layout", None)
    given = getattr(layout, "axes", None) or getattr(layout, "spec", None)  # Keras's, or JAX's
    axes = list(given or ())
    return axes + [None] * (len(variable.shape) - len(axes))


def is_split(variables):
    """Whether any of them lies in parts on several devices."""
    return any(axis is not None for v in variables for axis in axes_of(v))


class Shares:
    """The layouts of `shard_update`: the first axis that divides is split along the data axis.

    Args:
        variables: all that the optimizer is built for.

    Raises:
        ValueError: without a distribution, or where no variable has an axis that divides.
    """

    def __init__(self, variables):
        self._distribution, self._name, self._devices = data_axis("shard_update=True")
        whole = [v for v in variables if self._name not in self._axes(v)]
        self._check(whole, variables)

    def _check(self, whole, variables):
        if len(whole) == len(variables) and self._devices > 1:
            raise ValueError(
                f"shard_update=True has nothing to share out: no axis of any variable divides by "
                f"the {self._devices} devices of the data axis {self._name!r}. Leave it out."
            )
        sizes = {n: math.prod(v.shape) for n, v in zip(names_of(whole), whole, strict=True)}
        least = _LARGE * sum(math.prod(v.shape) for v in variables)
        if large := {path: size for path, size in sizes.items() if size > least}:
            named = ", ".join(f"{path} ({size:,} parameters)" for path, size in large.items())
            warn(
                f"shard_update=True leaves what accompanies {named} whole on each of the "
                f"{self._devices} devices, 4 bytes a parameter and slot: no axis of it divides by "
                f"{self._devices}. Pad it to a multiple, or train on another number of devices."
            )

    def layout(self, variable, shape=None):
        """The layout of a variable's slots; of those of another shape where that is given."""
        axes = self._axes(variable, shape)
        return TensorLayout(axes, self._distribution.device_mesh)

    def _axes(self, variable, shape=None):
        axes = axes_of(variable) if shape is None else [None] * len(shape)
        return _shared(variable.shape if shape is None else shape, axes, self._name, self._devices)


def _shared(shape, axes, name, devices):
    """The axes with the first that divides split along the data axis, if none is by now."""
    axes = list(axes)
    for i, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        if name not in axes and axis is None and size and size % devices == 0:
            axes[i] = name
    return axes


def replicated(rank):
    """The layout of an array that each device has whole; None without a distribution."""
    if not is_distributed():
        return None
    return TensorLayout([None] * rank, keras.distribution.distribution().device_mesh)


def is_on_cpus():
    """Whether the devices are processors; those to compile for may be none of this machine."""
    return "cpu" in str(keras.distribution.distribution().device_mesh.devices.flat[0]).lower()


def devices():
    """How many the data axis has; 1 without a distribution."""
    return data_axis("")[2] if is_distributed() else 1


def dealt(function, is_shared):
    """The function of stacks, with each device of the data axis at work on some of the members.

    A member is whole on its device: no product is split, and none is made twice. Each result is
    exchanged once. Zeros fill a stack up until the devices divide it.

    Args:
        is_shared: whether a device has, and gets, its share of each member; else all members whole.
    """
    distribution, name, n = data_axis("a stack")

    def laid_out(stack, axes):
        layout = TensorLayout(axes, distribution.device_mesh)
        return keras.distribution.distribute_tensor(stack, layout)

    def as_stored(stack):
        axes = [None] * len(stack.shape)
        if is_shared:
            axes[1:] = _shared(stack.shape[1:], axes[1:], name, n)
        return laid_out(stack, axes)

    def of_members(xp, *stacks, **settings):
        count = stacks[0].shape[0]

        def deal(stack):
            others = len(stack.shape) - 1
            filled = keras.ops.pad(stack, [(0, -count % n), *[(0, 0)] * others])
            # As stored at first: XLA would split whole members, to exchange the parts.
            return laid_out(as_stored(filled), [name, *[None] * others])

        return [as_stored(each)[:count] for each in function(xp, *map(deal, stacks), **settings)]

    return of_members


def per_replica_layout(variable):
    """The layout of an array with one part for each device of the data axis, on a first axis."""
    distribution, name, _ = data_axis("per_replica()")
    axes = [None if axis == name else axis for axis in axes_of(variable)]
    return TensorLayout([name, *axes], distribution.device_mesh)


def fitting(own, part, value):
    """The sums of other replicas, for as many as there are now; None if it is something else.

    Their sum is what counts, and it is all the same which of them has it.
    """
    rank = len(part.shape)
    if any(tuple(v.shape)[len(v.shape) - rank :] != part.shape for v in (own, value)):
        return None
    total = value.sum(axis=0) if value.ndim > rank else value
    if len(own.shape) == rank:
        return total
    parts = keras.ops.convert_to_numpy(keras.ops.zeros(own.shape, own.dtype)).copy()
    parts[0] = total
    return parts


def like(variable, array):
    """The array, laid out as the variable is."""
    array = keras.ops.convert_to_tensor(array)
    return keras.distribution.distribute_tensor(array, variable._layout)


def all_gathered(variable, shares, scalar):
    """The shares of a variable's new value, gathered; the scalar is any that the program is given.

    Where a collective itself writes a donated variable, libtpu copies the old value before it and
    the new one after it.
    """
    import jax

    array, scalar = like(variable, shares), keras.ops.convert_to_tensor(scalar)
    if not isinstance(scalar, jax.core.Tracer):
        return array

    def opaque_zero(scalar):  # which XLA cannot know before it has the scalar
        bits = jax.lax.bitcast_convert_type(scalar.astype("float32"), "int32")
        return ((bits >> 31) & (~bits >> 31)).astype(array.dtype)

    return jax.lax.platform_dependent(
        array, scalar, tpu=lambda array, scalar: array + opaque_zero(scalar),
        default=lambda array, scalar: array,
    )  # fmt: skip
