"""Micro-batches of an update that become more: the check, and the arithmetic of the stages."""

import json

import numpy as np
import pytest

from tf_lamb.core import accumulation, checks

NAME = "gradient_accumulation_steps"
STAGES = {0: 1, 3: 2, 4: 2, 7: 5}
COUNTS = [1, 1, 1, 2, 2, 2, 2, 5, 5, 5]  # of the first ten updates


def test_an_update_takes_as_many_as_its_stage():
    found = [accumulation.micro_batches_of_update(np, STAGES, np.int32(step)) for step in range(10)]
    assert found == COUNTS


@pytest.mark.parametrize("step", range(10))
def test_batches_are_those_of_each_update(step):
    found = [
        accumulation.total_micro_batches(STAGES, step, updates) for updates in range(10 - step)
    ]
    assert found == np.cumsum([0, *COUNTS[step:-1]]).tolist()


def test_the_largest_of_one_is_none():
    assert list(map(accumulation.max_micro_batches, (None, 1, 4, STAGES))) == [None, None, 4, 5]


def test_steps_come_in_any_order_and_from_json():
    given = {np.int64(7): np.int32(5), 0: 1, 4: 2, 3: 2}
    assert list(checks.accumulation(NAME, given).items()) == list(STAGES.items())
    again = json.loads(json.dumps(checks.accumulation(NAME, given), sort_keys=True))
    assert list(checks.accumulation(NAME, again).items()) == list(STAGES.items())


def test_one_stage_is_a_number():
    given = (4, {0: 4}, {"0": 1}, {0: 1, 100: 1}, {0: 4, 9: 4})
    assert [checks.accumulation(NAME, each) for each in given] == [4, 4, 1, 1, 4]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({}, ValueError, r"dict from optimizer steps, 0 among them, .* not \{\}"),
        ({1: 2}, ValueError, r"0 among them, .* not \{1: 2\}"),
        ({0: 2, 5: 1}, ValueError, r"never become smaller, .* not \{0: 2, 5: 1\}"),
        ({0: 1, -5: 2}, ValueError, "A step in gradient_acc.* >= 0, not -5"),
        ({0: 1, 2.5: 2}, TypeError, "A step in gradient_acc.* >= 0, not 2.5"),
        ({0: 1, "1e3": 2}, TypeError, "A step in gradient_acc.* >= 0, not '1e3'"),
        ({0: 0, 5: 2}, ValueError, r"steps\[0\] must be .* >= 1, not 0"),
        ({0: 1, 5: None}, TypeError, r"steps\[5\] must be .* >= 1, not None"),
        ({0: 1, 5: True}, ValueError, r"steps\[5\] must be .* >= 1, not True"),
        ({0: 1, 2**31: 2}, ValueError, "up to 2,147,483,647, not 2,147,483,648"),
        ([1, 2], TypeError, r"steps must be a whole number >= 1, not \[1, 2\]"),
    ],
)
def test_what_cannot_be_is_refused(value, error, words):
    with pytest.raises(error, match=words):
        checks.accumulation(NAME, value)
