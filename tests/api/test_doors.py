"""What both doors promise alike: signatures, words, numbers, one compilation, early refusals."""

import doctest
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support.cases import random_problem

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.core import faces
from tf_lamb.core.layerwise import Layerwise
from tf_lamb.core.settings import Settings

DOORS = {"keras": tf_lamb.keras, "tf_keras": tf_lamb.tf_keras}
FACES = faces.__all__
OPTIMIZERS = [name for name in FACES if issubclass(getattr(faces, name), Layerwise)]


def test_both_doors_have_the_same_names():
    assert tf_lamb.keras.__all__ == tf_lamb.tf_keras.__all__
    assert set(FACES) <= set(tf_lamb.keras.__all__) <= set(tf_lamb.__all__)


@pytest.mark.parametrize("name", FACES)
def test_signatures_are_equal(name):
    one, other = (inspect.signature(getattr(door, name)) for door in DOORS.values())
    assert one == other


@pytest.mark.parametrize("name", FACES)
def test_docstrings_are_equal(name):
    one, other = (inspect.getdoc(getattr(door, name)) for door in DOORS.values())
    assert one == other
    assert one.startswith(f"{name}, ") or name not in OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("door", DOORS)
def test_the_config_holds_every_argument(door, name):
    cls = getattr(DOORS[door], name)
    arguments = set(inspect.signature(cls).parameters) - {"unknown"}
    assert set(cls().get_config()) == arguments


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("door", DOORS)
def test_every_argument_is_documented(door, name):
    cls = getattr(DOORS[door], name)
    for argument in set(inspect.signature(cls).parameters) - {"unknown"}:
        assert re.search(rf"^    {argument}: ", inspect.getdoc(cls), re.MULTILINE), argument


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("door", DOORS)
def test_the_example_runs(door, name):
    runner = doctest.DocTestRunner()
    cls = getattr(DOORS[door], name)
    for example in doctest.DocTestFinder(recurse=False).find(cls, name, globs={}):
        runner.run(example)
    assert runner.tries >= 4
    assert not runner.failures


def final_weights(door, gradients, start, graph=False, **arguments):
    variables = {k: tf.Variable(w, dtype=tf.float32, name=k) for k, w in start.items()}
    optimizer = DOORS[door].LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"],
                                 **arguments)  # fmt: skip
    optimizer.build(list(variables.values()))

    def step(gradients):
        optimizer.apply_gradients([(gradients[k], v) for k, v in variables.items()])

    step = tf.function(step) if graph else step
    for gradient in gradients:
        step({k: tf.constant(g, tf.float32) for k, g in gradient.items()})
    return {k: v.numpy() for k, v in variables.items()}, optimizer


def assert_close(one, other, tolerance):
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], rtol=tolerance, atol=tolerance)


def test_the_doors_are_equal():
    start, gradients = random_problem(shape=(64, 32), steps=10)
    one, _ = final_weights("keras", gradients, start)
    other, _ = final_weights("tf_keras", gradients, start)
    assert_close(one, other, 0)


@pytest.mark.parametrize("door", DOORS)
def test_compiled_eager_and_graph_are_equal(door):
    start, gradients = random_problem(shape=(64, 32), steps=10)
    compiled, _ = final_weights(door, gradients, start)
    for settings in (
        {"jit_compile": False},
        {"graph": True},
        {"graph": True, "jit_compile": False},
    ):
        other, _ = final_weights(door, gradients, start, **settings)
        assert_close(compiled, other, 1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_a_whole_step_can_be_compiled(door):
    """Inside a user's own `jit_compile=True` function the update is part of their program."""
    start, gradients = random_problem()
    expected, _ = final_weights(door, gradients, start)
    variables = {k: tf.Variable(w, dtype=tf.float32, name=k) for k, w in start.items()}
    optimizer = DOORS[door].LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    optimizer.build(list(variables.values()))

    @tf.function(jit_compile=True)
    def step(gradients):
        optimizer.apply_gradients([(gradients[k], v) for k, v in variables.items()])

    for gradient in gradients:
        step({k: tf.constant(g, tf.float32) for k, g in gradient.items()})
    assert_close({k: v.numpy() for k, v in variables.items()}, expected, 1e-6)


def programs(optimizer):
    return optimizer._update._programs


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("door", DOORS)
def test_a_second_step_compiles_nothing(door, graph):
    """One program a (shape, dtype, treatment), traced once whatever the number of variables."""
    start = {f"layer_{i}/{k}": np.ones(s) for i in range(6)
             for k, s in {"kernel": (4, 4), "bias": (4,)}.items()}  # fmt: skip
    _, optimizer = final_weights(door, [start] * 3, start, graph=graph)
    assert len(programs(optimizer)) == 2
    traced = [*programs(optimizer).values(), *optimizer._update._steps.values()]
    assert [f.experimental_get_tracing_count() for f in traced] == [1, 1] + [1] * (not graph)


@pytest.mark.parametrize("door", DOORS)
def test_without_jit_nothing_is_compiled(door):
    start, gradients = random_problem()
    _, optimizer = final_weights(door, gradients, start, jit_compile=False)
    assert not any(
        hasattr(p, "experimental_get_tracing_count") for p in programs(optimizer).values()
    )


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"learning_rate": -0.1}, ValueError, ["learning_rate", "-0.1", "[0, inf)"]),
        ({"learning_rate": float("nan")}, ValueError, ["learning_rate", "nan"]),
        ({"learning_rate": "fast"}, TypeError, ["learning_rate", "'fast'"]),
        ({"learning_rate": None}, TypeError, ["learning_rate", "None", "1e-3"]),
        ({"beta_1": 1.0}, ValueError, ["beta_1", "1.0", "[0, 1)"]),
        ({"beta_2": -1}, ValueError, ["beta_2", "-1"]),
        ({"epsilon": float("nan")}, ValueError, ["epsilon", "nan", "1e-6"]),
        ({"weight_decay": -0.01}, ValueError, ["weight_decay", "-0.01", "0.01"]),
        ({"weight_decay": float("inf")}, ValueError, ["weight_decay", "inf"]),
        ({"bias_correction": 1}, TypeError, ["bias_correction", "1"]),
        ({"clipnorm": -1.0}, ValueError, ["clipnorm", "-1.0"]),
        ({"clipnorm": 1.0, "clipvalue": 2.0}, ValueError, ["clipnorm=1.0", "clipvalue=2.0"]),
        ({"use_ema": "yes"}, TypeError, ["use_ema", "'yes'"]),
        ({"ema_momentum": 1.5}, ValueError, ["ema_momentum", "1.5", "[0, 1]"]),
        ({"ema_overwrite_frequency": 0}, ValueError, ["ema_overwrite_frequency", "0"]),
        ({"gradient_accumulation_steps": 1.5}, ValueError, ["gradient_accumulation_steps", "1.5"]),
        ({"jit_compile": "auto"}, TypeError, ["jit_compile", "'auto'"]),
        ({"name": ["LAMB"]}, TypeError, ["name", "['LAMB']", "list"]),
        ({"exclude_from_weight_decay": "bias"}, TypeError,
         ["exclude_from_weight_decay", "['bias']"]),
        ({"exclude_from_layer_adaptation": ["(("]}, ValueError,
         ["exclude_from_layer_adaptation", "'(('"]),
        ({"weight_decay_rate": 0.1}, TypeError, ["weight_decay_rate=0.1", "'weight_decay'"]),
        ({"zzz": 1}, TypeError, ["'zzz'", "learning_rate"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
@pytest.mark.parametrize("door", DOORS)
def test_what_cannot_be_right_is_refused(door, arguments, error, words):
    with pytest.raises(error) as caught:
        DOORS[door].LAMB(**arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_the_method_refuses_a_bare_string(door):
    """Taken letter by letter, "bias" would exclude whatever has a b, an i, an a or an s in it."""
    optimizer = DOORS[door].LAMB(weight_decay=0.1)
    with pytest.raises(TypeError, match=r"var_names .* Did you mean \['bias'\]"):
        optimizer.exclude_from_weight_decay(var_names="bias")
    assert optimizer.get_config()["exclude_from_weight_decay"] is None


def test_no_weight_decay_may_be_written_as_none():
    assert tf_lamb.keras.LAMB(weight_decay=None).get_config()["weight_decay"] == 0.0


def test_accumulating_one_batch_is_not_accumulating():
    assert tf_lamb.keras.LAMB(gradient_accumulation_steps=1).gradient_accumulation_steps is None


def test_settings_have_no_argument_of_a_host():
    fields = set(Settings.__dataclass_fields__) - {"hyperparameters"}
    for door in DOORS.values():
        assert fields <= set(inspect.signature(door.LAMB).parameters)


@pytest.mark.parametrize(("host", "door"), [(keras, "keras"), (tf_keras, "tf_keras")])
def test_it_is_an_optimizer_of_its_host(host, door):
    assert isinstance(DOORS[door].LAMB(), host.optimizers.Optimizer)
