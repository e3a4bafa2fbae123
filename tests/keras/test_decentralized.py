"""Decentralized training: rules and topologies in NumPy, then eight workers of Keras on JAX."""

import functools
import pathlib
import re

import keras
import numpy as np
import pytest

import tf_lamb.keras
from tf_lamb.core import consensus, rules, topologies

JAX = keras.backend.backend() == "jax"
on_jax = pytest.mark.skipif(not JAX, reason="it trains on JAX alone")
WORKERS = 8


# The worked problem: f_i(x) = 0.5 sum a_i (x - c_i)^2 on four nodes, rate 0.05, momentum 0.9.
CURVATURE = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 2.0], [1.5, 1.0]])
CENTRE = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, -1.0], [2.0, 1.0]])
OPTIMUM = np.array([0.4, 2 / 9])

WORKED = {
    "dsgd": [
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
         [.06666666667, -.01666666667]],
        [[.05944444444, .06097222222], [-.005694444444, .02125], [.03763888889, .01638888889],
         [.1031944444, -.0006944444444]],
        [[.08226736111, .07632523148], [.01268171296, .03146180556], [.05900925926, .02809259259],
         [.1295416667, .007846064815]],
    ],
    "dmsgd": [
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
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
        [[.03333333333, .05], [-.01666666667, 0], [.01666666667, .01666666667],
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
    np.testing.assert_allclose(seen, WORKED[method], rtol=1e-9, atol=1e-16)


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
    np.testing.assert_allclose(measured, bias, rtol=1e-8, atol=1e-28)
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
    symmetric = matrix_of("symmetric_exponential", 8)
    assert np.flatnonzero(symmetric[0]).tolist() == [0, 1, 4, 7] and symmetric[0, 4] == 0.25
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
    "negative": (
        np.full((8, 8), 0.2) - 0.6 * np.eye(8),
        "gives worker 0 the weight -0.4. Use none below 0",
    ),
    "two islands": (np.kron(np.eye(2), np.full((4, 4), 0.25)), "leaves worker 4 without a way"),
    "no matrix": (3, "a name such as 'ring' or a matrix of numbers, not 3"),
    "nothing": (None, "a name such as 'ring' or a matrix of numbers, not None"),
}


def test_ones_own_matrix():
    rng = np.random.default_rng(0)
    own = sum(w * np.eye(8)[rng.permutation(8)] for w in (0.5, 0.3, 0.2))
    own = (own + np.eye(8)[[1, 2, 3, 4, 5, 6, 7, 0]]) / 2
    np.testing.assert_allclose(matrix_of(own, 8), own)


@pytest.mark.parametrize("case", BAD_TOPOLOGIES)
def test_what_is_no_topology_is_one_error(case):
    topology, message = BAD_TOPOLOGIES[case]
    with pytest.raises(ValueError, match=message):
        topologies.matrices(topology, WORKERS)


def growth_by_eigenvalues(matrices, b):
    """Of what is orthogonal to agreement, by the eigenvalues of the whole recursion."""
    n = len(matrices[0])
    whole = np.eye(2 * n)
    for rows in matrices:
        w = np.array(rows)
        whole = np.block([[w, -b * np.eye(n)], [np.eye(n) - w, b * np.eye(n)]]) @ whole
    apart = np.kron(np.eye(2), np.eye(n) - 1 / n)
    return np.abs(np.linalg.eigvals(apart @ whole @ apart)).max() ** (1 / len(matrices))


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 12])
@pytest.mark.parametrize("name", topologies.TOPOLOGIES)
def test_whether_decentlam_comes_together_by_eigenvalues(name, workers):
    for lazy in (False, True):
        found = topologies.matrices(name, workers, lazy=lazy)
        for b in (0.3, 0.9):
            expected, growth = growth_by_eigenvalues(found, b), consensus.growth(found, b)
            if name == "grid":  # no circulant: it is only said to shrink
                assert expected < 1 and growth < 1
            else:
                assert growth == pytest.approx(expected, abs=1e-6)
        most = consensus.largest_momentum(found)
        assert growth_by_eigenvalues(found, most) < 1
        assert most == 0.99 or growth_by_eigenvalues(found, most + 0.011) >= 1
        if name in ("ring", "symmetric_exponential", "grid", "full"):
            assert most == 0.99


def test_decentlam_on_an_exponential_graph_does_not_come_together():
    """As the rule itself has it, from differences alone."""
    found = [np.array(m) for m in topologies.matrices("one_peer_exponential", WORKERS)]
    x, v = np.random.default_rng(0).normal(size=(WORKERS, 1)), np.zeros((WORKERS, 1))
    sizes = []
    for t in range(600):
        mix = functools.partial(np.matmul, found[t % 3])
        x, v = rules.decentlam(np, 0 * x, x, v, lr=0.1, momentum=0.9, mix=mix)
        sizes.append(np.linalg.norm(x - x.mean()))
    assert (sizes[599] / sizes[299]) ** (1 / 300) == pytest.approx(1.114, abs=0.002)
    assert consensus.growth(topologies.matrices("one_peer_exponential", WORKERS), 0.9) == (
        pytest.approx(1.114, abs=0.001)
    )


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
@pytest.mark.parametrize(
    ("method", "rate"), [("dmsgd", 0.05), ("decentlam", 0.05), ("decentlam", schedule)]
)
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


def quadratics():
    """Eight least-squares problems of five examples: X, y, and the optimum of their mean."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(WORKERS, 5, 3)).astype("float32").astype(float)
    y = np.einsum("wek,wk->we", x, rng.normal(size=(WORKERS, 3))).astype("float32").astype(float)
    curvature = 2 / 5 * np.einsum("wek,wel->wkl", x, x)
    slope = 2 / 5 * np.einsum("wek,we->wk", x, y)
    return x, y, curvature, slope, np.linalg.solve(curvature.sum(0), slope.sum(0))


def fixed_point(curvature, slope, matrix, rate, *, awc=False):
    """x = W (x - rate (H x - h)), of all workers; x = W x - rate (H x - h) for AWC."""
    n, k = slope.shape
    mix = np.kron(matrix, np.eye(k))
    gradient = np.zeros((n * k, n * k))
    for i in range(n):
        gradient[i * k : (i + 1) * k, i * k : (i + 1) * k] = curvature[i]
    pulled = np.eye(n * k) if awc else mix
    left = np.eye(n * k) - mix + rate * pulled @ gradient
    return np.linalg.solve(left, rate * pulled @ slope.ravel()).reshape(n, k)


@on_jax
def test_on_a_ring_decentlam_ends_nearer_by_the_factor_of_theory():
    x, y, curvature, slope, optimum = quadratics()
    rate, momentum, ring = 0.004, 0.9, matrix_of("ring", WORKERS)
    steps = 1000
    batches = {
        "x": np.tile(x.reshape(-1, 3), (steps, 1)).astype("float32"),
        "y": np.tile(y.reshape(-1, 1), (steps, 1)).astype("float32"),
    }
    bias = {}
    for method, effective in (
        ("decentlam", rate), ("dmsgd", rate / (1 - momentum)), ("dmsgd_awc", rate / (1 - momentum)),
    ):  # fmt: skip
        line = keras.Sequential([
            keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ])  # fmt: skip
        workers = tf_lamb.keras.Decentralized(
            compiled(line, rate, momentum, metrics=[], steps_per_execution=100), method, "ring"
        )
        fit(workers, 2, **batches, batch_size=WORKERS * 5)
        (own,) = own_weights(workers)
        expected = fixed_point(curvature, slope, ring, effective, awc=method == "dmsgd_awc")
        np.testing.assert_allclose(own[:, :, 0], expected, atol=2e-4)
        np.testing.assert_allclose(line.get_weights()[0][:, 0], own.mean(axis=(0, 2)), rtol=1e-6)
        bias[method], theory = (
            np.mean(np.sum((z - optimum) ** 2, axis=1)) for z in (own[:, :, 0], expected)
        )
        np.testing.assert_allclose(bias[method], theory, rtol=0.02)
    factor = bias["dmsgd"] / bias["decentlam"]
    # 1/(1 - b)^2 = 100 where the rate goes to 0.
    assert 50 < factor < 110


def lowered(workers, devices=None):
    from tf_lamb.tpu import compiler

    x, y = data()
    return compiler.compile_lowered(workers.lower(x[:16], y[:16], devices=devices))


WEIGHTS = 4 * (6 * 16 + 16 + 16 + 16 + 16 * 3 + 3)
ARRAYS = 6
# How many exchanges there are of each array, over all turns.
EXCHANGES = {"ring": 2, "exponential": 3, "one_peer_exponential": 3, "grid": 4, "full": 0}


@on_jax
@pytest.mark.parametrize("where", ["cpu", "v4:2x2x2"])
@pytest.mark.parametrize("topology", EXCHANGES)
def test_the_compiled_step_exchanges_with_neighbours_alone(topology, where):
    from tf_lamb.core import roofline
    from tf_lamb.tpu import compiler

    devices = None
    if where != "cpu":
        pytest.importorskip("libtpu")
        devices = compiler.devices(roofline.topology(where))
    model = compiled(dense(normalized=True))
    workers = tf_lamb.keras.Decentralized(model, "dmsgd", topology)
    collectives = lowered(workers, devices).collectives
    exchanges, size = collectives.pop("collective-permute", (0, 0))
    _, reduced = collectives.pop("all-reduce")
    assert not collectives
    assert exchanges == EXCHANGES[topology] * ARRAYS
    # A TPU's exchange has what it sends and two flags beside what it receives.
    beside = 1 if where == "cpu" else 2
    assert size == beside * EXCHANGES[topology] * WEIGHTS + 8 * (beside - 1) * exchanges
    if topology == "full":
        assert WEIGHTS <= reduced <= WEIGHTS + 32
    else:
        assert reduced <= 32  # loss and metrics: a few sums


@on_jax
def test_another_number_of_devices_to_compile_for_is_one_error():
    import jax

    workers = tf_lamb.keras.Decentralized(compiled())
    with pytest.raises(ValueError, match="there are 8 workers, and 2 devices to compile for"):
        lowered(workers, jax.devices()[:2])


@on_jax
@pytest.mark.parametrize(
    ("method", "topology"), [("decentlam", "ring"), ("dmsgd", "one_peer_exponential")]
)
def test_a_second_step_compiles_nothing(method, topology):
    import jax

    workers = tf_lamb.keras.Decentralized(
        compiled(dense(0.1, normalized=True), rate=schedule()), method, topology
    )
    compilations = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(compilations))

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        seen = []
        fit(workers, 1, callbacks=[Watch()], validation_data=data(24, 1))
        assert seen[0] > 0 and set(seen) == {seen[0]}
        compilations.clear()
        fit(workers, 2, callbacks=[Watch()], validation_data=data(24, 1))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compilations


@on_jax
def test_a_batch_is_dealt_in_order_and_neighbours_are_averaged():
    """One step of DSGD by hand: each worker's own gradient, then the ring."""
    x, y = data()
    model = compiled(momentum=0.0)
    model.set_weights([w + 0.1 for w in model.get_weights()])  # biases too
    start = model.get_weights()
    workers = tf_lamb.keras.Decentralized(
        model, "dsgd", "ring", weight_decay=0.2, exclude_from_weight_decay=["bias$"]
    )
    fit(workers, 1, x=x[:32], y=y[:32], batch_size=32)
    alone = compiled(dense(), rate=1.0, momentum=0.0)
    moved = []
    for i in range(WORKERS):
        alone.set_weights(start)
        alone.train_on_batch(x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])
        gradients = [w - v for w, v in zip(start, alone.get_weights(), strict=True)]
        moved.append([
            w - 0.05 * (g + 0.2 * w * (w.ndim > 1)) for w, g in zip(start, gradients, strict=True)
        ])  # fmt: skip
    ring = matrix_of("ring", WORKERS)
    for own, each in zip(own_weights(workers), zip(*moved, strict=True), strict=True):
        np.testing.assert_allclose(own, np.tensordot(ring, np.array(each), 1), atol=1e-6)


@on_jax
@pytest.mark.parametrize(("topology", "lazy"), [("one_peer_exponential", False), ("grid", True)])
def test_turns_and_weights_by_worker_are_those_of_the_matrices(topology, lazy):
    """Workers far apart that do not learn: what a step does is the matrix alone."""
    model = compiled(momentum=0.0, rate=0.0)
    workers = tf_lamb.keras.Decentralized(model, "dsgd", topology, lazy=lazy)
    workers.lower(*data())
    rng = np.random.default_rng(0)
    own = [rng.normal(size=v.shape).astype("float32") for v in workers.variables]
    workers.set_weights(own)
    fit(workers, 1)  # four steps
    found = topologies.matrices(topology, WORKERS, lazy=lazy)
    for before, after in zip(own, own_weights(workers), strict=True):
        for turn in range(4):
            before = np.tensordot(np.array(found[turn % len(found)]), before, 1)
        np.testing.assert_allclose(after, before, atol=1e-6)


@on_jax
def test_the_distance_and_the_averaged_model():
    model = compiled(dense(0.1, normalized=True))
    workers = tf_lamb.keras.Decentralized(model, "dmsgd", "ring")
    logs = fit(workers, 2, validation_data=data(24, 1))
    own = own_weights(workers)
    trained = np.concatenate([w.reshape(WORKERS, -1) for w in own[:6]], axis=1).astype(float)
    distance = np.mean(np.sum((trained - trained.mean(axis=0)) ** 2, axis=1))
    np.testing.assert_allclose(logs["consensus_distance"][-1], distance, rtol=1e-5)
    assert workers.consensus_distance() == logs["consensus_distance"][-1] > 1e-6
    # Weights, then the statistics of batch normalization, which differ between workers.
    averaged = model.trainable_variables + model.non_trainable_variables
    for variable, each in zip(averaged[:8], own[:8], strict=True):
        assert np.ptp(each, axis=0).max() > 1e-6
        np.testing.assert_allclose(variable.numpy(), each.mean(axis=0), rtol=1e-5, atol=1e-7)
    # Random numbers differ, too; the model goes on with the first worker's.
    seeds = own[8]
    assert len({tuple(seed) for seed in seeds}) == WORKERS and len(set(seeds[:, 1])) == 1
    np.testing.assert_array_equal(averaged[8].numpy(), seeds[0])
    x, y = data(24, 1)
    loss, mae = workers.evaluate(x, y, batch_size=16, verbose=0)
    assert [loss, mae] == [logs["val_loss"][-1], logs["val_mae"][-1]]
    np.testing.assert_allclose(np.mean(np.square(model(x) - y)), loss, rtol=1e-5)
    np.testing.assert_allclose(workers.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-6)


@on_jax
def test_resumed_is_uninterrupted(tmp_path):
    """With all that a step has: velocities, turns, a schedule, statistics and random numbers."""

    def workers():
        model = compiled(dense(0.2, normalized=True), rate=schedule(), momentum=0.5)
        return tf_lamb.keras.Decentralized(model, topology="one_peer_exponential")

    backup = functools.partial(tf_lamb.keras.BackupAndRestore, tmp_path / "backup")
    straight = workers()
    expected = fit(straight, 4, callbacks=[backup(delete_checkpoint=False)])
    (tmp_path / "backup").rename(tmp_path / "other")

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(workers(), 4, callbacks=[backup(), Stop()])
    resumed = workers()
    logs = fit(resumed, 4, callbacks=[backup()])
    for name in expected:
        assert logs[name] == expected[name][2:], name
    for variable, own in zip(
        [*resumed.variables, *resumed.optimizer.variables, *resumed._workers.model.variables],
        [*straight.variables, *straight.optimizer.variables, *straight._workers.model.variables],
        strict=True,
    ):
        np.testing.assert_array_equal(variable.numpy(), own.numpy(), err_msg=variable.path)

    again = workers()
    again.lower(*data())
    again.load_weights(save_weights(straight, tmp_path))
    assert fit(again, 1) == fit(straight, 1)


def save_weights(workers, folder):
    path = folder / "workers.weights.h5"
    workers.save_weights(path)
    return path


@on_jax
def test_what_is_saved_is_the_averaged_model(tmp_path):
    model = compiled(dense(normalized=True))
    workers = tf_lamb.keras.Decentralized(model, topology="symmetric_exponential")
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss")
    fit(workers, 2, callbacks=[best])
    workers.save(tmp_path / "last.keras")
    for name in ("best", "last"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        for variable, own in zip(loaded.weights, model.weights, strict=True):
            np.testing.assert_array_equal(variable.numpy(), own.numpy())


@on_jax
def test_what_fit_takes_it_takes(capsys):
    """Callbacks that set the rate, weights of classes, constraints, several outputs, executions."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5))(inputs)
    outputs = {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(2)(hidden)}
    keras.utils.set_random_seed(1)
    model = keras.Model(inputs, outputs)
    losses = {"a": "mse", "b": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), losses, steps_per_execution=2,
        metrics={"a": ["mae"], "b": ["accuracy"]},
    )  # fmt: skip
    start = model.get_weights()
    x, y = data()
    targets = {"a": y[:, :1], "b": (y[:, 1] > 0).astype("int32")}
    workers = tf_lamb.keras.Decentralized(model, "dmsgd", "full")
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (1 + epoch))
    weights = np.linspace(0, 2, len(x))
    options = {
        "x": x, "y": targets, "sample_weight": {"a": weights, "b": weights}, "callbacks": [rates],
    }  # fmt: skip
    logs = fit(workers, 2, **options, verbose=1)
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown and "consensus_distance" in shown
    constrained = own_weights(workers)[0]
    assert np.linalg.norm(constrained, axis=1).max() <= 0.5 + 1e-6
    after = model.get_weights()
    model.set_weights(start)
    expected = fit(model, 2, **options)
    assert logs["learning_rate"] == pytest.approx([0.02, 0.01])
    logs.pop("consensus_distance")
    assert logs.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(logs[name], expected[name], rtol=1e-4, err_msg=name)
    for own, other in zip(after, model.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


@on_jax
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    page = pathlib.Path(tf_lamb.keras.__file__).parents[2] / "docs" / "decentralized.md"
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = {"x": rng.normal(size=(256, 64)), "y": rng.integers(10, size=256)}
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(code, names)
    # Worker 3 has seen the fourth eighth, in order.
    batches = names["order"].reshape(-1, 8, 16)
    assert batches[:, 3].ravel().tolist() == list(range(96, 128))
    assert (tmp_path / "trained.keras").exists()


@on_jax
def test_half_precision_variables_and_a_subclass_that_data_builds():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(dtype="bfloat16")
            self.dense = keras.layers.Dense(3, dtype="bfloat16")

        def call(self, x):
            return self.dense(x)

    model = compiled(Own(), metrics=[])
    logs = fit(tf_lamb.keras.Decentralized(model), 3, validation_data=data(24, 1))
    assert logs["loss"][-1] < logs["loss"][0]
    assert {v.dtype for v in model.weights} == {"bfloat16"}


@on_jax
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_some_of_the_devices(workers):
    import jax

    chosen = jax.devices()[-workers:]
    trainer = tf_lamb.keras.Decentralized(compiled(), devices=chosen)
    fit(trainer, 1, x=data(60)[0], y=data(60)[1], batch_size=12)
    assert trainer.variables[0].shape == (workers, 6, 16)
    assert trainer.variables[0].value.sharding.device_set == set(chosen)


class Custom(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


def with_optimizer(optimizer, model=None):
    model = model or dense()
    model.compile(optimizer, "mse")
    return model


def distributed():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return compiled()


BAD = {
    "distribution": (distributed, {}, "under DataParallel.*set_distribution\\(None\\)"),
    "method": (compiled, {"method": "adam"}, "method must be one of 'decentlam', 'dmsgd'"),
    "topology": (compiled, {"topology": "star"}, "topology must be one of 'ring'.*not 'star'"),
    "other number": (compiled, {"topology": np.full((4, 4), 0.25)}, "for 4 workers, .* are 8"),
    "decay": (compiled, {"weight_decay": -1}, "weight_decay must be a number in"),
    "pattern": (compiled, {"exclude_from_weight_decay": "bias"}, r"a list of regexes such as"),
    "apart": (
        compiled, {"topology": "one_peer_exponential"},
        "drives these 8 workers apart, 1.11 times further .* or a momentum of at most 0.7",
    ),
    "perhaps apart": (
        compiled, {"topology": (np.eye(8) + np.eye(8)[[1, 2, 4, 0, 5, 6, 7, 3]]) / 2},
        r"nothing is known. Use \(W \+ W.T\)/2",
    ),
    "lazy": (compiled, {"lazy": 1}, "lazy must be True or False, not 1"),
    "not compiled": (dense, {}, "is not compiled. First model.compile"),
    "no model": (lambda: 3, {}, "3 is not compiled"),
    "train_step": (lambda: compiled(Custom([keras.layers.Dense(3)])), {}, "Custom has a train_st"),
    "optimizer": (lambda: with_optimizer(keras.optimizers.Adam()), {}, "it cannot run Adam"),
    "float16": (
        lambda: with_optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())), {},
        "it cannot run LossScaleOptimizer",
    ),
    "nesterov": (
        lambda: with_optimizer(keras.optimizers.SGD(0.1, 0.9, nesterov=True)), {},
        "'decentlam' has no nesterov, and the optimizer has nesterov=True",
    ),
    "clipnorm": (lambda: with_optimizer(keras.optimizers.SGD(0.1, 0.9, clipnorm=1.0)), {},
                 "no clipnorm"),
    "decoupled decay": (
        lambda: with_optimizer(keras.optimizers.SGD(0.1, 0.9, weight_decay=0.1)), {},
        r"no weight_decay.*say Decentralized\(weight_decay=",
    ),
    "no momentum": (lambda: with_optimizer("sgd"), {}, "momentum=0.0 do not go together"),
    "momentum": (compiled, {"method": "dsgd"}, "momentum=0.9 do not go together"),
    "rate": (lambda: compiled(rate=0.0), {}, "'decentlam' divides by the learning rate, which is"),
    "negative rate": (lambda: compiled(rate=-0.1), {"method": "dmsgd"}, "learning_rate must be a"),
}  # fmt: skip


@on_jax
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_train_is_one_error(case):
    make, options, message = BAD[case]
    try:
        with pytest.raises((ValueError, TypeError), match=message):
            tf_lamb.keras.Decentralized(make(), **options)
    finally:
        keras.distribution.set_distribution(None)


@on_jax
def test_a_rate_of_0_trains_by_what_needs_no_division_and_a_schedule_may_end_at_0():
    keras.utils.set_random_seed(0)
    tf_lamb.keras.Decentralized(compiled(rate=0.0), "dmsgd")
    ends = keras.optimizers.schedules.PolynomialDecay(0.1, 4, end_learning_rate=0.0)
    workers = tf_lamb.keras.Decentralized(compiled(rate=ends))
    fit(workers, 1)
    before = own_weights(workers)
    fit(workers, 1)
    for own, other in zip(own_weights(workers), before, strict=True):
        np.testing.assert_array_equal(own, other)


@on_jax
def test_a_batch_that_workers_do_not_divide_is_one_error_before_the_first_step():
    x, y = data(60)
    workers = tf_lamb.keras.Decentralized(compiled())
    with pytest.raises(ValueError, match=r"a batch of 12 .* 8 workers: 12 = 1 x 8 \+ 4.* 8 or 16"):
        fit(workers, 1, x=x, y=y, batch_size=12)
    with pytest.raises(ValueError, match="a batch of 28 does not divide"):  # the last one
        fit(workers, 1, x=x, y=y, batch_size=32)
    assert not workers.built
    # Where the last is never reached, it does not matter.
    fit(workers, 1, x=x, y=y, batch_size=32, steps_per_epoch=1)

    def batches():
        yield x[:16], y[:16]
        yield x[:5], y[:5]

    with pytest.raises(ValueError, match="a batch of 5 does not divide"):
        workers.fit(batches(), verbose=0)
    assert workers.optimizer.iterations.numpy() == 2  # and the run goes on from there
    fit(workers, 1)
