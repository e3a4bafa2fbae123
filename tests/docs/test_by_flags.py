"""The study of batches by flags alone: what it decides, and what becomes of a run that diverges."""

import math
import sys

import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.shared.run_log import Log
from benchmarks.study import by_flags

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("excess", "verdict"),
    [(0.0, "kept"), (0.019, "not decided"), (0.021, "not decided"), (0.1, "lost")],
)
def test_what_is_nearer_to_the_margin_than_two_errors_is_not_decided(excess, verdict):
    """Scores of 0.99, 1.0, 1.01: the error of the difference of two means is 0.8%."""
    small = [0.99, 1.0, 1.01]
    large = [score + excess for score in small]
    assert by_flags.verdict(excess, 0.02, small, large) == verdict


def runs_of(path, tmp_path, train, monkeypatch):
    """Makes all runs of a path, each of which `train` answers."""
    monkeypatch.setattr(by_flags, "train", lambda path, folder, run: train(run))
    return by_flags.Path(path, Log(tmp_path / "log.jsonl"), "", math.inf).run()


def test_a_run_that_diverges_is_lost_and_not_made_again(tmp_path, monkeypatch):
    runs = []

    def train(run):
        runs.append(run)
        if run["batch"] == 512:
            return {"diverged": True, "seconds": 1.0}
        return {"accuracy": 0.9 - 0.01 * abs(math.log2(run["rate"])), "seconds": 1.0}

    row = runs_of("resnet", tmp_path, train, monkeypatch)
    assert row["verdict"] == "lost" and row["rate"] == 1.0 and not row["is_at_edge"]
    count = len(runs)
    assert runs_of("resnet", tmp_path, train, monkeypatch)["verdict"] == "lost"
    assert len(runs) == count
    assert "| lost |" in by_flags.table([row])


def test_a_rate_that_had_none_beyond_it_is_marked(tmp_path, monkeypatch):
    def train(run):
        return {"lm_example_loss": 1 / run["rate"], "seconds": 1.0}

    row = runs_of("bert", tmp_path, train, monkeypatch)
    assert row["is_at_edge"]
    assert f"{row['rate']:g} (the last tried)" in by_flags.table([row])
