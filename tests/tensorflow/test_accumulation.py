"""Gradients that accumulate under replicas: each adds its own; one sum an update."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support.cases import assert_same
from support.clusters import all_reduces
from support.feeding import Feed, close, gradients, maker, mean_of, scaled
from support.frontends import FRONTENDS, every_frontend

EPSILON = 0.1  # with a small one, LAMB steps alike for gradients of any length
KINDS = {
    "LAMB": lambda frontend, micro: maker(frontend, "LAMB", micro=micro),
    "AdaScale": lambda frontend, micro: scaled(frontend, micro, 2.0, "LAMB"),
    "MeasureNoise": lambda frontend, micro: (
        lambda: FRONTENDS[frontend][1].MeasureNoise(KINDS["LAMB"](frontend, micro)())
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@every_frontend
def test_replicas_are_summed_once_an_update(frontend, kind):
    """And with the gradients, in the same sum, what is measured of their parts."""

    def count(micro):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        feed = Feed(frontend, KINDS[kind](frontend, micro), 2, traced=True, strategy=strategy)
        (parts,) = gradients(1, 2)
        seen = all_reduces(feed.call, *(feed.tensors(parts, key) for key in parts[0]))
        return tuple(number / feed.replicas for number in seen)

    assert count(1) == (1 if kind == "LAMB" else 2, 0)
    assert count(8) == (0, 1)


def saved_in_a_checkpoint(feed, folder):
    def checkpoint(of):
        return tf.train.Checkpoint(optimizer=of.optimizer, variables=of.variables)

    path = checkpoint(feed).write(str(folder / "checkpoint"))
    return lambda other: checkpoint(other).read(path).assert_consumed()


def saved_in_a_file(feed, folder):
    store = {}
    feed.optimizer.save_own_variables(store)
    weights, store = feed.weights(), {key: np.array(value) for key, value in store.items()}

    def load(other):
        other.optimizer.load_own_variables(store)
        for variable, value in zip(other.variables, weights, strict=True):
            variable.assign(value)

    return load


@pytest.mark.parametrize("save", [saved_in_a_checkpoint, saved_in_a_file])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@every_frontend
def test_what_is_saved_between_two_updates_goes_on(frontend, before, after, save, tmp_path):
    """With as many replicas and with others: of an accumulator the sum is saved, as ever."""
    make = maker(frontend, "LAMB", micro=2, epsilon=EPSILON)
    first, second, uninterrupted = (
        Feed(frontend, make, replicas) for replicas in (before, after, 1)
    )

    def step(feed, parts):
        feed.step(parts if feed.replicas == 2 else [mean_of(parts)])

    micro_batches = gradients(6, 2)
    for parts in micro_batches:
        step(uninterrupted, parts)
    for parts in micro_batches[:3]:
        step(first, parts)
    restore = save(first, tmp_path)
    with second.strategy.scope() if second.strategy else contextlib.nullcontext():
        restore(second)
    for parts in micro_batches[3:]:
        step(second, parts)
    exactly = np.testing.assert_array_equal if before == after == 1 else close
    for own, expected in zip(second.weights(), uninterrupted.weights(), strict=True):
        exactly(own, expected)


class Summed(Feed):
    """As in a step of the user's, who sums gradients before something is made of them."""

    def apply(self, gradients):
        pairs = self.optimizer.aggregate_gradients(zip(gradients, self.variables, strict=True))
        self.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)


def with_an_aggregation_of_its_own(optimizer):
    aggregate = optimizer.aggregate_gradients
    optimizer.aggregate_gradients = lambda pairs: [(1.0 * g, v) for g, v in aggregate(pairs)]
    return optimizer


def with_a_loss_scale(optimizer):
    if isinstance(optimizer, tf_keras.optimizers.Optimizer):
        return tf_keras.mixed_precision.LossScaleOptimizer(optimizer, False, initial_scale=1)
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)


@pytest.mark.parametrize(
    ("frontend", "kind", "change"),
    [
        ("tf_keras", Summed, lambda optimizer: optimizer),
        ("tf_keras", Feed, with_an_aggregation_of_its_own),
        ("tf_keras", Feed, with_a_loss_scale),
        ("keras", Feed, with_a_loss_scale),
    ],
    ids=["by the user", "by its own method", "by tf_keras's loss scale", "by nobody"],
)
def test_whoever_sums_gradients_they_count_once(frontend, kind, change):
    make = maker(frontend, "LAMB", micro=2, epsilon=EPSILON)
    feed, expected = kind(frontend, lambda: change(make()), 2), Feed(frontend, make, 2)
    for parts in gradients(4, 2):
        feed.step(parts)
        expected.step(parts)
    assert_same(feed.weights(), expected.weights(), 1e-6)
