"""What steps yield is worked out in stacks, and each is sent its own part."""

import numpy as np
import pytest
from support.cases import random_steps

from tf_lamb.core.rules import muon
from tf_lamb.core.stacks import run_batched, run_single, transposed

SHAPES = [(4, 3), (3, 4), (4, 3), (2, 2), (4, 3)]


def step(shape, number, **arguments):
    """A step of Muon, of a rate and a decay that no other has."""
    w, gradients = random_steps(shape, steps=2, seed=number)
    g, m = gradients
    return muon(np, g, w, m, lr=0.1 * number, t=1, decay=0.01 * number, adapt=True, **arguments)


def test_steps_come_to_what_they_come_to_alone():
    numbered = list(enumerate(SHAPES, 1))
    stacked = run_batched(np, [step(shape, i) for i, shape in numbered])
    for (i, shape), (w, m) in zip(numbered, stacked, strict=True):
        own_w, own_m = run_single(np, step(shape, i))
        np.testing.assert_allclose(w, own_w, rtol=1e-12)
        np.testing.assert_array_equal(m, own_m)


def test_a_matrix_that_is_not_finite_is_its_own_affair():
    def steps():
        return [step((4, 3), i) for i in (1, 2, 3)]

    def spoilt(step):
        function, (u,), settings = next(step)
        x = yield function, (u * np.nan,), settings
        try:
            step.send(x)
        except StopIteration as end:
            return end.value

    first, second, third = steps()
    with np.errstate(invalid="ignore"):
        found = run_batched(np, [first, spoilt(second), third])
    assert np.all(np.isnan(found[1][0]))
    for i in (0, 2):
        np.testing.assert_allclose(found[i][0], run_single(np, steps()[i])[0], rtol=1e-12)


def test_what_has_one_shape_and_dtype_is_one_call():
    calls = []

    def doubled(xp, x, *, times):
        calls.append((x.shape, x.dtype.name))
        return [times * x]

    def asks(x):
        (first,) = yield doubled, (x,), {"times": 2}
        (second,) = yield doubled, (x + 1,), {"times": 2}
        return first + second

    arrays = [np.ones((2, 3)), np.ones((2, 3), "float32"), np.ones((3, 2)), np.zeros((2, 3))]
    found = run_batched(np, list(map(asks, arrays)))
    for x, y in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(y, 4 * x + 2)
    one_round = [((2, 2, 3), "float64"), ((2, 3), "float32"), ((3, 2), "float64")]
    assert calls == one_round * 2


def test_what_is_asked_otherwise_is_another_call():
    def scaled(xp, x, *, times):
        return [times * x]

    def asks(times):
        return (yield scaled, (np.ones((2, 2)),), {"times": times})

    found = run_batched(np, [asks(2), asks(3), asks(2)])
    assert [float(x[0, 0]) for (x,) in found] == [2, 3, 2]


@pytest.mark.parametrize("of", [(3, 4), (2, 3, 4), (5, 2, 3, 4)])
def test_the_last_two_axes_are_exchanged(of):
    x = np.arange(np.prod(of)).reshape(of)
    np.testing.assert_array_equal(transposed(np, x), np.swapaxes(x, -1, -2))
