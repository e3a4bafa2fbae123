"""Trust ratios in both frontends: numbers of the oracle, and training left as it was."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from oracle import Toy
from support.frontends import BACKEND, FRONTENDS, array, every_frontend, on_tensorflow
from support.watching import (
    CASES,
    as_numbers,
    assert_equal,
    expected,
    fit,
    optimizer_of,
    quiet,
    toy_model,
    train,
)


def network(frontend, optimizer, eagerly=True):
    """Larger, so that compilers have something to fuse."""
    layers = FRONTENDS[frontend][0].layers
    FRONTENDS[frontend][0].utils.set_random_seed(0)
    model = FRONTENDS[frontend][0].Sequential(
        [layers.InputLayer((16,)), layers.Dense(64, activation="relu", name="wide"),
         layers.Dense(4, name="head")]
    )  # fmt: skip
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
    return model


def trained(model, *callbacks, epochs=1):
    """The weights after four steps an epoch."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 16)), rng.normal(size=(32, 4))
    train(model, x, y, *callbacks, batch_size=8, epochs=epochs)
    return model.get_weights()


def lamb(frontend, **arguments):
    settings = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}
    return FRONTENDS[frontend][1].LAMB(0.01, **{"jit_compile": False, **settings, **arguments})


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(array(one), array(other))


def assert_step(observations, case, step):
    got, want = as_numbers(observations), list(expected(case, step))[-1]
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5)


# --- Numbers ---


@pytest.mark.parametrize(
    ("case", "eagerly"),
    [*((case, True) for case in CASES), ("LAMB clipped", False), ("LARS clipped", False)],
)
@every_frontend
def test_the_numbers_are_the_oracles(frontend, case, eagerly):
    """Two of the cases are compiled, by XLA."""
    optimizer = optimizer_of(frontend, case, jit_compile=not eagerly)
    readings = fit(
        toy_model(frontend, optimizer, run_eagerly=eagerly), frontend, quiet(frontend), 5
    )
    assert len(readings) == 5
    assert_equal(readings, case)


@every_frontend
def test_between_updates_nothing_new_is_shown(frontend):
    """A micro-step shows the update before it, not one of half the gradient."""
    optimizer = optimizer_of(frontend, "LAMB clipped", gradient_accumulation_steps=2)
    model = toy_model(frontend, optimizer, run_eagerly=True)
    optimizer.observe_trust_ratios()
    x, y = np.tile(Toy.x, (3, 1)), np.tile(Toy.y, (3, 1))
    train(model, x, y, batch_size=4, epochs=1)
    assert int(optimizer.iterations) == 1
    assert_step(optimizer.trust_ratios(), "LAMB clipped", 1)


@every_frontend
def test_a_wrapped_optimizer_is_seen_through(frontend):
    wrap = FRONTENDS[frontend][0].mixed_precision.LossScaleOptimizer
    model = toy_model(frontend, wrap(optimizer_of(frontend, "LAMB")))
    assert_equal(fit(model, frontend, quiet(frontend), 3), "LAMB")


@every_frontend
def test_joined_and_sliced_layers(frontend):
    optimizer = lamb(
        frontend, exclude_from_weight_decay=None,
        treatments={"head": {"join": True}, "wide/kernel": {"slices": [-1, 4]}},
        bounds={"trust_ratio": (0.0, 1e-3)},
    )  # fmt: skip
    model = network(frontend, optimizer, eagerly=BACKEND == "tensorflow")
    start = array(model.layers[0].kernel)
    optimizer.observe_trust_ratios()
    rng = np.random.default_rng(0)
    train(model, rng.normal(size=(8, 16)), rng.normal(size=(8, 4)), batch_size=8, epochs=1)
    seen = {each.path.split("sequential/", 1)[-1]: each for each in optimizer.trust_ratios()}
    seen = {re.sub(r"^sequential_\d+/", "", path): each for path, each in seen.items()}
    sliced, kernel, bias = seen["wide/kernel"], seen["head/kernel"], seen["head/bias"]
    blocks = np.split(start, 4, axis=1)
    np.testing.assert_allclose(
        sliced.weight_norm, np.mean([np.linalg.norm(b) for b in blocks]), rtol=1e-5
    )
    assert (sliced.ratios, sliced.clipped) == (4, 4)
    np.testing.assert_allclose(sliced.trust_ratio, 1e-3, rtol=1e-6)
    assert kernel[1:] == bias[1:]
    assert kernel.joined.endswith("head")
    trained(model, watch := quiet(frontend, every=1000))
    assert "mean of 4 slices" in watch.table()
    assert "joined in" in watch.table()


# --- When it reads ---


@every_frontend
def test_a_step_that_was_traced_is_traced_anew(frontend):
    model = network(frontend, lamb(frontend), eagerly=False)
    trained(model)
    trained(model, watch := quiet(frontend))
    assert watch.history.step == 8
    assert all(seen.trust_ratio for seen in watch.history.latest if seen.ratios)


@on_tensorflow  # on JAX Keras refuses an optimizer whose layers are frozen after its build
@every_frontend
def test_a_layer_that_was_frozen_shows_no_old_reading(frontend):
    model = network(frontend, lamb(frontend))
    trained(model, quiet(frontend))
    model.layers[0].trainable = False
    model.compile(model.optimizer, "mse", run_eagerly=True)
    trained(model, watch := quiet(frontend))
    first, _, second, _ = [seen.trust_ratio for seen in watch.history.latest]  # without biases
    assert first is None
    assert second is not None


@every_frontend
def test_readings_are_as_far_apart_as_was_asked(frontend):
    trained(network(frontend, lamb(frontend)), watch := quiet(frontend, every=5), epochs=3)
    assert (watch.history.readings, watch.history.step) == (3, 12)  # of steps 5, 10 and 12


# --- What it leaves as it was ---


@pytest.mark.parametrize(("name", "jit_compile"), [("LAMB", True), ("LARS", False)])
@every_frontend
def test_training_is_bit_for_bit_the_same(frontend, name, jit_compile):
    def run(*callbacks):
        optimizer = getattr(FRONTENDS[frontend][1], name)(
            0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"], jit_compile=jit_compile
        )
        return trained(network(frontend, optimizer, eagerly=False), *callbacks, epochs=2)

    assert_same(run(quiet(frontend)), run())


@every_frontend
def test_a_checkpoint_of_a_watched_run_knows_nothing_of_it(frontend, tmp_path):
    host = FRONTENDS[frontend][0]

    def model():
        return network(frontend, lamb(frontend))

    path = str(tmp_path / "model.keras")
    trained(model(), quiet(frontend), host.callbacks.ModelCheckpoint(path))
    plain = model()
    trained(plain)
    loaded = host.models.load_model(path)
    loaded.run_eagerly = True
    assert_same(loaded.get_weights(), plain.get_weights())
    assert_same(loaded.optimizer.variables, plain.optimizer.variables)
    # And back: into an optimizer that is watched already.
    watched = model()
    trained(watched, quiet(frontend))
    watched.load_weights(path)
    assert_same(trained(watched), trained(loaded))


@every_frontend
def test_unobserved_there_is_nothing(frontend):
    plain, model = lamb(frontend), network(frontend, optimizer := lamb(frontend))
    trained(model)
    plain.build(model.trainable_variables)
    assert len(optimizer.variables) == len(plain.variables)
    assert not optimizer._storage.ratio_vectors
    with pytest.raises(ValueError, match=r"call observe_trust_ratios\(\) before the first step"):
        optimizer.trust_ratios()


# --- What is refused, and what is said ---


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda host, ours: ours.SGDP(), "SGDP has no trust ratios to show: train with LAMB, LANS or"),
     (lambda host, ours: host.optimizers.SGD(),
      "LANS or LARS, not .*keras.*SGD: compile with one")],
    ids=["SGDP", "Keras SGD"],
)  # fmt: skip
@every_frontend
def test_an_optimizer_without_trust_ratios_is_refused(frontend, make, words):
    with pytest.raises(TypeError, match=words):
        trained(network(frontend, make(*FRONTENDS[frontend])), quiet(frontend))


@every_frontend
def test_the_table_is_printed_at_the_end(frontend):
    assert "no step has been trained" in FRONTENDS[frontend][1].TrustRatios().table()
    printed = []
    trained(network(frontend, lamb(frontend)), watch := quiet(frontend, print_fn=printed.append))
    (table,) = printed
    assert table == watch.table()
    assert re.search(r"wide/bias +- +- +excluded", table)
    assert re.search(r"wide/kernel +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+x .* 0 of 4$", table, re.M)


def test_without_tensorflow_a_directory_is_refused(monkeypatch):
    summaries = "tf_lamb.tensorflow.summaries"
    if summaries in sys.modules:
        monkeypatch.delattr(summaries)
        monkeypatch.delitem(sys.modules, summaries)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    ours = FRONTENDS["keras"][1]
    ours.TrustRatios()
    words = "directory='logs'.* TensorBoard's files, needs TensorFlow.*leave the directory out"
    with pytest.raises(ImportError, match=words):
        ours.TrustRatios("logs")


@every_frontend
def test_without_tensorboard_a_directory_is_refused_before_training(
    frontend, monkeypatch, tmp_path
):
    """TensorFlow 2.21 does not bring it, and its summaries fail at the first reading."""
    pytest.importorskip("tensorflow")
    find = importlib.util.find_spec
    lacks = lambda name, *rest: None if name == "tensorboard" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", lacks)
    ours = FRONTENDS[frontend][1]
    ours.TrustRatios()
    with pytest.raises(
        ImportError, match=r"TrustRatios\('logs'\) needs TensorBoard.*install tensorboard\.$"
    ):
        ours.TrustRatios("logs")
