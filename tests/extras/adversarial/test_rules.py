"""The rule of concurrent adversarial training: the worked numbers, and where an attack may go."""

import numpy as np
import pytest
from support.adversarial import WORKED, X, Y, trained

from tf_lamb_extras.adversarial import rules

pytestmark = pytest.mark.once


def test_the_formula_has_the_worked_numbers():
    for found, expected in zip(trained([(X, Y)] * 3, tau=1), WORKED, strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


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
