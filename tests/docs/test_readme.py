"""The README's Python runs, and what its shell names exists."""

import shlex
import warnings

import keras
import numpy as np
import yaml
from official.modeling import optimization
from support.pages import ROOT, blocks

import tf_lamb
from tf_lamb import model_garden
from tf_lamb.model_garden.checks import early
from tf_lamb.model_garden.folders import yamls

README = ROOT / "README.md"


def texts(language):
    return [text for _, text in blocks(README, language)]


def test_the_one_line_change_runs():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    code, _ = texts("python")
    exec(code, {"model": model})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.optimizer.build(model.trainable_variables)
    assert type(model.optimizer) is tf_lamb.LAMB


def test_adascale_runs_as_it_stands():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    _, code = texts("python")
    data = {"x": np.ones((128, 4)), "y": np.ones((128, 1))}
    exec(code, {"tf_lamb": tf_lamb, "model": model, "schedule": 0.1, "steps": 3, **data})
    assert model.optimizer.scale_invariant_steps >= 3


def test_what_the_commands_name_exists():
    (command,) = [text for text in texts("") if text.startswith("python -m")]
    commands = shlex.split(command)
    flags = dict(word[2:].split("=", 1) for word in commands if word.startswith("--"))
    assert flags["experiment"] in early.registered_in(early.OURS)
    assert yamls.found(flags["config_file"])


def test_what_make_train_shows_is_its_output():
    (shown,) = [text for text in texts("") if text.startswith("Full log: ")]
    log = ROOT / "benchmarks" / "logs" / "make_train.log"
    output = log.read_text()
    assert shown in output
    assert len(output.splitlines()) <= 40


def test_the_yaml_is_a_config():
    (text,) = texts("yaml")
    optimizer = yaml.safe_load(text)["trainer"]["optimizer_config"]["optimizer"]
    model_garden.register()
    config = optimization.OptimizerConfig(optimizer)
    assert config.get().weight_decay == 0.01
