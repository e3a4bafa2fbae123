"""What the page of guarantees tells of spikes in real training is in the log."""

import pytest
from support.pages import ROOT, runs, table

BAD = 800  # of benchmarks/spikes.py
ROWS = table(ROOT / "docs" / "reliability.md", "Spikes")[1:]


def test_the_table_has_every_case():
    assert {row[0].partition(":")[0] for row in ROWS} == {run["case"] for run in log()}


def log():
    return [run for run in runs("spikes") if "case" in run]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition(":")[0])
def test_the_skipped_steps_are_those_of_the_log(row):
    label, count, planted, others = row
    made = runs("spikes", case=label.partition(":")[0])
    assert len(made) == int(count)
    assert all(run["steps"] + len(run["skipped"]) == 1000 for run in made)
    if "bad batch" in label:
        assert planted == f"{sum(BAD in run['skipped'] for run in made)} of {count}"
    else:
        assert planted == "-"
    found = [len(set(run["skipped"]) - ({BAD} if planted != "-" else set())) for run in made]
    assert others == f"{min(found)} to {max(found)}"
