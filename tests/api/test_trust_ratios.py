"""Trust ratios on show: the table, and on TensorFlow both doors, replicas and the Model Garden."""

import doctest
import inspect
import math
import re

import keras
import numpy as np
import orbit
import pytest
import tensorflow as tf
import tf_keras
from support import watching
from support.clusters import mirrored

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.core import observing
from tf_lamb.core.observing import Observation
from tf_lamb.core.rules import lamb, lars
from tf_lamb.core.trust_ratios import History
from tf_lamb.model_garden.report import read_scalars

DOORS = {"keras": (keras, tf_lamb.keras), "tf_keras": (tf_keras, tf_lamb.tf_keras)}


def optimizer_of(door, case, **changes):
    name, ours, _ = watching.CASES[case]
    return getattr(DOORS[door][1], name)(**{**ours, **changes})


def quiet(door, **arguments):
    return DOORS[door][1].TrustRatios(**{"every": 1, "print_fn": None, **arguments})


# The rules and the table, without a host.


def seen_by(rule, w, u, **arguments):
    calls = []
    rule(np, u, w, *arguments.pop("slots"), t=1, adapt=True, decay=0.0,
         observe=lambda *seen: calls.append(seen), **arguments)  # fmt: skip
    (seen,) = calls
    return tuple(float(x) for x in observing.summary(np, *seen))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (5.0, 1.0, 5.0, 0)),
        ({"ratio_bounds": (0, 4)}, (5.0, 1.0, 4.0, 1)),
        ({"ratio_bounds": (0, 50), "phi_bounds": (0, 10)}, (5.0, 1.0, 5.0, 0)),
        ({"phi_bounds": (0, 2)}, (5.0, 1.0, 2.0, 1)),
        ({"phi_bounds": (8, 9)}, (5.0, 1.0, 8.0, 1)),
    ],
)
def test_what_lamb_shows(arguments, expected):
    zero = np.zeros(2)
    w, u = np.array([3.0, 4.0]), np.array([0.0, 2.0])
    got = seen_by(lamb, w, u, slots=(zero, zero), lr=0.1, epsilon=1e-300, **arguments)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize("w", [[0.0, 0.0], [math.nan, 1.0]])
def test_a_ratio_of_nothing_is_not_clipped(w):
    zero = np.zeros(2)
    seen = seen_by(lars, np.array(w), np.ones(2), slots=(zero,), lr=0.1, ratio_bounds=(0, 50))
    assert seen[3] == 0


def test_the_table_has_outliers_first_and_the_excluded_last():
    history = History()
    history.add(10, [
        Observation("middle", 0, "", 1, 1.0, 10.0, 0.1, 0),
        Observation("bias", 1, "", 0),
        Observation("large", 2, "", 1, 9.0, 1.0, 9.0, 1),
        Observation("small", 3, "", 1, 1.0, 1e5, 1e-5, 0),
        Observation("frozen", 4, "", 1),
    ])  # fmt: skip
    history.add(20, [
        Observation("middle", 0, "", 1, 1.0, 5.0, 0.2, 0),
        Observation("bias", 1, "", 0),
        Observation("large", 2, "", 1, 9.0, 9.0, 1.0, 0),
        Observation("small", 3, "", 1, 1.0, math.nan, math.nan, 0),
        Observation("frozen", 4, "", 1),
    ])  # fmt: skip
    title, _, header, *rows = history.table().splitlines()
    assert "step 20, the farthest from their median (0.6) first" in title
    assert title.endswith("of 2 readings.")
    assert [row.split()[0] for row in rows] == ["small", "middle", "large", "bias", "frozen"]
    assert rows[1].split() == ["middle", "1", "5", "0.2", "0.33x", "0.1", "0.2", "0", "of", "2"]
    assert rows[2].split() == ["large", "9", "9", "1", "1.7x", "1", "9", "1", "of", "2"]
    assert rows[3].split() == ["bias", "-", "-", "excluded", "-", "-", "-", "-"]
    assert "no step yet" in rows[4]


# Behind the doors.


@pytest.mark.parametrize("name", ["TrustRatios", "LAMB.observe_trust_ratios"])
@pytest.mark.parametrize("door", DOORS)
def test_the_example_runs(door, name):
    runner = doctest.DocTestRunner()
    item = DOORS[door][1]
    for part in name.split("."):
        item = getattr(item, part)
    for example in doctest.DocTestFinder(recurse=False).find(item, name, globs={}):
        runner.run(example)
    assert runner.tries >= 5
    assert not runner.failures


def test_the_doors_have_one_face():
    one, other = (door.TrustRatios for _, door in DOORS.values())
    assert inspect.signature(one) == inspect.signature(other)
    assert inspect.getdoc(one) == inspect.getdoc(other)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("case", watching.CASES)
def test_door_2_is_the_oracle(case, eager):
    model = watching.toy_model(tf_keras, optimizer_of("tf_keras", case), run_eagerly=eager)
    readings = watching.fit(model, tf_keras, quiet("tf_keras"), 5)
    assert len(readings) == 5
    watching.assert_equal(readings, case)


@pytest.mark.parametrize("case", ["LAMB clipped", "LARS"])
@pytest.mark.parametrize("door", DOORS)
def test_replicas_show_what_one_device_shows(door, case):
    host, _ = DOORS[door]
    strategy = mirrored(2)
    with strategy.scope():
        model = watching.toy_model(host, optimizer_of(door, case))
    watching.assert_equal(watching.fit(model, host, quiet(door), 3), case)
    # Each replica wrote its own copy.
    vectors = model.optimizer._observed_variables
    assert vectors
    for vector in vectors:
        one, other = (copy.numpy() for copy in strategy.experimental_local_results(vector))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("door", DOORS)
def test_observed_before_it_is_built_in_a_replica(door):
    """The first step of a custom loop builds the optimizer, and then the vectors."""
    _, ours = DOORS[door]
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable([3.0, 4.0])
        optimizer = ours.LAMB(0.1)
    optimizer.observe_trust_ratios()
    if door == "keras":  # whose optimizers build outside of a replica only
        with strategy.scope():
            optimizer.build([variable])

    @tf.function
    def run():
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([0.0, 1.0]), variable)]))

    run()
    (seen,) = optimizer.trust_ratios()
    assert seen[3:] == (1, pytest.approx(5.0), pytest.approx(1.0), pytest.approx(5.0), 0)


@pytest.mark.parametrize(("make", "jit_compile"), [("LAMB", True), ("LAMB", False), ("LARS", True)])
@pytest.mark.parametrize("door", DOORS)
def test_training_is_bit_for_bit_the_same(door, make, jit_compile):
    host, ours = DOORS[door]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 16)), rng.normal(size=(32, 4))

    def train(callbacks):
        host.utils.set_random_seed(0)
        model = host.Sequential(
            [host.layers.InputLayer((16,)), host.layers.Dense(300, activation="relu"),
             host.layers.LayerNormalization(), host.layers.Dense(4)]
        )  # fmt: skip
        optimizer = getattr(ours, make)(
            0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"], jit_compile=jit_compile
        )
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return model.get_weights()

    for one, other in zip(train([]), train([quiet(door)]), strict=True):
        np.testing.assert_array_equal(one, other)


def traced(door, observe, **arguments):
    """The graph of a step and of the programs in it."""
    _, ours = DOORS[door]
    optimizer = ours.LAMB(0.1, **arguments)
    variables = [tf.Variable(tf.ones((4, 3)), name="kernel"), tf.Variable(tf.ones(3), name="bias")]
    optimizer.build(variables)
    if observe:
        optimizer.observe_trust_ratios()

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])

    graph = step.get_concrete_function().graph.as_graph_def()
    return [node for part in (graph, *graph.library.function) for node in
            (part.node if hasattr(part, "node") else part.node_def)]  # fmt: skip


def count(nodes, op):
    return sum(node.op == op for node in nodes)


@pytest.mark.parametrize("door", DOORS)
def test_unobserved_nothing_is_traced(door):
    plain, watched = traced(door, observe=False), traced(door, observe=True)
    # Two weights and their two moments; in Keras 3 the count of steps, too.
    assert count(plain, "AssignVariableOp") == {"keras": 7, "tf_keras": 6}[door]
    assert count(watched, "AssignVariableOp") == count(plain, "AssignVariableOp") + 2
    assert count(plain, "Pack") < count(watched, "Pack")
    assert not any("trust_ratio" in node.name for node in plain)


@pytest.mark.parametrize("door", DOORS)
def test_a_second_observed_step_compiles_nothing(door):
    _, ours = DOORS[door]
    variables = [tf.Variable(tf.ones((4, 3)), name=f"kernel_{i}") for i in range(3)]
    optimizer = ours.LAMB(0.1)
    optimizer.observe_trust_ratios()
    optimizer.build(variables)
    for _ in range(3):
        optimizer.apply_gradients([(tf.ones((4, 3)), v) for v in variables])
    (program,) = optimizer._update._programs.values()
    assert program.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_checkpoint_does_not_hold_them(door, tmp_path):
    host, _ = DOORS[door]
    keys = []
    for watch in ([], [quiet(door)]):
        host.backend.clear_session()
        model = watching.toy_model(host, optimizer_of(door, "LAMB"))
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0, callbacks=watch)
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))
        keys.append({key for key, _ in tf.train.list_variables(path)})
        keys[-1] |= {len(model.optimizer.variables)}
    assert keys[0] == keys[1]


@pytest.mark.parametrize("suffix", ["keras", "h5", "weights.h5"])
def test_door_2_saves_and_loads_as_ever(suffix, tmp_path):
    model = watching.toy_model(tf_keras, optimizer_of("tf_keras", "LAMB"))
    path = str(tmp_path / f"model.{suffix}")
    only = suffix == "weights.h5"
    save = tf_keras.callbacks.ModelCheckpoint(path, save_weights_only=only)
    watching.fit(model, tf_keras, quiet("tf_keras"), 2)
    model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0,
              callbacks=[quiet("tf_keras"), save])  # fmt: skip
    if only:
        loaded = watching.toy_model(tf_keras, optimizer_of("tf_keras", "LAMB"))
        loaded.load_weights(path)
    else:
        loaded = tf_keras.models.load_model(path)
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    if not only:
        assert int(loaded.optimizer.iterations) == 3
        assert len(loaded.optimizer.variables) == len(model.optimizer.variables)


def test_door_2_sees_through_loss_scaling():
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer_of("tf_keras", "LAMB"))
    model = watching.toy_model(tf_keras, optimizer)
    watching.assert_equal(watching.fit(model, tf_keras, quiet("tf_keras"), 3), "LAMB")


def test_door_2_refuses_what_has_no_trust_ratio():
    for optimizer, words in (
        (tf_lamb.tf_keras.AdamP(0.1), "AdamP has no trust ratios to show"),
        (tf_keras.optimizers.Adam(0.1), "LAMB and LARS, not those of .*Adam: compile with one"),
    ):
        model = watching.toy_model(tf_keras, optimizer)
        with pytest.raises(TypeError, match=words):
            watching.fit(model, tf_keras, quiet("tf_keras"), 1)


def test_door_2_counts_updates_of_accumulation():
    optimizer = optimizer_of("tf_keras", "LAMB", gradient_accumulation_steps=2)
    model = watching.toy_model(tf_keras, optimizer, steps_per_execution=2)
    watch = quiet("tf_keras", every=2)
    watching.fit(model, tf_keras, watch, 5, batch_size=2)
    assert (watch.history.readings, watch.history.step) == (3, 5)  # of updates 2, 4 and 5


@pytest.mark.parametrize("door", DOORS)
def test_tensorboard_has_the_histograms(door, tmp_path):
    host, _ = DOORS[door]
    model = watching.toy_model(host, optimizer_of(door, "LAMB clipped"))
    watching.fit(model, host, quiet(door, directory=str(tmp_path)), 3)
    scalars = read_scalars(str(tmp_path))
    assert scalars["clipped_trust_ratios"] == {1: 1.0, 2: 1.0, 3: 1.0}
    steps, tags = {}, set()
    for path in tf.io.gfile.glob(f"{tmp_path}/events*"):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                tags.add(value.tag)
                if value.metadata.plugin_data.plugin_name == "histograms" or value.tag in steps:
                    steps.setdefault(value.tag, []).append(event.step)
    assert steps == dict.fromkeys(("weight_norms", "update_norms", "trust_ratios"), [1, 2, 3])
    kernel = next(v for v in model.trainable_variables if "kernel" in v.name)
    path = getattr(kernel, "path", kernel.name.split(":")[0])
    assert {f"{name}/{path}" for name in observing.NORMS_AND_RATIO} <= tags
    (first, *_) = watching.expected("LAMB clipped", 1)
    assert scalars[f"trust_ratio/{path}"][1] == pytest.approx(first["kernel"][2], rel=1e-5)


# The Model Garden.


def test_an_orbit_loop_is_watched(records, tmp_path):
    garden = pytest.importorskip("support.garden")
    from tf_lamb.model_garden.trust_ratios import TrustRatios

    strategy = garden.mirrored(2)
    trainer = garden.trainer_of(garden.build(garden.tiny(records)), strategy)
    action = TrustRatios(trainer.optimizer, str(tmp_path), every=4)
    controller = orbit.Controller(
        strategy=strategy, trainer=trainer, global_step=trainer.global_step,
        steps_per_loop=2, train_actions=[action],
    )  # fmt: skip
    controller.train(steps=8)
    assert (action.history.step, action.history.readings) == (6, 2)  # of steps 2 and 6
    norms = [np.linalg.norm(v.numpy()) for v in trainer.model.trainable_variables]
    controller.train(steps=9)
    table = action.close()
    assert table == action.table()
    assert list(read_scalars(str(tmp_path))["clipped_trust_ratios"]) == [2, 6, 9]
    moved = [pair for pair in zip(action.history.latest, norms, strict=True) if pair[0].trust_ratio]
    np.testing.assert_allclose(
        [seen.weight_norm for seen, _ in moved], [norm for _, norm in moved], rtol=1e-5
    )
    # Of this BERT, one kernel is in no loss: it has a ratio, but never a step.
    adapted = [seen for seen in action.history.latest if seen.ratios]
    (idle,) = {seen.path for seen in adapted} - {seen.path for seen, _ in moved}
    assert re.search(f"{idle} .* no step yet", table)
    assert len(moved) > 5


def test_an_action_that_comes_too_late_is_refused():
    from tf_lamb.model_garden.trust_ratios import TrustRatios

    optimizer, variable = tf_lamb.tf_keras.LAMB(0.1), tf.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    with pytest.raises(ValueError, match=r"made after the first step.*before the training"):
        TrustRatios(optimizer)


def test_averaging_of_the_model_garden_is_seen_through():
    from official.modeling import optimization

    from tf_lamb.model_garden.trust_ratios import TrustRatios

    inner = tf_lamb.tf_keras.LAMB(0.1)
    action = TrustRatios(optimization.ExponentialMovingAverage(inner))
    assert action._watch.optimizer is inner
    with pytest.raises(TypeError, match="not those of .*SGD"):
        TrustRatios(tf_keras.optimizers.SGD(0.1))
