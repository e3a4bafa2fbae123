"""Rounds stochastically to bfloat16, in which slots may be stored.

Rounding to the nearest number would not do: an average that decays by 0.1 % a step would stand
still. The noise is computed in int32, which wraps around and is exact. So the noise is the same in
every framework, compiled or not, however an array is spread over devices, and in a resumed run.
"""

from math import prod

_LARGEST_BITS = 0x7F7F  # the bits of bfloat16's largest number; those of infinity are one more


def round_stochastically(xp, x, noise, bitcast):
    """Rounds x to one of its two neighbours in bfloat16, so that the mean over the noise is x.

    bfloat16 is the upper half of float32's bits, and numbers of one sign are in the order of their
    bits. Noise that is added to the lower half carries into the upper half with a probability that
    is the higher, the nearer x is to the neighbour of larger magnitude. Infinities and NaN stay as
    they are. A finite number beyond the largest of bfloat16 becomes that largest number.

    Args:
        xp: An array namespace.
        x: An array in float32.
        noise: The result of `rounding_noise` for its shape.
        bitcast: As in `step.step`.

    Returns:
        An array in bfloat16.
    """
    upper = xp.right_shift(bitcast(x, "int32") + noise, 16)  # the sign comes along
    upper = xp.where((upper & 0x7FFF) > _LARGEST_BITS, upper - 1, upper)
    neighbour = bitcast(xp.cast(upper, "int16"), "bfloat16")
    return xp.where(xp.isfinite(x), neighbour, xp.cast(x, "bfloat16"))


def rounding_noise(xp, shape, t, layer_number, slot):
    """Computes uniform random integers from 0 to 2^16 - 1, different for each step, layer and slot.

    Two slots share an array of random bits, of which each takes one half.

    Args:
        xp: An array namespace.
        shape: The shape of the noise, known while tracing.
        t: The number of the optimizer step, a scalar.
        layer_number: The number of the layer, a scalar.
        slot: The position of the slot in the layer, known while tracing.

    Returns:
        An array in int32.
    """
    pair, half_index = divmod(slot, 2)
    seed = _hash(xp, xp.reshape(xp.cast(t, "int32"), (1,)))
    seed = _hash(xp, seed + layer_number + 0x10000 * pair)
    bits = _hash(xp, _element_numbers(xp, shape, seed))
    return xp.reshape(xp.right_shift(bits, 16 * half_index) & 0xFFFF, shape)


def _element_numbers(xp, shape, start):
    """Returns, for each element of an array of this shape, its number, counted from `start`.

    The numbers are a sum with one term for each axis, so that each device can compute them for its
    own part of an array.
    """
    for axis, size in enumerate(shape):
        inner_shape = shape[axis + 1 :]
        offsets = xp.arange(size, dtype="int32") * prod(inner_shape)
        start = start + xp.reshape(offsets, (size, *(1 for _ in inner_shape)))
    return start


def _hash(xp, x):
    """Permutes the numbers of int32, so that each bit of the result depends on all bits of x.

    Source: `lowbias32` of Wellons, "Prospecting for hash functions" (2018).
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        x = (x ^ _logical_shift(xp, x, shift)) * factor
    return x ^ _logical_shift(xp, x, 16)


def _logical_shift(xp, x, bit_count):
    """Shifts bits to the right, with zeros in the place of the sign."""
    return xp.right_shift(x, bit_count) & ((1 << (32 - bit_count)) - 1)
