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

WORKED = {
    "dsgd": [
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.05944444444, .06097222222], [-.005694444444, .02125], [.03763888889, .01638888889],
         [.1031944444, -.0006944444444]],
        [[.08226736111, .07632523148], [.01268171296, .03146180556], [.05900925926, .02809259259],
         [.1295416667, .007846064815]],
    ],
    "dmsgd": [
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.08944444444, .1059722222], [-.02069444444, .02125], [.05263888889, .03138888889],
         [.1631944444, -.01569444444]],
        [[.1612673611, .1715752315], [-.006068287037, .04971180556], [.1052592593, .05609259259],
         [.2742916667, -.006903935185]],
    ],
    "dmsgd_awc": [
        [[.05, 0], [-.1, .1], [0, -.1], [.15, .05]],
        [[.1258333333, .05], [-.1966666667, .185], [.01666666667, -.1633333333],
         [.3404166667, .07583333333]],
        [[.2168194444, .1023611111], [-.2603888889, .2811388889], [.05305555556, -.2131666667],
         [.5318159722, .1169583333]],
    ],
    "decentlam": [
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.08944444444, .1059722222], [-.02069444444, .02125], [.05263888889, .03138888889],
         [.1631944444, -.01569444444]],
        [[.1562673611, .1365752315], [.01893171296, .06971180556], [.1102592593, .04109259259],
         [.2492916667, .02309606481]],
    ],
}  # fmt: skip

RULES = {
    "dsgd": lambda xp, g, w, v, **o: (*rules.dsgd(xp, g, w, **o), v),
    "dmsgd": functools.partial(rules.dmsgd, momentum=0.9),
    "dmsgd_awc": functools.partial(rules.dmsgd, momentum=0.9, order="adapt_with_combine"),
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


@pytest.mark.parametrize("method", WORKED)
def test_the_worked_steps(method):
    seen = four_nodes(method, matrix_of("ring"), 3)
    np.testing.assert_allclose(seen, WORKED[method], rtol=1e-9, atol=1e-16)


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
            x = matrix @ (x - rate * m) if method == "dmsgd" else matrix @ x - rate * m
        last = rate
        seen.append(x)
    return seen


@pytest.mark.parametrize("method", ["dmsgd", "dmsgd_awc", "decentlam"])
def test_a_schedule_rescales_the_papers_momentum_and_decay_is_of_the_gradient(method):
    rates = [0.01, 0.03, 0.05, 0.05, 0.02, 0.001]
    ring = matrix_of("ring")
    seen = four_nodes(method, ring, len(rates), rates, decay=0.3)
    np.testing.assert_allclose(seen, papers(method, ring, rates, 0.3), rtol=1e-12)


def test_decentlam_stands_still_at_a_rate_of_0():
    seen = four_nodes("decentlam", matrix_of("ring"), 5, [0.05, 0.05, 0.0, 0.0, 0.05])
    np.testing.assert_array_equal(seen[2], seen[1])
    np.testing.assert_array_equal(seen[3], seen[1])
    np.testing.assert_allclose(seen[4], WORKED["decentlam"][2], rtol=1e-9)
