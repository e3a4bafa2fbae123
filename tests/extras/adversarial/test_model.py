"""Concurrent adversarial training of Keras models: by the formula, and what is refused."""

import dataclasses
import re

import keras
import numpy as np
import pytest
from keras import ops
from support.adversarial import B0, W0, trained
from support.examples import run_example
from support.frontends import on_tensorflow

import tf_lamb.keras
from tf_lamb_extras.adversarial import ConcurrentAdversarial, checks, step

if keras.backend.backend() not in ("tensorflow", "jax"):
    pytest.skip("it trains on TensorFlow and JAX", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("quickly_compiled")

# The model.


def half_squares(y, outputs):
    return 0.5 * ops.sum(ops.square(outputs - y), -1)


def toy(tau=1, optimizer=None, **arguments):
    """The linear model on images of 1 x 2 pixels."""
    model = keras.Sequential(
        [keras.Input((1, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.set_weights([W0, B0])
    training = ConcurrentAdversarial(
        model, 0.1, input_range=(-3, 3), tau=tau, clean_start=1.0, **arguments
    )
    training.compile(optimizer or keras.optimizers.SGD(0.1), half_squares)
    return training


def image(x):
    return np.reshape(x, (-1, 1, 2, 1)).astype("float32")


def batches(n, seed=1):
    random = np.random.default_rng(seed)
    return [(random.normal(size=(4, 2)).round(2), random.normal(size=(4, 2))) for _ in range(n)]


def feed(training, data):
    weights = []
    for x, y in data:
        training.train_on_batch(image(x), y)
        weights.append([np.array(w) for w in training.model.get_weights()])
    return weights


def same(actual, expected, rtol=1e-5, atol=2e-6):
    for one, other in zip(actual, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("tau", [0, 1, 2, 3])
def test_the_attack_is_as_stale_as_the_formula(tau):
    data, rate = batches(8), 0.8
    expected = trained(data, tau=tau, rate=rate)
    found = feed(toy(tau, keras.optimizers.SGD(rate)), data)
    same(found, expected, rtol=1e-4, atol=1e-5)
    for other in {0, 1, 2, 3} - {tau}:  # or this test could not tell
        gap = np.abs(trained(data, tau=other, rate=rate)[-1][0] - expected[-1][0]).max()
        assert gap > 1e-3


def test_several_steps_and_another_weight():
    data = batches(4)
    training = toy(1, steps=3, step_size=0.06, alpha=0.8)
    expected = trained(data, tau=1, steps=3, step_size=0.06, alpha=0.8)
    same(feed(training, data), expected)
    plain = toy(0, alpha=0.0)
    same(feed(plain, data), trained(data, tau=0, alpha=0.0))


@pytest.mark.parametrize("tau", [0, 1])
def test_what_could_run_concurrently_does_not_read_the_current_weights(tau):
    training = toy(tau)
    feed(training, batches(3))
    ((x, y),) = batches(1, seed=9)
    before = ops.convert_to_numpy(training.adversarial(image(x), y))
    training.model.set_weights([-3 * w + 1 for w in training.model.get_weights()])
    after = ops.convert_to_numpy(training.adversarial(image(x), y))
    assert np.array_equal(before, after) == (tau > 0)
    np.testing.assert_allclose(np.abs(before - image(x)), 0.1, rtol=1e-5)


@pytest.mark.parametrize("tau", [0, 2])
def test_a_restored_run_is_the_uninterrupted_one(tau, tmp_path):
    data = batches(8)

    def begin():
        return toy(tau, keras.optimizers.SGD(0.4, momentum=0.9))

    expected = feed(begin(), data)
    first, path = begin(), str(tmp_path / "some.keras")
    feed(first, data[:5])
    first.save(path)
    custom = {"half_squares": half_squares}
    again = keras.models.load_model(path, custom_objects=custom)
    arguments = [dict(each.get_config(), model=None) for each in (again, first)]
    assert arguments[0] == arguments[1]
    same(feed(again, data[5:]), expected[5:])
    first.save_weights(path := str(tmp_path / "some.weights.h5"))
    other = begin()
    other.load_weights(path)
    for one, two in zip(other.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_resumed_run_draws_its_beginnings_as_the_unbroken_one(tmp_path):
    data = batches(2)
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))

    def fit(folder, ends_before=None):
        model = keras.Sequential(
            [keras.Input((1, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
        )
        model.set_weights([W0, B0])
        training = ConcurrentAdversarial(
            model, 0.5, input_range=(-3, 3), clean_start=0.2, step_size=0.1, seed=3
        )
        training.compile(keras.optimizers.SGD(0.3), half_squares)
        ends = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: 1 / 0 if epoch == ends_before else None
        )
        backup = tf_lamb.keras.BackupAndRestore(str(folder), delete_checkpoint=False)
        try:
            training.fit(
                image(x), y, batch_size=4, epochs=3, shuffle=False, verbose=0,
                callbacks=[backup, ends],
            )  # fmt: skip
        except ZeroDivisionError:
            return None
        return training.get_weights()

    expected = fit(tmp_path / "unbroken")
    fit(tmp_path / "broken", ends_before=1)
    for one, other in zip(fit(tmp_path / "broken"), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_without_the_random_state_is_loaded(tmp_path):
    """As earlier versions wrote it."""
    training, store = toy(1), {}
    training.save_own_variables(store)
    last = str(len(store) - 1)
    assert training._random_state.name == "random_state"
    np.testing.assert_array_equal(store.pop(last), ops.convert_to_numpy(training._random_state))
    other = toy(1)
    before = ops.convert_to_numpy(other._random_state)
    other.load_own_variables(store)
    np.testing.assert_array_equal(ops.convert_to_numpy(other._random_state), before)


def test_weights_that_are_loaded_before_the_first_step_are_theta_0():
    data = batches(3)
    training = toy(2)
    training.model.set_weights([np.zeros((2, 2)), B0])
    training.model.set_weights([W0, B0])
    same(feed(training, data), trained(data, tau=2))


# With batch normalization.


def normalized(**arguments):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((6, 6, 2)), layers.BatchNormalization(momentum=0.9),
        layers.Conv2D(3, 3, activation="relu"), layers.BatchNormalization(momentum=0.9),
        layers.Dropout(0.1, seed=1), layers.GlobalAveragePooling2D(), layers.Dense(4),
    ])  # fmt: skip
    training = ConcurrentAdversarial(model, input_range=(0, 1), clean_start=1.0, **arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    training.compile(tf_lamb.keras.LARS(0.1), loss, metrics=["accuracy"])
    return training


def pictures(n=16):
    random = np.random.default_rng(5)
    x = random.uniform(0.2, 0.8, (n, 6, 6, 2)).astype("float32")
    return x, random.integers(4, size=n)


@dataclasses.dataclass
class Step:
    """One step on all pictures."""

    training: ConcurrentAdversarial
    adversarial: np.ndarray
    statistics: list
    accuracy: float


@pytest.fixture(scope="module")
def one_step():
    training, (x, y) = normalized(), pictures()
    adversarial = ops.convert_to_numpy(training.adversarial(x, y))
    history = training.fit(
        x, y, batch_size=16, sample_weight=np.ones(16), shuffle=False, verbose=0
    ).history
    first = training.model.layers[0]
    statistics = [first.moving_mean, first.auxiliary_moving_mean, first.moving_variance]
    statistics = [ops.convert_to_numpy(v) for v in statistics]
    return Step(training, adversarial, statistics, history["accuracy"][0])


def test_each_kind_of_image_has_statistics_of_its_own(one_step):
    x, adversarial = pictures()[0], one_step.adversarial
    assert np.abs(adversarial - x).max() == pytest.approx(9 / 255, rel=1e-4)
    *means, variance = one_step.statistics
    for images, mean in zip((x, adversarial), means, strict=True):
        expected = 0.1 * images.astype(float).mean((0, 1, 2))  # once: the attack moves nothing
        np.testing.assert_allclose(mean, expected, rtol=1e-5)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * x.astype(float).var((0, 1, 2)), rtol=1e-5)


def test_evaluation_is_by_the_clean_set(one_step):
    """And metrics are of the clean half, 16 images and not 32."""
    training, (x, y) = one_step.training, pictures()
    assert one_step.accuracy * 16 == pytest.approx(round(one_step.accuracy * 16), abs=1e-4)
    predicted, evaluated = training.predict(x, verbose=0), training.evaluate(x, y, verbose=0)
    np.testing.assert_array_equal(predicted, training.model.predict(x, verbose=0))
    for layer in training.model.layers:
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            if hasattr(layer, f"auxiliary_{name}"):
                getattr(layer, f"auxiliary_{name}").assign(np.full(layer.gamma.shape, 7.0))
    np.testing.assert_array_equal(training.predict(x, verbose=0), predicted)
    assert training.evaluate(x, y, verbose=0) == evaluated


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        training, (x, y) = normalized(), pictures()
    finally:
        keras.config.set_dtype_policy("float32")
    training.fit(x, y, batch_size=8, verbose=0)
    moved = np.abs(ops.convert_to_numpy(training.adversarial(x, y)) - x)
    assert np.median(moved) == pytest.approx(9 / 255, rel=1e-3)  # no gradient is lost
    assert all(np.isfinite(w).all() for w in training.get_weights())


@on_tensorflow
def test_replicas_train_as_one():
    from support.clusters import mirrored

    data = batches(4)
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    with mirrored(2).scope():
        training = toy(1)
    training.fit(image(x), y, batch_size=4, shuffle=False, verbose=0)
    same([training.model.get_weights()], trained(data, tau=1)[-1:])


# What is refused.


def small(shape=(4, 4, 1), **arguments):
    layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input(shape), *layers], **arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"epsilon": 0}, "epsilon must be a number in (0, 1.0], but it is 0"),
        ({"epsilon": 8}, "It is in the units of the images, and input_range is 1 wide: 9/255 of"),
        ({"step_size": 2}, "step_size must be a number in (0, 1.0], but it is 2"),
        ({"alpha": 1.1}, "alpha must be a number in [0, 1], but it is 1.1"),
        ({"tau": -1}, "tau must be a whole number >= 0, not -1"),
        ({"input_range": (1, 0)}, "input_range must be (lowest, highest), but it is (1, 0)"),
        ({"input_range": 255}, "input_range must be two numbers such as (0, 255), not 255"),
    ],
)
def test_an_argument_out_of_its_range(arguments, text):
    model = small()
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        ConcurrentAdversarial(model, **{"input_range": (0, 1), **arguments})


def test_a_model_that_cannot_be():
    def refused(model, text):
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            ConcurrentAdversarial(model, input_range=(0, 1))

    refused(small((5,), name="flat"), "but flat has an input of shape (None, 5)")
    refused(keras.Sequential([keras.layers.Dense(1)], name="m"), "m has no weights to train yet")
    ghost = keras.Sequential([keras.Input((4, 4, 1)), tf_lamb.keras.GhostBatchNormalization(2)])
    refused(ghost, "a GhostBatchNormalization, would mix the statistics")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([np.zeros((4, 4, 4, 1))], "needs labels"),
        ([np.full((4, 4, 4, 1), 200, "uint8"), np.zeros((4, 2))], r"input_range is \(0, 1\)"),
    ],
    ids=["no labels", "pixels out of the range"],
)
def test_data_that_cannot_be(data, words):
    training = ConcurrentAdversarial(small(), input_range=(0, 1))
    training.compile("sgd", "mse")
    with pytest.raises(ValueError, match=words):
        training.fit(*data, verbose=0)


def test_layers_that_are_frozen_after_the_copies_were_made_are_refused():
    training = ConcurrentAdversarial(small(), input_range=(0, 1))
    training.model.layers[-1].trainable = False
    training.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Freeze layers first"):
        training.fit(np.zeros((4, 4, 4, 1)), np.zeros((4, 2)), verbose=0)


@pytest.mark.parametrize("tau", [0, 1])
def test_copies_of_one_layer_are_no_copies_of_another_of_its_shape(tau):
    """Without copies, every layer may be frozen at any time."""
    layers = [keras.layers.Flatten(), *(keras.layers.Dense(2, name=name) for name in ("a", "b"))]
    model = keras.Sequential([keras.Input((1, 2, 1)), *layers], name="m")
    model.get_layer("b").trainable = False
    training = ConcurrentAdversarial(model, input_range=(0, 1), tau=tau)
    data = image(np.linspace(0, 1, 8)), np.zeros((4, 2))
    training.compile("sgd", "mse")
    training.fit(*data, verbose=0)
    model.get_layer("a").trainable, model.get_layer("b").trainable = False, True
    training.compile("sgd", "mse")
    if tau:
        with pytest.raises(ValueError, match="trains 2 variables, m/b/kernel among them, but Conc"):
            training.fit(*data, verbose=0)
    else:
        training.fit(*data, verbose=0)


def test_the_example_runs():
    run_example(ConcurrentAdversarial, least=6)


@pytest.mark.parametrize(
    ("pixels", "bounds"), [((-0.1, 1), (0, 1)), ((0, 1.2), (0, 1)), ((0, 1), (0, 255))]
)
def test_pixels_a_little_beyond_the_range_or_lost_in_it_warn(pixels, bounds):
    with pytest.warns(UserWarning, match="input_range is"):
        checks.check_pixels(*pixels, bounds)


def test_only_images_that_can_be_had_again_are_looked_at():
    images = np.zeros((100, 4, 4, 1))
    assert step.some_images(images).shape == (64, 4, 4, 1)
    generator = (images for _ in range(1))
    assert step.some_images(generator) is None
    assert next(generator) is images
