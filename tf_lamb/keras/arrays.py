"""Arrays as rules see them: `keras.ops`, with branches, decompositions and bits of our own."""

import contextlib
import functools
import types

import keras
from keras import ops
from keras.ops import *  # noqa: F403

from tf_lamb.api.variables import value_of


def compute_dtype(dtype):
    """Rules compute, and slots are kept, in float32; in float64 for float64 variables."""
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def native(variable):
    """The variable that an update works on: TensorFlow's own for a Keras variable on TensorFlow."""
    if variable is None or keras.backend.backend() != "tensorflow":
        return variable
    return variable.value if isinstance(variable, keras.Variable) else variable


def to_numpy(array):
    """Works as `keras.ops.convert_to_numpy`, which does what NumPy 2 deprecates on torch."""
    return value_of(array) if keras.backend.backend() == "torch" else ops.convert_to_numpy(array)


def dense(gradient, variable):
    """The gradient as a tensor in the shape of its variable, an embedding's, too."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import dense

        return dense(gradient, variable)  # `ops` leaves `IndexedSlices` as they are
    return ops.convert_to_tensor(gradient, sparse=False)


def cond(condition, yes, no):
    """Works as `keras.ops.cond`; where the condition is known, only its branch runs."""
    if (due := concrete_bool(condition)) is None:
        return ops.cond(condition, yes, no)
    return yes() if due else no()


def concrete_bool(condition):
    """True or False where the condition has a value by now; None in a program that is traced.

    A branch of JAX is compiled anew for each pair of functions: an eager loop would do so, and keep
    what it compiled, in every step. TensorFlow sees to that by itself.
    """
    if keras.backend.backend() == "tensorflow":
        return None
    if keras.backend.backend() == "jax":
        import jax

        if isinstance(condition, jax.core.Tracer):
            return None
    return bool(condition)


def bitcast(array, dtype):
    """The same bits in another dtype of the same size, on JAX and torch.

    Seam: Keras 3.15.1. `ops.view` would do it, which older versions have not.
    """
    array = ops.convert_to_tensor(array)
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.bitcast_convert_type(array, dtype)
    import torch

    return array.view(getattr(torch, dtype))


def _eigh(x):
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
    return ops.eigh(x)


def _cholesky(x):
    """The lower factor; where there is none, what is no factor: `keras.ops.cholesky` raises."""
    if keras.backend.backend() == "jax":
        import jax.numpy as jnp

        return jnp.linalg.cholesky(x)
    import torch

    return torch.linalg.cholesky_ex(x).L


def uncast():
    """A context in which torch casts nothing by itself, as it does inside of `torch.autocast`.

    There it would take products in half precision, whatever the dtype of the matrices is.
    """
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.autocast(ops.convert_to_tensor(0.0).device.type, enabled=False)


def precise(x, y):
    """x @ y with all digits of float32."""
    if keras.backend.backend() == "jax":
        import jax.numpy as jnp

        return jnp.matmul(x, y, precision="highest")
    return x @ y


linalg = types.SimpleNamespace(
    eigh=_eigh, qr=ops.qr, cholesky=_cholesky, solve_triangular=ops.solve_triangular
)
