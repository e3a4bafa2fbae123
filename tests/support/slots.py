"""An optimizer with a slot that is no copy of its variable: (rows, rows), and begins as identity.

Of a matrix, a preconditioner from the left; of all else, momentum. Its arguments are Muon's.
"""

import functools

import numpy as np
from support.frontends import FRONTENDS

from tf_lamb.core import rules
from tf_lamb.core.step import Slot

# path -> shape, and the axes that are rows
VARIABLES = {
    "dense/kernel": ((4, 3), [0]),
    "square/kernel": ((3, 3), [0]),
    "turned/kernel": ((3, 5), [1]),
    "mixer/kernel": ((2, 4, 3), [2]),
    "dense/bias": ((3,), None),
}
ROWS = {"turned": 1, "mixer": 2}
MOMENTUM, RATE = 0.5, 0.125  # which float32 holds


@functools.wraps(rules.muon)
def preconditioned(xp, g, w, m, left=None, *, lr, momentum, adapt, **_):
    m = momentum * m + g
    if not adapt:
        return w - lr * m, m
    left = momentum * left + (1 - momentum) * (g @ xp.transpose(g))
    return w - lr * (left @ m), m, left


def make(frontend, rows=ROWS, **arguments):
    class Preconditioned(FRONTENDS[frontend][1].Muon):
        rule = staticmethod(preconditioned)

        def slots_of(self, treatment, shape):
            if not treatment.adapt:
                return [Slot("m")]
            size, _ = treatment.view
            return [Slot("m"), Slot("left", (size, size), "identity", "float32")]

    treatments = {pattern: {"rows": axes} for pattern, axes in (rows or {}).items()}
    return Preconditioned(RATE, MOMENTUM, treatments=treatments, **arguments)


def start(seed=0):
    rng = np.random.default_rng(seed)
    return {path: rng.normal(size=shape) for path, (shape, _) in VARIABLES.items()}


def matrix(path, array):
    """A variable as the rule sees it."""
    shape, rows = VARIABLES[path]
    if rows is None:
        return array
    first = np.moveaxis(array, rows, range(len(rows)))
    return first.reshape(np.prod([shape[axis] for axis in rows]), -1)


def expected(gradients, weights=None):
    """By path the weight as a matrix, m and left, after each of these gradients."""
    state = {}
    for path, w in (weights or start()).items():
        w = matrix(path, w)
        state[path] = (w, np.zeros_like(w), np.eye(len(w)))
    for each in gradients:
        for path, (w, m, left) in state.items():
            g = matrix(path, each[path])
            m = MOMENTUM * m + g
            if VARIABLES[path][1] is not None:
                left = MOMENTUM * left + (1 - MOMENTUM) * (g @ g.T)
                state[path] = (w - RATE * (left @ m), m, left)
            else:
                state[path] = (w - RATE * m, m, left)
        yield dict(state)
