"""What a recipe says of runs that had about as many updates left."""

import itertools

import pytest

from tf_lamb.core.recipes.updates_left import EXCESS_PERCENT, seen_lines

ROWS = list(EXCESS_PERCENT)


def rows_named(updates):
    """Returns the numbers of updates that the lines begin with."""
    return [int(line.split(" update")[0].replace(",", "")) for line in seen_lines("LAMB", updates)]


@pytest.mark.parametrize("row", ROWS)
def test_a_number_of_updates_of_the_study_has_its_own_line(row):
    assert rows_named(row) == [row]


@pytest.mark.parametrize(("below", "above"), [*itertools.pairwise(ROWS)])
def test_between_two_numbers_of_the_study_both_have_a_line(below, above):
    assert rows_named(below + 1) == rows_named(above - 1) == [below, above]


@pytest.mark.parametrize(("updates", "row"), [(1, ROWS[0]), (10**7, ROWS[-1])])
def test_beyond_the_study_its_nearest_row_has_the_line(updates, row):
    assert rows_named(updates) == [row]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("optimizer", [None, "AdamP"])
def test_an_optimizer_that_was_not_studied_gets_the_range_of_all(optimizer, row):
    ranges = EXCESS_PERCENT[row].values()
    least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    (line,) = seen_lines(optimizer, row)
    names = ", ".join(EXCESS_PERCENT[row])
    assert line.endswith(f" left: {least:+.1f} to {most:+.1f}% ({names})")


@pytest.mark.parametrize("row", ROWS)
def test_an_optimizer_of_the_study_gets_its_own_range(row):
    least, most = EXCESS_PERCENT[row]["AdamW"]
    assert seen_lines("AdamW", row)[0].endswith(f"{least:+.1f} to {most:+.1f}% (AdamW)")
