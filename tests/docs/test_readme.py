"""The README's Python runs, and what it shows was printed."""

import warnings

import keras
import numpy as np
from support.pages import ROOT, blocks

import tf_lamb

README = ROOT / "README.md"


def texts(language):
    return [text for _, text in blocks(README, language)]


def test_the_snippets_run_as_they_stand():
    """One after the other, as a reader types them."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    names = {"model": model, "x": np.ones((1024, 4)), "y": np.ones(1024)}
    line, recipe, adascale = texts("python")
    exec(line, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.optimizer.build(model.trainable_variables)
    assert type(model.optimizer) is tf_lamb.LAMB
    exec(recipe, names)
    assert names["optimizer"].plan is None and names["optimizer"].weight_decay == 0.01
    exec(adascale.replace("epochs=100", "epochs=2"), names)
    assert model.optimizer.iterations == 8 and model.optimizer.scale_invariant_steps >= 8


def test_what_make_train_shows_is_its_output():
    (shown,) = [text for text in texts("") if text.startswith("Full log: ")]
    output = (ROOT / "benchmarks" / "logs" / "make_train.log").read_text()
    assert all(part.strip() in output for part in shown.split("..."))
    assert len(output.splitlines()) <= 40
