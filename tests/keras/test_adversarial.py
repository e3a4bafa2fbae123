"""Concurrent adversarial training: the worked numbers, staleness by the formula, and refusals."""

import doctest

import keras
import numpy as np
import pytest
from keras import ops

import tf_lamb.keras
from tf_lamb.core.rules import adversarial as rule
from tf_lamb.keras import ConcurrentAdversarial

if keras.backend.backend() not in ("tensorflow", "jax"):
    pytest.skip("it trains on TensorFlow and JAX", allow_module_level=True)

# facts: Appendix A, part 8. loss = mean over rows of 0.5 |xW + b - y|^2, plain gradient descent.
X = np.array([[1, 2], [-1, 0.5], [0.5, -1.5], [2, 1]])
Y = np.array([[1, 0], [0, 1], [-1, 0.5], [0.5, 2]])
W0, B0 = np.array([[0.5, -0.3], [0.2, 0.8]]), np.array([0.1, -0.2])
TOY = {"epsilon": 0.1, "step_size": 0.1, "steps": 1, "input_range": (-3, 3)}
WORKED = [
    ([[0.43505, -0.206775], [0.2264625, 0.7137125]], [0.06175, -0.11175]),
    ([[0.3813805672, -0.1287281141], [0.2537995312, 0.6339085594]],
     [0.03012740625, -0.03405290625]),
    ([[0.3382604617, -0.06183392806], [0.2804227605, 0.5609401389]],
     [0.002769451023, 0.03510905522]),
]  # fmt: skip


def errors(w, b, x, y):
    return x @ w + b - y


def gradients(w, b, x, y):
    e = errors(w, b, x, y)
    return x.T @ e / len(x), e.mean(0)


def trained(batches, *, tau, steps=1, alpha=0.5, rate=0.1, epsilon=0.1, step_size=0.1):
    """The formula, with every parameter that ever was; the attack written out once more."""
    history = [(W0, B0)]
    for t, (x, y) in enumerate(batches):
        old_w, old_b = history[max(t - tau, 0)]
        adversarial = x
        for _ in range(steps):
            sign = np.sign(errors(old_w, old_b, adversarial, y) @ old_w.T)
            moved = adversarial + step_size * sign
            adversarial = np.clip(np.clip(moved, x - epsilon, x + epsilon), -3, 3)
        w, b = history[-1]
        clean, wrong = gradients(w, b, x, y), gradients(w, b, adversarial, y)
        history.append(tuple(
            p - rate * ((1 - alpha) * g + alpha * h)
            for p, g, h in zip((w, b), clean, wrong, strict=True)
        ))  # fmt: skip
    return history[1:]


# The rule.


def test_the_worked_numbers_in_float64():
    line, (w, b) = [(W0, B0)], (W0, B0)
    for expected_w, expected_b in WORKED:
        old_w, old_b = rule.stale(line, (w, b))
        adversarial = rule.attack(
            np, lambda x, w=old_w, b=old_b: errors(w, b, x, Y) @ w.T, X, X, **TOY
        )
        line = rule.delayed(line, (w, b))
        clean, wrong = gradients(w, b, X, Y), gradients(w, b, adversarial, Y)
        w = w - 0.1 * rule.weighted(clean[0], wrong[0], 0.5)
        b = b - 0.1 * rule.weighted(clean[1], wrong[1], 0.5)
        np.testing.assert_allclose(w, expected_w, rtol=1e-9)
        np.testing.assert_allclose(b, expected_b, rtol=1e-9)
    # Between t = 1 and 2 the sign of one pixel turns, as the parameters of t = 1 have it.
    assert adversarial[1, 0] == -0.9


def test_an_attack_stays_in_the_ball_and_in_the_range():
    random = np.random.default_rng(1)
    x = random.uniform(0, 1, (8, 4, 4, 3))
    begin = rule.start(np, x, random.uniform(-1, 1, x.shape), np.zeros((8, 1, 1, 1), bool), 0.2)
    assert np.abs(begin - x).max() > 0.19
    direction = random.normal(size=x.shape)
    settings = {"epsilon": 0.2, "step_size": 0.15, "input_range": (0, 1)}
    found = rule.attack(np, lambda _: direction, x, begin, steps=4, **settings)
    expected = np.clip(x + 0.2 * np.sign(direction), 0, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    still = rule.attack(np, np.zeros_like, x, x, steps=4, **settings)
    np.testing.assert_array_equal(still, x)  # sign(0) = 0


def test_an_attack_begins_at_the_image_where_it_is_told_to():
    x, noise = np.zeros((2, 1, 1, 1)), np.ones((2, 1, 1, 1))
    begin = rule.start(np, x, noise, np.array([True, False]).reshape(2, 1, 1, 1), 0.3)
    assert begin.ravel().tolist() == [0, 0.3]


# The model.


def half_squares(y, outputs):
    return 0.5 * ops.sum(ops.square(outputs - y), -1)


def toy(tau=1, optimizer=None, **arguments):
    """The linear model on images of 1 x 2 pixels."""
    model = keras.Sequential([keras.Input((1, 2, 1)), keras.layers.Flatten(),
                              keras.layers.Dense(2)])  # fmt: skip
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


def test_the_worked_numbers_by_training():
    same(feed(toy(), [(X, Y)] * 3), WORKED, rtol=1e-6, atol=1e-7)


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


def test_fit_is_as_train_on_batch():
    data = batches(6)
    training = toy(2)
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    history = training.fit(image(x), y, batch_size=4, shuffle=False, verbose=0).history
    same([training.model.get_weights()], trained(data, tau=2)[-1:])
    assert sorted(history) == ["loss"]


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


@pytest.mark.parametrize("tau", [0, 1, 2])
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


def test_weights_that_are_loaded_before_the_first_step_are_theta_0():
    data = batches(3)
    training = toy(2)
    training.model.set_weights([np.zeros((2, 2)), B0])
    training.model.set_weights([W0, B0])
    same(feed(training, data), trained(data, tau=2))
    other = ConcurrentAdversarial(
        keras.models.clone_model(training.model), 0.1, input_range=(-3, 3), tau=2, clean_start=1.0
    )
    other.compile(keras.optimizers.SGD(0.1), half_squares)
    other.model.set_weights([W0, B0])
    same(feed(other, data), trained(data, tau=2))


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


def test_each_kind_of_image_has_statistics_of_its_own():
    training, (x, y) = normalized(), pictures()
    first = training.model.layers[0]
    adversarial = ops.convert_to_numpy(training.adversarial(x, y))
    assert np.abs(adversarial - x).max() == pytest.approx(9 / 255, rel=1e-4)
    training.train_on_batch(x, y)
    for images, mean in ((x, first.moving_mean), (adversarial, first.auxiliary_moving_mean)):
        expected = 0.1 * images.astype(float).mean((0, 1, 2))  # once: the attack moves nothing
        np.testing.assert_allclose(ops.convert_to_numpy(mean), expected, rtol=1e-5)
    variance = ops.convert_to_numpy(first.moving_variance)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * x.astype(float).var((0, 1, 2)), rtol=1e-5)


def test_evaluation_is_by_the_clean_set():
    training, (x, y) = normalized(), pictures()
    training.fit(x, y, batch_size=8, epochs=2, verbose=0)
    predicted, evaluated = training.predict(x, verbose=0), training.evaluate(x, y, verbose=0)
    np.testing.assert_array_equal(predicted, training.model.predict(x, verbose=0))
    for layer in training.model.layers:
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            if hasattr(layer, f"auxiliary_{name}"):
                getattr(layer, f"auxiliary_{name}").assign(np.full(layer.gamma.shape, 7.0))
    np.testing.assert_array_equal(training.predict(x, verbose=0), predicted)
    assert training.evaluate(x, y, verbose=0) == evaluated


def test_metrics_are_of_the_clean_half():
    training, (x, y) = normalized(), pictures()
    history = training.fit(x, y, batch_size=16, sample_weight=np.ones(16), verbose=0).history
    accuracy = history["accuracy"][0] * 16
    assert accuracy == pytest.approx(round(accuracy), abs=1e-4)  # of 16 images, and not of 32
    assert sorted(history) == ["accuracy", "loss"]


@pytest.mark.slow
def test_the_attack_raises_the_loss():
    training, (x, y) = normalized(epsilon=0.2, steps=3, step_size=0.1), pictures()
    training.fit(x, y, batch_size=16, epochs=3, verbose=0)
    clean = training.evaluate(x, y, verbose=0)[0]
    adversarial = ops.convert_to_numpy(training.adversarial(x, y))
    assert training.evaluate(adversarial, y, verbose=0)[0] > clean


bfloat16 = pytest.param("mixed_bfloat16", marks=pytest.mark.slow)


@pytest.mark.parametrize("dtype", ["mixed_float16", bfloat16])
def test_mixed_precision(dtype):
    keras.config.set_dtype_policy(dtype)
    try:
        training, (x, y) = normalized(), pictures()
    finally:
        keras.config.set_dtype_policy("float32")
    training.fit(x, y, batch_size=8, verbose=0)
    moved = np.abs(ops.convert_to_numpy(training.adversarial(x, y)) - x)
    assert np.median(moved) == pytest.approx(9 / 255, rel=1e-3)  # no gradient is lost
    assert all(np.isfinite(w).all() for w in training.get_weights())


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow alone")
def test_replicas_train_as_one():
    from support.garden import mirrored

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
        ({"epsilon": 1.5}, "epsilon=1.5 is not within (0, 1], the width of input_range"),
        ({"epsilon": 0}, "epsilon=0 is not within (0, 1]"),
        ({"epsilon": "a"}, "epsilon must be a number, not 'a'. Try epsilon=0.0353."),
        ({"epsilon": float("nan")}, "epsilon must be finite"),
        ({"step_size": 2}, "step_size=2 is not within (0, 1]"),
        ({"alpha": 1.1}, "alpha must be within [0, 1], but it is 1.1"),
        ({"clean_start": -0.1}, "clean_start must be within [0, 1], but it is -0.1"),
        ({"tau": -1}, "tau must be a whole number of steps >= 0, not -1"),
        ({"tau": 0.5}, "tau must be a whole number of steps >= 0, not 0.5"),
        ({"steps": 0}, "steps must be a whole number >= 1, not 0"),
        ({"input_range": (1, 0)}, "input_range must be (lowest, highest), but it is (1, 0)"),
        ({"input_range": 255}, "input_range must be two numbers such as (0, 255), not 255"),
    ],
)
def test_an_argument_out_of_its_range(arguments, text):
    model = small()
    with pytest.raises((TypeError, ValueError)) as error:
        ConcurrentAdversarial(model, **{"input_range": (0, 1), **arguments})
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_cannot_be():
    def refused(model, text):
        with pytest.raises((TypeError, ValueError)) as error:
            ConcurrentAdversarial(model, input_range=(0, 1))
        assert text in str(error.value), error.value

    refused(small((5,), name="flat"), "but flat has an input of shape (None, 5)")
    refused("resnet", "model must be a keras.Model, not 'resnet'")
    refused(keras.Sequential([keras.layers.Dense(1)], name="m"), "m has no weights to train yet")
    inputs = [keras.Input((4, 4, 1)), keras.Input((4, 4, 1))]
    outputs = keras.layers.Flatten()(keras.layers.Conv2D(1, 2)(keras.layers.add(inputs)))
    refused(keras.Model(inputs, outputs), "one image input")
    ghost = keras.Sequential([keras.Input((4, 4, 1)), tf_lamb.keras.GhostBatchNormalization(2)])
    refused(ghost, "a GhostBatchNormalization, would mix the statistics")


def test_data_that_cannot_be():
    training = ConcurrentAdversarial(small(), input_range=(0, 1))
    training.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs labels"):
        training.fit(np.zeros((4, 4, 4, 1)), verbose=0)
    frozen = ConcurrentAdversarial(small(), input_range=(0, 1))
    frozen.model.layers[-1].trainable = False
    frozen.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Freeze layers first"):
        frozen.fit(np.zeros((4, 4, 4, 1)), np.zeros((4, 2)), verbose=0)


def test_the_example_runs():
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(
        ConcurrentAdversarial, "ConcurrentAdversarial", globs={}
    ):
        runner.run(example)
    assert runner.tries >= 6
    assert not runner.failures
