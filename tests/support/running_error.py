"""How far arithmetic in a given precision can be from the exact result, found by running it.

A `Tracked` number is computed in float64 and carries a bound on the error that the same operations,
in the same order, make in a lower precision: half a unit in the last place of each result, and what
errors of the operands become (Higham, Accuracy and Stability of Numerical Algorithms, 3.3). A rule
takes its array namespace first, so it runs on tracked numbers as it stands: each of its forms has a
bound of its own, that counts its operations and the elements of its sums.
"""

import dataclasses

import ml_dtypes
import numpy as np


class Doubt(Exception):
    """A branch whose condition lies within the error, or a number beyond all that is promised."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """Half a unit in the last place of 1, and the largest number that may be taken for zero."""

    unit: float
    tiny: float
    dtype: type


FLOAT32 = Precision(2.0**-24, 2.0**-126, np.float32)
FLOAT64 = Precision(2.0**-53, 2.0**-1022, np.float64)
_LIBRARY = 8  # units of expm1, which libraries do not round correctly; Eigen's is the worst


class Tracked:
    """A float64 array, and a bound on the error of each element."""

    __array_ufunc__ = None  # NumPy's operators leave it to ours

    def __init__(self, value, error=0.0, precision=FLOAT32):
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)
        self.precision = precision

    shape = property(lambda self: self.value.shape)

    def _rounded(self, value, error, units=1):
        value = np.asarray(value)
        precision = self.precision
        last = units * precision.unit * (np.abs(value) + error) + precision.tiny
        exact = (value == 0) & (error == 0)
        return Tracked(value, np.where(exact, 0.0, error + last), precision)

    def _of(self, other):
        """A number is what the precision makes of it."""
        if isinstance(other, Tracked):
            return other
        value = np.asarray(other, np.float64)
        with np.errstate(over="ignore"):
            error = np.abs(value.astype(self.precision.dtype).astype(np.float64) - value)
        return Tracked(value, error, self.precision)

    def __add__(self, other):
        other = self._of(other)
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other):
        return self + -self._of(other)

    def __rsub__(self, other):
        return self._of(other) - self

    def __neg__(self):
        return Tracked(-self.value, self.error, self.precision)

    def __mul__(self, other):
        other = self._of(other)
        error = np.abs(self.value) * other.error + self.error * (np.abs(other.value) + other.error)
        return self._rounded(self.value * other.value, error)

    def __truediv__(self, other):
        other = self._of(other)
        quotient = self.value / other.value
        error = (self.error + np.abs(quotient) * other.error) / other.least()
        exact = (self.value == 0) & (self.error == 0)
        return self._rounded(quotient, np.where(exact, 0.0, error))

    def __rtruediv__(self, other):
        return self._of(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def least(self):
        """The smallest absolute value that it may have; a division by what may be 0 is a doubt."""
        least = np.abs(self.value) - self.error
        if np.any((least <= 0) & (self.error > 0)):
            raise Doubt
        return least

    def _compared(self, other, compare):
        other = self._of(other)
        close = np.abs(self.value - other.value) <= self.error + other.error
        if np.any(close & (self.error + other.error > 0)):
            raise Doubt
        return compare(self.value, other.value)

    def __gt__(self, other):
        return self._compared(other, np.greater)

    def __lt__(self, other):
        return self._compared(other, np.less)


def _lift(function):
    """The larger or the smaller of two: its own error, unless it could be either."""

    def lifted(a, b):
        a = a if isinstance(a, Tracked) else b._of(a)
        b = a._of(b)
        value, either = function(a.value, b.value), np.maximum(a.error, b.error)
        own = np.where(value == a.value, a.error, b.error)
        apart = np.abs(a.value - b.value) > a.error + b.error
        return Tracked(value, np.where(apart, own, either), a.precision)

    return lifted


class Namespace:
    """What rules take for NumPy."""

    maximum = staticmethod(_lift(np.maximum))
    minimum = staticmethod(_lift(np.minimum))
    logical_not = staticmethod(np.logical_not)

    @staticmethod
    def isfinite(x):
        return np.isfinite(x.value)

    @staticmethod
    def abs(x):
        return Tracked(np.abs(x.value), x.error, x.precision)

    @staticmethod
    def square(x):
        return x * x

    @staticmethod
    def sqrt(x):
        root, low = np.sqrt(x.value), np.sqrt(np.maximum(x.value - x.error, 0))
        return x._rounded(root, root - low)

    @staticmethod
    def expm1(x):
        error = x.error * np.exp(x.value + x.error)
        return x._rounded(np.expm1(x.value), error, _LIBRARY)

    @staticmethod
    def sum(x, axis=None, keepdims=False):
        """In any order: each element is rounded once for each of the others."""
        value = np.sum(x.value, axis=axis, keepdims=keepdims)
        error = np.sum(x.error, axis=axis, keepdims=keepdims)
        size = np.sum(np.abs(x.value) + x.error, axis=axis, keepdims=keepdims)
        count = max(x.value.size // max(np.size(value), 1) - 1, 0)
        return Tracked(value, error + count * x.precision.unit * size, x.precision)

    @staticmethod
    def max(x, axis=None, keepdims=False):
        value = np.max(x.value, axis=axis, keepdims=keepdims)
        return Tracked(value, np.max(x.error, axis=axis, keepdims=keepdims), x.precision)

    @staticmethod
    def ones_like(x):
        return Tracked(np.ones_like(x.value), 0.0, x.precision)

    @staticmethod
    def where(condition, a, b):
        one = a if isinstance(a, Tracked) else b
        if not isinstance(one, Tracked):
            one = Tracked(0.0)
        a, b = one._of(a), one._of(b)
        value = np.where(condition, a.value, b.value)
        return Tracked(value, np.where(condition, a.error, b.error), one.precision)

    @staticmethod
    def reshape(x, shape):
        return Tracked(np.reshape(x.value, shape), np.reshape(x.error, shape), x.precision)


def ulps(difference, magnitude, dtype):
    """A difference in units in the last place that numbers of this magnitude have."""
    magnitude = np.maximum(np.abs(magnitude), ml_dtypes.finfo(dtype).tiny).astype(dtype)
    return np.abs(difference) / np.spacing(magnitude).astype(np.float64)
