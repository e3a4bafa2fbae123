"""Rounds stochastically to bfloat16, in which the slots of an optimizer may be stored.

Rounding to the nearest number does not work for moving averages: neighbours in bfloat16 differ by
0.4 to 0.8%, so an average that decays by 0.1% a step would never change. The noise is computed in
int32, where overflow wraps around and results are exact. Therefore the noise is the same in every
framework, compiled or not, for every distribution of an array over devices, and in a resumed run.
"""

from math import prod

_LARGEST_BITS = 0x7F7F  # the bits of bfloat16's largest finite number; plus 1, infinity's


def round_stochastically(xp, x, noise, bitcast):
    """Rounds x to one of its two neighbours in bfloat16, so that the mean over the noise is x.

    The bits of a bfloat16 number are the upper 16 of the 32 bits of the same number in float32. If
    these 16 bits are read as an integer, adding 1 gives the neighbour of larger magnitude. So a
    random integer is added to the 32 bits, and the lower 16 bits are dropped: the nearer x is to
    that neighbour, the more probable is a carry into the upper 16 bits. Infinities and NaN stay as
    they are. A finite number beyond the range of bfloat16 becomes its largest number, with the sign
    of x.

    Args:
        xp: An array namespace such as NumPy.
        x: An array in float32.
        noise: The result of `rounding_noise` for the shape of x.
        bitcast: A function of an array and the name of a dtype, which returns the same bits in that
            dtype.

    Returns:
        An array in bfloat16.
    """
    upper = xp.right_shift(bitcast(x, "int32") + noise, 16)  # an arithmetic shift keeps the sign
    upper = xp.where((upper & 0x7FFF) > _LARGEST_BITS, upper - 1, upper)
    neighbour = bitcast(xp.cast(upper, "int16"), "bfloat16")
    return xp.where(xp.isfinite(x), neighbour, xp.cast(x, "bfloat16"))


def rounding_noise(xp, shape, t, layer_number, slot):
    """Computes uniform random integers from 0 to 2^16 - 1, different for each step, layer and slot.

    Two slots share an array of random bits, of which each takes one half.

    Args:
        xp: An array namespace such as NumPy.
        shape: The shape of the noise, a tuple of Python integers.
        t: The number of the optimizer step, a scalar.
        layer_number: A number that no other layer of the model has, a scalar.
        slot: The position of the slot among those of the layer, a Python integer.

    Returns:
        An array in int32.
    """
    pair, half_index = divmod(slot, 2)
    seed = _hash(xp, xp.reshape(xp.cast(t, "int32"), (1,)))
    seed = _hash(xp, seed + layer_number + 0x10000 * pair)
    bits = _hash(xp, _element_numbers(xp, shape, seed))
    return xp.reshape(xp.right_shift(bits, 16 * half_index) & 0xFFFF, shape)


def _element_numbers(xp, shape, start):
    """Returns an int32 array of this shape whose elements are numbered, in order, from `start`.

    The numbers are computed as a sum with one term for each axis. Each device can compute them for
    its part of the array alone.
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
    """Shifts the bits of int32 numbers to the right, and fills in zeros from the left.

    The shift operator would fill in copies of the sign bit instead.
    """
    return xp.right_shift(x, bit_count) & ((1 << (32 - bit_count)) - 1)
