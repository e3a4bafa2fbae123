"""Patterns and paths: what is excluded, what is refused, what is told."""

import re

import pytest

from tf_lamb.core.patterns import PRESETS, exact_pattern, search, stable_path
from tf_lamb.core.plan import NEAR_ZERO, Treatment, plan_for


def plan(paths, undecayed=None, unadapted=None, weight_decay=0.1, identity=None, **more):
    return plan_for(
        paths, [(1,)] * len(paths), weight_decay=weight_decay,
        exclude_from_weight_decay=undecayed, exclude_from_layer_adaptation=unadapted,
        excluded_by_identity=identity or (), **more,
    )  # fmt: skip


def rates(factors):
    return {pattern: {"rate": factor} for pattern, factor in factors.items()}


def decayed(*args, **kwargs):
    return [treatment.decay != 0 for treatment in plan(*args, **kwargs).treatments]


def adapted(*args, **kwargs):
    return [treatment.adapt for treatment in plan(*args, **kwargs).treatments]


PATHS = ["dense/kernel", "dense/bias", "my_layer_norm/gamma"]


def test_nothing_is_excluded_by_default():
    assert plan(PATHS).treatments == (Treatment(decay=0.1),) * 3


def test_adaptation_follows_decay_unless_given():
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
    warning = plan(PATHS, ("LayerNorm",)).unmatched_warning()
    assert "'LayerNorm'" in warning
    assert "'dense/kernel'" in warning
    assert plan(PATHS, ("bias",)).unmatched_warning() is None
    several = plan(PATHS, ("LayerNorm", "gama")).unmatched_warning()
    assert several.startswith(
        "No variable matches the patterns below: they have no effect.\n  'LayerNorm'\n  'gama'\n"
    )


def test_the_table_has_a_line_a_variable_and_a_line_a_treatment():
    lines = plan(PATHS, ("bias", "layer_norm")).table().splitlines()
    assert [line.split() for line in lines if line] == [
        ["variable", "parameters", "decay", "adapted", "layer"],
        ["dense/kernel", "1", "0.1", "yes"], ["dense/bias", "1", "-", "no"],
        ["my_layer_norm/gamma", "1", "-", "no"],
        ["1", "variable", "1", "0.1", "yes"], ["2", "variables", "2", "-", "no"],
    ]  # fmt: skip


def test_of_two_names_that_a_model_could_have_the_order_chooses_none():
    """Each of `a` and `b` could be the model, with a layer that was built early."""
    paths = ["a/b/kernel", "b/a/kernel"]
    forward, backward = decayed(paths, ("^a/",)), decayed(paths[::-1], ("^a/",))
    assert forward == backward[::-1]


def test_an_exact_pattern_matches_one_path_only():
    assert decayed(["a/b.c", "a/bxc", "a/b.c2"], (exact_pattern("a/b.c"),)) == [False, True, True]


TOWERS = ["dense/kernel", "dense/bias", "dense/kernel", "dense/bias", "head/kernel"]


def test_two_variables_of_one_path_answer_to_it_and_each_to_its_number():
    assert decayed(TOWERS, ("dense/kernel",)) == [False, True, False, True, True]
    assert decayed(TOWERS, (exact_pattern("dense/kernel#2of2"),)) == [True, True, False, True, True]
    assert decayed(TOWERS, ("[12]",)) == [True] * 5  # without a "#" no number is looked at
    assert plan(TOWERS).names[1:3] == ("dense/bias#1of2", "dense/kernel#2of2")


def test_a_number_of_another_count_is_refused():
    words = "1 of 1 .* and 2 have that path here: dense/kernel#1of2, dense/kernel#2of2"
    with pytest.raises(ValueError, match=words):
        plan(TOWERS, (exact_pattern("dense/kernel#1of1"),))
    assert plan(TOWERS, (exact_pattern("other/kernel#1of1"),)).unmatched_warning()


def test_layers_of_one_path_are_joined_each_by_itself():
    def groups(paths, pattern="dense"):
        return plan(paths, unadapted=(), treatments={pattern: {"join": True}}).groups

    assert groups(TOWERS) == ("dense#1of2", "dense#1of2", "dense#2of2", "dense#2of2", "")
    assert groups(TOWERS[:2]) == ("dense", "dense")
    with pytest.raises(ValueError, match="2 variables 'dense/kernel' and 1 'dense/bias'"):
        groups(TOWERS[:3])
    assert groups(TOWERS[:3], "bias") == ("", "dense", "")


# -- what is searched ------------------------------------------------------------------------------

FOUND = [
    "bias", "layer_norm|LayerNorm", "^encoder/.*/kernel$", r"layer_\d+/", "(gamma|beta)$",
    exact_pattern("model.a/dense_(1)/kernel+"), "(?i)LAYERNORM", "[*+?|(){}]", r"\(a+\)\+$",
    "[]*+]+",
    "(dense|bias)+", "(layer_)?norm", r"(?:\w+/)+bias$", "(?x) dense # a comment", r"(.)\1+",
    "(?P<name>dense)(?:_(?P<number>[0-9]+))?/(kernel|bias)$", "norm_and_bias", "(a+)+b|kernel",
    "|".join(f"block_{i}/.*bias" for i in range(40)),
]  # fmt: skip


@pytest.mark.parametrize("pattern", FOUND)
def test_a_pattern_is_found_where_re_finds_it(pattern):
    paths = [*PATHS, "layer_norm/bias", "encoder/dense_2/kernel", "encoder/layer_1/b/norm_and_bias"]
    found = search("treatments", [pattern], [((path,), ()) for path in paths])
    assert found[pattern] == {i for i, path in enumerate(paths) if re.search(pattern, path)}


def test_a_preset_is_one_in_the_exclusions_alone():
    found = plan(PATHS, ("norm_and_bias",))
    assert [t.decay for t in found.treatments] == [0.1, 0.0, 0.0]
    assert not found.unmatched
    joined = plan(PATHS, treatments={"norm_and_bias": {"join": True}})
    assert joined.unmatched == ("norm_and_bias",)


def test_a_preset_holds_vectors_and_no_kernel():
    shapes = {
        "gate/variable": (4,), "alpha": (), "class_token": (1, 1, 4), "logits/kernel": (4, 1),
        "row": (1, 4), "conv/kernel": (1, 1, 4), "dense/kernel": (4,), "positions": (1, 5, 4),
    }  # fmt: skip
    found = [path for path, shape in shapes.items() if PRESETS["norm_and_bias"](path, shape)]
    assert found == ["gate/variable", "alpha", "class_token"]


def test_what_is_near_zero_is_named_by_a_pattern_of_its_own():
    paths = ["a/kernel", "b/kernel", "b/bias", "c/lora_b", "d/lora_b", "e/gate"]
    sizes = {0: NEAR_ZERO, 1: 0.0, 2: 0.0, 3: 0.0, 4: 9e-4, 5: 1e-6}
    shapes = [(2, 2)] * 5 + [(2,)]
    found = plan_for(paths, shapes).with_near_zero(sizes)
    assert found.near_zero == {1, 3, 4, 5}
    message = found.near_zero_warning(["norm"])
    assert message.startswith("At or near zero: 'b/kernel', 'c/lora_b', 'd/lora_b' and 1 more.")
    assert message.endswith(r"=['norm', '^b/kernel$', 'lora_b$', 'norm_and_bias'].")
    assert [line.endswith("near 0") for line in found.table().splitlines()[1:7]] == [
        False, True, False, True, True, True,
    ]  # fmt: skip
    assert plan(paths).with_near_zero({0: 1.0}).near_zero_warning() is None


@pytest.mark.parametrize(
    ("paths", "pattern"),
    [
        (["m/a/kernel", "m/b/kernel"], "^b/kernel$"),
        (["b/a/kernel", "b/kernel"], "^kernel$"),
        (["b/kernel", "m/b/kernel", "m/a/kernel"], "^m/b/kernel$"),
        (["m/b/kernel", "m/b/kernel"], "^m/b/kernel\\#2of2$"),
    ],
)
def test_what_is_near_zero_is_named_without_the_model(paths, pattern):
    """Whose name is another one when the script builds it again."""
    near = paths.index("m/b/kernel") if len(paths) == 3 else 1
    shapes = [(2, 2)] * len(paths)
    message = plan_for(paths, shapes).with_near_zero({near: 0.0}).near_zero_warning()
    assert message.endswith(f"=[{pattern!r}].")
    again = plan_for(paths, shapes, exclude_from_layer_adaptation=[pattern])
    assert [not each.adapt for each in again.treatments] == [i == near for i in range(len(paths))]


def test_a_joined_layer_is_near_zero_as_one():
    joined = plan(
        ["a/kernel", "a/bias", "b/kernel", "b/bias"], treatments={"a/|b/": {"join": True}}
    )
    assert joined.with_near_zero({0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}).near_zero == {2}


def test_the_first_multiplier_that_matches_counts():
    found = plan(PATHS, treatments=rates({"kernel": 0.5, "dense/": 0.0, "Dense": 2.0}))
    assert found.multipliers == (0.5, 0.0, 1.0) and found.frozen == {1}
    assert found.unmatched == ("Dense",)
    assert [layer.multiplier for layer in found.layers([2, 0])] == [1.0, 0.5]
    rows = [line.split() for line in found.table().splitlines()]
    assert rows[0] == ["variable", "parameters", "decay", "adapted", "rate", "layer"]
    assert [row[4:] for row in rows[1:4]] == [["x", "0.5"], ["frozen"], ["x", "1"]]


def test_a_multiplier_of_1_is_none():
    """The plan is equal, and so is every program that is made of it."""
    assert plan(PATHS, treatments=rates({"kernel": 1.0, ".": 1})) == plan(PATHS)


def test_two_rates_of_what_is_joined_are_refused():
    joined = {"dense": {"join": True}, "bias": {"rate": 2.0}}
    words = "gives dense/kernel the rate 1 and dense/bias 2, and joins them in dense"
    with pytest.raises(ValueError, match=words):
        plan(PATHS, treatments=joined)
    found = plan(PATHS, unadapted=("bias",), treatments=joined)
    assert found.multipliers == (1.0, 2.0, 1.0)


def test_multipliers_that_freeze_everything_are_refused():
    with pytest.raises(ValueError, match="freezes all 3 variables"):
        plan(PATHS, treatments=rates({".": 0.0}))


def test_what_a_layer_overwrites_is_in_no_pattern_and_no_step():
    paths = ["dense/scale", "dense/kernel", "dense/history", "dense/bias"]
    made = plan(
        paths, ("bias",), treatments={"dense": {"join": True, "rate": 0.5}},
        overwritten=[True, False, True, False],
    )  # fmt: skip
    assert made.frozen == made.overwritten == {0, 2}
    assert [(each.decay, each.adapt) for each in made.treatments] == [
        (0, False), (0.1, True), (0, False), (0, True),
    ]  # fmt: skip
    assert made.groups == ("", "dense", "", "dense")
    assert "set by its layer" in made.table().splitlines()[1]
    # Where they stand among the others is nothing that draws.
    assert [layer.number for layer in made.layers([1, 3])] == [0]
    assert [layer.number for layer in plan(paths, overwritten=[1, 0, 1, 0]).layers([1, 3])] == [
        0,
        1,
    ]


def test_freezing_all_but_what_a_layer_overwrites_is_refused():
    with pytest.raises(ValueError, match="freezes all 1 variables"):
        plan(["kernel", "scale"], treatments={"": {"rate": 0}}, overwritten=[False, True])
