"""AdaScale and MeasureNoise with the parts of a batch on replicas: the same numbers."""

import numpy as np
import pytest
import tensorflow as tf
from support import clusters, feeding
from support.cases import assert_same
from support.feeding import Feed, close, gradients, maker, scaled
from support.frontends import FRONTENDS, every_frontend
from support.noise import AdaScale, assert_noise
from support.regression import assert_fit_is_the_papers_loop, fit, regression

# Replicas, micro-batches.
LAYOUTS = {"1x4": (1, 4), "4x1": (4, 1), "2x2": (2, 2)}


@every_frontend
def test_all_layouts_of_one_batch_are_the_papers(frontend):
    """The same four parts, as micro-batches, as replicas and as both, which is traced, too."""
    steps, seen = gradients(6, 4), []
    for layout, traced in [*((layout, False) for layout in LAYOUTS), ("2x2", True)]:
        replicas, micro = LAYOUTS[layout]
        feed, reference = (
            Feed(frontend, scaled(frontend, micro), replicas, traced=traced),
            AdaScale(4.0),
        )
        for parts in steps:
            reference.step(parts)
            optimizer = feed.step(parts)
            assert optimizer.parts == 4
            close(optimizer.gain, reference.r)
            close(optimizer.base_steps, reference.tau)
        assert optimizer.updates == 6
        seen.append(feed.weights())
    assert 1 < reference.r < 4
    for weights in seen[1:]:
        assert_same(weights, seen[0], 1e-6)


@pytest.mark.parametrize(
    ("replicas", "micro"), [*(pytest.param(n, 1, marks=pytest.mark.slow) for n in (2, 4)), (2, 2)]
)
@every_frontend
def test_fit_is_the_papers_loop(frontend, replicas, micro):
    """What replicas and losses are divided by is Keras's business."""
    make = scaled(frontend, micro, inner="SGDP", own={"momentum": 0.0, "delta": 0.0})
    model = regression(frontend, make, replicas)
    fit(model, batch=4 * replicas, epochs=2)
    assert_fit_is_the_papers_loop(model, micro, 2, replicas)


class Sliced(Feed):
    """Of an embedding of two rows, three were looked up: the second of them twice."""

    def apply(self, gradients):
        rows, bias = gradients
        super().apply([tf.IndexedSlices(rows, tf.constant([1, 0, 1]), tf.constant([2, 2])), bias])


@pytest.mark.parametrize("layout", ["1x4", "2x2"])
@every_frontend
def test_slices_are_their_dense_gradient(frontend, layout):
    """A row that is looked up twice has the sum of both."""
    replicas, micro = LAYOUTS[layout]
    dense, sparse = (kind(frontend, scaled(frontend, micro), replicas) for kind in (Feed, Sliced))
    rng = np.random.default_rng(0)
    for _ in range(3):
        parts, rows = [], []
        for _ in range(replicas * micro):
            r = rng.normal(size=(3, 2)).astype("float32") + 0.4
            rows.append({"kernel": r, "bias": rng.normal(size=2).astype("float32")})
            parts.append({"kernel": np.stack([r[1], r[0] + r[2]]), "bias": rows[-1]["bias"]})
        dense.step(parts)
        sparse.step(rows)
        close(sparse.optimizer.gain, dense.optimizer.gain)
    assert dense.optimizer.gain > 1
    assert_same(sparse.weights(), dense.weights(), 1e-6)


@pytest.mark.parametrize("traced", [False, True])
@every_frontend
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_none_in_the_last_micro_batch_is_measured_as_zeros(frontend, traced):
    """The sums of its variable, over replicas, too."""
    ours, make = FRONTENDS[frontend][1], maker(frontend, micro=2)
    feed = Feed(frontend, lambda: ours.MeasureNoise(make(), smoothing=0.9), 2, traced=traced)
    steps = gradients(6, 4)
    for parts in steps:
        feed.step([*parts[:2], *({**part, "bias": None} for part in parts[2:])])
        for part in parts[2:]:
            part["bias"] *= 0
    assert_noise(feed.optimizer.noise_scale(32), steps)


@every_frontend
def test_the_noise_scale_is_numpys(frontend):
    make = maker(frontend, micro=2)
    ours = FRONTENDS[frontend][1]
    feed = Feed(frontend, lambda: ours.MeasureNoise(make(), smoothing=0.9), 2)
    steps = gradients(6, 4)
    for parts in steps:
        feed.step(parts)
    seen = feed.optimizer.noise_scale(32)
    assert_noise(seen, steps)


def test_sums_that_were_made_already_are_refused():
    feed = Feed("tf_keras", scaled("tf_keras", 1), 2)

    def apply():
        pairs = [(tf.ones_like(v), v) for v in feed.variables]
        feed.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

    with pytest.raises(ValueError, match="before they are summed"):
        feed.strategy.run(apply)


def test_an_optimizer_from_outside_of_the_strategy_is_refused():
    """tf_keras lets it pass; its replicas would drift apart."""
    feed = Feed("tf_keras", maker("tf_keras"), 2)
    feed.optimizer = scaled("tf_keras", 2)()
    with pytest.raises(ValueError, match="inside strategy.scope()"):
        feed.step(gradients(1, 2)[0])


@pytest.mark.slow
def test_two_processes_are_two_replicas():
    """MultiWorkerMirroredStrategy: each worker sees NumPy's gain, and the same weights."""
    outputs = clusters.results(feeding.worker, clusters.workers(2))
    assert outputs[0] == outputs[1]
    for frontend in FRONTENDS:
        reference = AdaScale(4.0)
        for (gain, tau), parts in zip(outputs[0][frontend]["steps"], gradients(4, 4), strict=True):
            reference.step(parts)
            close(gain, reference.r)
            close(tau, reference.tau)
