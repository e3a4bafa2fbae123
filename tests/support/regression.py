"""A linear regression to fit in either frontend, whose gradients NumPy knows."""

import contextlib

import numpy as np
import pytest
from support.cases import assert_same
from support.feeding import START, close, mean_of
from support.frontends import BACKEND, FRONTENDS, as_compiled
from support.noise import AdaScale

if BACKEND == "tensorflow":
    from support.clusters import mirrored

EXAMPLES = 64
X = np.random.default_rng(1).normal(size=(EXAMPLES, 2)).astype("float32")
Y = (X @ [[1.0, -1.0], [0.5, 2.0]] + np.random.default_rng(2).normal(size=(EXAMPLES, 2))).astype(
    "float32"
)


def regression(frontend, optimizer, replicas=1, layers=(), **compile_arguments):
    """A linear regression that begins at START, compiled with what `optimizer` makes."""
    host = FRONTENDS[frontend][0]
    with mirrored(replicas).scope() if replicas > 1 else contextlib.nullcontext():
        model = host.Sequential(
            [host.layers.InputLayer((2,)), *layers, host.layers.Dense(2, name="head")]
        )
        model.get_layer("head").set_weights(list(START.values()))
        model.compile(optimizer=optimizer(), loss="mse", **compile_arguments)
    return model


def fit(model, batch=8, epochs=2, **arguments):
    with as_compiled(model):
        return model.fit(
            X, Y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **arguments
        )


def weights_of(model):
    return [np.array(w) for w in model.get_weights()]


def parts_at(weights, step, size, parts):
    """The gradients of one update: `parts` batches of `size` examples."""
    w, b = (x.astype(np.float64) for x in weights)
    result = []
    for i in range(parts):
        first = (step * parts + i) * size % EXAMPLES
        x, y = (each[first : first + size].astype(np.float64) for each in (X, Y))
        error = 2 * (x @ w + b - y) / y.size
        result.append({"kernel": x.T @ error, "bias": error.sum(0)})
    return result


def assert_fit_is_the_papers_loop(model, micro, epochs, replicas=1, size=4, scale=4.0, rate=0.1):
    """`fit`, in the optimizer's gain and the weights, did what the paper's loop does in NumPy."""
    reference, w = AdaScale(scale), list(START.values())
    n = micro * replicas
    updates = epochs * EXAMPLES // (n * size)
    for step in range(updates):
        parts = parts_at(w, step, size, n)
        moved = rate * reference.step(parts)
        mean = mean_of(parts)
        w = [w[0] - moved * mean["kernel"], w[1] - moved * mean["bias"]]
    optimizer = model.optimizer
    assert optimizer.updates == updates
    close(optimizer.gain, reference.r, 5e-6)
    close(optimizer.base_steps, reference.tau, 5e-6)
    assert_same(weights_of(model), w, 5e-6)


def assert_same_state(resumed, model):
    """Two regressions under AdaScale, and what it has measured, to the last bit."""
    one, other = resumed.optimizer, model.optimizer
    assert one.gain == other.gain > 1
    assert one.base_steps == other.base_steps
    assert one.noise_scale(8) == pytest.approx(other.noise_scale(8), nan_ok=True)
    assert one.updates == other.updates
    assert_same(weights_of(resumed), weights_of(model))
