"""The registered experiments: their pages have the frozen numbers, and what the logs decide."""

import math
import sys

import numpy as np
import pytest
from support.pages import ROOT, number, runs, table, words

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence import against, protocol, statistics, tables, to_the_loss
from benchmarks.language_model import protocol as language_model
from benchmarks.language_model import report

pytestmark = pytest.mark.once
DOCS = ROOT / "docs"


def test_the_page_has_the_frozen_numbers():
    _, *rows = table(DOCS / "protocol.md", "What is trained")
    frozen = {name: each for name, each in protocol.FROZEN["workloads"].items() if name != "digits"}
    assert {row[0]: (number(row[3]), number(row[4])) for row in rows} == {
        name: (each["base"], each["examples"]) for name, each in frozen.items()
    }
    said = (DOCS / "protocol.md").read_text()
    assert all(f"`{arm}`" in said for arm in protocol.FROZEN["arms"])


def test_the_page_of_the_language_model_has_the_frozen_numbers_and_their_hash():
    said, frozen = (DOCS / "protocol_language_model.md").read_text(), language_model.FROZEN
    data, model = frozen["data"], frozen["model"]
    sizes = (data["train"], data["validation"], model["vocabulary"], frozen["large"])
    assert [size for size in sizes if f"{size:,}" not in said] == []
    assert all(f"`{name}`" in said for name in (language_model.HASH, *frozen["arms"]))


def test_the_page_of_the_language_model_has_the_tables_of_the_log():
    """All runs are of the commit after the protocol's."""
    lines, page = runs("language_model"), (DOCS / "language_model.md").read_text()
    parts = report.whole(lines).split("\n\n")
    assert len(parts) == 13 and [part for part in parts if part not in page] == []
    made = {(line["commit"], line["protocol"]) for line in lines if "protocol" in line}
    assert made == {("370ad7702f49", language_model.HASH)}


def test_the_bound_is_that_of_a_paired_t_test():
    from scipy import stats

    rng = np.random.default_rng(0)
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
    assert (DOCS / "results_tables.md").read_text() == tables.page()


def test_the_results_are_written_from_the_logs(monkeypatch):
    monkeypatch.chdir(ROOT)
    logs, said = against.logs_of(), (DOCS / "results.md").read_text()
    assert against.table(logs, 8) in said and against.table(logs, 32, kept=True) in said
    assert against.growing(logs) in said and to_the_loss.table(to_the_loss.every()) in said


def test_power_is_that_of_draws():
    rng, base = np.random.default_rng(0), np.random.default_rng(1).normal(0, 1, 8)
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
    said += f", where the AdamW that was tuned at 64 makes {base:.1f}."
    assert f"make {said}" in words(DOCS / "measured_warmup.md")
