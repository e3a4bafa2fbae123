"""Properties of any case that hypothesis finds, in NumPy: the oracle to the last places, and
invariants.

`benchmarks/fuzz/properties.py` runs the same properties on twenty times as many cases.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import promised, references
from support import property_cases as properties
from support.property_cases import cases

from tf_lamb.core import layouts
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import OURS


@st.composite
def rule_cases(draw, family):
    shape = draw(properties.SHAPES)
    treatment, channel_axes = draw(properties.treatments(family, shape))
    opts = draw(properties.options(family))
    w, g, earlier = (draw(properties.values(shape)) for _ in range(3))
    state = [w, *properties.history(family, earlier, opts)]
    lr, t = np.float32(draw(properties.RATES)), draw(properties.STEPS)
    return treatment, channel_axes, g, state, {"lr": lr, "t": t, "opts": opts}


def test_every_rule_has_an_oracle():
    assert set(references.NAMES) == set(OURS)


@pytest.mark.parametrize("family", promised.SLOTS)
def test_the_oracle_of_a_training_has_the_slots_of_the_rule(family):
    assert tuple(promised.SLOTS[family]) == OURS[family].slots


@pytest.mark.parametrize("family", properties.RULES)
def test_every_hyperparameter_is_drawn(family):
    assert properties.OPTIONS[family].keys() == OURS[family].hyper.keys()


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
