"""The README's Python runs, and what it shows was printed."""

import warnings

import keras
import numpy as np
from support.pages import ROOT, blocks, reworded, runs

import tf_lamb

README = ROOT / "README.md"


def texts(language):
    return [text for _, text in blocks(README, language)]


def test_the_snippets_run_as_they_stand():
    """One after the other, as a reader types them."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    names = {"model": model, "x": np.ones((1024, 4)), "y": np.ones(1024)}
    _, line, recipe, adascale = texts("python")
    exec(line, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.optimizer.build(model.trainable_variables)
    assert type(model.optimizer) is tf_lamb.LAMB
    exec(recipe, names)
    assert type(names["optimizer"]) is tf_lamb.SOAP and names["recipe"].train_steps == 1200
    exec(adascale.replace("epochs=100", "epochs=2"), names)
    assert model.optimizer.iterations == 8 and model.optimizer.base_steps >= 8


def test_the_finders_run_and_follow_each_other():
    """On fewer examples, with a reading of the noise and the seconds of a step."""
    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    code = texts("python")[0]
    before = "=256, baseline_epochs=12"
    assert before in code
    code = code.replace(
        before, "=8, baseline_epochs=12, noise_scale=64, step_seconds={8: 0.01, 32: 0.011}"
    )
    names = {"model": model, "x": x, "y": x[:, :1]}
    exec(code, names)
    which = names["which"]
    assert which.batch_size > 8
    exec(which.script, names)
    assert names["found"].batch_size == which.batch_size and names["found"].rate
    assert model.optimizer.iterations > 0


def test_what_it_shows_of_the_finder_is_what_was_printed():
    (shown,) = [text for text in texts("") if text.startswith("batch  =")]
    (printed,) = [run["print"] for run in runs("larger") if "find_batch" in run]
    printed = reworded("\n".join(printed)).splitlines()
    assert all(line in printed for line in shown.splitlines())


def test_what_make_train_shows_is_its_output():
    (shown,) = [text for text in texts("") if text.startswith("Full log: ")]
    output = (ROOT / "benchmarks" / "logs" / "make_train.log").read_text()
    assert all(part.strip() in output for part in shown.split("..."))
    assert len(output.splitlines()) <= 40
