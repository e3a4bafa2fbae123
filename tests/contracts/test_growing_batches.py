"""A batch that grows by its micro-batches, `gradient_accumulation_steps` by optimizer step."""

import numpy as np
import pytest
from support.cases import assert_same
from support.feeding import START, Feed, close, gradients, maker, mean_of
from support.frontends import BACKEND, FRONTENDS, every_frontend
from support.references import NAMES, Reference
from support.small_model import assert_same_weights, data, two_layers

from tf_lamb.api.variables import step_of

GROWING = {0: 1, 2: 2, 4: 3}
COUNTS = [1, 1, 2, 2, 3, 3]
DECAY = {"weight_decay": 0.1, "exclude_from_layer_adaptation": []}
EVERY = [(name, 1, False) for name in NAMES] + [("LAMB", 1, True)]
if BACKEND == "tensorflow":
    EVERY += [("LARS", 2, False), ("LAMB", 2, True)]


def growing(frontend, name="LAMB", stages=None, **own):
    return maker(frontend, name, gradient_accumulation_steps=stages or GROWING, **DECAY, **own)


def updates(counts, replicas=1, **how):
    """Of each update, the parts of its micro-batches."""
    return [gradients(1, count * replicas, seed=i, **how)[0] for i, count in enumerate(counts)]


@every_frontend
@pytest.mark.parametrize(("name", "replicas", "traced"), EVERY)
def test_an_update_is_of_the_mean_of_its_micro_batches(frontend, name, replicas, traced):
    make = growing(frontend, name, use_ema=True, ema_momentum=0.5)
    run, averages = Feed(frontend, make, replicas, traced=traced), {}
    references = {key: Reference(name, w) for key, w in START.items()}
    for t, parts in enumerate(updates(COUNTS, replicas)):
        before = run.weights()
        for first in range(0, len(parts) - replicas, replicas):
            run.step(parts[first : first + replicas])
            assert all(map(np.array_equal, run.weights(), before))
        run.step(parts[-replicas:])
        assert step_of(run.optimizer) == t + 1
        mean = mean_of(parts)
        for key, ours in zip(START, run.weights(), strict=True):
            expected = references[key].step(mean[key], 0.1, 0.1)
            close(ours, expected, 3e-6)
            averages[key] = 0.5 * averages.get(key, expected) + 0.5 * expected
    run.optimizer.finalize_variable_values(run.variables)
    for key, ours in zip(START, run.weights(), strict=True):
        close(ours, averages[key], 3e-6)


@every_frontend
def test_one_stage_is_the_number(frontend):
    given = (3, {0: 3}, {0: 3, 1: 3})
    number, stage, alike = (Feed(frontend, growing(frontend, stages=each)) for each in given)
    for parts in updates([3, 3]):
        for run in (number, stage, alike):
            run.step(parts)
    for run in (stage, alike):
        assert run.optimizer.get_config()["gradient_accumulation_steps"] == 3
        assert_same(number.weights(), run.weights())


@every_frontend
def test_stages_of_one_micro_batch_accumulate_nothing(frontend):
    plain, alike = (Feed(frontend, growing(frontend, stages=each)) for each in (1, {0: 1, 1: 1}))
    for parts in updates([1, 1]):
        plain.step(parts)
        alike.step(parts)
    assert_same(plain.weights(), alike.weights())


def spoiled(parts, factor):
    *others, last = parts
    return [*others, {key: np.float32(factor) * g for key, g in last.items()}]


@every_frontend
@pytest.mark.parametrize(("factor", "counted"), [(np.nan, "skipped_steps"), (1e3, "spiked_steps")])
def test_an_update_that_is_skipped_is_taken_again_of_as_many(frontend, factor, counted):
    """At the edge of a stage, whose first update it is; and the averages are as they were."""
    make = growing(frontend, use_ema=True, on_spike=[8, 6.0])
    met, spared = (Feed(frontend, make) for _ in range(2))
    for t, parts in enumerate(updates(COUNTS, spread=0.1)):
        if t == 4:
            met.step(spoiled(parts, factor))
            assert step_of(met.optimizer) == 4
        met.step(parts)
        spared.step(parts)
    assert getattr(met.optimizer, counted) == 1
    assert step_of(met.optimizer) == 6
    assert_same(met.weights(), spared.weights())
    with pytest.warns(UserWarning, match="1 have been skipped"):
        met.optimizer.finalize_variable_values(met.variables)
    spared.optimizer.finalize_variable_values(spared.variables)
    assert_same(met.weights(), spared.weights())


def half_way(frontend, stages=None, replicas=1):
    """A run, two of three micro-batches into its fifth update, and the third of them."""
    run = Feed(frontend, growing(frontend, stages=stages), replicas)
    *before, last = updates(COUNTS[:5], replicas)
    for parts in [*before, last[:-replicas]]:
        run.step(parts)
    return run, last[-replicas:]


def resumed(frontend, run, stages=None):
    """Another run, from what this one would save."""
    other = Feed(frontend, growing(frontend, stages=stages))
    run.optimizer.save_own_variables(store := {})
    other.optimizer.load_own_variables({key: np.array(value) for key, value in store.items()})
    for variable, weight in zip(other.variables, run.weights(), strict=True):
        variable.assign(weight)
    return other


@every_frontend
@pytest.mark.parametrize("stages", [{0: 1, 2: 2, 4: 3, 6: 9}, {0: 1, 2: 2}, {0: 8, 9: 9}])
def test_it_goes_on_in_other_stages(frontend, stages):
    """Once there are enough, or more: the mean is of all that were added up."""
    run, last = half_way(frontend)
    other = resumed(frontend, run, stages)
    run.step(last)
    other.step(last)
    if stages[0] == 8:  # five more
        assert step_of(other.optimizer) == 4
        return
    assert step_of(other.optimizer) == 5
    assert_same(run.weights(), other.weights())


@every_frontend
def test_it_goes_on_at_the_edge_of_a_stage(frontend):
    run = Feed(frontend, growing(frontend))
    *before, last = updates(COUNTS[:5])
    for parts in before:
        run.step(parts)
    other = resumed(frontend, run)
    for part in last:
        assert step_of(other.optimizer) == 4
        run.step([part])
        other.step([part])
    assert step_of(other.optimizer) == 5
    assert_same(run.weights(), other.weights())


@every_frontend
def test_what_was_added_up_for_a_number_is_dropped(frontend):
    run, _ = half_way(frontend, stages=3)
    with pytest.warns(UserWarning, match="the 2 that were added up are dropped"):
        resumed(frontend, run)


@every_frontend
def test_what_is_restored_by_position_goes_on_with_fewer(frontend):
    """As by `set_weights` or Orbax: at once, of the mean of all that were added up, then of two."""
    (parts,) = updates([4])
    four, two = (Feed(frontend, growing(frontend, "LARS", stages=each)) for each in (4, 2))
    four.step(parts[:-1])
    two.optimizer.build(two.variables)
    for ours, theirs in zip(two.optimizer.variables, four.optimizer.variables, strict=True):
        ours.assign(theirs)
    for run in (four, two):
        run.step(parts[-1:])
    assert step_of(two.optimizer) == 1
    assert_same(four.weights(), two.weights())
    two.step(parts[:2])
    assert step_of(two.optimizer) == 2


class Network:
    """A small model that is trained by micro-batches of four rows, and counts its traces."""

    stages = {0: 1, 2: 2, 5: 4}
    batches = (1, 1, 2, 2, 2, 4, 4)  # of each update

    def __init__(self, frontend, steps=None, **how):
        self.host, ours = FRONTENDS[frontend]
        self.host.utils.set_random_seed(0)
        optimizer = ours.LAMB(0.05, gradient_accumulation_steps=steps)
        self.model, self.traced, scalars = two_layers(frontend), 0, optimizer._scalars

        def counted():
            self.traced += 1
            return scalars()

        optimizer._scalars = counted
        self.model.compile(optimizer, self.host.losses.MeanSquaredError(), **how)

    def fit(self, first, last, **how):
        """On these micro-batches."""
        x, y = (each[4 * first : 4 * last] for each in data())
        return self.model.fit(x, y, batch_size=4, shuffle=False, verbose=0, **how)


@every_frontend
def test_a_fit_is_of_larger_batches(frontend, tmp_path):
    """In one program; and as one run where the model is saved within an update, and loaded."""
    run, path = Network(frontend, Network.stages), str(tmp_path / "model.keras")
    run.fit(0, 1)
    once = run.traced
    run.fit(1, 10)
    assert BACKEND == "torch" or run.traced == once > 0  # torch runs what it is told, each time
    run.model.save(path)
    run.model = run.host.models.load_model(path)
    run.fit(10, 16)
    optimizer = run.model.optimizer
    assert optimizer.get_config()["gradient_accumulation_steps"] == Network.stages
    assert step_of(optimizer) == 7

    large, at = Network(frontend, run_eagerly=True).model, 0
    for count in Network.batches:
        large.train_on_batch(*(each[at : at + 4 * count] for each in data()))
        at += 4 * count
    assert_same_weights(run.model, large, 1e-6)


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize("name", ["AdaScale", "MeasureNoise"])
def test_what_measures_micro_batches_takes_a_number(frontend, name):
    ours = FRONTENDS[frontend][1]
    around = {"AdaScale": {"scale": 2.0}, "MeasureNoise": {}}[name]
    words = name + r" compares a fixed number.*\{0: 1, 2: 2, 4: 3\} of LAMB .* such as 3\.$"
    with pytest.raises(ValueError, match=words):
        getattr(ours, name)(ours.LAMB(gradient_accumulation_steps=GROWING), **around)
