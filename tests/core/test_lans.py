"""LANS against the oracle, in NumPy."""

import itertools

import numpy as np
import pytest
from oracle import Lans
from support.cases import random_steps

from tf_lamb.core.rules import lans

CASES = [{"wd": wd, "skip": skip} for wd in (0.0, 0.3) for skip in (False, True)]
HYPER = {"b1": "beta_1", "b2": "beta_2", "eps": "epsilon"}  # the oracle's names, and ours


def steps(w, gradients, *, wd=0.0, skip=False, **arguments):
    """The weights after each step."""
    state = (w, np.zeros_like(w), np.zeros_like(w))
    for t, g in enumerate(gradients, 1):
        state = lans(np, g, *state, lr=0.1, t=t, decay=wd, adapt=not skip, **arguments)
        yield state[0]


def test_lans_is_the_oracle():
    w, gradients = random_steps((4, 3), steps=5)
    for case, hyper in itertools.product(CASES, ({}, {"b1": 0.8, "b2": 0.95, "eps": 0.1})):
        reference = Lans(w, lr=0.1, **case, **hyper)
        own = case | {HYPER[name]: value for name, value in hyper.items()}
        for ours, g in zip(steps(w, gradients, **own), gradients, strict=True):
            np.testing.assert_allclose(
                ours, reference.step(g), rtol=1e-12, atol=1e-14, err_msg=str(own)
            )


def test_a_gradient_of_zeros_moves_what_decays_alone():
    w, _ = random_steps((4, 3))
    zeros = np.zeros((1, 4, 3))
    with np.errstate(all="raise"):
        (still,), (decayed,) = (list(steps(w, zeros, wd=wd)) for wd in (0.0, 0.3))
    np.testing.assert_array_equal(still, w)
    np.testing.assert_allclose(decayed, 0.9 * w)


@pytest.mark.parametrize("cut", [0, 1])
def test_a_slice_is_a_layer(cut):
    w, gradients = random_steps((4, 3))
    *_, whole = steps(w, gradients, wd=0.3, axes=(1 - cut,))
    for i in range(w.shape[cut]):
        *_, alone = steps(w.take(i, cut), gradients.take(i, cut + 1), wd=0.3)
        np.testing.assert_allclose(whole.take(i, cut), alone, rtol=1e-12)


def test_the_ratio_on_show_is_of_the_momentum():
    w, gradients = random_steps((4, 3), steps=2)
    seen, reference = [], Lans(w, lr=0.1, wd=0.3)
    list(steps(w, gradients, wd=0.3, observe=lambda *shown: seen.append(shown)))
    for shown, g in zip(seen, gradients, strict=True):
        reference.step(g)
        np.testing.assert_allclose(shown[:3], reference.seen, rtol=1e-12)
