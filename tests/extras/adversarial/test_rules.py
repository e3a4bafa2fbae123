"""The rule of concurrent adversarial training: the worked numbers, and where an attack may go."""

import numpy as np
import pytest
from support.adversarial import B0, W0, WORKED, X, Y, errors, gradients

from tf_lamb_extras.adversarial import rules

pytestmark = pytest.mark.once

TOY = {"epsilon": 0.1, "step_size": 0.1, "steps": 1, "input_range": (-3, 3)}


def test_the_worked_numbers_in_float64():
    line, (w, b) = [(W0, B0)], (W0, B0)
    for expected_w, expected_b in WORKED:
        old_w, old_b = rules.stale(line, (w, b))
        adversarial = rules.attack(
            np, lambda x, w=old_w, b=old_b: errors(w, b, x, Y) @ w.T, X, X, **TOY
        )
        line = rules.delayed(line, (w, b))
        clean, wrong = gradients(w, b, X, Y), gradients(w, b, adversarial, Y)
        w = w - 0.1 * rules.weighted(clean[0], wrong[0], 0.5)
        b = b - 0.1 * rules.weighted(clean[1], wrong[1], 0.5)
        np.testing.assert_allclose(w, expected_w, rtol=1e-9)
        np.testing.assert_allclose(b, expected_b, rtol=1e-9)
    # Between t = 1 and 2 the sign of one pixel turns, as the parameters of t = 1 have it.
    assert adversarial[1, 0] == -0.9


def test_an_attack_stays_in_the_ball_and_in_the_range():
    random = np.random.default_rng(1)
    x = random.uniform(0, 1, (8, 4, 4, 3))
    begin = rules.start(np, x, random.uniform(-1, 1, x.shape), np.zeros((8, 1, 1, 1), bool), 0.2)
    assert np.abs(begin - x).max() > 0.19
    direction = random.normal(size=x.shape)
    settings = {"epsilon": 0.2, "step_size": 0.15, "input_range": (0, 1)}
    found = rules.attack(np, lambda _: direction, x, begin, steps=4, **settings)
    expected = np.clip(x + 0.2 * np.sign(direction), 0, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    still = rules.attack(np, np.zeros_like, x, x, steps=4, **settings)
    np.testing.assert_array_equal(still, x)  # sign(0) = 0


def test_an_attack_begins_at_the_image_where_it_is_told_to():
    x, noise = np.zeros((2, 1, 1, 1)), np.ones((2, 1, 1, 1))
    begin = rules.start(np, x, noise, np.array([True, False]).reshape(2, 1, 1, 1), 0.3)
    assert begin.ravel().tolist() == [0, 0.3]
