"""Decentralized training by Keras on JAX: eight workers on eight devices."""

import functools
import shutil

import keras
import numpy as np
import pytest
from support.decentralized import WORKERS, compiled, data, dense, fit, matrix_of

import tf_lamb.keras
from tf_lamb_extras.decentralized import Decentralized, rules

if keras.backend.backend() != "jax":
    pytest.skip("it trains on JAX alone", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def own_weights(workers):
    """Of each worker, as arrays of all of them."""
    return [np.array(v.value) for v in workers.variables]


def schedule():
    return keras.optimizers.schedules.PolynomialDecay(0.1, 12, end_learning_rate=0.01)


@pytest.mark.parametrize("rate", [0.05, schedule])
def test_full_with_equal_starts_is_all_reduced_momentum(rate):
    rate = rate() if callable(rate) else rate
    alone = compiled(rate=rate)
    logs = fit(alone, validation_data=data(24, 1))
    for method in ("decentlam", "dmsgd") if rate == 0.05 else ("decentlam",):
        model = compiled(rate=rate)
        workers = Decentralized(model, method, "full")
        ours = fit(workers, validation_data=data(24, 1))
        for variable, expected in zip(model.weights, alone.weights, strict=True):
            np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)
        assert max(ours.pop("consensus_distance")) < 1e-12
        assert ours.keys() == logs.keys()
        for name in logs:
            np.testing.assert_allclose(ours[name], logs[name], rtol=1e-5, err_msg=name)


def lowered(workers, devices=None):
    from tf_lamb_extras.preflight.tpu import compiler

    x, y = data()
    return compiler.compile_lowered(workers.lower(x[:16], y[:16], devices=devices))


WEIGHTS = 4 * (6 * 16 + 16 + 16 + 16 + 16 * 3 + 3)
ARRAYS = 6
# How many exchanges there are of each array, over all turns.
EXCHANGES = {"ring": 2, "exponential": 3, "one_peer_exponential": 3, "grid": 4, "full": 0}


@pytest.mark.parametrize("topology", EXCHANGES)
def test_the_compiled_step_exchanges_with_neighbours_alone(topology):
    model = compiled(dense(normalized=True))
    workers = Decentralized(model, "dmsgd", topology)
    check_exchanges(topology, lowered(workers).collectives)
    pytest.importorskip("libtpu")
    from tf_lamb_extras.preflight.tpu import compiler, roofline

    devices = compiler.devices(roofline.topology("v4:2x2x2"))
    check_exchanges(topology, lowered(workers, devices).collectives)


def check_exchanges(topology, collectives):
    exchanges, size = collectives.pop("collective-permute", (0, 0))
    _, reduced = collectives.pop("all-reduce")
    assert not collectives
    assert exchanges == EXCHANGES[topology] * ARRAYS
    assert size == EXCHANGES[topology] * WEIGHTS
    if topology == "full":
        assert WEIGHTS <= reduced <= WEIGHTS + 32
    else:
        assert reduced <= 32  # loss and metrics: a few sums


def test_another_number_of_devices_to_compile_for_is_one_error():
    import jax

    workers = Decentralized(compiled())
    with pytest.raises(ValueError, match="there are 8 workers, and 2 devices to compile for"):
        lowered(workers, jax.devices()[:2])


def test_a_second_step_compiles_nothing():
    import jax

    model = compiled(dense(0.1, normalized=True), rate=schedule())
    workers = Decentralized(model, "dmsgd", "one_peer_exponential")
    compilations = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(compilations))

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        seen = []
        fit(workers, 1, callbacks=[Watch()], validation_data=data(24, 1))
        assert seen[0] > 0 and set(seen) == {seen[0]}
        compilations.clear()
        fit(workers, 2, callbacks=[Watch()], validation_data=data(24, 1))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compilations


def test_a_batch_is_dealt_in_order_and_neighbours_are_averaged():
    """One step of DSGD by hand: each worker's own gradient, then the ring."""
    x, y = data()
    model = compiled(momentum=0.0)
    model.set_weights([w + 0.1 for w in model.get_weights()])  # biases too
    start = model.get_weights()
    workers = Decentralized(
        model, "dsgd", "ring", weight_decay=0.2, exclude_from_weight_decay=["bias$"]
    )
    fit(workers, 1, x=x[:32], y=y[:32], batch_size=32)
    alone = compiled(dense(), rate=1.0, momentum=0.0)
    moved = []
    for i in range(WORKERS):
        alone.set_weights(start)
        alone.train_on_batch(x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])
        gradients = [w - v for w, v in zip(start, alone.get_weights(), strict=True)]
        moved.append(
            [w - 0.05 * (g + 0.2 * w * (w.ndim > 1)) for w, g in zip(start, gradients, strict=True)]
        )
    ring = matrix_of("ring", WORKERS)
    for own, each in zip(own_weights(workers), zip(*moved, strict=True), strict=True):
        np.testing.assert_allclose(own, np.tensordot(ring, np.array(each), 1), atol=1e-6)


def test_a_pattern_that_matches_nothing_is_warned_of_at_the_users_line():
    options = {"weight_decay": 0.2, "exclude_from_weight_decay": ["bais"]}
    workers = Decentralized(compiled(momentum=0.0), "dsgd", "ring", **options)
    with pytest.warns(UserWarning, match="matches the pattern 'bais'") as caught:
        workers.lower(*data())
    assert caught[0].filename == __file__


def test_it_prints_the_decay_of_each_variable_before_a_step():
    options = {"weight_decay": 0.2, "exclude_from_weight_decay": ["bias"]}
    workers = Decentralized(compiled(momentum=0.0), "dsgd", "ring", **options)
    workers.describe((lines := []).append)
    rows = {
        row.split()[0].rpartition("/")[2]: row.split() for row in lines[0].splitlines()[1:] if row
    }
    assert "0.2" in rows["kernel"] and "0.2" not in rows["bias"]
    unbuilt = Decentralized(compiled(keras.Sequential([keras.layers.Dense(3)])), "dmsgd")
    with pytest.raises(ValueError, match="has no variables yet"):
        unbuilt.describe()


@pytest.mark.parametrize("topology", ["one_peer_exponential", "grid"])
def test_turns_and_weights_by_worker_are_those_of_the_matrices(topology):
    """Workers far apart that do not learn: what a step does is the matrix alone."""
    model = compiled(momentum=0.0, rate=0.0)
    workers = Decentralized(model, "dsgd", topology)
    workers.lower(*data())
    rng = np.random.default_rng(0)
    own = [rng.normal(size=v.shape).astype("float32") for v in workers.variables]
    workers.set_weights(own)
    fit(workers, 1)  # four steps
    found = rules.matrices(topology, WORKERS)
    for before, after in zip(own, own_weights(workers), strict=True):
        for turn in range(4):
            before = np.tensordot(np.array(found[turn % len(found)]), before, 1)
        np.testing.assert_allclose(after, before, atol=1e-6)


def test_the_distance_and_the_averaged_model():
    model = compiled(dense(0.1, normalized=True))
    workers = Decentralized(model, "dmsgd", "ring")
    logs = fit(workers, 2, validation_data=data(24, 1))
    own = own_weights(workers)
    trained = np.concatenate([w.reshape(WORKERS, -1) for w in own[:6]], axis=1).astype(float)
    distance = np.mean(np.sum((trained - trained.mean(axis=0)) ** 2, axis=1))
    np.testing.assert_allclose(logs["consensus_distance"][-1], distance, rtol=1e-5)
    assert workers.consensus_distance() == logs["consensus_distance"][-1] > 1e-6
    # Weights, then the statistics of batch normalization, which differ between workers.
    averaged = model.trainable_variables + model.non_trainable_variables
    for variable, each in zip(averaged[:8], own[:8], strict=True):
        assert np.ptp(each, axis=0).max() > 1e-6
        np.testing.assert_allclose(variable.numpy(), each.mean(axis=0), rtol=1e-5, atol=1e-7)
    # Random numbers differ, too; the model goes on with the first worker's.
    seeds = own[8]
    assert len({tuple(seed) for seed in seeds}) == WORKERS and len(set(seeds[:, 1])) == 1
    np.testing.assert_array_equal(averaged[8].numpy(), seeds[0])
    x, y = data(24, 1)
    loss, mae = workers.evaluate(x, y, batch_size=16, verbose=0)
    assert [loss, mae] == [logs["val_loss"][-1], logs["val_mae"][-1]]
    np.testing.assert_allclose(np.mean(np.square(model(x) - y)), loss, rtol=1e-5)
    np.testing.assert_allclose(workers.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-6)


def test_resumed_is_uninterrupted(tmp_path):
    """With all that a step has: velocities, turns, a schedule, statistics and random numbers."""

    def workers():
        model = compiled(dense(0.2, normalized=True), rate=schedule(), momentum=0.5)
        return Decentralized(model, topology="one_peer_exponential")

    backup = functools.partial(tf_lamb.keras.BackupAndRestore, tmp_path / "backup")

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:  # what a process leaves that ends here
                shutil.copytree(tmp_path / "backup", tmp_path / "left")

    straight = workers()
    expected = fit(straight, 4, callbacks=[backup(), Kill()])
    (tmp_path / "left").rename(tmp_path / "backup")
    resumed = workers()
    logs = fit(resumed, 4, callbacks=[backup()])
    for name in expected:
        assert logs[name] == expected[name][2:], name
    for variable, own in zip(
        [*resumed.variables, *resumed.optimizer.variables, *resumed._workers.model.variables],
        [*straight.variables, *straight.optimizer.variables, *straight._workers.model.variables],
        strict=True,
    ):
        np.testing.assert_array_equal(variable.numpy(), own.numpy(), err_msg=variable.path)

    again = workers()
    again.lower(*data())
    again.load_weights(save_weights(straight, tmp_path))
    assert fit(again, 1) == fit(straight, 1)


def save_weights(workers, folder):
    path = folder / "workers.weights.h5"
    workers.save_weights(path)
    return path


def test_what_is_saved_is_the_averaged_model(tmp_path):
    model = compiled(dense(normalized=True))
    workers = Decentralized(model, topology="symmetric_exponential")
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss")
    fit(workers, 2, callbacks=[best])
    workers.save(tmp_path / "last.keras")
    for name in ("best", "last"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        for variable, own in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(variable.numpy(), own.numpy())


def test_half_precision_variables_and_a_subclass_that_data_builds():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(dtype="bfloat16")
            self.dense = keras.layers.Dense(3, dtype="bfloat16")

        def call(self, x):
            return self.dense(x)

    model = compiled(Own(), metrics=[])
    logs = fit(Decentralized(model), 3, validation_data=data(24, 1))
    assert logs["loss"][-1] < logs["loss"][0]
    assert {v.dtype for v in model.weights} == {"bfloat16"}


def test_what_fit_takes_it_takes(capsys):
    """Callbacks that set the rate, weights of classes, constraints, several outputs, executions."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5))(inputs)
    outputs = {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(2)(hidden)}
    keras.utils.set_random_seed(1)
    model = keras.Model(inputs, outputs)
    losses = {"a": "mse", "b": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        losses,
        steps_per_execution=2,
        metrics={"a": ["mae"], "b": ["accuracy"]},
    )
    start = model.get_weights()
    x, y = data()
    targets = {"a": y[:, :1], "b": (y[:, 1] > 0).astype("int32")}
    workers = Decentralized(model, "dmsgd", "full")
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (1 + epoch))
    weights = np.linspace(0, 2, len(x))
    options = {
        "x": x, "y": targets, "sample_weight": {"a": weights, "b": weights}, "callbacks": [rates],
    }  # fmt: skip
    logs = fit(workers, 2, **options, verbose=1)
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown and "consensus_distance" in shown
    constrained = own_weights(workers)[0]
    assert np.linalg.norm(constrained, axis=1).max() <= 0.5 + 1e-6
    after = model.get_weights()
    model.set_weights(start)
    expected = fit(model, 2, **options)
    assert logs["learning_rate"] == pytest.approx([0.02, 0.01])
    logs.pop("consensus_distance")
    assert logs.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(logs[name], expected[name], rtol=1e-4, err_msg=name)
    for own, other in zip(after, model.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)
