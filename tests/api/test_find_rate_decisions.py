"""What `find_rate` decides by the losses of its short runs, and on which data it makes them."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from api.test_find_rate import (
    BATCH,
    EXAMPLES,
    WIDTH,
    assert_equal,
    data,
    linear,
    model_of,
    search,
    state_of,
)
from support.frontends import FRONTENDS, every_frontend, on_tensorflow

from tf_lamb.api import frontends
from tf_lamb.find import rate
from tf_lamb.find import search as search_of
from tf_lamb.find.data import Examples
from tf_lamb.find.feeds import make_feed
from tf_lamb.find.trials import Trials


def noisy(worse=0.0):
    """Losses of few held-out examples: the best rate is 0.064, far above where a search begins.

    Longer runs end higher by `worse`.
    """

    def planted(run, peak, steps, order):
        rate = peak / search_of.short_run_rate(1.0, steps, run.total_steps)
        draw, octaves = random.Random(f"{rate:.4g} {steps}"), math.log2(rate / 0.064)
        level = 2.1 - 0.05 * steps**0.5 * math.exp(-(octaves**2) / 9) + worse * (steps > 40)
        return [level + 0.01 * i + draw.gauss(0, 0.15) for i in range(16)]

    return planted


@every_frontend
def test_the_best_short_run_is_made_longer(frontend, monkeypatch):
    """Where the start is not clearly worse, too: few examples tell little."""
    host, ours = FRONTENDS[frontend]
    monkeypatch.setattr(rate._ShortRuns, "_train", noisy())
    found = search(ours, linear(host, host.optimizers.SGD(0.004)))
    shorter, longer = (
        [trial for trial in found.trials if trial.steps == steps]
        for steps in sorted({trial.steps for trial in found.trials})
    )
    best = min(shorter, key=lambda trial: trial.loss)
    assert best.rate == pytest.approx(0.064)
    assert {found.trials[0].rate, best.rate} <= {trial.rate for trial in longer}
    assert 0.032 <= found.learning_rate <= 0.128
    assert found.interval[0] < 0.064 < found.interval[1]


@pytest.mark.parametrize("failures, kept", [(1, True), (2, False)])
def test_a_baseline_whose_short_run_fails_is_trained_in_another_order(monkeypatch, failures, kept):
    """Losses are planted: the best rate is the baseline's, and its long run fails, by chance."""
    host, ours = FRONTENDS["keras"]
    orders = []

    def planted(run, peak, steps, order):
        octaves = math.log2(peak / search_of.short_run_rate(0.15, steps, run.total_steps))
        fails = abs(octaves) < 0.1 and steps > 40 and order < failures
        if abs(octaves) < 0.1 and steps > 40:
            orders.append(order)
        level = 1 + 0.05 * octaves**2 + 0.3 * fails + 0.2 * (steps < 40)
        return [level + 0.01 * block for block in range(16)]

    monkeypatch.setattr(rate._ShortRuns, "_train", planted)
    found = search(ours, linear(host, host.optimizers.SGD(0.075)), baseline_batch_size=8)
    assert orders == [0, 1]
    assert (found.learning_rate == found.baseline) is kept
    longest = max(trial.steps for trial in found.trials)
    assert sum(trial.steps == longest for trial in found.trials) <= search_of.MAX_SECOND_RUNS


@pytest.mark.parametrize("baseline", [None, 8])
def test_longer_runs_that_end_above_shorter_ones_decide_nothing(baseline, monkeypatch):
    host, ours = FRONTENDS["keras"]
    monkeypatch.setattr(rate._ShortRuns, "_train", noisy(worse=0.6))
    own = host.optimizers.SGD(0.004)
    found = search(ours, linear(host, own), baseline_batch_size=baseline)
    assert found.rate is None and "undecided" in str(found)
    with pytest.raises(
        ValueError, match=r"longer runs ended at 2\.\d+, above the 1\.\d+ .* validation_data=, wi"
    ):
        found.optimizer()


def test_an_optimizer_that_is_left_out_while_level_is_told_of(monkeypatch):
    host, ours = FRONTENDS["keras"]
    monkeypatch.setattr(rate._ShortRuns, "_train", noisy())
    named = ["SGD", "LAMB", "Adam"]
    found = search(ours, linear(host), optimizers=named, budget=1.0)
    (left,) = {*named} - {*found.answers}
    line = next(line for line in str(found).splitlines() if line.split()[0] == left)
    assert line.endswith(" in shorter runs, not run longer: search with it alone")


def test_of_three_optimizers_the_table_names_the_one_that_was_left_behind():
    host, ours = FRONTENDS["keras"]
    still = host.optimizers.Adam(beta_1=0.9, epsilon=1e6, name="still")  # which hardly moves
    found = search(ours, linear(host), optimizers=["SGD", "LAMB", still], budget=1.0)
    assert set(found.answers) == {"SGD", "LAMB"}
    assert "Adam" in str(found) and "not among the best of the shorter runs" in str(found)


@every_frontend
def test_optimizers_are_named_in_any_case(frontend):
    """Exactly, else the model's own, one of this package, or one of Keras."""
    host, ours = FRONTENDS[frontend]

    def found(names, own=None, ratio=None):
        model = linear(host, own or "sgd")
        made = rate._make_candidates(frontends.of(model), model, names, ratio, None, 1)
        return [(each.name, type(each.make(0.1))) for each in made]

    adam, sgd = (type(getattr(host.optimizers, name)()) for name in ("Adam", "SGD"))
    assert found("adam") == found(["ADAM", "Adam"]) == [("Adam", adam)]
    assert found(["lamb", "LAMB"]) == [("LAMB", ours.LAMB)]
    assert found(["sgd", "SGD"]) == found("Sgd", ratio=2) == [("SGD", sgd)]
    assert found("muon", ours.Muon(0.1)) == [("Muon", ours.Muon)]
    if theirs := getattr(host.optimizers, "Lamb", None):
        assert found("Lamb") == found("lamb", theirs()) == [("Lamb", type(theirs()))]
        assert found(["LAMB", "Lamb"], theirs()) == [("LAMB", ours.LAMB), ("Lamb", type(theirs()))]


def test_it_says_where_longer_runs_end_no_lower():
    host, ours = FRONTENDS["keras"]
    found = search(ours, linear(host))
    *_, long = sorted({trial.steps for trial in found.trials})
    high, low = np.linspace(1.0, 1.2, 16), np.linspace(0.9, 1.1, 16)

    def told(before, after):
        losses = {True: tuple(after), False: tuple(before)}
        trials = [replace(t, losses=losses[t.steps == long]) for t in found.trials]
        return "runs of 4 times the steps ended no lower" in str(replace(found, trials=trials))

    assert not told(high, low)
    assert told(high, high - 0.004)
    assert told(low, high)


def test_the_cost_counts_the_batches_for_batch_normalization(monkeypatch):
    """16 micro-batches at a rate of 0, and one update for how much of an average one leaves."""
    host, ours = FRONTENDS["keras"]
    rates, step = [], Trials.step
    monkeypatch.setattr(Trials, "step", lambda self, r: (rates.append(r), step(self, r))[1])
    found = search(ours, model_of(host, "adam"), micro_batch_size=16, budget=0.31)
    assert rates.count(0.0) == 16 / 2 * len(found.trials) + 1
    assert found.cost == len(rates) / found.train_steps <= 0.31


@every_frontend
def test_averages_of_a_layer_that_is_called_twice_are_those_of_its_inputs(frontend):
    """One tower of two inputs, and a layer whose averages move in groups of eight."""
    host, ours = FRONTENDS[frontend]
    layers = host.layers
    x, y = data()
    x = 3 * x + 5
    tower, ghost = layers.BatchNormalization(), ours.GhostBatchNormalization(8)
    one, other = layers.Input((WIDTH,)), layers.Input((WIDTH,))
    both = layers.Concatenate()([tower(one), tower(other), ghost(one)])
    model = host.Model([one, other], layers.Dense(1)(both))
    model.compile("sgd", "mse")
    with Trials(model, Examples(((x, x), y)), BATCH) as trials:
        trials.use_optimizer("SGD", lambda: host.optimizers.SGD(1.0))
        trials.start_run()
        for _ in range(2):
            trials.evaluate()
            for layer in (tower, ghost):
                np.testing.assert_allclose(layer.moving_mean, x.mean(0), atol=0.5)
                np.testing.assert_allclose(layer.moving_variance, x.var(0), rtol=0.25)


def test_averages_that_training_does_not_move_are_kept():
    """Of a layer that is called with training=False, though it is trained."""
    host, ours = FRONTENDS["keras"]

    class Fixed(host.layers.Layer):
        def __init__(self):
            super().__init__()
            self.normal = host.layers.BatchNormalization()

        def call(self, x):
            return self.normal(x, training=False)

    model = host.Sequential([host.layers.Input((WIDTH,)), Fixed(), host.layers.Dense(1)])
    model.compile("sgd", "mse")
    found = search(ours, model, budget=0.4)
    assert min(trial.loss for trial in found.trials) < 1


@every_frontend
def test_lists_of_inputs_and_outputs_are_trained_and_timed(frontend):
    host, _ = FRONTENDS[frontend]
    layers = host.layers
    x, y = data()
    one, other = layers.Input((WIDTH,)), layers.Input((WIDTH,))
    model = host.Model([one, other], [layers.Dense(1)(one), layers.Dense(1)(other)])
    model.compile("sgd", ["mse", "mae"])
    with Trials(model, Examples(([x, x], [y, y])), BATCH) as trials:
        trials.use_optimizer("SGD", lambda: host.optimizers.SGD(1.0))
        trials.start_run()
        trials.step(1e-4)
        assert np.isfinite(trials.evaluate()[0])
        feed = make_feed(trials.data.source, trials.data.examples, host)
        assert len(trials.time_epochs(feed.fit_arguments(BATCH, 2), 1)) == 2


@pytest.mark.once
@pytest.mark.parametrize("examples, block", [(10240, 64), (10400, 64), (1600, 10)])
def test_devices_can_share_a_block(examples, block):
    x = np.zeros((examples, 1))
    assert {len(each[1]) for each in Examples((x, x)).blocks} == {block}


def test_batches_have_an_order_by_the_seed():
    """Each is of the next two batches' worth, and a pass has each example once."""
    x, y = np.arange(EXAMPLES)[:, None], np.zeros(EXAMPLES)
    read = Examples([(x[i : i + 50], y[i : i + 50]) for i in range(0, EXAMPLES, 50)], data())

    def drawn(seed):
        return [each[0].ravel() for each in itertools.islice(read.batches(64, seed), 20)]

    one, again, other = drawn(0), drawn(0), drawn(1)
    assert np.array_equal(one, again) and not np.array_equal(one[0], other[0])
    for order in (one, other):
        taken = np.concatenate(order)
        assert len(set(taken)) == len(taken)
        assert all(each.max() < 64 * (i + 2) + 50 for i, each in enumerate(order))


@on_tensorflow
@pytest.mark.parametrize("kind", ["SparseTensor", "RaggedTensor"])
def test_sparse_and_ragged_tensors_are_refused(kind):
    import tensorflow as tf

    host, ours = FRONTENDS["keras"]
    x, y = data()
    ragged = tf.RaggedTensor.from_row_lengths(x[:, 0], [1] * len(x))
    each = ragged if kind == "RaggedTensor" else tf.sparse.from_dense(x)
    batches = tf.data.Dataset.from_tensor_slices((each, y)).batch(16)
    with pytest.raises(TypeError, match=f"holds a {kind}, of which no rows can be taken"):
        search(ours, linear(host), batches)


@on_tensorflow
def test_a_step_that_trains_by_another_optimizer_is_told_of():
    import tensorflow as tf

    host, ours = FRONTENDS["keras"]
    captured = [host.optimizers.SGD(0.01)]

    class Model(host.Model):
        def train_step(self, batch):
            x, y, _ = host.utils.unpack_x_y_sample_weight(batch)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            of = self.trainable_variables
            captured[0].apply(tape.gradient(loss, of), of)
            return {"loss": loss}

    inputs = host.layers.Input((WIDTH,))
    model = Model(inputs, host.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    before = state_of(model)
    with pytest.raises(ValueError, match="moves the weights by another optimizer than that of com"):
        search(ours, model)
    assert_equal(before, state_of(model))


@on_tensorflow
@every_frontend
def test_a_step_of_the_models_own_is_told_of_the_parts_that_it_is_given(frontend):
    host, ours = FRONTENDS[frontend]

    class Model(host.Model):
        def test_step(self, data):
            x, y = data

    inputs = host.layers.Input((WIDTH,))
    model = Model(inputs, host.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    said = "another number of parts than the 3 of data: let it begin with x, y, sample_weight = ker"
    with pytest.raises(ValueError, match=said):
        search(ours, model, (*data(), np.ones(EXAMPLES)))


@pytest.mark.parametrize("sizes", [[64, *[16] * 60], [8, *[63] * 16, 8], [16] * 64])
def test_uneven_batches_are_counted(sizes):
    class Uneven:
        def __len__(self):
            return len(sizes)

        def __getitem__(self, i):
            return np.zeros((sizes[i], WIDTH), "float32"), np.zeros((sizes[i], 1), "float32")

    assert Examples(Uneven(), data()).examples == 1024


class Sized:
    """Batches by their numbers, as of a `PyDataset`."""

    def __init__(self, sizes):
        self.sizes, self.read = sizes, []

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        self.read.append(i)
        x = np.zeros((self.sizes[i], WIDTH), "float32")
        return x, x[:, :1]


@pytest.mark.once
def test_batches_of_one_size_are_counted_without_a_pass():
    """Which would read every picture of a large data set."""
    read = Examples(of := Sized([16] * 63 + [3]), data())
    assert read.examples == 63 * 16 + 3 and sorted(of.read) == [0, 1, 32, 65 - 2]


@pytest.mark.once
def test_a_pass_that_has_more_than_was_counted_is_told_of():
    """As some batches in between are larger."""
    sizes = [16] * 64
    sizes[5] = 24
    passes = Examples(Sized(sizes), data()).batches(50, 0)
    with pytest.raises(ValueError, match="more than the 1,024 examples that some .* pass examples"):
        for _ in range(30):
            next(passes)
    passes = Examples(Sized(sizes), data(), 1032).batches(50, 0)
    assert sum(len(next(passes)[0]) for _ in range(30)) == 1500
