"""Decentralized training: rules and topologies in NumPy, then eight workers of Keras on JAX."""

import functools

import keras
import numpy as np
import pytest

import tf_lamb.keras
from tf_lamb.core import rules, topologies

JAX = keras.backend.backend() == "jax"
on_jax = pytest.mark.skipif(not JAX, reason="it trains on JAX alone")
WORKERS = 8


# The problem of papers.md, Appendix A, part 9: f_i(x) = 0.5 sum a_i (x - c_i)^2 on four nodes.
CURVATURE = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 2.0], [1.5, 1.0]])
CENTRE = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, -1.0], [2.0, 1.0]])
OPTIMUM = np.array([0.4, 2 / 9])
NO_MIXING = -4.625929269e-19  # of the second of node 1, where 0.05 - 0.05 was computed

WORKED = {
    "dsgd": [
        [[.03333333333, .05], [-.01666666667, NO_MIXING], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.05944444444, .06097222222], [-.005694444444, .02125], [.03763888889, .01638888889],
         [.1031944444, -.0006944444444]],
        [[.08226736111, .07632523148], [.01268171296, .03146180556], [.05900925926, .02809259259],
         [.1295416667, .007846064815]],
    ],
    "dmsgd": [
        [[.03333333333, .05], [-.01666666667, NO_MIXING], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.08944444444, .1059722222], [-.02069444444, .02125], [.05263888889, .03138888889],
         [.1631944444, -.01569444444]],
        [[.1612673611, .1715752315], [-.006068287037, .04971180556], [.1052592593, .05609259259],
         [.2742916667, -.006903935185]],
    ],
    "dmsgd_awc": [
        [[.05, 0], [-.1, .1], [0, -.1], [.15, .05]],
        [[.1258333333, .05], [-.1966666667, .185], [.01666666667, -.1633333333],
         [.3404166667, .07583333333]],
        [[.2168194444, .1023611111], [-.2603888889, .2811388889], [.05305555556, -.2131666667],
         [.5318159722, .1169583333]],
    ],
    "decentlam": [
        [[.03333333333, .05], [-.01666666667, NO_MIXING], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.08944444444, .1059722222], [-.02069444444, .02125], [.05263888889, .03138888889],
         [.1631944444, -.01569444444]],
        [[.1562673611, .1365752315], [.01893171296, .06971180556], [.1102592593, .04109259259],
         [.2492916667, .02309606481]],
    ],
}  # fmt: skip

RULES = {
    "dsgd": lambda xp, g, w, v, **o: (*rules.dsgd(xp, g, w, **o), v),
    "dmsgd": functools.partial(rules.dmsgd, momentum=0.9),
    "dmsgd_awc": functools.partial(rules.dmsgd, momentum=0.9, order="adapt_with_combine"),
    "decentlam": functools.partial(rules.decentlam, momentum=0.9),
}


def matrix_of(topology, workers=4, **options):
    (matrix,) = topologies.matrices(topology, workers, **options)
    return np.array(matrix)


def four_nodes(method, matrix, steps, rates=None, decay=0.0, rule=None):
    """Every x on the way; the rule sees all nodes at once, and `mix` is the matrix."""
    x, v, seen = np.zeros((4, 2)), np.zeros((4, 2)), []
    for t in range(steps):
        lr = rates[t] if rates else 0.05
        gradient = CURVATURE * (x - CENTRE)
        x, v = (rule or RULES[method])(
            np, gradient, x, v, lr=lr, decay=decay, mix=lambda z: matrix @ z
        )
        seen.append(x)
    return seen


@pytest.mark.parametrize("method", WORKED)
def test_the_worked_steps(method):
    seen = four_nodes(method, matrix_of("ring"), 3)
    np.testing.assert_allclose(seen, WORKED[method], rtol=1e-9, atol=1e-17)


LIMITS = [
    ("dsgd", "ring", False, 0.002819677939, [0.4116226442, 0.2748007694]),
    ("dmsgd", "ring", False, 0.1802280171, [0.4904458599, 0.7179487179]),
    ("decentlam", "ring", False, 0.002819677939, [0.4116226442, 0.2748007694]),
    ("dsgd", "ring", True, 0.03448615379, [0.4611718205, 0.3343166175]),
    ("dmsgd", "ring", True, 0.7288412403, [0.7133757962, 0.7111111111]),
    ("decentlam", "ring", True, 0.03448615379, [0.4611718205, 0.3343166175]),
    # All-reduced momentum.
    ("dmsgd", "full", False, 0.0, [0.4, 2 / 9]),
    ("decentlam", "full", False, 0.0, [0.4, 2 / 9]),
]


@pytest.mark.parametrize(("method", "topology", "lazy", "bias", "first"), LIMITS)
def test_the_worked_limits(method, topology, lazy, bias, first):
    x = four_nodes(method, matrix_of(topology, lazy=lazy), 20000)[-1]
    measured = np.mean(np.sum((x - OPTIMUM) ** 2, axis=1))
    np.testing.assert_allclose(measured, bias, rtol=1e-8, atol=1e-30)
    np.testing.assert_allclose(x[0], first, rtol=1e-9)


@pytest.mark.parametrize("method", ["dmsgd", "decentlam"])
def test_without_momentum_it_is_dsgd(method):
    rule = functools.partial(getattr(rules, method), momentum=0.0)
    ours = four_nodes(None, matrix_of("ring"), 50, rule=rule, decay=0.1)
    np.testing.assert_allclose(ours, four_nodes("dsgd", matrix_of("ring"), 50, decay=0.1),
                               rtol=1e-12, atol=1e-15)  # fmt: skip


def papers(method, matrix, rates, decay, b=0.9):
    """The papers' recursions, in their letters; m is rescaled by a change of the rate."""
    x, m, seen, last = np.zeros((4, 2)), np.zeros((4, 2)), [], rates[0]
    for rate in rates:
        gradient = CURVATURE * (x - CENTRE) + decay * x
        m = m * last / rate
        if method == "decentlam":
            m = b * m + (x - matrix @ (x - rate * gradient)) / rate
            x = x - rate * m
        else:
            m = b * m + gradient
            x = matrix @ (x - rate * m) if method == "dmsgd" else matrix @ x - rate * m
        last = rate
        seen.append(x)
    return seen


@pytest.mark.parametrize("method", ["dmsgd", "dmsgd_awc", "decentlam"])
def test_a_schedule_rescales_the_papers_momentum_and_decay_is_of_the_gradient(method):
    rates = [0.01, 0.03, 0.05, 0.05, 0.02, 0.001]
    ring = matrix_of("ring")
    seen = four_nodes(method, ring, len(rates), rates, decay=0.3)
    np.testing.assert_allclose(seen, papers(method, ring, rates, 0.3), rtol=1e-12)


def test_momentum_of_everyones_mean_is_sgd_whatever_the_schedule():
    rates = [0.01, 0.05, 0.02, 0.1]
    x, v = np.zeros(2), np.zeros(2)
    for rate in rates:
        v = 0.9 * v + rate * np.mean(CURVATURE * (x - CENTRE), axis=0)
        x = x - v
    for method in ("dmsgd", "decentlam"):
        last = four_nodes(method, matrix_of("full"), 4, rates)[-1]
        np.testing.assert_allclose(last, np.tile(x, (4, 1)), rtol=1e-12)


def test_decentlam_stands_still_at_a_rate_of_0():
    seen = four_nodes("decentlam", matrix_of("ring"), 5, [0.05, 0.05, 0.0, 0.0, 0.05])
    np.testing.assert_array_equal(seen[2], seen[1])
    np.testing.assert_array_equal(seen[3], seen[1])
    np.testing.assert_allclose(seen[4], WORKED["decentlam"][2], rtol=1e-9)


def test_the_worked_matrices():
    third = 1 / 3
    ring = [[third, third, 0, third], [third, third, third, 0], [0, third, third, third],
            [third, 0, third, third]]  # fmt: skip
    np.testing.assert_array_equal(matrix_of("ring"), ring)
    eigenvalues = np.linalg.eigvalsh(matrix_of("ring"))
    np.testing.assert_allclose(eigenvalues, [-third, third, third, 1], atol=1e-15)
    static = [[third, third, third, 0], [0, third, third, third], [third, 0, third, third],
              [third, third, 0, third]]  # fmt: skip
    np.testing.assert_array_equal(matrix_of("exponential"), static)
    first, second = topologies.matrices("one_peer_exponential", 4)
    assert first == ((.5, .5, 0, 0), (0, .5, .5, 0), (0, 0, .5, .5), (.5, 0, 0, .5))  # fmt: skip
    assert second == ((.5, 0, .5, 0), (0, .5, 0, .5), (.5, 0, .5, 0), (0, .5, 0, .5))  # fmt: skip
    assert matrix_of("one_sided_ring")[3].tolist() == [0.5, 0, 0, 0.5]
    assert matrix_of("symmetric_exponential", 8)[0].tolist() == [.25, .25, 0, 0, .25, 0, 0, .25]  # fmt: skip
    np.testing.assert_array_equal(matrix_of("full"), np.full((4, 4), 0.25))
    assert matrix_of("ring", 2).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_grid_by_hand():
    """Two columns and three rows: a corner has two neighbours, a middle one three."""
    grid = matrix_of("grid", 6)
    third, quarter = 1 / 3, 1 / 4
    np.testing.assert_allclose(grid[0], [5 / 12, third, quarter, 0, 0, 0], rtol=1e-15)
    np.testing.assert_allclose(grid[2], [quarter, 0, quarter, quarter, quarter, 0], rtol=1e-15)
    # A prime number stands in one row.
    np.testing.assert_allclose(matrix_of("grid", 3)[1], [third, third, third], rtol=1e-15)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7, 8, 12, 16, 17])
@pytest.mark.parametrize("name", topologies.TOPOLOGIES)
def test_every_matrix_is_doubly_stochastic_and_what_is_exchanged(name, workers):
    x = np.random.default_rng(0).normal(size=(workers, 3))
    for lazy in (False, True):
        found = topologies.matrices(name, workers, lazy=lazy)
        for rows in found:
            matrix = np.array(rows)
            np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-14)
            np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-14)
            assert matrix.min() >= 0 and np.diag(matrix).min() > 0
            mixing = topologies.Mixing.of(rows)
            total = np.array(mixing.own)[:, None] * x
            for term in mixing.terms:
                for places in zip(*term.pairs, strict=True):
                    assert len(set(places)) == len(places)
                received = np.zeros_like(x)
                for sender, receiver in term.pairs:
                    received[receiver] = x[sender]
                total += np.array(term.weights)[:, None] * received
            np.testing.assert_allclose(total, matrix @ x, atol=1e-14)
            assert mixing.is_mean == np.allclose(matrix, 1 / workers)
        product = functools.reduce(np.matmul, map(np.array, found))
        if not lazy and name == "one_peer_exponential" and workers & (workers - 1) == 0:
            np.testing.assert_array_equal(product, np.full((workers, workers), 1 / workers))
        # Enough turns, and everyone has heard of everyone.
        assert np.linalg.matrix_power(product, workers).min() > 0
    if name in ("ring", "symmetric_exponential", "grid", "full"):
        np.testing.assert_array_equal(matrix_of(name, workers), matrix_of(name, workers).T)


BAD_TOPOLOGIES = {
    "name": ("rings", "topology must be one of 'ring', .* or a matrix, not 'rings'"),
    "other number": (np.full((4, 4), 0.25), "a matrix for 4 workers, but there are 8, one a dev"),
    "not square": (np.full((8, 4), 0.25), "a matrix for 4 x 8 workers, but there are 8"),
    "rows": (np.eye(8) + np.eye(8)[0], "row 0 of the matrix sums to 2"),
    "columns": (np.eye(8)[[0] * 8], "column 0 of the matrix sums to 8"),
    "unknown weight": (np.full((8, 8), np.nan), "row 0 of the matrix sums to nan"),
    "no matrix": (3, "a name such as 'ring' or a matrix of numbers, not 3"),
    "nothing": (None, "a name such as 'ring' or a matrix of numbers, not None"),
}


@pytest.mark.parametrize("case", BAD_TOPOLOGIES)
def test_what_is_no_topology_is_one_error(case):
    topology, message = BAD_TOPOLOGIES[case]
    with pytest.raises(ValueError, match=message):
        topologies.matrices(topology, WORKERS)


# From here on, Keras.


def dense(dropout=0.0, normalized=False, **options):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((6,)), keras.layers.Dense(16, activation="tanh", **options)]
    if normalized:
        layers.append(keras.layers.BatchNormalization(momentum=0.5))
    if dropout:
        layers.append(keras.layers.Dropout(dropout, seed=1))
    return keras.Sequential([*layers, keras.layers.Dense(3)], name="model")


def compiled(model=None, rate=0.05, momentum=0.9, **options):
    model = model or dense()
    options = {"loss": "mse", "metrics": ["mae"], **options}
    model.compile(keras.optimizers.SGD(rate, momentum=momentum), **options)
    return model


@functools.cache
def data(examples=64, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 6)).astype("float32")
    return x, np.stack([x[:, 0], x[:, 1] * x[:, 2], np.sin(x[:, 3])], axis=1)


def fit(trainer, epochs=3, **options):
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    x, y = options.pop("x", data()[0]), options.pop("y", data()[1])
    return trainer.fit(x, y, epochs=epochs, **options).history


def own_weights(workers):
    """Of each worker, as arrays of all of them."""
    return [np.array(v.value) for v in workers.variables]


@pytest.mark.skipif(JAX, reason="about other backends")
def test_another_backend_is_one_error():
    with pytest.raises(ValueError, match="runs on 'tensorflow'.* set KERAS_BACKEND=jax"):
        tf_lamb.keras.Decentralized(compiled())


def schedule():
    return keras.optimizers.schedules.PolynomialDecay(0.1, 12, end_learning_rate=0.01)


@on_jax
@pytest.mark.parametrize("method", ["dmsgd", "decentlam"])
@pytest.mark.parametrize("rate", [0.05, schedule], ids=["constant", "schedule"])
def test_full_with_equal_starts_is_all_reduced_momentum(method, rate):
    rate = rate() if callable(rate) else rate
    alone = compiled(rate=rate)
    logs = fit(alone, validation_data=data(24, 1))
    model = compiled(rate=rate)
    workers = tf_lamb.keras.Decentralized(model, method, "full")
    ours = fit(workers, validation_data=data(24, 1))
    for variable, expected in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)
    assert max(ours.pop("consensus_distance")) < 1e-12
    assert ours.keys() == logs.keys()
    for name in logs:
        np.testing.assert_allclose(ours[name], logs[name], rtol=1e-5, err_msg=name)
