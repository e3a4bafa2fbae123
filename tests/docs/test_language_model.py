"""The registered language model: its page has the frozen numbers, its report the right values."""

import json
import math
import sys

import numpy as np
import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.language_model import plan, protocol, report

pytestmark = pytest.mark.once
PAGE = ROOT / "docs" / "protocol_language_model.md"
LOG = ROOT / "benchmarks" / "logs" / "language_model.jsonl"
FROZEN, HASH = protocol.FROZEN, protocol.HASH
BASE = [2.000, 2.002, 1.998, 2.004]


def run(arm, batch, seed, test, settings, looks=(3.0, 2.0), seconds=8.0):
    return {
        "protocol": HASH, "arm": arm, "batch": batch, "seed": seed, "test": test, "examples": 64,
        "settings": vars(settings), "validation": test, "looks": list(looks),
        "at": [seconds / 2, seconds], "seconds": seconds,
    }  # fmt: skip


@pytest.fixture(scope="module")
def lines():
    """Made-up runs: AdamW keeps its loss, Muon is below AdamW's base, unchanged AdamW is lost."""
    own = {name: protocol.points(name) for name in plan.SEARCHED}
    made = [
        run(f"tuned {name}", 256, 0, 2.1 + 0.01 * (i != best), point)
        for name, best in (("adamw", 5), ("muon", 2))
        for i, point in enumerate(own[name])
    ]
    adamw, muon = own["adamw"][5], own["muon"][2]
    of = {
        ("tuned adamw", 256): BASE,
        ("tuned muon", 256): np.subtract(BASE, 0.05),
        ("fewer adamw", 256): np.add(BASE, [0.009, 0.011, 0.010, 0.010]),
        ("transfer adamw", 2048): np.add(BASE, [-0.001, 0.001, 0.0, 0.002]),
        ("transfer muon", 2048): np.add(BASE, [-0.05, -0.03, -0.06, -0.02]),
        ("unchanged adamw", 2048): [2.5, 2.51, 2.49, 2.5],
    }
    for (arm, batch), tests in of.items():
        for seed, test in enumerate(tests, 1):
            late = 2.5 if arm.startswith("unchanged") else test
            settings = muon if arm.endswith("muon") else adamw
            seconds = 8.0 if batch == 256 else 5.0
            made.append(run(arm, batch, seed, float(test), settings, (3.0, late), seconds))
    return made


def test_the_best_point_is_chosen_by_its_validation_loss(lines):
    best = plan.chosen(lines)
    assert best["adamw"] == protocol.points("adamw")[5]
    assert best["muon"] == protocol.points("muon")[2]


def test_three_outcomes_with_intervals_by_seed(lines):
    from scipy import stats

    found = report.Found(lines)
    assert found.margin == pytest.approx(0.010)
    rows = {
        (row["arm"], row["base"]): row
        for row in report.comparisons(found, 2048, list(FROZEN["arms"]))
    }
    assert len(rows) == 4  # of six comparisons, two are twice there: AdamW's own base is AdamW's
    assert rows["transfer adamw", "tuned adamw"]["outcome"] == "keeps"
    assert rows["transfer muon", "tuned adamw"]["outcome"] == "keeps"
    assert rows["transfer muon", "tuned muon"]["outcome"] == "undecided"
    assert rows["unchanged adamw", "tuned adamw"]["outcome"] == "worse"
    muon = rows["transfer muon", "tuned muon"]
    test = stats.ttest_1samp([0.0, 0.02, -0.01, 0.03], 0.01)
    assert muon["p"] == pytest.approx(test.pvalue) and muon["mean"] == pytest.approx(0.01)
    low, high = test.confidence_interval()
    assert (muon["low"], muon["high"]) == pytest.approx((low, high))


def test_a_lost_run_is_worse_and_no_margin_decides_nothing(lines):
    lost = [dict(line, test=None) if line["arm"] == "transfer adamw" and line["seed"] == 2 else line
            for line in lines]  # fmt: skip
    (row, *_) = report.comparisons(report.Found(lost), 2048, ["transfer adamw"])
    assert row["outcome"] == "worse" and row["mean"] == math.inf
    less = [dict(line, test=1.9) if line["arm"] == "fewer adamw" else line for line in lines]
    rows = report.comparisons(report.Found(less), 2048, ["transfer adamw"])
    assert {row["outcome"] for row in rows} == {"undecided"}


def test_the_page_has_the_frozen_numbers_and_their_hash():
    said = PAGE.read_text()
    assert f"`{HASH}`" in said
    data, model = FROZEN["data"], FROZEN["model"]
    for number in (data["train"], data["validation"], model["vocabulary"], FROZEN["large"]):
        assert f"{number:,}" in said
    assert all(f"`{arm}`" in said for arm in FROZEN["arms"])
    assert json.dumps(FROZEN["search"]["beta_2"])[1:-1] in said


def test_the_page_has_the_tables_of_the_log():
    page = (ROOT / "docs" / "language_model.md").read_text()
    lines = [json.loads(line) for line in LOG.read_text().splitlines()]
    parts = report.whole(lines).split("\n\n")
    assert len(parts) == 13
    assert [part for part in parts if part not in page] == []


def test_every_run_is_of_the_commit_after_the_protocols():
    lines = [json.loads(line) for line in LOG.read_text().splitlines()]
    assert {line["commit"] for line in lines if "protocol" in line} == {"370ad7702f49"}
    assert {line["protocol"] for line in lines if "protocol" in line} == {HASH}
