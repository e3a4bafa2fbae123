"""`keras.ops.linalg` as rules see it."""

import functools

import keras
from keras.ops import eigh as keras_eigh
from keras.ops import qr as qr


def eigh(x):
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix.

    On a TPU by Jacobi's method: the TPU's compiler takes 5 seconds for it where a side is 1,024 and
    7 where it is 4,096, and had not finished JAX's default for 768 after 100 (jax 0.10.2).
    TensorFlow has no other method there. JAX before 0.8.1 has the default alone.
    """
    if keras.backend.backend() == "jax":
        from jax.lax import linalg, platform_dependent

        if methods := getattr(linalg, "EighImplementation", None):
            by_jacobi = functools.partial(linalg.eigh, implementation=methods.JACOBI)
            vectors, values = platform_dependent(x, tpu=by_jacobi, default=linalg.eigh)
            return values, vectors
    return keras_eigh(x)
