"""Muon against the oracle, in NumPy."""

import itertools

import numpy as np
import pytest
from oracle import Muon
from support.cases import random_steps

from tf_lamb.core.rules import muon
from tf_lamb.core.rules.muon import Form
from tf_lamb.core.stacks import alone

_KEYS = ("wd", "nesterov", "scale", "mu")
CASES = [
    dict(zip(_KEYS, values, strict=True))
    for values in itertools.product((0.0, 0.3), (True, False), ("rms", "shape"), (0.95, 0.5))
]


def steps(w, gradients, *, wd=0.0, mu=0.95, scale="rms", rate=1.0, matrix=True, **arguments):
    """The weights after each step."""
    state = (w, np.zeros_like(w)) if matrix else (w, np.zeros_like(w), np.zeros_like(w))
    for t, g in enumerate(gradients, 1):
        step = muon(
            np, g, *state, lr=0.1, t=t, decay=wd, adapt=matrix, momentum=mu,
            form=Form(update_scale=scale, fallback_lr_scale=rate), **arguments,
        )  # fmt: skip
        state = alone(np, step)
        yield state[0]


@pytest.mark.parametrize("shape", [(4, 3), (3, 7), (5, 5)])
def test_a_matrix_is_the_oracles(shape):
    w, gradients = random_steps(shape, steps=5)
    for case in CASES:
        reference = Muon(w, lr=0.1, **case)
        for ours, g in zip(steps(w, gradients, **case), gradients, strict=True):
            np.testing.assert_allclose(ours, reference.step(g), rtol=1e-9, err_msg=str(case))


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_what_is_no_matrix_is_the_oracles(shape):
    w, gradients = random_steps(shape, steps=5)
    reference = Muon(w, lr=0.1, wd=0.3, matrix=False, rate=0.5, b1=0.8, b2=0.9)
    found = steps(w, gradients, wd=0.3, matrix=False, rate=0.5, beta_1=0.8, beta_2=0.9)
    for ours, g in zip(found, gradients, strict=True):
        np.testing.assert_allclose(ours, reference.step(g), rtol=1e-12)


def test_a_gradient_of_zeros_moves_what_decays_alone():
    w, _ = random_steps((4, 3))
    with np.errstate(all="raise"):
        (decayed,) = steps(w, np.zeros((1, 4, 3)), wd=0.3)
    np.testing.assert_allclose(decayed, 0.97 * w)
