"""Optimizers on float8 layers: Keras overwrites scales and histories with their "gradients"."""

import keras
import numpy as np
import pytest
from support.cases import assert_same
from support.frontends import BACKEND, array, uncompiled

import tf_lamb.keras as ours
from tf_lamb.api.variables import is_overwritten

if not hasattr(keras.Variable, "overwrite_with_gradient"):
    pytest.skip("this Keras has no float8 layers", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def variables():
    """A weight, a scale and a history of two entries, the last two overwritten."""
    made = [
        keras.Variable(np.float32(value), name=name)
        for name, value in (("kernel", [[1, 2], [3, 4]]), ("scale", 1), ("amax_history", [0, 0]))
    ]
    for variable in made[1:]:
        variable.overwrite_with_gradient = True
    return made


def gradients(n, seed=1):
    random = np.random.default_rng(seed)
    return [
        [random.normal(size=(2, 2)), random.uniform(1, 2), random.uniform(size=2)] for _ in range(n)
    ]


def after(optimizer, steps):
    """The variables after every step."""
    made, seen = variables(), []
    with uncompiled():
        optimizer.build(made)
        for step in steps:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in step], made)
            seen.append([array(v) for v in made])
    return seen


INNER = {
    "LAMB": lambda: ours.LAMB(0.1, gradient_accumulation_steps=2, clipnorm=1.0),
    "LARS": lambda: ours.LARS(0.1, gradient_accumulation_steps=2),
    "Adam": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
}
every_inner = pytest.mark.parametrize("inner", INNER)


@every_inner
def test_what_is_overwritten_is_what_keras_makes_of_it(inner):
    """Of the micro-batches of an update the largest, and neither clipped nor scaled."""
    steps = gradients(4)
    expected = after(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), steps)
    alone = after(INNER[inner](), steps)
    measured = after(ours.MeasureNoise(INNER[inner]()), steps)
    scaled = after(ours.AdaScale(INNER[inner](), scale=2.0), steps)
    for found in (alone, measured, scaled):
        for one, other in zip(found, expected, strict=True):
            assert_same(one[1:], other[1:])
    for one, other in zip(measured, alone, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_what_is_overwritten_is_not_measured():
    steps = gradients(6)
    other = [[step[0], 100 * step[1], 1000 * step[2]] for step in steps]
    noise = []
    for each in (steps, other):
        inner = ours.LAMB(0.1, gradient_accumulation_steps=2)
        optimizer = ours.MeasureNoise(inner)
        after(optimizer, each)
        noise.append(optimizer.averages())
    assert noise[0] == noise[1] and noise[0].variance > 0


@pytest.mark.parametrize(
    "wrap", [ours.MeasureNoise, lambda o: ours.AdaScale(o, 2.0)], ids=["MeasureNoise", "AdaScale"]
)
def test_a_float8_model_is_trained(wrap):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, name="first"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    for layer in layers:
        layer.quantize("float8")
    optimizer = wrap(ours.LAMB(0.01, gradient_accumulation_steps=2))
    model.compile(optimizer, "mse", jit_compile=False if BACKEND == "tensorflow" else "auto")
    x = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
    model.fit(x, x[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0)
    histories = {v.path: array(v) for v in model.trainable_variables if is_overwritten(v)}
    assert len(histories) == 12 and all(np.isfinite(each).all() for each in histories.values())
    (inputs,) = (h for path, h in histories.items() if path.endswith("first/inputs_amax_history"))
    assert inputs.max() == pytest.approx(np.abs(x).max())
    assert np.isfinite(model.evaluate(x, x[:, :2], verbose=0))
