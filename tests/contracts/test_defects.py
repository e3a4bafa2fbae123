"""The defects that were found in other packages, each shown to be absent here.

The names are those of the survey: D1 to D37, a defect of Keras 3, Model Garden, TensorFlow Addons,
optax, pytorch_optimizer, apex, DeepSpeed, ColossalAI, fairscale or NVIDIA's examples. A test is
named after its defect and stands in the very situation in which it shows, in both frontends if
both could have it. GUARDED names the tests elsewhere that do this; IMPOSSIBLE says of the others
why they cannot be.
"""

import inspect
import pickle
import re

import keras
import numpy as np
import pytest
from oracle import Lamb, Lars, frobenius
from support.frontends import (
    FRONTENDS,
    array,
    dtype_of,
    every_frontend,
    new_variable,
    on_tensorflow,
    train,
    uncompiled,
)

LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")

GUARDED = {
    "D13": [
        "model_garden/test_model_garden.py::test_the_fields_are_the_arguments_of_the_constructor",
    ],
    "D14": ["model_garden/test_model_garden.py::test_d14_a_change_of_type_leaves_nothing_behind"],
    "D15": [
        "model_garden/test_model_garden.py::test_the_loss_is_scaled_and_gradients_unscaled",
        "model_garden/test_model_garden.py::test_float16_trains_with_a_dynamic_loss_scale",
    ],
    "D16": [
        "model_garden/test_model_garden.py::test_d16_nothing_decays_twice",
        "model_garden/test_configs.py::test_the_file_leaves_no_l2_in_the_loss_and_can_be_checked",
    ],
    "D30": [
        "api/test_adascale.py::test_a_variable_without_a_gradient_counts_for_nothing",
        "api/test_adascale.py::test_the_step_before_as_the_second_part",
        "api/test_adascale.py::test_the_whole_step_compiled_is_the_step",
    ],
    "D35": [
        "contracts/test_optimizers.py::test_accumulated_micro_batches_are_one_large_batch",
        "contracts/test_optimizers.py::test_embeddings_train",
    ],
}

IMPOSSIBLE = {
    "D25": "One class is the optimizer of one device and of many: no second one has defaults of "
    "its own, and test_frontends.py holds both frontends to one signature.",
}


def optimizer_of(frontend, name="LAMB", rate=0.1, **arguments):
    """An optimizer; not compiled, which takes seconds and is tested elsewhere."""
    return getattr(FRONTENDS[frontend][1], name)(rate, **{"jit_compile": False, **arguments})


def step(frontend, optimizer, start, gradients, dtype="float32", steps=1):
    """The weights after each step has had the same gradients, by name."""
    with uncompiled():
        *_, weights = train(frontend, optimizer, start, [gradients] * steps, dtype)
    return {k: w.astype("float64") for k, w in weights.items()}


def close(values, expected, tolerance=1e-6):
    for key, value in values.items():
        np.testing.assert_allclose(value, expected[key], rtol=tolerance, atol=tolerance)


RNG = np.random.default_rng(0)
W = {"dense/kernel": RNG.normal(size=(4, 3)), "dense/bias": RNG.normal(size=3)}
G = {"dense/kernel": RNG.normal(size=(4, 3)), "dense/bias": RNG.normal(size=3)}


def test_every_defect_is_accounted_for():
    tests = {match[1] for name in globals() if (match := re.match(r"test_d(\d\d)_", name))}
    tested = {f"D{int(number)}" for number in tests} | GUARDED.keys()
    assert tested | IMPOSSIBLE.keys() == {f"D{i}" for i in range(1, 38)}
    assert not tested & IMPOSSIBLE.keys()


@every_frontend
def test_d01_weight_decay_is_inside_the_trust_ratio(frontend):
    reference = Lamb(W, lr=0.1, wd=0.1)
    for _ in range(5):
        expected = reference.step(G)
    close(step(frontend, optimizer_of(frontend, weight_decay=0.1), W, G, steps=5), expected)
    outside = step(
        frontend,
        optimizer_of(frontend, weight_decay=0.1, weight_decay_mode="decoupled"),
        W,
        G,
        steps=5,
    )
    assert np.abs(outside["dense/kernel"] - expected["dense/kernel"]).max() > 1e-3


@every_frontend
def test_d02_a_bfloat16_variable_moves(frontend):
    start = {"w": np.full((4, 4), 2.0)}
    for t in (1, 5):
        moved = step(
            frontend, optimizer_of(frontend), start, {"w": np.ones((4, 4))}, "bfloat16", steps=t
        )
        np.testing.assert_allclose(moved["w"], 2.0 * 0.9**t, rtol=0.02)


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_d03_the_first_step_in_bfloat16_is_finite(frontend, name):
    moved = step(frontend, optimizer_of(frontend, name), W, G, "bfloat16")
    assert all(np.isfinite(w).all() for w in moved.values())


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_d04_the_norm_of_a_large_float16_variable_is_finite(frontend, name):
    """4 million times 0.3 squared is more than float16 can hold; compiled as a user's would be."""
    more = {"trust_coefficient": 1.0} if name == "LARS" else {}
    start = {"w": np.full(4_000_000, 0.3, "float16")}
    (moved,) = train(
        frontend, getattr(FRONTENDS[frontend][1], name)(0.1, **more), start, [start], "float16"
    )
    np.testing.assert_allclose(moved["w"], 0.27, rtol=1e-3)


def subclassed(host):
    class Subclassed(host.Model):
        def __init__(self):
            super().__init__()
            self.dense = host.layers.Dense(3, name="dense")
            self.norm = host.layers.LayerNormalization(name="my_layer_norm")

        def call(self, x):
            return self.norm(self.dense(x))

    model = Subclassed()
    model(np.ones((1, 2), "float32"))
    return model


def functional(host):
    x = host.Input((2,))
    y = host.layers.Dense(3, name="dense")(x)
    return host.Model(x, host.layers.LayerNormalization(name="my_layer_norm")(y))


@every_frontend
@pytest.mark.parametrize("make", [subclassed, functional])
def test_d05_patterns_see_the_name_of_the_layer(frontend, make):
    optimizer = optimizer_of(frontend, weight_decay=0.1, exclude_from_weight_decay=["layer_norm"])
    optimizer.build(make(FRONTENDS[frontend][0]).trainable_variables)
    assert [t.decay for t in optimizer.plan.treatments] == [0.1, 0.1, 0.0, 0.0]


@every_frontend
def test_d06_a_saved_model_keeps_its_exclusions(frontend, tmp_path):
    host, _ = FRONTENDS[frontend]
    model = functional(host)
    optimizer = optimizer_of(frontend, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    # As Keras 3 would have it, too, whose method is all that it has.
    optimizer.exclude_from_weight_decay(var_names=["gamma"])
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((1, 2)), np.ones((1, 3)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = host.models.load_model(tmp_path / "model.keras")
    loaded.optimizer.build(loaded.trainable_variables)
    assert [t.decay for t in loaded.optimizer.plan.treatments] == [0.1, 0.0, 0.0, 0.1]


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_d07_replicas_exclude_the_same_variables(frontend, name):
    """On replica 1 the variable is called `dense/bias/replica_1`, which `bias$` does not match."""
    import tensorflow as tf
    from support.clusters import mirrored

    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], name="dense/bias")
        optimizer = optimizer_of(
            frontend, name, weight_decay=0.5, exclude_from_weight_decay=["bias$"]
        )
        if frontend == "keras":  # whose optimizers build outside of a replica only
            optimizer.build([variable])
    for _ in range(2):
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([0.5, 0.5]), variable)]))
    one, other = (copy.numpy() for copy in strategy.experimental_local_results(variable))
    np.testing.assert_array_equal(one, other)
    alone = step(
        frontend, optimizer_of(frontend, name), {"bias": [1.0, 2.0]}, {"bias": [1.0, 1.0]}, steps=2
    )
    adapted = step(frontend, optimizer_of(frontend, name, exclude_from_layer_adaptation=[""]),
                   {"bias": [1.0, 2.0]}, {"bias": [1.0, 1.0]}, steps=2)  # fmt: skip
    close({"bias": one}, adapted)
    assert np.abs(one - alone["bias"]).max() > 1e-3


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_d08_the_config_has_both_lists(frontend, name):
    host, ours = FRONTENDS[frontend]
    lists = dict(zip(LISTS, (["bias"], ["gamma"]), strict=True))
    optimizer = optimizer_of(frontend, name, weight_decay=0.1, **lists)
    again = host.optimizers.deserialize(host.optimizers.serialize(optimizer))
    for each in (optimizer, again, getattr(ours, name).from_config(optimizer.get_config())):
        assert {key: each.get_config()[key] for key in LISTS} == lists
    again.build([new_variable(frontend, [1.0], path=k) for k in ("kernel", "bias", "gamma")])
    treatments = [(t.decay, t.adapt) for t in again.plan.treatments]
    assert treatments == [(0.1, True), (0.0, True), (0.1, False)]


@every_frontend
def test_d09_a_warmup_survives_its_config(frontend):
    host, ours = FRONTENDS[frontend]
    fall = host.optimizers.schedules.PolynomialDecay(0.8, 100)
    warmup = ours.schedules.Warmup(10, fall, start=0.1)
    optimizer = optimizer_of(frontend, rate=warmup)
    again = type(optimizer).from_config(
        host.optimizers.deserialize(host.optimizers.serialize(optimizer)).get_config()
    )
    step(frontend, again, W, G)
    for t in (0, 5, 30, 99):
        again.iterations.assign(t)
        assert float(again.learning_rate) == pytest.approx(float(warmup(t)), rel=1e-6)
    assert float(warmup(5)) != float(warmup(30))


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_d10_an_epsilon_of_zero_is_zero(frontend, name):
    optimizer = optimizer_of(frontend, name, epsilon=0.0)
    assert optimizer.get_config()["epsilon"] == 0
    moved = step(frontend, optimizer, W, G)
    assert all(np.isfinite(w).all() for w in moved.values())


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_d11_an_empty_list_excludes_nothing(frontend, name):
    for given, adapted in ((None, [True, False]), ([], [True, True])):
        optimizer = optimizer_of(
            frontend, name, exclude_from_weight_decay=["bias"], exclude_from_layer_adaptation=given
        )
        again = type(optimizer).from_config(optimizer.get_config())
        for each in (optimizer, again):
            each.build([new_variable(frontend, w, path=k) for k, w in W.items()])
            assert [t.adapt for t in each.plan.treatments] == adapted


@on_tensorflow
@every_frontend
def test_d12_lars_trains_an_embedding(frontend):
    """The gradient of a look-up is `IndexedSlices`."""
    import tensorflow as tf

    variable = tf.Variable(np.ones((5, 2)), dtype="float32")
    optimizer = optimizer_of(frontend, "LARS", 1.0, trust_coefficient=0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(variable, [1, 3, 1]))
    gradient = tape.gradient(loss, variable)
    assert isinstance(gradient, tf.IndexedSlices)
    optimizer.apply_gradients([(gradient, variable)])
    dense = np.zeros((5, 2))
    dense[1], dense[3] = 2, 1
    expected = Lars(np.ones((5, 2)), eta=0.1).step(dense, 1.0)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_d17_clipping_sees_the_aggregated_gradient(frontend, clip):
    """Replica gradients [100, 0] and [0, 1], clipped to norm 1: clipped apart they would sum to
    [1, 1] / sqrt 2 and turn the step."""
    import tensorflow as tf
    from support.clusters import mirrored

    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 1.0])
        optimizer = optimizer_of(frontend, rate=1.0, beta_1=0.0, beta_2=0.0, epsilon=1.0,
                                 exclude_from_layer_adaptation=[""], **{clip: 1.0})  # fmt: skip

    def on_replica():
        here = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = tf.where(tf.equal(here, 0), [100.0, 0.0], [0.0, 1.0])
        optimizer.apply_gradients([(gradient, variable)])

    strategy.run(on_replica)
    clipped = np.array([100.0, 1.0]) / np.hypot(100.0, 1.0)
    np.testing.assert_allclose(variable.numpy(), 1 - clipped / (clipped + 1), rtol=1e-6)


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_d18_the_registered_name_is_enough(frontend, name):
    host, ours = FRONTENDS[frontend]
    assert type(host.optimizers.get({"class_name": f"tf_lamb>{name}", "config": {}})) is getattr(
        ours, name
    )
    model = functional(host)
    model.compile(optimizer=f"tf_lamb>{name}", loss="mse")
    assert type(model.optimizer) is getattr(ours, name)


@every_frontend
def test_d19_an_exclusion_that_comes_too_late_is_refused(frontend):
    optimizer = optimizer_of(frontend, weight_decay=0.1)
    step(frontend, optimizer, W, G)
    with pytest.raises(ValueError, match="built already"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])


@every_frontend
def test_d20_exclusions_hold_inside_of_loss_scaling(frontend):
    """By the constructor's argument; the method belongs to the optimizer, not to its wrapper."""
    inner = optimizer_of(frontend, weight_decay=0.5, exclude_from_weight_decay=["bias$"])
    host, _ = FRONTENDS[frontend]
    wrappers = host.optimizers if frontend == "keras" else host.mixed_precision
    wrapper = wrappers.LossScaleOptimizer(inner)
    scaled = {k: np.zeros_like(g) for k, g in G.items()}
    moved = step(frontend, wrapper, W, scaled)
    np.testing.assert_allclose(moved["dense/bias"], W["dense/bias"], rtol=1e-6)
    assert np.abs(moved["dense/kernel"] - W["dense/kernel"]).max() > 1e-3


@every_frontend
def test_d21_a_gradient_of_norm_50_becomes_one_of_norm_1(frontend):
    gradient = {"w": np.array([30.0, 40.0])}
    optimizer = optimizer_of(frontend, beta_1=0.5, global_clipnorm=1.0)
    step(frontend, optimizer, {"w": np.ones(2)}, gradient)
    first_moment = array(optimizer.state_of(0)["m"])
    np.testing.assert_allclose(first_moment, [0.3, 0.4], rtol=1e-6)
    short = optimizer_of(frontend, beta_1=0.5, global_clipnorm=1.0)
    step(frontend, short, {"w": np.ones(2)}, {"w": np.array([0.3, 0.4])})
    np.testing.assert_allclose(array(short.state_of(0)["m"]), [0.15, 0.2], rtol=1e-6)


@every_frontend
def test_d22_the_first_step_of_lars_is_scaled(frontend):
    """|w| = 1 at rate 1: a step of the trust coefficient, whatever the gradient's length."""
    for length in (1.0, 1800.0):
        moved = step(
            frontend, optimizer_of(frontend, "LARS", 1.0), {"w": [1.0, 0.0]}, {"w": [0.0, length]}
        )
        np.testing.assert_allclose(moved["w"], [1.0, -0.001], rtol=1e-6)


@every_frontend
@pytest.mark.parametrize("length", [1.0, 100.0])
def test_d23_a_large_layer_has_a_large_ratio(frontend, length):
    """The first step is learning_rate |w| long: no bound on |w|, and no rate ten times as high."""
    start = {"w": np.full(4, length / 2)}
    moved = step(frontend, optimizer_of(frontend), start, {"w": np.array([3.0, -1.0, 2.0, 5.0])})
    assert frobenius(moved["w"] - start["w"]) == pytest.approx(0.1 * length, rel=1e-5)


@every_frontend
@pytest.mark.parametrize("unadapted", [[], ["dense"]])
def test_d24_bias_correction_is_in_the_moments(frontend, unadapted):
    """In the rate it would shrink the first step to 0.316, and mix with the decay."""
    optimizer = optimizer_of(frontend, weight_decay=0.1, exclude_from_layer_adaptation=unadapted)
    reference = Lamb(W, lr=0.1, wd=0.1, unadapted=W if unadapted else ())
    close(step(frontend, optimizer, W, G), reference.step(G))


@every_frontend
def test_d26_lars_has_no_hidden_bounds(frontend):
    """A ratio of 1000, and elements of the gradient beyond 10."""
    start, gradient = {"w": np.full(4, 5e4)}, {"w": np.array([50.0, 50.0, 50.0, -50.0])}
    moved = step(
        frontend, optimizer_of(frontend, "LARS", 1e-3, trust_coefficient=1.0), start, gradient
    )
    expected = Lars(start["w"], eta=1.0).step(gradient["w"], 1e-3)
    np.testing.assert_allclose(moved["w"], expected, rtol=1e-6)
    assert np.abs(moved["w"] - start["w"]).max() == pytest.approx(50.0, rel=1e-4)


@every_frontend
@pytest.mark.parametrize("debias", [True, False])
def test_d27_bias_correction_is_a_switch(frontend, debias):
    optimizer = optimizer_of(frontend, weight_decay=0.1, bias_correction=debias)
    reference = Lamb(W, lr=0.1, wd=0.1, debias=debias)
    reference.step(G)
    close(step(frontend, optimizer, W, G, steps=2), reference.step(G))


@every_frontend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_d28_no_loss_scaling_is_asked_for(frontend, dtype):
    """Norms of what is sharded: test_sharded.py, and the parameter servers of
    test_distribution.py."""
    moved = step(frontend, optimizer_of(frontend), W, G, dtype)
    close(moved, Lamb(W, lr=0.1).step(G), 1e-6 if dtype == "float32" else 0.02)


@every_frontend
@pytest.mark.parametrize("argument", [{"averaging": "debiased"}, {"preconditioned": False}])
def test_d29_an_argument_of_adascale_sets_itself_alone(frontend, argument):
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
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_d31_every_floating_type_takes_a_step_and_leaves_the_gradient(frontend, dtype):
    variable = new_variable(frontend, W["dense/kernel"], dtype)
    gradient = keras.ops.convert_to_tensor(G["dense/kernel"], dtype)
    before = array(gradient)
    with uncompiled():
        optimizer_of(frontend).apply_gradients([(gradient, variable)])
    assert np.any(array(variable) != W["dense/kernel"].astype(before.dtype))
    np.testing.assert_array_equal(array(gradient), before)


@every_frontend
def test_d32_the_norm_is_of_the_master(frontend):
    """Of |w| = 2 in float32, not of what bfloat16 has left of it; clipping is D17."""
    optimizer = optimizer_of(frontend, rate=1e-3, dtypes={"masters": "float32"})
    optimizer.observe_trust_ratios()
    start, gradient = {"w": np.ones(4)}, {"w": np.ones(4)}
    step(frontend, optimizer, start, gradient, "bfloat16", steps=3)
    (seen,) = optimizer.trust_ratios()
    assert seen.weight_norm == pytest.approx(2 * (1 - 1e-3) ** 2, rel=1e-6)
    assert seen.weight_norm != 2.0


@every_frontend
def test_d33_rates_and_lists_are_free(frontend):
    host, _ = FRONTENDS[frontend]
    rates = [0.1, lambda: 0.1, host.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)]
    weights = [step(frontend, optimizer_of(frontend, "LARS", rate), W, G) for rate in rates]
    for other in weights[1:]:
        close(other, weights[0])
    optimizer = optimizer_of(
        frontend, "LARS", weight_decay=0.1, exclude_from_layer_adaptation=["bias"]
    )
    again = type(optimizer).from_config(optimizer.get_config())
    again.build([new_variable(frontend, w, path=k) for k, w in W.items()])
    treatments = [(t.decay, t.adapt) for t in again.plan.treatments]
    assert treatments == [(0.1, True), (0.1, False)]


@every_frontend
def test_d34_lamb_can_exclude_from_adaptation_and_more(frontend):
    optimizer = optimizer_of(
        frontend,
        exclude_from_layer_adaptation=["bias"],
        bounds={"weight_norm": (0.5, 2.0)},
        dtypes={"slots": "bfloat16"},
    )
    start = {"dense/kernel": np.full((2, 2), 8.0), "dense/bias": np.full(4, 8.0)}
    ones = {k: np.ones_like(w) for k, w in start.items()}
    moved = step(frontend, optimizer, start, ones)
    # phi(16) = 2, over |u| = 2; and 1 for the bias, which is not adapted.
    np.testing.assert_allclose(moved["dense/kernel"], 8.0 - 0.1 * 2.0 / 2.0, rtol=1e-3)
    np.testing.assert_allclose(moved["dense/bias"], 8.0 - 0.1, rtol=1e-3)
    dtypes = {dtype_of(slot) for i in range(2) for slot in optimizer.state_of(i).values()}
    assert dtypes == {"bfloat16"}


@pytest.mark.parametrize("name", ["LAMB", "LARS", "AdamP", "SGDP"])
def test_d35_optimizers_can_be_pickled(name, frontend="keras"):
    """What Keras's own suite asks of its optimizers, but not of its Lamb."""
    optimizer = optimizer_of(frontend, name, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.get_config() == optimizer.get_config()
    close(step(frontend, again, W, G), step(frontend, optimizer, W, G), 0)


@every_frontend
def test_d36_fused_blocks_can_have_a_ratio_each(frontend):
    """Block norms .04, 4 and 400 in one kernel: each moves by a tenth of itself."""
    w = np.repeat([0.01, 1.0, 100.0], 16).reshape(1, 48)
    for given, expected in (
        ({"qkv": {"slices": [-1, 3]}}, [0.1] * 3),
        (None, [577.4, 5.774, 0.05774]),
    ):
        optimizer = optimizer_of(frontend, treatments=given)
        moved = step(frontend, optimizer, {"qkv/kernel": w}, {"qkv/kernel": np.ones_like(w)})[
            "qkv/kernel"
        ]
        np.testing.assert_allclose(np.abs(moved - w)[0, ::16] / w[0, ::16], expected, rtol=1e-2)


@on_tensorflow
def test_d37_everything_is_imported_beside_everything():
    """Both frontends live in this very process, beside TensorFlow, Keras 3 and tf_keras."""
    versions = {name: int(host.__version__.split(".")[0]) for name, (host, _) in FRONTENDS.items()}
    assert versions == {"keras": 3, "tf_keras": 2}
    for host, ours in FRONTENDS.values():
        assert issubclass(ours.LAMB, host.optimizers.Optimizer)
