"""The registered experiment: its page has the frozen numbers, its statistics are what they say."""

import math
import sys

import numpy as np
import pytest
from support.pages import ROOT, number, runs, table, words

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence import (
    against,
    protocol,
    statistics,
    tables,
    to_the_loss,
)  # fmt: skip

pytestmark = pytest.mark.once
PAGE, RESULTS, TABLES = (
    ROOT / "docs" / f"{name}.md" for name in ("protocol", "results", "results_tables")
)
SEED = 0


def test_the_page_has_the_frozen_numbers():
    _, *rows = table(PAGE, "What is trained")
    frozen = {name: each for name, each in protocol.FROZEN["workloads"].items() if name != "digits"}
    assert {row[0]: (number(row[3]), number(row[4])) for row in rows} == {
        name: (each["base"], each["examples"]) for name, each in frozen.items()
    }
    said = PAGE.read_text()
    assert all(f"`{arm}`" in said for arm in protocol.FROZEN["arms"])


def test_the_bound_is_that_of_a_paired_t_test():
    from scipy import stats

    rng = np.random.default_rng(SEED)
    base, scores = rng.normal(0.5, 0.01, 8), rng.normal(0.501, 0.01, 8)
    mean, bound, p = statistics.worse_by(scores, base, 0.02)
    test = stats.ttest_rel(scores - 0.02, base, alternative="less")
    assert (mean, p) == pytest.approx((np.mean(scores - base), test.pvalue))
    at_bound = stats.ttest_rel(scores - bound, base, alternative="less")
    assert at_bound.pvalue == pytest.approx(0.05)
    assert statistics.worse_by([*scores[1:], math.inf], base, 0.02)[2] == 1.0  # a lost run


def test_holm_stops_at_the_first_that_is_not_rejected():
    assert statistics.holm([0.01, 0.02, 0.03]) == [True, True, True]
    assert statistics.holm([0.04, 0.012, 0.03]) == [False, True, False]
    assert statistics.holm([0.5, 0.06, 0.02]) == [False, False, False]


def test_the_page_of_tables_is_written_from_the_logs(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert TABLES.read_text() == tables.page()


def test_the_results_are_written_from_the_logs(monkeypatch):
    monkeypatch.chdir(ROOT)
    logs, said = against.logs_of(), RESULTS.read_text()
    assert against.table(logs, 8) in said and against.table(logs, 32, kept=True) in said
    assert against.growing(logs) in said and to_the_loss.table(to_the_loss.every()) in said


def test_all_that_was_spent_on_a_seed_counts():
    """A run that does not arrive, the searches of both, and the search that is paid once."""

    def run(arm, seed, horizon, ratio, valid, search=0):
        updates = [horizon * each * 4608 // ratio for each in (0.5, 1)]
        return {"arm": arm, "ratio": ratio, "seed": seed, "horizon": horizon, "valid": valid,
                "updates": updates, **({"search": search} if search else {})}  # fmt: skip

    came, not_yet = [0.6, 0.5], [0.7, 0.6]
    base = [run("tuned adamw", seed, 1, 1, came) for seed in (1, 2)]
    moved = [run("transfer muon", seed, 1, 8, came) for seed in (1, 2)]
    searched = [
        run("find_rate muon", 1, 1, 8, came, 1024),
        run("find_rate muon", 2, 1, 8, not_yet, 1024),
        run("find_rate muon", 2, 2, 8, came, 2048),
    ]
    took = [{"workload": "flights", "batch": b, "ms": {"adamw": [1, 2], "muon": [2, 3]}}
            for b in (64, 512)]  # fmt: skip
    times = to_the_loss.Times("flights", [*base, *moved, *searched], took)
    assert times.spent("find_rate muon", 8) == pytest.approx(
        np.array([[576, 2], [576 + 1152, 2 + 4]]) * 0.002
    )
    cell = times.times("find_rate muon", 8)
    assert (cell.at_first, cell.came, cell.of) == (1, 2, 2)
    assert cell.alone == pytest.approx([1152 / 4608 * 2, 0.25, 0.75])
    assert cell.with_search[0] == pytest.approx((1152 + 4) / 4608 * 2)
    once = times.times("transfer muon", 8)
    assert once.with_search[0] - once.alone[0] == pytest.approx(16 * 2)


def test_a_way_is_counted_where_both_it_and_its_base_are_finished():
    """Not only where it was run at all ratios; and what was chosen by another score is void."""
    line = {"protocol": protocol.HASH, "horizon": 1, "settings": {}}

    def lines(**tests):
        return [
            {**line, "arm": arm.replace("_", " "), "ratio": ratio, "seed": seed, "test": test}
            for arm, (ratio, each) in tests.items()
            for seed, test in enumerate(each, 1)
        ]

    base, off = [0.500, 0.501, 0.499, 0.5005], [0.0101, 0.0099, 0.0102, 0.01]
    lower, higher = np.subtract(base, off), np.add(base, off)
    own = lines(tuned_adamw=(1, base), unchanged_adamw=(8, lower), transfer_adamw=(8, higher))
    for label, kept in (("AdamW, unchanged", 1), ("AdamW, by `transfer`", 0)):
        found = against.count(against.outcomes({"letters": own}, 8), label)
        assert found == {"keeps": kept, "undecided": 0, "worse": 1 - kept, "no answer": 0}
    again = own + [dict(each, arm="tuned adamw") for each in own[4:8]]
    label = "AdamW, tuned again"
    assert against.count(against.outcomes({"letters": own}, 8), label)["keeps"] == 0
    assert against.count(against.outcomes({"letters": again}, 8), label)["keeps"] == 1
    assert against.count(against.outcomes({"fashion": again}, 8), label)["keeps"] == 0
    assert against.count(against.outcomes({"perceptron": own}, 8), "AdamW, unchanged")["keeps"] == 0


def test_power_is_that_of_draws():
    rng, base = np.random.default_rng(SEED), np.random.default_rng(1).normal(0, 1, 8)
    scale = np.std(base, ddof=1) * math.sqrt(2)
    drawn = rng.normal(0, scale, (20000, 8))
    t = (drawn.mean(1) - 1.5) / (drawn.std(1, ddof=1) / math.sqrt(8))
    from scipy import stats

    seen = np.mean(t < stats.t.ppf(0.05 / 3, 7))
    assert statistics.power(base, 1.5, 8) == pytest.approx(seen, abs=0.01)


def test_the_pages_have_what_autowarmup_did_on_fashion():
    now, before = (
        [100 * line["test"] for line in runs(log, arm="autowarmup lamb", ratio=8)]
        for log in ("equivalence_fashion", "equivalence_fashion_before")
    )
    assert [len(now), len(before), sum(error == 90 for error in before)] == [8, 8, 2]
    base = 100 * np.mean(against.scores(runs("equivalence_fashion"))["tuned adamw", 1])
    said = f"{min(now):.1f} to {max(now):.1f}% errors"
    page = words(ROOT / "docs" / "automatic_warmup.md")
    assert f"make {said}, where the AdamW that was tuned at 64 makes {base:.1f}." in page
