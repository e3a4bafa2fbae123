"""Properties of any case that hypothesis finds, in NumPy: the oracle to the last places, and
invariants.

`benchmarks/properties.py` runs the same properties on twenty times as many cases.
"""

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import frobenius
from support import property_cases as properties
from support.property_cases import cases

from tf_lamb.core import layouts
from tf_lamb.core.plan import Treatment, plan_for
from tf_lamb.core.rules.lamb import Bounds


@st.composite
def rule_cases(draw, family):
    shape = draw(properties.SHAPES)
    treatment, channel_axes = draw(properties.treatments(family, shape))
    opts = draw(properties.options(family))
    w, g, earlier = (draw(properties.values(shape)) for _ in range(3))
    state = [w, *properties.history(family, earlier, opts)]
    lr, t = np.float32(draw(properties.RATES)), draw(properties.STEPS)
    return treatment, channel_axes, g, state, {"lr": lr, "t": t, "opts": opts}


@pytest.mark.parametrize("family", properties.RULES)
def test_a_rule_in_float32_is_the_oracle_to_the_last_places(family):
    @cases(60)
    @given(rule_cases(family))
    def check(case):
        treatment, channel_axes, g, state, scalars = case
        exact = properties.oracle_of(family, treatment, channel_axes, g, state, scalars)
        bound = properties.tracked(family, treatment, g, state, **scalars)
        properties.well_conditioned(state[0], exact[0], bound[0])
        scalars["t"] = np.float32(scalars["t"])
        got = properties.one_step(np, family, treatment, g, state, **scalars)
        assert all(array.dtype == np.float32 for array in got)
        properties.compare(f"{family}, the rule", got, exact, bound, state[0])
        properties.held(f"{family}, the rule")

    check()


# -- invariants -----------------------------------------------------------------------------------

DECAY = st.just(0.0) | st.floats(1e-6, 0.1)
PLAIN = {
    "beta_1": 0.9, "beta_2": 0.999, "bias_correction": True,
    "weight_decay_mode": "update",
}  # fmt: skip


@st.composite
def lamb_cases(draw, nonzero=False):
    """A first step in float32: weights, gradients, learning rate and the options that matter."""
    shape = draw(properties.SHAPES.filter(lambda shape: 0 not in shape))
    w, g = (draw(properties.values(shape, 2.0**-20, 2.0**20)) for _ in range(2))
    if nonzero:
        g = np.where(g == 0, np.float32(1), g)
    return w, g, np.float32(draw(properties.RATES)), PLAIN


def assert_identical(one, other):
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def first_step(w, g, lr, opts, decay=0.0, dtype=np.float32):
    zero = np.zeros(w.shape, dtype)
    arrays = [np.asarray(array, dtype) for array in (g, w)]
    scalars = {"lr": dtype(lr), "t": dtype(1), "opts": opts}
    return properties.one_step(
        np, "LAMB", Treatment(decay=decay), arrays[0], [arrays[1], zero, zero], **scalars
    )[0]


def test_the_scale_of_the_gradient_does_not_matter_as_epsilon_goes_to_0():
    @cases(60)
    @given(lamb_cases(nonzero=True), st.integers(-20, 20), DECAY)
    def check(case, exponent, decay):
        w, g, lr, opts = case
        scale = 2.0**exponent  # exact in float32, so that every digit must agree
        plain = first_step(w, g, lr, {**opts, "epsilon": 0.0}, decay)
        scaled = first_step(w, np.float32(scale) * g, lr, {**opts, "epsilon": 0.0}, decay)
        assert_identical(plain, scaled)
        # An epsilon lengthens a root by no more than this share of it, and shortens the direction.
        step = np.float64(w) - first_step(w, g, lr, {**opts, "epsilon": 0.0}, dtype=np.float64)
        for share in (2.0**-8, 2.0**-18, 2.0**-28):
            epsilon = share * np.min(np.abs(g)) * scale
            after = first_step(
                w, scale * np.float64(g), lr, {**opts, "epsilon": epsilon}, dtype=np.float64
            )
            rounding = 2.0**-50 * (np.abs(np.float64(w)) + w.size * np.abs(step))
            assert np.all(np.abs(w - after - step) <= 3 * share * np.abs(step) + rounding)
        properties.held("LAMB, scale of the gradient")

    check()


def test_an_adapted_step_has_the_length_lr_phi_of_the_weight():
    @cases(60)
    @given(lamb_cases(), properties.BOUNDS, DECAY)
    def check(case, phi, decay):
        w, g, lr, opts = case
        opts = {**opts, "epsilon": 1e-6}
        step = first_step(np.zeros_like(w), g, lr, opts, decay)
        opts["bounds"] = Bounds(weight_norm=phi)
        assert frobenius(step) > 0 or not np.any(g)  # with no weights, the ratio is 1
        if not (np.any(w) and np.any(g)):
            hypothesis.reject()
        moved = np.float64(w) - first_step(w, g, lr, opts, decay, np.float64)
        expected = float(lr) * np.clip(frobenius(w), *(phi or (0, np.inf)))
        # Rounding of the weights, and of the sums of both norms.
        rounding = 2.0**-53 * (2 * frobenius(w) + (w.size + 100) * expected)
        assert abs(frobenius(moved) - expected) <= 4 * rounding
        properties.held("LAMB, length of a step")

    check()


# Few names, so that one of them may be a model's as well as a layer's.
NAMES = st.lists(st.sampled_from(["a", "b", "bias"]), min_size=1, max_size=3)
DOUBTFUL = st.sampled_from(["a/b/a", "a/b/bias", "b/a/b", "b/a/bias", "a/b", "bias"])
PATH_LISTS = st.one_of(
    st.lists(paths, min_size=1, max_size=4, unique=True)
    for paths in (NAMES.map("/".join), DOUBTFUL)
)
REGEXES = st.sampled_from(
    ["a", "^a/", "^b/", "bias$", "zzz|a/b", "^bias$", "b/.*", "", "zzz", "^[ab]/b"]
)
LISTS = st.none() | st.lists(REGEXES, max_size=3)


@st.composite
def plans(draw):
    given_ = {
        "exclude_from_weight_decay": draw(LISTS),
        "exclude_from_layer_adaptation": draw(LISTS),
    }
    treatments = {"join": True, "slices": (-1, None), "depthwise": True}
    key = draw(st.sampled_from(list(treatments)))
    patterns = draw(st.lists(REGEXES, max_size=2))
    given_["treatments"] = {pattern: {key: treatments[key]} for pattern in patterns}
    given_["layout"] = layouts.channels if key == "depthwise" else layouts.slices
    return draw(PATH_LISTS), given_


def test_the_plan_does_not_depend_on_the_order_of_variables():
    @cases(200)
    @given(plans(), st.randoms())
    def check(case, random):
        paths, given_ = case
        shapes = {path: (len(path), 3, 2)[: len(path) % 4] or (4,) for path in paths}
        identified = {path: random.random() < 0.2 for path in paths}

        def planned(paths):
            plan = plan_for(
                paths, [shapes[p] for p in paths], weight_decay=0.1,
                excluded_by_identity=[identified[p] for p in paths], **given_,
            )  # fmt: skip
            by_path = zip(plan.paths, plan.treatments, plan.groups, strict=True)
            return {path: rest for path, *rest in by_path}, plan.unmatched

        one = planned(paths)
        random.shuffle(paths)
        assert planned(paths) == one
        for path, (treatment, group) in one[0].items():
            undecayed = identified[path] or any(
                re.search(p, path) for p in given_["exclude_from_weight_decay"] or ()
            )
            assert not (undecayed and treatment.decay)
            assert group in ("", path.rpartition("/")[0] or path)
        properties.held("plan, order of variables")

    check()
