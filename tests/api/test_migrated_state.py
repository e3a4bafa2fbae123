"""Migration between optimizers of ours: all state goes on, or the report says what does not."""

import math
import re

import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend, uncompiled
from support.migrated import kept, model_of, steps

from tf_lamb.api.optimizers import named
from tf_lamb.api.variables import unwrapped


@pytest.fixture(autouse=True)
def eager():
    """Steps are few here: tracing them would take longer."""
    with uncompiled():
        yield


def inside(optimizer_class="LAMB", around=None, measures=None, **arguments):
    """Makes an optimizer of a frontend, with what is around it."""

    def make(ours):
        optimizer = getattr(ours, optimizer_class)(**{"learning_rate": 0.1, **arguments})
        return getattr(ours, around)(optimizer, **(measures or {})) if around else optimizer

    return make


# An optimizer, the micro-steps before, and what a plain LAMB's report calls left behind.
AVERAGED = {"use_ema": True, "ema_momentum": 0.5}
BEGUN = {
    "averages wait": (inside(**AVERAGED, ema_overwrite_frequency=2), 0, None),
    "averages wait for an update": (
        inside(**AVERAGED, gradient_accumulation_steps=3), 2, "accumulator_of_3",
    ),
    "averages": (inside(**AVERAGED), 3, "average"),
    "accumulated": (inside("LARS", gradient_accumulation_steps=3), 4, "micro_step_of_3"),
    "accumulated by stages": (
        inside(gradient_accumulation_steps={0: 1, 2: 3}), 4, "micro_step_of_growing",
    ),
    "masters": (inside(learning_rate=1e-3, dtypes={"masters": "float32"}), 3, "master"),
    "spikes": (inside(on_spike=(4, 3.0)), 8, "gradient_norms_of_4"),
    "measured": (inside(around="MeasureNoise", gradient_accumulation_steps=2), 5, "measured"),
    "AdaScale": (
        inside(around="AdaScale", measures={"scale": 4}, gradient_accumulation_steps=2), 17,
        "measured",
    ),
}  # fmt: skip


# What the report calls them.
WORDS = {
    "average": "the averages of the weights",
    "accumulator": "the micro-batches of an update that has begun",
    "micro_step": "the micro-batches of an update that has begun",
    "master": "the float32 masters",
    "gradient_norms": "the norms that on_spike knows",
    "measured": "what is measured",
}


def begun(frontend, case):
    host, ours = FRONTENDS[frontend]
    make, count, _ = BEGUN[case]
    policy = "bfloat16" if case == "masters" else "float32"
    model, optimizer = model_of(frontend, policy), make(ours)
    optimizer.build(model.trainable_variables)
    steps(optimizer, model, 0, count)
    other = model_of(frontend, policy)
    other.set_weights(model.get_weights())
    return ours, model, optimizer, other


@every_frontend
@pytest.mark.parametrize("case", BEGUN)
def test_it_goes_on_as_the_source_does(frontend, case):
    ours, model, old, other = begun(frontend, case)
    make, count, _ = BEGUN[case]
    new = make(ours)
    report = ours.migrate(old, new, other)
    assert (report.changes, report.left_behind) == ({}, ())
    assert "changes     none" in str(report)
    for optimizer, trained in ((old, model), (new, other)):
        steps(optimizer, trained, count, count + 8)
    for one, same in zip(model.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_array_equal(array(one), array(same))
    theirs, own = kept(old), kept(new)
    assert theirs.keys() == own.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(own[name], value, err_msg=name)
    assert named.has_averages(unwrapped(new)) == ("averages" in case)


@every_frontend
@pytest.mark.parametrize("case", [case for case, (_, _, words) in BEGUN.items() if words])
def test_what_has_no_place_is_told(frontend, case):
    ours, _, old, other = begun(frontend, case)
    cls = type(unwrapped(old)).__name__
    new = getattr(ours, cls)(0.1, dtypes={"masters": None})
    report = ours.migrate(old, new, other)
    name = BEGUN[case][2]
    assert name in report.left_behind
    left = rf"^  left behind {WORDS[name.partition('_of_')[0]]} \([^)]*{name}.*\): .*continue"
    assert re.search(left, str(report), re.M)


@every_frontend
def test_into_adascale_and_out_of_it(frontend):
    """Steps of the base batch go on at those of a plain optimizer; the gain is told."""
    ours, _, old, other = begun(frontend, "averages")
    make = inside(around="AdaScale", measures={"scale": 4}, gradient_accumulation_steps=2)
    scaled = make(ours)
    changes = ours.migrate(old, scaled, other).changes
    told = {"AdaScale's scale": (None, 4), "AdaScale's preconditioned": (None, True)}
    lost = {"use_ema": (True, False), "ema_momentum": (0.5, 0.99)}
    assert changes == {"gradient_accumulation_steps": (None, 2), **told, **lost}
    assert (scaled.base_steps, scaled.gain, scaled.updates) == (3.0, 1.0, 3)
    steps(scaled, other, 0, 12)
    plain = ours.LAMB(0.1, gradient_accumulation_steps=2)
    report = ours.migrate(scaled, plain, other)
    assert report.changes["AdaScale's scale"] == (4, None) and not report.keep
    assert report.step == 9 and "measured" in report.left_behind
    assert unwrapped(scaled).get_config()["learning_rate"] == 0.1


def cosine(steps):
    return lambda host, ours: host.optimizers.schedules.CosineDecay(0.1, steps)


def warmup(steps):
    return lambda host, ours: ours.schedules.Warmup(steps, cosine(90)(host, ours))


# An argument, and two values of it, there and here, of which the next steps differ.
OTHERS = {
    "a decay of the rate": ("learning_rate", cosine(90), cosine(91)),
    "a decay of the rate or none": ("learning_rate", cosine(90), 0.1),
    "a warmup": ("learning_rate", warmup(5), warmup(6)),
    "a schedule of the decay": ("weight_decay", cosine(90), cosine(91)),
    "a schedule of the decay or none": ("weight_decay", 0.1, cosine(90)),
    "a multiplier": ("treatments", {"^a": {"rate": 0.5}}, {"^a": {"rate": 0.25}}),
    "slices": ("treatments", None, {"a/kernel": {"slices": 0}}),
    "stages of accumulation": ("gradient_accumulation_steps", {0: 1, 5: 2}, {0: 1, 6: 2}),
    "accumulation": ("gradient_accumulation_steps", 2, 4),
    "dtypes": ("dtypes", {"slots": "float32"}, {"slots": "bfloat16"}),
}


@every_frontend
@pytest.mark.parametrize("case", OTHERS)
def test_arguments_that_differ_are_told(frontend, case):
    host, ours = FRONTENDS[frontend]
    model = model_of(frontend)
    name, *pair = OTHERS[case]
    made = []
    for value in (*pair, pair[0]):
        value = value(host, ours) if callable(value) else value
        made.append(ours.LAMB(**{"learning_rate": 0.1, name: value}))
        made[-1].build(model.trainable_variables)
    old, new, same = made
    report = ours.migrate(old, new, model)
    assert [*report.changes] == [name] and f"changes     {name}: " in str(report)
    assert "class_name" not in str(report)  # a schedule is shown as it is written
    assert not ours.migrate(old, same, model).changes


@pytest.mark.skipif(len(FRONTENDS) < 2, reason="needs both Kerases")
def test_a_schedule_of_the_other_keras_is_the_same():
    made = []
    for host, ours in FRONTENDS.values():
        model = model_of(host.__name__)
        optimizer = ours.LAMB(warmup(5)(host, ours), weight_decay=cosine(90)(host, ours))
        optimizer.build(model.trainable_variables)
        made.append((ours, optimizer, model))
    for (_, old, _), (ours, new, model) in (made, made[::-1]):
        assert not ours.migrate(old, new, model).changes


@every_frontend
def test_patterns_that_adapt_the_same_variables_are_no_change(frontend):
    """None is ["embedding"] for Muon, whatever is excluded from decay."""
    ours = FRONTENDS[frontend][1]
    model = model_of(frontend)
    there, here = ours.Muon(0.1), ours.Muon(0.1, exclude_from_weight_decay=["bias"])
    for optimizer in (there, here):
        optimizer.build(model.trainable_variables)
    assert set(ours.migrate(there, here, model).changes) == {"exclude_from_weight_decay"}


@every_frontend
def test_bounds_that_are_infinite_in_both_are_no_change(frontend):
    ours = FRONTENDS[frontend][1]
    model = model_of(frontend)
    there, here = (ours.LAMB(0.1, bounds={"trust_ratio": (0.0, math.inf)}) for _ in range(2))
    for optimizer in (there, here):
        optimizer.build(model.trainable_variables)
    assert not ours.migrate(there, here, model).changes
