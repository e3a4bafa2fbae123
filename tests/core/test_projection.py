"""AdamP and SGDP against the oracle, in NumPy: what is projected, and on which axes."""

import itertools

import numpy as np
import pytest
from oracle import AdamP
from support.cases import random_steps

from tf_lamb.core import layouts
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import adamp, sgdp

CASES = [
    {"shape": shape, "wd": wd, "nesterov": nesterov}
    for shape, wd, nesterov in itertools.product(
        ((6, 3), (3, 3, 2, 4), (5,), (1, 4)), (0.0, 0.1), (False, True)
    )
]


def orthogonal(w, g, view):
    """g without its part along w: in each channel, in the whole, or as it is."""
    if view == "channel":
        axes = tuple(range(w.ndim - 1))
        return g - w * np.sum(w * g, axis=axes) / np.sum(w * w, axis=axes)
    return g - w * np.sum(w * g) / np.sum(w * w) if view == "layer" else g


def check(rule, shape, wd, nesterov, channel_axes=1):
    """Four steps beside the oracle's; returns by what decay shrank in each."""
    w, gradients = random_steps(shape)
    sgd = rule is sgdp
    reference = AdamP(w, wd=wd, nesterov=nesterov, sgd=sgd, channel_axes=channel_axes)
    state = (w, *(np.zeros_like(w) for _ in range(1 if sgd else 2)))
    axes = tuple(range(w.ndim - channel_axes)) if w.ndim > 1 else None
    views = ("channel", "none", "layer", "channel")
    for t, (g, view) in enumerate(zip(gradients, views, strict=True), 1):
        g = orthogonal(state[0], g, view) if w.ndim > 1 and channel_axes == 1 else g
        state = rule(
            np, g, *state, lr=0.1, t=t, decay=wd, adapt=True, axes=axes, nesterov=nesterov,
        )  # fmt: skip
        np.testing.assert_allclose(
            state[0], reference.step(g, 0.1), rtol=1e-10, atol=1e-12,
            err_msg=f"{shape}, decay {wd}, nesterov {nesterov}",
        )  # fmt: skip
    return reference.ratios


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str([*case.values()]))


def assert_oracle(rule, case):
    ratios = check(rule, **case)
    if case["shape"] == (6, 3):  # each view has had its turn
        assert ratios == [0.1, 1.0, 0.1, 0.1]


@every_case
def test_adamp_is_the_oracle(case):
    assert_oracle(adamp, case)


@every_case
def test_sgdp_is_the_oracle(case):
    assert_oracle(sgdp, case)


@pytest.mark.parametrize("rule", [adamp, sgdp])
def test_depthwise_kernels_have_their_channels_on_two_axes(rule):
    check(rule, (3, 3, 2, 2), wd=0.1, nesterov=False, channel_axes=2)


def test_a_depthwise_layer_is_one_whatever_its_capitals():
    (found,) = plan_for(
        ["DepthwiseConv_1/kernel"], [(3, 3, 2, 2)], layout=layouts.channels
    ).treatments
    assert found.axes == (0, 1)


def test_norms_run_over_all_axes_but_those_of_channels():
    paths = ["conv/kernel", "depthwise_conv/kernel", "mixer/kernel", "dense/kernel", "dense/bias"]
    shapes = [(3, 3, 2, 4), (3, 3, 2, 2), (3, 3, 2, 2), (6, 3), (3,)]
    treatments = {"mixer": {"depthwise": True}, "^conv": {"depthwise": False}}
    found = plan_for(paths, shapes, treatments=treatments, layout=layouts.channels).treatments
    axes = [treatment.axes for treatment in found]
    assert axes == [(0, 1, 2), (0, 1), (0, 1), (0,), None]
