"""What a search leaves as it was of a model beside the variables that Keras lists."""

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend

from tf_lamb.api import seams
from tf_lamb.find.data import Examples
from tf_lamb.find.trials import Trials

WIDTH, BATCH = 4, 16


def data(examples=16 * BATCH, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, WIDTH)).astype("float32")
    return x, (x[:, :1] + 0.1 * rng.normal(size=(examples, 1))).astype("float32")


def stateful(host):
    """A model with states of two kinds of RNN, one of them inside of another layer."""
    layers = host.layers
    host.utils.set_random_seed(1)
    inputs = layers.Input(batch_shape=(BATCH, WIDTH))
    x = layers.Reshape((WIDTH, 1))(inputs)
    x = layers.LSTM(2, stateful=True, return_sequences=True)(x)
    x = layers.Bidirectional(layers.GRU(2, stateful=True))(x)
    return host.Model(inputs, layers.Dense(1)(x))


def states_of(model):
    rnns = [each for each in model._flatten_layers() if getattr(each, "states", None)]
    return [s for each in rnns if not hasattr(each, "forward_layer") for s in each.states]


def counting(host):
    """A model with a variable of TensorFlow's in a layer, and with two in a list in a dict."""
    import tensorflow as tf

    class Counting(host.layers.Layer):
        def build(self, shape):
            self.calls = tf.Variable(0.0, trainable=False)
            self.others = {"a": [tf.Variable(0, trainable=False, dtype="int64")]}
            super().build(shape)

        def call(self, x):
            self.others["a"][0].assign_add(1)
            return x * (1 + 0.01 * self.calls.assign_add(1.0))

    host.utils.set_random_seed(1)
    layers = host.layers
    return host.Sequential([layers.Input((WIDTH,)), Counting(), layers.Dense(1)])


def counts_of(model):
    layer = model.layers[0]
    return [layer.calls, layer.others["a"][0]]


def normalizing(host):
    """A model with the running averages of a module of torch."""
    import torch

    host.utils.set_random_seed(1)
    module = host.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(WIDTH))
    return host.Sequential([host.layers.Input((WIDTH,)), module, host.layers.Dense(1)])


def buffers_of(model):
    return list(model.layers[0].module.buffers())


KINDS = {"states": (stateful, states_of), "variables": (counting, counts_of)}
if BACKEND == "torch":  # where Keras's stateful RNNs cannot be trained (3.15.1)
    KINDS = {"buffers": (normalizing, buffers_of)}
elif BACKEND == "jax":
    KINDS.pop("variables")


@every_frontend
@pytest.mark.parametrize("kind", KINDS)
def test_equal_runs_end_alike_and_leave_it(frontend, kind):
    """As both searches make them."""
    host, _ = FRONTENDS[frontend]
    make, kept = KINDS[kind]
    model = make(host)
    model.compile(host.optimizers.SGD(0.01), "mse")
    x, y = data(4 * BATCH)
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    held = [array(v).copy() for v in kept(model)]
    assert BACKEND == "jax" or all(np.any(each) for each in held)
    runs = []
    with Trials(model, Examples((x, y), data(seed=1)), BATCH) as trials:
        trials.use_optimizer("SGD", lambda: host.optimizers.SGD(1.0))
        for _ in range(2):
            trials.start_run()
            losses = [trials.step(0.1) for _ in range(3)]
            runs.append(
                (*losses, trials.evaluate_within_run(), trials.step(0.1), trials.evaluate())
            )
        looked, *_, judged = runs[0][3:]
        assert looked != judged
    assert runs[0] == runs[1]
    for before, variable in zip(held, kept(model), strict=True):
        np.testing.assert_array_equal(array(variable), before)


@every_frontend
@pytest.mark.parametrize(
    ("takes", "call", "held", "words"),
    [
        (16, 32, 256, "batches of 16 examples alone, .* a call of this search has 32"),
        (16, 16, 160, "alone, .* each of 16 held-out blocks has 10: pass .* of 256 examples"),
        (100, 100, 1600, "alone, .* held-out blocks has 96: make the model without a batch"),
    ],
)
def test_a_model_of_one_batch_size_says_which(frontend, takes, call, held, words):
    host, ours = FRONTENDS[frontend]
    inputs = host.layers.Input(batch_shape=(takes, WIDTH))
    model = host.Model(inputs, host.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    held_out = data(held, seed=1)
    with pytest.raises(ValueError, match=words):
        ours.find_rate(model, data(), call, epochs=99, validation_data=held_out, verbose=False)


@pytest.mark.once
def test_a_method_that_the_user_has_set_on_an_optimizer_is_set_again():
    class Optimizer:
        def finalize_variable_values(self, variables): ...

    optimizer, calls = Optimizer(), []
    optimizer.finalize_variable_values = calls.append
    with seams.average_only_at_end(optimizer, lambda: False):
        optimizer.finalize_variable_values("in a stage that is not the last")
    optimizer.finalize_variable_values("after it")
    assert calls == ["after it"]
