"""The array functions that update rules call on Keras 3: those of `keras.ops`, and a few others.

This module defines branches, matrix decompositions and bit casts itself, where those of `keras.ops`
are missing or do not fit. The docstrings give the reasons.
"""

import contextlib
import functools
import types

import keras
from keras import ops
from keras.ops import *  # noqa: F403

from tf_lamb.api.variables import value_of


def compute_dtype(dtype):
    """Returns the dtype in which a variable of a given dtype is updated.

    It is float64 for a float64 variable, and float32 for all others.
    """
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def native(variable):
    """Returns the `tf.Variable` inside a Keras variable on TensorFlow, for an update to assign to.

    On other backends, and for any other argument such as None, it returns its argument.
    """
    if variable is None or keras.backend.backend() != "tensorflow":
        return variable
    return variable.value if isinstance(variable, keras.Variable) else variable


def to_numpy(array):
    """Converts an array to NumPy, as `keras.ops.convert_to_numpy` does.

    On torch it avoids the call that NumPy 2 deprecates.
    """
    return value_of(array) if keras.backend.backend() == "torch" else ops.convert_to_numpy(array)


def dense(gradient, variable):
    """Returns a gradient as a dense tensor in the shape of its variable.

    Args:
        gradient: The gradient; that of an embedding may be sparse.
        variable: Its variable.
    """
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import dense

        return dense(gradient, variable)  # `ops` does not convert `IndexedSlices`
    return ops.convert_to_tensor(gradient, sparse=False)


def cond(condition, if_true, if_false):
    """Works as `keras.ops.cond`, but without compilation if the value of the condition is known.

    Args:
        condition: A boolean scalar.
        if_true, if_false: Functions without arguments that return arrays of the same shapes.
    """
    if (value := concrete_bool(condition)) is None:
        return ops.cond(condition, if_true, if_false)
    return if_true() if value else if_false()


def concrete_bool(condition):
    """Returns a condition as a Python bool if its value is known; None while a program is traced.

    With the bool, `cond` can do without a branch of a compiled program. JAX compiles a branch for
    each new pair of functions. An eager loop makes new functions in every step, so it would compile
    in every step, and keep every compiled program. On TensorFlow the result is always None, because
    an eager `tf.cond` calls one of its functions and compiles nothing.
    """
    if keras.backend.backend() == "tensorflow":
        return None
    if keras.backend.backend() == "jax":
        import jax

        if isinstance(condition, jax.core.Tracer):
            return None
    return bool(condition)


def bitcast(array, dtype):
    """Returns an array with the same bits in another dtype of the same size, on JAX and torch.

    It does not call `keras.ops.view`, which older versions of Keras 3 do not have.

    Args:
        array: The array.
        dtype: The name of the dtype.
    """
    array = ops.convert_to_tensor(array)
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.bitcast_convert_type(array, dtype)
    import torch

    return array.view(getattr(torch, dtype))


def _eigh(x):
    """Computes the eigenvalues, ascending, and the eigenvectors of a symmetric matrix.

    On a TPU with JAX it uses Jacobi's method, which compiles quickly: in 5 seconds for matrices of
    side 1,024, in 7 seconds for side 4,096. The compilation of JAX's default method for side 768
    had not ended after 100 seconds (jax 0.10.2). TensorFlow, and JAX before 0.8.1, do not let the
    caller choose the method on a TPU.

    Returns:
        The eigenvalues and the eigenvectors, which are the columns of a matrix.
    """
    if keras.backend.backend() == "jax":
        from jax.lax import linalg, platform_dependent

        if methods := getattr(linalg, "EighImplementation", None):
            eigh_by_jacobi = functools.partial(linalg.eigh, implementation=methods.JACOBI)
            vectors, values = platform_dependent(x, tpu=eigh_by_jacobi, default=linalg.eigh)
            return values, vectors
    return ops.eigh(x)


def _cholesky(x):
    """Computes the lower Cholesky factor of a symmetric matrix, on JAX and torch.

    For a matrix that is not positive definite, it returns an array that is not a factor of the
    matrix; `keras.ops.cholesky` would raise an error.
    """
    if keras.backend.backend() == "jax":
        import jax.numpy as jnp

        return jnp.linalg.cholesky(x)
    import torch

    return torch.linalg.cholesky_ex(x).L


def without_autocast():
    """Returns a context that switches `torch.autocast` off; on other backends it does nothing.

    Inside `torch.autocast`, torch computes products of float32 matrices in half precision.
    """
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.autocast(ops.convert_to_tensor(0.0).device.type, enabled=False)


def precise_matmul(x, y):
    """Computes x @ y in full float32 precision, which JAX by default reduces on GPUs and TPUs.

    Args:
        x, y: Matrices, or stacks of matrices.
    """
    if keras.backend.backend() == "jax":
        import jax.numpy as jnp

        return jnp.matmul(x, y, precision="highest")
    return x @ y


linalg = types.SimpleNamespace(
    eigh=_eigh, qr=ops.qr, cholesky=_cholesky, solve_triangular=ops.solve_triangular
)
