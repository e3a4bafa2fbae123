"""What the rules show of their trust ratios, and the table that is made of it."""

import math

import numpy as np
import pytest

from tf_lamb.api.callbacks.trust_ratios import History
from tf_lamb.api.optimizers.observation import Observation
from tf_lamb.core import step
from tf_lamb.core.rules import lamb, lars, shared
from tf_lamb.core.rules.lamb import Bounds


def seen_by(rule, w, u, **arguments):
    calls = []
    rule(np, u, w, *arguments.pop("slots"), t=1, adapt=True, decay=0.0,
         observe=lambda *seen: calls.append(seen), **arguments)  # fmt: skip
    (seen,) = calls
    return tuple(float(x) for x in step.summarize_ratios(np, *seen))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, (5.0, 1.0, 5.0, 0)),
        ({"trust_ratio": (0, 4)}, (5.0, 1.0, 4.0, 1)),
        ({"trust_ratio": (0, 50), "weight_norm": (0, 10)}, (5.0, 1.0, 5.0, 0)),
        ({"weight_norm": (0, 2)}, (5.0, 1.0, 2.0, 1)),
        ({"weight_norm": (8, 9)}, (5.0, 1.0, 8.0, 1)),
    ],
)
def test_what_lamb_shows(bounds, expected):
    zero = np.zeros(2)
    w, u = np.array([3.0, 4.0]), np.array([0.0, 2.0])
    arguments = {"lr": 0.1, "epsilon": 1e-300, "bounds": Bounds(**bounds)}
    got = seen_by(lamb, w, u, slots=(zero, zero), **arguments)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize("w", [[0.0, 0.0], [math.nan, 1.0]])
def test_a_ratio_of_nothing_is_not_clipped(w):
    zero = np.zeros(2)
    bounds = Bounds(trust_ratio=(0, 50))
    seen = seen_by(lars, np.array(w), np.ones(2), slots=(zero,), lr=0.1, bounds=bounds)
    assert seen[3] == 0


@pytest.mark.parametrize(
    ("w", "u", "bounds", "clipped"),
    [
        ([0.0, 0.0], [0.0, 2.0], {"weight_norm": (8, 9)}, 0),
        ([3.0, 4.0], [0.0, 0.0], {"weight_norm": (8, 9)}, 0),
        ([3.0, 4.0], [0.0, math.nan], {"weight_norm": (8, 9)}, 0),
        ([0.0, 0.0], [0.0, 2.0], {"weight_norm": (8, 9), "trust_ratio": (2, 4)}, 1),
        ([3.0, 4.0], [0.0, 2.0], {"weight_norm": (8, 9)}, 1),
    ],
    ids=["no weight", "no update", "no number", "ratio of nothing in bounds", "both"],
)
def test_a_bound_of_the_weight_norm_clips_no_ratio_that_stays_1(w, u, bounds, clipped):
    seen = []
    shared.trust_ratio(np, np.array(w), np.array(u), adapt=True, bounds=Bounds(**bounds),
                       observe=lambda *values: seen.append(values))  # fmt: skip
    ((_, _, ratio, is_clipped),) = seen
    assert bool(is_clipped) == bool(clipped)
    assert clipped or ratio == 1


def test_the_table_has_outliers_first_and_the_excluded_last():
    history = History()
    history.add(10, [
        Observation("middle", 0, "", 1, 1.0, 10.0, 0.1, 0),
        Observation("bias", 1, "", 0),
        Observation("large", 2, "", 1, 9.0, 1.0, 9.0, 1),
        Observation("small", 3, "", 1, 1.0, 1e5, 1e-5, 0),
        Observation("frozen", 4, "", 1),
    ])  # fmt: skip
    history.add(20, [
        Observation("middle", 0, "", 1, 1.0, 5.0, 0.2, 0),
        Observation("bias", 1, "", 0),
        Observation("large", 2, "", 1, 9.0, 9.0, 1.0, 0),
        Observation("small", 3, "", 1, 1.0, math.nan, math.nan, 0),
        Observation("frozen", 4, "", 1),
    ])  # fmt: skip
    title, _, header, *rows = history.table().splitlines()
    assert "step 20, the farthest from their median (0.6) first" in title
    assert title.endswith("of 2 readings.")
    assert [row.split()[0] for row in rows] == ["small", "middle", "large", "bias", "frozen"]
    assert rows[1].split() == ["middle", "1", "5", "0.2", "0.33x", "0.1", "0.2", "0", "of", "2"]
    assert rows[2].split() == ["large", "9", "9", "1", "1.7x", "1", "9", "1", "of", "2"]
    assert rows[3].split() == ["bias", "-", "-", "excluded", "-", "-", "-", "-"]
    assert "no step yet" in rows[4]
