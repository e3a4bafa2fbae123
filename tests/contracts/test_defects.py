"""The defects that were found in other packages, each shown to be absent here.

The names are those of the survey: D1 to D37, a defect of Keras 3, Model Garden, TensorFlow Addons,
optax, pytorch_optimizer, apex, DeepSpeed, ColossalAI, fairscale or NVIDIA's examples. GUARDED names
the tests, here and elsewhere, that stand in the situation in which it shows, in both frontends if
both could have it. IMPOSSIBLE says of the others why they cannot be.
"""

import inspect
import pathlib
import pickle

import keras
import numpy as np
import pytest
from oracle import Lamb, Lars
from support.frontends import (
    FRONTENDS,
    array,
    every_frontend,
    new_variable,
    on_tensorflow,
    train,
    uncompiled,
)

ORACLE = "contracts/test_optimizers.py::test_lamb_is_the_oracle"
WORKED = "contracts/test_optimizers.py::test_the_worked_examples"
RATIOS = "contracts/test_nonfinite.py::test_the_frontends_have_the_right_ratio"
GARDEN = "model_garden/test_model_garden.py"
HERE = "contracts/test_defects.py"
GUARDED = {
    "D1": [ORACLE, WORKED],
    "D2": ["contracts/test_precision.py::test_policies_train"],
    "D3": [f"{HERE}::test_every_floating_type_takes_its_first_step"],
    "D4": [f"{HERE}::test_the_norm_of_a_large_float16_variable_is_finite"],
    "D5": ["api/test_exclusions.py::test_the_same_patterns_exclude_the_same_variables"],
    "D6": ["contracts/test_saving.py::test_a_saved_model_goes_on_where_it_stopped"],
    "D7": [
        "tensorflow/test_distribution.py::test_replicas_are_one_device",
        "tf_keras/test_tf_keras.py::test_patterns_see_through_the_names_of_replicas",
    ],
    "D8": [
        "contracts/test_frontends.py::test_the_config_holds_every_argument",
        "contracts/test_saving.py::test_the_config_rebuilds_the_optimizer",
    ],
    "D9": ["api/test_keras_schedules.py::test_the_joint_of_a_warmup_with_the_hosts_own_is_exact"],
    "D10": [f"{HERE}::test_an_epsilon_of_zero_is_zero"],
    "D11": [ORACLE, "core/test_plan.py::test_adaptation_follows_decay_unless_given"],
    "D12": ["contracts/test_optimizers.py::test_sparse_gradients_are_dense_ones"],
    "D13": [f"{GARDEN}::test_the_fields_are_the_arguments_of_the_constructor"],
    "D14": [f"{GARDEN}::test_a_change_of_type_leaves_nothing_behind"],
    "D15": [f"{GARDEN}::test_float16_trains_with_a_dynamic_loss_scale"],
    "D16": [
        f"{GARDEN}::test_nothing_decays_twice",
        "model_garden/test_configs.py::test_the_file_can_be_trained_to_the_end_of_its_rate",
    ],
    "D17": ["tensorflow/test_distribution.py::test_replicas_that_are_not_compiled_are_one_device"],
    "D18": [f"{HERE}::test_the_registered_name_is_enough_to_make_one"],
    "D19": ["api/test_exclusions.py::test_the_method_of_keras_excludes_too"],
    "D20": [f"{HERE}::test_exclusions_hold_inside_of_loss_scaling"],
    "D21": ["contracts/test_optimizers.py::test_gradients_are_clipped"],
    "D22": [WORKED],
    "D23": [RATIOS],
    "D24": [ORACLE],
    "D26": [RATIOS],
    "D27": [ORACLE],
    "D28": [f"{HERE}::test_every_floating_type_takes_its_first_step"],
    "D29": [f"{HERE}::test_an_argument_of_adascale_sets_itself_alone"],
    "D30": [
        "api/test_adascale.py::test_a_variable_without_a_gradient_counts_for_nothing",
        "api/test_adascale.py::test_the_whole_step_compiled_is_the_step",
    ],
    "D31": [f"{HERE}::test_every_floating_type_takes_its_first_step"],
    "D32": [f"{HERE}::test_the_norm_is_of_the_master"],
    "D33": ["contracts/test_optimizers.py::test_the_learning_rate_is_read_at_every_step"],
    "D34": [WORKED, "contracts/test_precision.py::test_bfloat16_slots_follow_float32_ones"],
    "D35": [
        "contracts/test_optimizers.py::test_accumulated_micro_batches_are_one_large_batch",
        f"{HERE}::test_optimizers_can_be_pickled",
    ],
    "D36": ["core/test_layer_groups.py::test_the_sizes_of_fused_blocks_no_longer_meet"],
    "D37": [f"{HERE}::test_everything_is_imported_beside_everything"],
}

TESTS = pathlib.Path(__file__).parents[1]
IMPOSSIBLE = {
    "D25": "One class is the optimizer of one device and of many: no second one has defaults of "
    "its own, and test_frontends.py holds both frontends to one signature."
}


def optimizer_of(frontend, name="LAMB", rate=0.1, **arguments):
    """An optimizer; not compiled, which takes seconds and is tested elsewhere."""
    return getattr(FRONTENDS[frontend][1], name)(rate, **{"jit_compile": False, **arguments})


def step(frontend, optimizer, start, gradients, dtype="float32", steps=1):
    """The weights after each step has had the same gradients, by name."""
    with uncompiled():
        *_, weights = train(frontend, optimizer, start, [gradients] * steps, dtype)
    return {k: w.astype("float64") for k, w in weights.items()}


RNG = np.random.default_rng(0)
W = {"dense/kernel": RNG.normal(size=(4, 3)), "dense/bias": RNG.normal(size=3)}
G = {"dense/kernel": RNG.normal(size=(4, 3)), "dense/bias": RNG.normal(size=3)}


def test_every_defect_is_accounted_for():
    assert GUARDED.keys() | IMPOSSIBLE.keys() == {f"D{i}" for i in range(1, 38)}
    assert not GUARDED.keys() & IMPOSSIBLE.keys()


def test_every_guard_is_there():
    missing = []
    for test in sorted({test for tests in GUARDED.values() for test in tests}):
        file, _, name = test.partition("::")
        if f"def {name}(" not in (TESTS / file).read_text():
            missing.append(test)
    assert missing == []


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_floating_type_takes_its_first_step(frontend, name, dtype):
    """Without loss scaling; and the gradient stays as it was."""
    start = {"w": new_variable(frontend, W["dense/kernel"], dtype)}
    gradient = keras.ops.convert_to_tensor(G["dense/kernel"], dtype)
    before, w = array(gradient), array(start["w"]).astype("float64")
    with uncompiled():
        optimizer_of(frontend, name).apply_gradients([(gradient, start["w"])])
    g = {"w": before.astype("float64")}
    expected = Lamb({"w": w}, lr=0.1).step(g)["w"] if name == "LAMB" else Lars(w).step(g["w"], 0.1)
    tolerance = 0.02 if "float16" in dtype else 1e-6
    np.testing.assert_allclose(array(start["w"]).astype("float64"), expected, tolerance, tolerance)
    np.testing.assert_array_equal(array(gradient), before)


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_the_norm_of_a_large_float16_variable_is_finite(frontend, name):
    """4 million times 0.3 squared is more than float16 can hold; compiled as a user's would be."""
    more = {"trust_coefficient": 1.0} if name == "LARS" else {}
    start = {"w": np.full(4_000_000, 0.3, "float16")}
    (moved,) = train(
        frontend, getattr(FRONTENDS[frontend][1], name)(0.1, **more), start, [start], "float16"
    )
    np.testing.assert_allclose(moved["w"], 0.27, rtol=1e-3)


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_an_epsilon_of_zero_is_zero(frontend, name):
    optimizer = optimizer_of(frontend, name, epsilon=0.0)
    assert optimizer.get_config()["epsilon"] == 0
    assert all(np.isfinite(w).all() for w in step(frontend, optimizer, W, G).values())


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_the_registered_name_is_enough_to_make_one(frontend, name):
    host, ours = FRONTENDS[frontend]
    optimizer = host.optimizers.get({"class_name": f"tf_lamb>{name}", "config": {}})
    assert type(optimizer) is getattr(ours, name)


@every_frontend
def test_exclusions_hold_inside_of_loss_scaling(frontend):
    """By the constructor's argument; the method belongs to the optimizer, not to its wrapper."""
    inner = optimizer_of(frontend, weight_decay=0.5, exclude_from_weight_decay=["bias$"])
    wrapper = FRONTENDS[frontend][0].mixed_precision.LossScaleOptimizer(inner)
    moved = step(frontend, wrapper, W, {k: np.zeros_like(g) for k, g in G.items()})
    np.testing.assert_allclose(moved["dense/bias"], W["dense/bias"], rtol=1e-6)
    assert np.abs(moved["dense/kernel"] - W["dense/kernel"]).max() > 1e-3


@every_frontend
@pytest.mark.parametrize("argument", [{"smoothing": 0.5}, {"preconditioned": False}])
def test_an_argument_of_adascale_sets_itself_alone(frontend, argument):
    _, ours = FRONTENDS[frontend]

    def config(**given):
        return ours.AdaScale(ours.LAMB(), 4.0, **given).get_config()

    plain, changed = config(), config(**argument)
    different = {k for k in plain if k != "inner" and plain[k] != changed[k]}
    assert different == set(argument)
    assert changed | plain == plain
    kinds = [p.kind for p in inspect.signature(ours.AdaScale).parameters.values()]
    assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == 2


@every_frontend
def test_the_norm_is_of_the_master(frontend):
    """Of |w| = 2 in float32, not of what bfloat16 has left of it; of clipping, see D17."""
    optimizer = optimizer_of(frontend, rate=1e-3, dtypes={"masters": "float32"})
    optimizer.observe_trust_ratios()
    start, gradient = {"w": np.ones(4)}, {"w": np.ones(4)}
    step(frontend, optimizer, start, gradient, "bfloat16", steps=3)
    (seen,) = optimizer.trust_ratios()
    assert seen.weight_norm == pytest.approx(2 * (1 - 1e-3) ** 2, rel=1e-6)
    assert seen.weight_norm != 2.0


@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_optimizers_can_be_pickled(name, frontend="keras"):
    """What Keras's own suite asks of its optimizers, but not of its Lamb."""
    optimizer = optimizer_of(frontend, name, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.get_config() == optimizer.get_config()
    found, expected = (step(frontend, each, W, G) for each in (again, optimizer))
    assert all((found[k] == expected[k]).all() for k in W)


@on_tensorflow
def test_everything_is_imported_beside_everything():
    """Both frontends live in this very process, beside TensorFlow, Keras 3 and tf_keras."""
    versions = {name: int(host.__version__.split(".")[0]) for name, (host, _) in FRONTENDS.items()}
    assert versions == {"keras": 3, "tf_keras": 2}
    for host, ours in FRONTENDS.values():
        assert issubclass(ours.LAMB, host.optimizers.Optimizer)
