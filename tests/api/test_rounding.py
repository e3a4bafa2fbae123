"""Slots in bfloat16: right for every number, on every backend, over long runs with rare rows."""

import keras
import ml_dtypes
import numpy as np
import pytest
from support.frontends import (
    BACKEND,
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    uncompiled,
)

from tf_lamb.core import rounding


class NumPy:
    """NumPy with the casts that frameworks have."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def cast(x, dtype):
        with np.errstate(invalid="ignore"):
            return np.asarray(x).astype(dtype)


def host():
    """The namespace of the backend, what gives its bits, and what compiles a function or not."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        from tf_lamb.tensorflow import namespace

        compiled = (lambda f: tf.function(f, jit_compile=True), tf.function, lambda f: f)
        return namespace, namespace.bitcast, compiled
    from tf_lamb.keras.arrays import bitcast

    if BACKEND == "jax":
        import jax

        return keras.ops, bitcast, (jax.jit, lambda f: f)
    return keras.ops, bitcast, (lambda f: f,)


def numbers():
    """Of each exponent and sign, denormals and NaN among them, and the corners."""
    bits = np.random.default_rng(0).integers(2**32, size=20_000, dtype="uint32")
    corners = [0, 1, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0x7F7F0000, 0x7F7FFFFF, 0x7F800000]
    corners += [0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    return np.concatenate([bits, corners, np.array(corners) | 2**31]).astype("uint32")


def same_bits(one, other):
    """But that any NaN is as good as another."""
    one, other = (np.asarray(each).astype("float32") for each in (one, other))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(*(np.signbit(each[~np.isnan(other)]) for each in (one, other)))


def test_every_number_is_rounded_as_in_numpy():
    bits = numbers()
    noise = np.random.default_rng(1).integers(2**16, size=bits.shape, dtype="int32")
    expected = rounding.round_stochastically(
        NumPy(), bits.view("float32"), noise, lambda x, dtype: np.asarray(x).view(dtype)
    )
    xp, bitcast, compiled = host()
    tensor = keras.ops.convert_to_tensor

    def rounded(bits, noise):
        result = rounding.round_stochastically(xp, bitcast(bits, "float32"), noise, bitcast)
        return bitcast(result, "int16")

    for compile_ in compiled:
        found = compile_(rounded)(tensor(bits.view("int32")), tensor(noise))
        same_bits(array(found).view(ml_dtypes.bfloat16), expected)


@pytest.mark.parametrize("t", [1, 2**31 - 1], ids=["the first step", "the last step"])
@pytest.mark.parametrize("shape", [(), (5,), (30, 70), (3, 4, 5)], ids=str)
def test_noise_is_that_of_numpy(shape, t):
    xp, _, compiled = host()

    def drawn(t):
        return rounding.rounding_noise(xp, shape, t, 5, 3)

    for compile_ in compiled:
        found = array(compile_(drawn)(keras.ops.convert_to_tensor(t, "int32")))
        assert found.dtype == "int32"
        np.testing.assert_array_equal(
            found, rounding.rounding_noise(NumPy(), shape, np.int32(t), 5, 3), strict=True
        )


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon", "SOAP"])
@uncompiled()
def test_a_row_without_a_gradient_keeps_its_weight_and_loses_its_moments(frontend, name):
    """However small these are: a moment of a row that is never seen halves every seven steps."""
    exponents = np.arange(-149, 60)
    start = np.ones((len(exponents), 4))
    optimizer = getattr(FRONTENDS[frontend][1], name)(1e-3, dtypes={"slots": "bfloat16"})
    variable = new_variable(frontend, start, path="bias")
    optimizer.build([variable, new_variable(frontend, np.ones((2, 2)), path="kernel")])
    before = np.broadcast_to(2.0 ** exponents[:, None], start.shape)
    for slot in optimizer.state_of(0).values():
        slot.assign(before)
    apply(optimizer, [np.zeros(start.shape)], [variable])
    assert np.isfinite(array(variable)).all()
    for slot in optimizer.state_of(0).values():
        after = array(slot).astype("float64")
        # Some frameworks make zeros of denormals.
        assert (after <= before).all() if name != "Muon" else np.isfinite(after).all()
        assert (after >= np.where(before < 2.0**-120, 0, before / 4)).all()
