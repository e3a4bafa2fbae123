"""Stochastic rounding to bfloat16, in which a slot may be kept.

An average that decays by 0.1 % a step stands still in bfloat16 when it is rounded to the nearest.

All is arithmetic of int32, which wraps around and is exact: the same in every framework, compiled
or not, however an array is spread over devices, and in a run that is resumed.
"""

from math import prod

_LARGEST = 0x7F7F  # the bits of bfloat16's largest number; those of infinity are one more


def stochastic(xp, x, noise, bitcast):
    """One of the two neighbours of x in bfloat16, so that the mean over the noise is x.

    bfloat16 is the upper half of float32's bits, and numbers of one sign are in the order of their
    bits. Noise that is added to the lower half carries into the upper one as often as x is near to
    the neighbour of the larger magnitude.

    Infinities and NaN stay as they are. What is finite stays finite: unlike rounding to the
    nearest, what is beyond the largest number of bfloat16 becomes that number.

    Args:
        x: float32.
        noise: int32, uniform from 0 to 2^16 - 1, of the shape of x.
        bitcast: takes an array and the name of a dtype, and gives the same bits in that dtype.
    """
    upper = xp.right_shift(bitcast(x, "int32") + noise, 16)  # the sign comes along
    upper = xp.where((upper & 0x7FFF) > _LARGEST, upper - 1, upper)
    neighbour = bitcast(xp.cast(upper, "int16"), "bfloat16")
    return xp.where(xp.isfinite(x), neighbour, xp.cast(x, "bfloat16"))


def noise(xp, shape, t, number, slot):
    """Uniform numbers from 0 to 2^16 - 1 in int32: another array for each step, layer and slot.

    Two slots share an array of random bits, and have a half of each.

    Args:
        shape: known while tracing.
        t, number: int32 scalars, which tell steps and layers.
        slot: the position of the slot in its layer, a Python int.
    """
    pair, half = divmod(slot, 2)
    seed = _mixed(xp, xp.reshape(xp.cast(t, "int32"), (1,)))
    seed = _mixed(xp, seed + number + 0x10000 * pair)
    bits = _mixed(xp, _positions(xp, shape, seed))
    return xp.reshape(xp.right_shift(bits, 16 * half) & 0xFFFF, shape)


def _positions(xp, shape, start):
    """Numbers the elements of an array, from the start on.

    As a sum over axes, so that each of several devices that share an array numbers its own part.
    """
    for axis, size in enumerate(shape):
        inner = shape[axis + 1 :]
        own = xp.arange(size, dtype="int32") * prod(inner)
        start = start + xp.reshape(own, (size, *(1 for _ in inner)))
    return start


def _mixed(xp, x):
    """A permutation of int32 of which each bit of the result depends on all bits of x.

    Source: `lowbias32` of Wellons, "Prospecting for hash functions" (2018).
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        x = (x ^ _logical_shift(xp, x, shift)) * factor
    return x ^ _logical_shift(xp, x, 16)


def _logical_shift(xp, x, by):
    return xp.right_shift(x, by) & ((1 << (32 - by)) - 1)
