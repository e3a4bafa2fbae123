"""The rules of decentralized training on four nodes, all of them at once."""

import functools

import numpy as np
import pytest
from support.decentralized import matrix_of

from tf_lamb_extras.decentralized import rules

pytestmark = pytest.mark.once

# The worked problem: f_i(x) = 0.5 sum a_i (x - c_i)^2 on four nodes, rate 0.05, momentum 0.9.
CURVATURE = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 2.0], [1.5, 1.0]])
CENTRE = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, -1.0], [2.0, 1.0]])
OPTIMUM = np.array([0.4, 2 / 9])

RULES = {
    "dsgd": lambda xp, g, w, v, **o: (*rules.dsgd(xp, g, w, **o), v),
    "dmsgd": functools.partial(rules.dmsgd, momentum=0.9),
    "decentlam": functools.partial(rules.decentlam, momentum=0.9),
}


def four_nodes(method, matrix, steps, rates=None, decay=0.0, rule=None):
    """Every x on the way; the rule sees all nodes at once, and `mix` is the matrix."""
    x, v, seen = np.zeros((4, 2)), np.zeros((4, 2)), []
    for t in range(steps):
        lr = rates[t] if rates else 0.05
        gradient = CURVATURE * (x - CENTRE)
        x, v = (rule or RULES[method])(
            np, gradient, x, v, lr=lr, decay=decay, mix=lambda z: matrix @ z
        )
        seen.append(x)
    return seen


LIMITS = [
    ("dsgd", "ring", 0.002819677939, [0.4116226442, 0.2748007694]),
    ("dmsgd", "ring", 0.1802280171, [0.4904458599, 0.7179487179]),
    ("decentlam", "ring", 0.002819677939, [0.4116226442, 0.2748007694]),
    # All-reduced momentum.
    ("dmsgd", "full", 0.0, [0.4, 2 / 9]),
    ("decentlam", "full", 0.0, [0.4, 2 / 9]),
]


@pytest.mark.parametrize(("method", "topology", "bias", "first"), LIMITS)
def test_the_worked_limits(method, topology, bias, first):
    x = four_nodes(method, matrix_of(topology), 2000)[-1]
    measured = np.mean(np.sum((x - OPTIMUM) ** 2, axis=1))
    np.testing.assert_allclose(measured, bias, rtol=1e-8, atol=1e-28)
    np.testing.assert_allclose(x[0], first, rtol=1e-9)


def papers(method, matrix, rates, decay, b=0.9):
    """The papers' recursions, in their letters; m is rescaled by a change of the rate."""
    x, m, seen, last = np.zeros((4, 2)), np.zeros((4, 2)), [], rates[0]
    for rate in rates:
        gradient = CURVATURE * (x - CENTRE) + decay * x
        m = m * last / rate
        if method == "decentlam":
            m = b * m + (x - matrix @ (x - rate * gradient)) / rate
            x = x - rate * m
        else:
            m = b * m + gradient
            x = matrix @ (x - rate * m)
        last = rate
        seen.append(x)
    return seen


@pytest.mark.parametrize("method", ["dmsgd", "decentlam"])
def test_a_schedule_rescales_the_papers_momentum_and_decay_is_of_the_gradient(method):
    rates = [0.01, 0.03, 0.05, 0.05, 0.02, 0.001]
    ring = matrix_of("ring")
    seen = four_nodes(method, ring, len(rates), rates, decay=0.3)
    np.testing.assert_allclose(seen, papers(method, ring, rates, 0.3), rtol=1e-12)


def test_decentlam_stands_still_at_a_rate_of_0():
    seen = four_nodes("decentlam", matrix_of("ring"), 5, [0.05, 0.05, 0.0, 0.0, 0.05])
    np.testing.assert_array_equal(seen[2], seen[1])
    np.testing.assert_array_equal(seen[3], seen[1])
    np.testing.assert_allclose(seen[4], four_nodes("decentlam", matrix_of("ring"), 3)[2])
