"""Eigenvectors by the method that a TPU's compiler is done with soon; elsewhere Keras's own."""

import keras
import pytest

from tf_lamb.keras.arrays import linalg


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="it is JAX that has two methods")
def test_on_a_tpu_they_are_jacobis():
    import jax

    if not hasattr(jax.lax.linalg, "EighImplementation"):
        pytest.skip("JAX before 0.8.1 has one method")
    given = jax.ShapeDtypeStruct((300, 300), "float32")
    traced = [jax.jit(each).trace(given) for each in (linalg.eigh, keras.ops.eigh)]
    own, of_keras = (each.lower(lowering_platforms=("tpu",)).as_text() for each in traced)
    assert own.count("@Eigh") == 1 and "while" not in own
    assert "while" in of_keras  # it splits the spectrum, again and again
    on_cpu = traced[0].lower(lowering_platforms=("cpu",)).as_text()
    assert "@Eigh" not in on_cpu and "lapack" in on_cpu
