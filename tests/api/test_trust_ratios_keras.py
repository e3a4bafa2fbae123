"""Trust ratios on show behind door 1, on whatever backend the suite runs."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from oracle import Toy
from support import watching

import tf_lamb.keras
from tf_lamb.keras import LAMB, LARS, SGDP, TrustRatios

OURS = {"LAMB": LAMB, "LARS": LARS}


def optimizer_of(case, **changes):
    name, ours, _ = watching.CASES[case]
    return OURS[name](**{**ours, **changes})


def quiet(**arguments):
    return TrustRatios(**{"every": 1, "print_fn": None, **arguments})


def network(optimizer, seed=0, **compile_arguments):
    """Larger, so that compilers have something to fuse."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(64, activation="relu", name="wide"),
         keras.layers.LayerNormalization(), keras.layers.Dense(4, name="head")]
    )  # fmt: skip
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    return model


def train(model, callbacks, epochs=3):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 16)), rng.normal(size=(32, 4))
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return [np.array(w) for w in model.get_weights()]


def lamb(**arguments):
    settings = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias", "gamma", "beta"]}
    return LAMB(0.01, **{**settings, **arguments})


def assert_step(observations, case, step):
    got, want = watching.as_numbers(observations), list(watching.expected(case, step))[-1]
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("case", watching.CASES)
def test_the_numbers_are_the_oracles(case, eager):
    model = watching.toy_model(keras, optimizer_of(case), run_eagerly=eager)
    readings = watching.fit(model, keras, quiet(), 5)
    assert len(readings) == 5
    watching.assert_equal(readings, case)


def test_with_accumulation_a_reading_is_of_an_update():
    optimizer = optimizer_of("LAMB clipped", gradient_accumulation_steps=2)
    model = watching.toy_model(keras, optimizer)
    # Two halves of the data: their mean gradient is that of the whole.
    watch = quiet()
    watching.fit(model, keras, watch, 4, batch_size=2)
    assert (watch.history.step, watch.history.readings) == (4, 4)
    assert_step(watch.history.latest, "LAMB clipped", 4)


def test_between_updates_nothing_new_is_shown():
    """A micro-step shows the update before it, not one of half the gradient."""
    optimizer = optimizer_of("LAMB clipped", gradient_accumulation_steps=2)
    model = watching.toy_model(keras, optimizer)
    model.optimizer.observe_trust_ratios()
    x, y = np.tile(Toy.x, (3, 1)), np.tile(Toy.y, (3, 1))
    model.fit(x[:12], y[:12], batch_size=4, shuffle=False, verbose=0)
    assert int(optimizer.iterations) == 1
    assert_step(optimizer.trust_ratios(), "LAMB clipped", 1)


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_training_is_bit_for_bit_the_same(name):
    settings = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], "learning_rate": 0.01}
    make = OURS[name]
    plain = train(network(make(**settings)), [])
    watched = train(network(make(**settings)), [quiet()])
    for one, other in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_step_that_was_traced_is_traced_anew():
    model = network(lamb())
    train(model, [])
    train(model, [watch := quiet()])
    assert watch.history.step == 24
    assert all(seen.trust_ratio for seen in watch.history.latest if seen.ratios)


def test_readings_are_as_far_apart_as_was_asked():
    train(network(lamb()), [watch := quiet(every=5)])
    assert (watch.history.readings, watch.history.step) == (3, 12)  # of steps 5, 10 and 12


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras has none on torch")
def test_several_batches_a_call():
    train(network(lamb(), steps_per_execution=2), [watch := quiet(every=4)])
    assert (watch.history.readings, watch.history.step) == (3, 12)  # of steps 4, 8 and 12


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped"])
def test_a_checkpoint_of_a_watched_run_knows_nothing_of_it(wrapped, tmp_path):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(lamb()) if wrapped else lamb()

    path = str(tmp_path / "model.keras")
    save = keras.callbacks.ModelCheckpoint(path)
    model = network(optimizer())
    train(model, [quiet(), save], epochs=2)
    plain = network(optimizer())
    train(plain, [], epochs=2)
    loaded = keras.models.load_model(path)
    assert len(loaded.optimizer.variables) == len(plain.optimizer.variables)
    for one, other in zip(loaded.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))
    # And back: into an optimizer that is watched already.
    watched = network(optimizer())
    train(watched, [quiet()], epochs=1)
    watched.load_weights(path)
    for one, other in zip(train(watched, []), train(loaded, []), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_wrapped_optimizer_is_seen_through():
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer_of("LAMB"))
    model = watching.toy_model(keras, optimizer)
    watching.assert_equal(watching.fit(model, keras, quiet(), 3), "LAMB")


def test_joined_and_sliced_layers():
    optimizer = LAMB(
        0.01, weight_decay=0.1, layer_groups=["head"], layer_slices={"wide/kernel": [-1, 4]},
        ratio_bounds=(0.0, 1e-3),
    )  # fmt: skip
    model = network(optimizer)
    start = np.array(model.layers[0].kernel)
    train(model, [watch := quiet(every=1000)], epochs=1)
    model = network(optimizer := type(optimizer).from_config(optimizer.get_config()))
    optimizer.observe_trust_ratios()
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(8, 16)), rng.normal(size=(8, 4)), verbose=0)
    seen = {each.path.split("/", 1)[-1]: each for each in optimizer.trust_ratios()}
    sliced, kernel, bias = seen["wide/kernel"], seen["head/kernel"], seen["head/bias"]
    blocks = np.split(start, 4, axis=1)
    np.testing.assert_allclose(
        sliced.weight_norm, np.mean([np.linalg.norm(b) for b in blocks]), rtol=1e-5
    )
    assert (sliced.ratios, sliced.clipped) == (4, 4)
    np.testing.assert_allclose(sliced.trust_ratio, 1e-3, rtol=1e-6)
    assert kernel[1:] == bias[1:]
    assert kernel.joined.endswith("head")
    assert "mean of 4 slices" in watch.table()
    assert "joined in" in watch.table()


def test_unobserved_there_is_nothing():
    plain, model = lamb(), network(optimizer := lamb())
    train(model, [], epochs=1)
    plain.build(model.trainable_variables)
    assert len(optimizer.variables) == len(plain.variables)
    assert optimizer._observed is None
    with pytest.raises(ValueError, match=r"call observe_trust_ratios\(\) before the first step"):
        optimizer.trust_ratios()


@pytest.mark.parametrize(
    ("make", "words"),
    [(SGDP, "SGDP has no trust ratios to show: train with LAMB or LARS"),
     (keras.optimizers.SGD, "LAMB and LARS, not those of keras.*SGD: compile with one"),
     (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "not those of .*SGD")],
)  # fmt: skip
def test_an_optimizer_without_trust_ratios_is_refused(make, words):
    with pytest.raises(TypeError, match=words):
        train(network(make()), [quiet()])


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None, "often"])
def test_a_wrong_interval_is_refused(every):
    with pytest.raises(ValueError, match=f"every must be .*whole number >= 1, not {every!r}"):
        TrustRatios(every=every)


def test_the_table_is_printed_at_the_end():
    printed = []
    train(network(lamb()), [watch := quiet(print_fn=printed.append)])
    (table,) = printed
    assert table == watch.table()
    assert re.search(r"wide/bias +- +- +excluded", table)
    assert re.search(r"wide/kernel +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+x .* 0 of 12$", table, re.M)


def test_before_training_the_table_says_so():
    assert "no step has been trained" in TrustRatios().table()


def test_tensorboard_reads_it(tmp_path):
    pytest.importorskip("tensorflow")
    from tf_lamb.model_garden.report import read_scalars

    train(network(lamb()), [watch := quiet(directory=tmp_path / "logs", every=4)])
    scalars = read_scalars(str(tmp_path / "logs"))
    kernel = next(seen for seen in watch.history.latest if seen.path.endswith("head/kernel"))
    for name in ("weight_norm", "update_norm", "trust_ratio"):
        points = scalars[f"{name}/{kernel.path}"]
        assert list(points) == [4, 8, 12]
        assert points[12] == pytest.approx(getattr(kernel, name))
    assert scalars["clipped_trust_ratios"] == {4: 0.0, 8: 0.0, 12: 0.0}


def test_without_tensorflow_a_directory_is_refused():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import tf_lamb.keras as t\n"
        "t.TrustRatios()\n"
        "try: t.TrustRatios('logs')\n"
        "except ImportError as error: print(error)"
    )
    pytest.importorskip("jax")
    output = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "TrustRatios(directory='logs') writes TensorBoard's files with TensorFlow" in output
    assert "leave the directory out" in output
    assert tf_lamb.keras.TrustRatios is TrustRatios
