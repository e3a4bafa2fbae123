"""Patterns and paths: what is excluded, what is refused, what is told."""

import pytest

from tf_lamb.core.checks import patterns as check_patterns
from tf_lamb.core.plan import Treatment, exact, plan_for, stable_path


def plan(paths, undecayed=None, unadapted=None, weight_decay=0.1, identity=None):
    return plan_for(
        paths, [(1,)] * len(paths), weight_decay=weight_decay,
        exclude_from_weight_decay=undecayed, exclude_from_layer_adaptation=unadapted,
        excluded_by_identity=identity or [False] * len(paths),
    )  # fmt: skip


def decayed(*args, **kwargs):
    return [treatment.decay != 0 for treatment in plan(*args, **kwargs).treatments]


def adapted(*args, **kwargs):
    return [treatment.adapt for treatment in plan(*args, **kwargs).treatments]


PATHS = ["dense/kernel", "dense/bias", "my_layer_norm/gamma"]


def test_nothing_is_excluded_by_default():
    assert plan(PATHS).treatments == (Treatment(0.1, True),) * 3


def test_adaptation_follows_decay_unless_told_otherwise():
    assert decayed(PATHS, ("bias", "layer_norm")) == [True, False, False]
    assert adapted(PATHS, ("bias", "layer_norm")) == [True, False, False]
    assert adapted(PATHS, ("bias", "layer_norm"), ()) == [True, True, True]
    assert adapted(PATHS, ("bias", "layer_norm"), ("kernel",)) == [False, True, True]
    assert decayed(PATHS, None, ("kernel",)) == [True, True, True]


def test_a_variable_can_be_excluded_as_an_object():
    assert decayed(PATHS, identity=[True, False, False]) == [False, True, True]
    assert adapted(PATHS, identity=[True, False, False]) == [False, True, True]


@pytest.mark.parametrize(
    ("paths", "excluded"),
    [
        (["encoder/dense/kernel", "head/kernel"], [True, False]),
        (["my_model/encoder/dense/kernel", "my_model/head/kernel"], [True, False]),
        # Weights made before the model was called lack its name: Keras 3, then tf_keras.
        (["encoder/scale", "m/encoder/dense/kernel", "m/head/kernel"], [False, True, False]),
        (["scale", "m/encoder/dense/kernel", "m/head/kernel"], [False, True, False]),
        (["a/encoder/dense/kernel", "b/head/kernel"], [False, False]),
        (["decoder/encoder/kernel", "head/kernel"], [False, False]),
    ],
)
def test_an_anchored_pattern_may_leave_out_the_name_of_the_model(paths, excluded):
    assert decayed(paths, (r"^encoder/.*/kernel$",)) == [not e for e in excluded]


@pytest.mark.parametrize(
    ("name", "path"),
    [("a/bias:0", "a/bias"), ("a/bias/replica_1:0", "a/bias"), ("a/bias/replica_12", "a/bias"),
     ("a/bias", "a/bias"), ("replica_1/bias:0", "replica_1/bias")],
)  # fmt: skip
def test_a_stable_path_is_the_same_on_every_replica(name, path):
    assert stable_path(name) == path


def test_a_pattern_that_matches_nothing_is_named():
    assert plan(PATHS, ("bias", "LayerNorm"), ("gama",)).unmatched == ("LayerNorm", "gama")
    warning = plan(PATHS, ("LayerNorm",)).warning()
    assert "'LayerNorm'" in warning
    assert "'dense/kernel'" in warning
    assert plan(PATHS, ("bias",)).warning() is None


def test_the_table_has_a_line_a_variable_and_a_line_a_treatment():
    lines = plan(PATHS, ("bias", "layer_norm")).table().splitlines()
    assert [line.split() for line in lines if line] == [
        ["variable", "parameters", "decay", "adapted", "layer"],
        ["dense/kernel", "1", "0.1", "yes"],
        ["dense/bias", "1", "-", "no"],
        ["my_layer_norm/gamma", "1", "-", "no"],
        ["1", "variable", "1", "0.1", "yes"],
        ["2", "variables", "2", "-", "no"],
    ]


def test_the_plan_does_not_depend_on_the_order_of_the_variables():
    forward = dict(zip(PATHS, plan(PATHS, ("bias",)).treatments, strict=True))
    backward = dict(zip(PATHS[::-1], plan(PATHS[::-1], ("bias",)).treatments, strict=True))
    assert forward == backward


def test_an_exact_pattern_matches_one_path_only():
    assert decayed(["a/b.c", "a/bxc", "a/b.c2"], (exact("a/b.c"),)) == [False, True, True]


@pytest.mark.parametrize(
    ("patterns", "error", "words"),
    [
        ("bias", TypeError, ["'bias'", "['bias']"]),
        (b"bias", TypeError, ["list of strings", "98"]),
        (7, TypeError, ["list of regexes", "7"]),
        ([["bias"]], TypeError, ["['bias']", "string"]),
        ([None], TypeError, ["None", "string"]),
        (["bias", "(("], ValueError, ["'(('", "missing )", r"\\(\\("]),
    ],
)
def test_patterns_that_cannot_be_right_are_refused(patterns, error, words):
    with pytest.raises(error) as caught:
        check_patterns("exclude_from_weight_decay", patterns)
    for word in ["exclude_from_weight_decay", *words]:
        assert word in str(caught.value)
