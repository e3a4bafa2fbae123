"""Models whose batch normalizations become integers: every output as it was, in both Kerases."""

import fractions
import functools
import os

import numpy as np
import pytest
from oracle import batch_norm_levels
from support.examples import run_example
from support.frontends import BACKEND, every_frontend, extra, on_tensorflow
from support.integers import array, in_integers, rounded, summing

from tf_lamb_extras.integers import fixed_point

FRONTENDS = extra("integers")

if BACKEND == "tensorflow":
    import tensorflow as tf


# The activation.


@every_frontend
@pytest.mark.parametrize(("bits", "scale"), [(1, 0.5), (4, None), (3, 2.0)])
def test_the_levels(frontend, bits, scale):
    layer = FRONTENDS[frontend][1].QuantizedReLU(bits, scale)
    step = 4 / 2**bits if scale is None else scale
    top = step * (2**bits - 1)
    x = np.concatenate([np.linspace(-2, top + 3 * step, 999), [0, step, top, -1e30, 1e30]])
    x = x.astype("float32")
    expected = step * np.clip(np.floor(x / step), 0, 2**bits - 1)
    np.testing.assert_array_equal(array(layer(x)), expected)
    assert layer.get_config()["bits"] == bits and layer.get_config()["scale"] == step
    assert type(layer).from_config(layer.get_config()).scale == step


X, STRAIGHT = [-0.1, 0.1, 1.3, 3.9, 4.1], [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.skipif(BACKEND == "torch", reason="has another way to a gradient")
@every_frontend
def test_the_gradient_goes_straight_through(frontend):
    layer = FRONTENDS[frontend][1].QuantizedReLU(2)
    if BACKEND == "jax":
        import jax

        gradient = jax.grad(lambda x: layer(x).sum())(np.array(X, "float32"))
    else:
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        gradient = tape.gradient(y, x)
    np.testing.assert_array_equal(gradient, STRAIGHT)


@on_tensorflow
def test_the_example_runs():
    run_example(fixed_point, least=5)


# A network.


def network(host, ours):
    layers = host.layers
    return host.Sequential(
        [
            host.Input((8, 8, 2)),
            layers.Conv2D(5, 3, name="first"),
            layers.BatchNormalization(epsilon=1e-5, name="norm_first"),
            ours.QuantizedReLU(4, name="relu_first"),
            layers.MaxPooling2D(name="pool"),
            layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", name="depth"),
            layers.BatchNormalization(scale=False, name="norm_depth"),
            ours.QuantizedReLU(2, scale=0.5, name="relu_depth"),
            layers.Flatten(name="flat"),
            layers.Dense(6, use_bias=False, name="dense"),
            layers.BatchNormalization(center=False, name="norm_dense"),
            ours.QuantizedReLU(3, scale=0.125, name="relu_dense"),
            layers.Dense(3, name="head"),
        ]
    )


@pytest.fixture(scope="module")
def trained():
    """Frontend -> a network, what it is given and its integers; made once."""
    return functools.cache(made)


def made(frontend):
    """The network, as if trained: drawn weights, statistics of the accumulators it has."""
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(3)
    random, model = np.random.default_rng(4), network(host, ours)
    x = random.integers(0, 17, (32, 8, 8, 2)).astype("float32")
    y = x
    for layer in model.layers:
        if layer in summing(model):
            rounded(layer)
            if layer.use_bias:
                layer.bias.assign(random.normal(size=layer.bias.shape))
        if hasattr(layer, "moving_mean"):
            flat = array(y).reshape(-1, y.shape[-1])
            layer.moving_mean.assign(flat.mean(0))
            layer.moving_variance.assign(flat.var(0))
            if layer.gamma is not None:
                layer.gamma.assign(random.choice([-1, 1], len(flat[0])) * random.uniform(0.5, 2))
            if layer.beta is not None:
                layer.beta.assign(random.uniform(-0.5, 3, len(flat[0])))
        y = layer(y)
    return model, x, fixed_point(model, input_range=(0, 16))


@every_frontend
def test_a_network_in_integers_has_the_same_outputs(frontend, trained):
    model, x, fixed = trained(frontend)
    outputs, levels = in_integers(model, fixed, x)
    y = x
    for layer in model.layers:
        y = layer(y)
        if hasattr(layer, "bits"):
            np.testing.assert_array_equal(levels[layer.name] * layer.scale, array(y), layer.name)
            assert len(np.unique(levels[layer.name])) == 2**layer.bits
    assert len(levels) == 3
    np.testing.assert_allclose(outputs, array(y), rtol=1e-5, atol=1e-5)


@every_frontend
def test_every_accumulator_in_range_has_the_levels_of_float64(frontend, trained):
    model, _, fixed = trained(frontend)
    kernels = [model.get_layer(name) for name in ("first", "depth", "dense")]
    for layer, numbers, into in zip(kernels, fixed.layers.values(), (1.0, 0.25, 0.5), strict=True):
        norm = model.get_layer(numbers.name)
        channels = len(numbers.a)
        gamma, beta = (1 if w is None else array(w).astype(float) for w in (norm.gamma, norm.beta))
        bias = array(layer.bias).astype(float) if layer.use_bias else 0.0
        x = np.stack(
            [
                np.resize(np.arange(low, high + 1), max(numbers.high) - min(numbers.low) + 1)
                for low, high in zip(numbers.low, numbers.high, strict=True)
            ],
            axis=-1,
        )
        assert x.shape[1] == channels and x.size > 1000
        expected = batch_norm_levels(
            x, gamma, 0.0 if norm.beta is None else beta, array(norm.moving_mean).astype(float),
            array(norm.moving_variance), epsilon=norm.epsilon, bias=bias,
            step=numbers.kernel_step * into, bits=numbers.bits,
            scale=model.get_layer(numbers.activation).scale,
        )  # fmt: skip
        np.testing.assert_array_equal(numbers.in_numpy(x), expected)


@every_frontend
def test_ranges_are_those_that_the_kernels_allow(frontend, trained):
    model, _, fixed = trained(frontend)
    for name, most in (("first", 16), ("depth", 15), ("dense", 3)):
        numbers, layer = fixed.layers[f"norm_{name}"], model.get_layer(name)
        kernel = array(layer.weights[0]).astype(float) / numbers.kernel_step
        kernel = kernel.reshape(-1, len(numbers.a))
        assert np.abs(kernel).max() >= 64 and (kernel % 2).any()  # the largest step
        assert list(numbers.high) == (np.maximum(kernel, 0).sum(0) * most).tolist()
        assert list(numbers.low) == (np.minimum(kernel, 0).sum(0) * most).tolist()


def in_range(numbers):
    """Nine accumulators of each channel, from its least to its greatest."""
    ends = [np.linspace(*each, 9) for each in zip(numbers.low, numbers.high, strict=True)]
    return np.stack(ends, axis=-1).astype("int32")


@on_tensorflow
@every_frontend
def test_tensors_have_the_same_levels(frontend, trained):
    numbers = trained(frontend)[2].layers["norm_first"]
    x = in_range(numbers)
    y = numbers.in_tensorflow(tf.constant(x))
    assert y.dtype == tf.int32
    np.testing.assert_array_equal(y, numbers.in_numpy(x))
    graph = tf.function(numbers.in_tensorflow)
    np.testing.assert_array_equal(graph(tf.constant(x, tf.int64)), y)


@on_tensorflow
@pytest.mark.parametrize("way", ["eager", "graph"])
@every_frontend
def test_a_tensor_out_of_range_is_refused(frontend, trained, way):
    numbers = trained(frontend)[2].layers["norm_first"]
    x = in_range(numbers)
    x[-1, 2] += 1
    levels = numbers.in_tensorflow
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of the range"):
        (tf.function(levels) if way == "graph" else levels)(tf.constant(x))


@on_tensorflow
@every_frontend
def test_a_tensor_of_floats_is_refused(frontend, trained):
    numbers = trained(frontend)[2].layers["norm_first"]
    with pytest.raises(TypeError, match="norm_first takes whole numbers"):
        numbers.in_tensorflow(tf.constant([0.5]))


@every_frontend
def test_an_array_of_floats_is_refused(frontend, trained):
    numbers = trained(frontend)[2].layers["norm_first"]
    with pytest.raises(TypeError, match="norm_first takes whole numbers.*not float64"):
        numbers.in_numpy(np.zeros((2, 5)))


@every_frontend
def test_an_array_out_of_range_is_refused(frontend, trained):
    numbers = trained(frontend)[2].layers["norm_first"]
    x = np.zeros((2, 3, 5), int)
    x[1, 2, 4] = numbers.low[4] - 1
    text = f"norm_first, channel 4: an accumulator of {x[1, 2, 4]:,} is out of the range"
    with pytest.raises(ValueError, match=text):
        numbers.in_numpy(x)
    assert numbers.in_numpy(x[:0]).shape == (0, 3, 5)


@every_frontend
def test_the_model_is_saved_loaded_and_the_same(frontend, trained, tmp_path):
    model, x, fixed = trained(frontend)
    path = os.path.join(tmp_path, "model.keras")
    model.save(path)
    loaded = FRONTENDS[frontend][0].models.load_model(path)
    assert fixed_point(loaded, (0, 16)) == fixed
    np.testing.assert_array_equal(array(loaded(x)), array(model(x)))


# What is said by hand, and what is left.


def branches(host, ours):
    """A sum of two branches, which no kernel sums; and a batch normalization before a ReLU."""
    layers = host.layers
    inputs = host.Input((4,))
    sums = [layers.Dense(3, name=f"dense_{i}")(inputs) for i in range(2)]
    y = layers.BatchNormalization(name="norm")(layers.Add(name="both")(sums))
    y = layers.Dense(2, name="last")(ours.QuantizedReLU(4, name="relu")(y))
    y = layers.BatchNormalization(name="plain")(y)
    return host.Model(inputs, layers.ReLU(name="not_ours")(y))


@every_frontend
def test_what_cannot_be_found_is_given_by_hand(frontend):
    host, ours = FRONTENDS[frontend]
    model = branches(host, ours)
    refused(ValueError, "norm is not given whole numbers that can be known, because both, a Add",
            fixed_point, model, (0, 9))  # fmt: skip
    fixed = fixed_point(model, accumulators={"norm": (0.5, -100, 100)})
    numbers = fixed.layers["norm"]
    assert numbers.low == (-100,) * 3 and numbers.kernel_step is None
    x = np.arange(-100, 101)[:, None].repeat(3, axis=1)
    expected = batch_norm_levels(x, 1, 0, 0, 1, epsilon=1e-3, step=0.5, bias=0, scale=0.25, bits=4)
    np.testing.assert_array_equal(numbers.in_numpy(x), expected)
    assert list(fixed.left) == ["plain"]
    _, row, left = str(fixed).splitlines()
    assert row.split()[:5] == ["norm", "relu", "3", "4", str(max(numbers.shift))]
    assert left == (
        "left as it is: plain, which is read by not_ours (ReLU), not by one QuantizedReLU"
    )


@every_frontend
def test_a_range_given_by_hand_leaves_the_bias_in_b(frontend):
    model = small(frontend)
    model.get_layer("sum").bias.assign([0.3, 1.7])
    found = fixed_point(model, (0, 9)).layers["norm"]
    given = fixed_point(model, accumulators={"norm": (1, 0, 18)}).layers["norm"]
    assert (given.a, given.b, given.shift) == (found.a, found.b, found.shift)
    assert found.b[0] != found.b[1] and found.high == (18, 18)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64, fractions.Fraction])
@every_frontend
def test_a_step_given_by_hand_may_be_any_kind_of_number(frontend, kind):
    model = small(frontend)
    given = [fixed_point(model, accumulators={"norm": (step, 0, 18)}) for step in (2.0, kind(2))]
    assert given[0] == given[1]


# What is refused.


def refused(error, text, function, *arguments, **named):
    with pytest.raises(error) as raised:
        function(*arguments, **named)
    assert text in str(raised.value), raised.value


def small(frontend, *middle, activation=None, kernel=None, axis=-1):
    host, ours = FRONTENDS[frontend]
    layers = host.layers
    model = host.Sequential([
        host.Input((2,)), *middle, layers.Dense(2, activation, name="sum"),
        layers.BatchNormalization(axis=axis, name="norm"), ours.QuantizedReLU(4, name="relu"),
    ])  # fmt: skip
    model.get_layer("sum").kernel.assign(np.ones((2, 2)) if kernel is None else kernel)
    return model


@every_frontend
def test_what_cannot_be_in_integers(frontend):
    host, ours = FRONTENDS[frontend]
    layers = host.layers
    plain = host.Sequential([host.Input((2,)), layers.BatchNormalization(name="n")], name="plain")
    text = "plain has no BatchNormalization followed by a QuantizedReLU: n is left, an output of"
    refused(ValueError, text, fixed_point, plain)
    unbuilt = host.Sequential([layers.BatchNormalization(name="n"), ours.QuantizedReLU(4)])
    refused(ValueError, "n has no moving statistics: it is not built", fixed_point, unbuilt)
    model = small(frontend)
    refused(ValueError, "norm sums up the model's input, of which no range", fixed_point, model)
    refused(TypeError, "two whole numbers such as (0, 255), not 255", fixed_point, model, 255)
    refused(ValueError, "norm, channel 0: the range from 0 to 4,000,000,000 needs more than 31",
            fixed_point, model, (0, 2 * 10**9))  # fmt: skip
    named = functools.partial(fixed_point, model, (0, 9))
    refused(TypeError, "accumulators must be a dict", named, accumulators=[("norm", 1, 0, 9)])
    refused(ValueError, "accumulators names 'nrom', which", named, accumulators={"nrom": (1, 0, 9)})
    with_range = functools.partial(fixed_point, input_range=(0, 9))
    refused(ValueError, "because sum before it has an activation", with_range,
            small(frontend, activation="relu"))  # fmt: skip
    refused(ValueError, "because scaled, a Rescaling, has no levels", with_range,
            small(frontend, layers.Rescaling(0.5, name="scaled")))  # fmt: skip
    uneven = np.array([[1.0, 0.3], [1e-7, 1.0]])
    refused(ValueError, "sum: the kernel is on no grid", with_range, small(frontend, kernel=uneven))
    wide = small(frontend, kernel=np.full((2, 2), 2.0**14 + 1))
    refused(ValueError, "norm, channel 0: int32 would overflow", fixed_point, wide, (0, 60_000))


@pytest.mark.parametrize("step", [0, -1.0, float("nan"), float("inf"), np.float32(0), "1", True])
@every_frontend
def test_a_step_that_is_none(frontend, step):
    text = "The step of accumulators['norm'] must be a number in (0, inf)"
    refused((TypeError, ValueError), text, fixed_point, small(frontend),
            accumulators={"norm": (step, 0, 18)})  # fmt: skip


@every_frontend
def test_another_axis_or_a_second_call_is_no_pair(frontend):
    host, ours = FRONTENDS[frontend]
    layers = host.layers
    inputs = host.Input((3, 3))
    y = layers.Dense(3, name="sum")(inputs)
    y = ours.QuantizedReLU(4)(layers.BatchNormalization(axis=1, name="norm")(y))
    refused(ValueError, "norm normalizes another axis than that of sum's", fixed_point,
            host.Model(inputs, y), (0, 9))  # fmt: skip
    inner = host.Model(inputs, y, name="inner")
    outer = host.Sequential([host.Input((3, 3)), inner])
    refused(ValueError, "norm is left, inside another layer", fixed_point, outer, (0, 9))
    norm = layers.BatchNormalization(name="twice")
    y = ours.QuantizedReLU(4)(norm(norm(inputs)))
    refused(ValueError, "twice is left, which is called 2 times", fixed_point,
            host.Model(inputs, y), (0, 9))  # fmt: skip
