"""When readings of a run are those of one that has diverged, and what the report says."""

import numpy as np
import pytest

from tf_lamb.api.callbacks.divergence import Diagnosis
from tf_lamb.api.optimizers.guard import advice_for
from tf_lamb.api.optimizers.observation import Observation
from tf_lamb.core import rules

ADVICE = advice_for(rules.OURS["LAMB"])


def seen(path, *numbers):
    return Observation(path, 0, "", 1, *numbers)


def add(diagnosis, step, skipped=0, loss=1.0, strange=(), observations=()):
    return diagnosis.add(step, skipped, loss, list(strange), observations)


def test_the_report_names_the_variable_its_step_and_its_last_norms():
    diagnosis = Diagnosis(patience=20, advice=ADVICE)
    for step, update in ((10, 1.0), (20, 8.0), (30, np.nan)):
        observations = [seen("a/kernel", 3.0, 1.0, 3.0), seen("b/kernel", 4.0, update, 0.5)]
        report = add(diagnosis, step, strange=["b/kernel"] * (step == 30),
                     observations=observations)  # fmt: skip
        assert (report is None) == (step < 30)
    title, _, header, *rows = report.splitlines()
    assert title == ("Training has diverged: at step 30, the weights of 'b/kernel' are not finite.")
    assert header.split() == ["variable", "step", "weight", "norm", "update", "norm", "trust",
                              "ratio"]  # fmt: skip
    assert [row.split() for row in rows[:6]] == [
        ["b/kernel", "10", "4", "1", "0.5"],
        ["20", "4", "8", "0.5"],
        ["30", "4", "nan", "0.5"],
        ["a/kernel", "10", "3", "1", "3"],
        ["20", "3", "1", "3"],
        ["30", "3", "1", "3"],
    ]
    assert "longer warmup" in rows[-1]
    assert "bounds=" in rows[-1]


def test_a_loss_that_is_not_finite_ends_the_run_where_no_step_was_skipped():
    report = add(Diagnosis(patience=20, advice=ADVICE), 2, loss=np.inf)
    assert "at step 2, the loss is inf." in report and report.endswith(ADVICE)


def test_a_step_that_was_skipped_hides_the_loss_of_its_own_epoch_alone():
    diagnosis = Diagnosis(patience=20, advice=ADVICE)
    assert add(diagnosis, 5, skipped=1, loss=np.nan) is None
    diagnosis.begin_loss(1)
    assert add(diagnosis, 9, skipped=1) is None
    assert "at step 10, the loss is nan." in add(diagnosis, 10, skipped=1, loss=np.nan)


def test_an_earlier_checkpoint_has_skipped_fewer_steps_before_its_loss_too():
    diagnosis = Diagnosis(patience=20, advice=ADVICE)
    diagnosis.begin_loss(3)
    assert add(diagnosis, 9, skipped=3) is None
    assert "the loss is inf." in add(diagnosis, 4, skipped=1, loss=np.inf)


@pytest.mark.parametrize("first", [np.nan, np.inf])
def test_a_norm_that_was_not_finite_at_first_comes_before_those_that_grow(first):
    diagnosis = Diagnosis(patience=20, advice=ADVICE)
    for step, norm, wild in ((1, first, 1.0), (2, np.inf, 9.0)):
        observations = [seen("wild", 1.0, wild, 1.0), seen("lost", 1.0, norm, 1.0)]
        report = add(diagnosis, step, loss=np.inf if step == 2 else 1.0, observations=observations)
    assert report.index("lost") < report.index("wild")


def test_the_report_has_as_many_readings_as_are_kept():
    diagnosis = Diagnosis(patience=20, advice=ADVICE, keep=2)
    for step in (1, 2, 3):
        strange = ["a/kernel"] * (step == 3)
        report = add(diagnosis, step, strange=strange, observations=[seen("a/kernel", 1, 1, 1)])
    rows = report.splitlines()[3:-2]
    assert [row.split()[-4] for row in rows] == ["2", "3"]


def test_what_has_risen_most_comes_first_where_all_weights_are_finite():
    diagnosis = Diagnosis(patience=20, advice=ADVICE)
    for step, norm in ((1, 1.0), (2, 9.0)):
        observations = [seen("calm", 1.0, 1.0, 1.0), seen("wild", 1.0, norm, 1.0)]
        report = add(diagnosis, step, loss=np.inf if step == 2 else 1.0, observations=observations)
    assert report.index("wild") < report.index("calm")


def test_one_skipped_batch_is_no_divergence():
    diagnosis = Diagnosis(patience=3, advice=ADVICE)
    assert add(diagnosis, 1) is None
    assert add(diagnosis, 2, skipped=1, loss=np.nan) is None
    assert add(diagnosis, 2, skipped=3, loss=np.nan) is None  # two in a row for certain
    assert add(diagnosis, 12, skipped=9) is None  # six, but there were steps in between
    assert add(diagnosis, 12, skipped=11) is None
    report = add(diagnosis, 12, skipped=12, loss=np.nan)
    assert "at step 12, at least 3 more were tried and all skipped" in report
    assert "not finite, and the loss is nan." in report


def test_skips_are_counted_over_twice_the_patience():
    diagnosis = Diagnosis(patience=3, advice=ADVICE)
    for step in range(10):  # of two steps one is skipped: not more than half
        assert add(diagnosis, step, skipped=step) is None
    report = add(diagnosis, 10, skipped=12)
    assert "4 of the last 6 that were tried had been skipped" in report
    assert "All weights are finite" in report
    assert add(diagnosis, 2, skipped=1) is None  # an earlier checkpoint


def test_bounds_are_no_advice_where_they_would_add_a_ratio():
    """Nor where a rule has none."""
    told = {name: "bounds={'trust_ratio'" in advice_for(rule) for name, rule in rules.OURS.items()}
    assert {name for name, is_told in told.items() if is_told} == {"LAMB", "LARS"}
    assert advice_for(rules.OURS["Muon"]) == (
        "What usually helps: a longer warmup, a lower learning rate, and global_clipnorm=1.0."
    )
