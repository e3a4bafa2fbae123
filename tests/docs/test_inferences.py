"""What a page infers from rows: a check for each, that fails if the rows do not bear it.

claims.txt has the sentences, and after `<-` the name of a function of this file and the rows;
test_claims.py holds their numbers.
"""

import itertools
import re

import pytest
from support import figures as claims
from support.figures import figures, logs, outcomes
from support.pages import ROOT, runs

from benchmarks.equivalence import against, arms, tables, to_the_loss
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.language_model import report

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def where_the_logs_are(monkeypatch):
    monkeypatch.chdir(ROOT)


def nothing_is_kept_at_128_times():
    """No constant batch of any way, against either base; and the language model."""
    ways = [label for label, (_, base) in against.WAYS.items() if base]
    for label, base in itertools.product(ways, ("AdamW", "own")):
        assert against.count(outcomes(128), label, base)["keeps"] == 0, label
    assert len(outcomes(128)) > 30
    assert len(logs()) == 4
    lm = figures()["lm"]
    assert all(lost > 0.3 for key, lost in lm.items() if key.endswith(" 32768"))


def counts_are_of_all_that_is_finished():
    """A count's denominator is all tasks with a finished base and arm, but for what is void."""
    for (label, (arm, base)), ratio in itertools.product(against.WAYS.items(), (8, 32)):
        finished = {"AdamW": 0, "own": 0}
        for name, lines in logs().items():
            made = {(x.get("arm"), x.get("ratio")) for x in lines if x.get("seed")}
            if against.is_void(name, arm) and base:
                continue
            transfers = runs("equivalence_warmups", workload=name, power=0.5, warmup=0.1)
            made |= {(f"transfer {line['spec']}", line["ratio"]) for line in transfers}
            at = ratio if base else 1
            finished["AdamW"] += {(arm, at), ("tuned adamw", 1)} <= made
            finished["own"] += bool(base) and {(arm, at), (base, 1)} <= made
        for of, count in finished.items():
            assert sum(against.count(outcomes(ratio), label, of).values()) == count, (label, of)


def muon_is_below_at_the_small_batch():
    """Muon and SOAP end below AdamW at the small batch, and move above themselves."""
    for arm, tasks in (("tuned muon", 3), (f"tuned {against.SOAP}", 2)):
        below = [
            cell.worse for name, lines in logs().items()
            if (cell := against.at_base(name, against.found(name, lines), arm))
        ]  # fmt: skip
        assert len(below) == tasks and max(below) < 0
    for label in ("Muon", "SOAP"):
        small, moved = (
            against.count(outcomes(8), f"{label}, {how}")
            for how in ("at the small batch", "by `transfer`")
        )
        assert small["keeps"] == moved["keeps"] == sum(moved.values())
    assert figures()["lm_muon"] > 0.2


def three_were_moved_to_2048():
    """Two lose by AdamW or Adam; by Muon one is not told from none; the third ends no lower."""
    of = figures()
    assert of["lm"]["transfer adamw 2048"] > of["lm_over_adamw"] > 0.1
    assert of["larger_lost"] > 1 and abs(of["larger_muon"]) < of["larger_muon_within"]
    assert of["autowarmup_lost"][2048] < 0 < of["autowarmup_lost"][8192]


def the_batch_beside_the_optimizer():
    """What it costs a moved optimizer, and what that one wins of AdamW at the small batch."""
    for label, arm in (("Muon", "tuned muon"), ("SOAP", f"tuned {against.SOAP}")):
        for name, lines in logs().items():
            own = against.found(name, lines)
            if not (base := against.at_base(name, own, arm)):
                continue
            moved = against.compared(name, own, arm.replace("tuned", "transfer"), arm)
            assert moved[8].worse < -base.worse, (label, name)
            assert label == "SOAP" or moved[32].worse > -base.worse, name
    assert figures()["lm"]["transfer muon 2048"] > figures()["lm_muon"]


def some_keep_by_a_hair():
    """AdamW by `transfer` and Muon by `find_rate`: what falls by another rule or correction."""
    kept = {
        (label, name) for (label, name), (_, cell) in outcomes(8).items()
        if label in ("AdamW, by `transfer`", "Muon, by `find_rate`")
        and cell.outcome == against.KEEPS
    }  # fmt: skip
    falls = {(label, name) for ratio, label, name, _ in against.only_alone(logs()) if ratio == 8}
    assert kept - falls == {("AdamW, by `transfer`", "flights")}
    registered = against.scores(logs()["flights"])
    cells = against.compared("flights", registered, "transfer adamw", "tuned adamw")
    assert cells[8].outcome == against.WORSE


def a_batch_that_grows_comes_to_what_is_said():
    """A growing run at a ratio contains a batch of that ratio; at 128 times none does."""
    for name, lines in logs().items():
        base, told = FROZEN["workloads"][name]["base"], against.grown(name, lines)
        for ratio in (8, 32, 128):
            made = [x for x in lines if (x.get("arm"), x.get("ratio")) == ("growing adamw", ratio)]
            stages = arms.grown(name, Settings(**made[0]["settings"]), ratio)
            sizes = {stage.batch_size // base for stage in stages}
            assert (ratio in sizes) is (ratio < 128), (name, ratio)
            assert sum(stage.train_steps for stage in stages) == made[0]["updates"][-1]
        assert told["largest"] == max(sizes) * base < 128 * base
        assert told["whole"] == FROZEN["workloads"][name]["examples"] // base
    for ratio, (name, lines) in itertools.product((8, 32, 128), logs().items()):
        cells = against.compared(name, against.found(name, lines), "growing adamw", "tuned adamw")
        assert (cells[ratio].outcome == against.KEEPS) is (name in tables.IN_FULL)
    assert "it never came to 128" in claims.page_of("results.md").lower()


def seconds_have_the_search_in_them():
    """A comparison of seconds includes the search; only what needs none is faster."""
    found = figures()["seconds"]
    faster = {key for key, cell in found.items() if cell.with_search[0] < 1}
    assert faster == {("AdamW, by `transfer`", "diamonds", 8)}
    _, low, high = figures()["fastest"].with_search
    assert low < 1 < high
    moved = outcomes(8)["AdamW, by `transfer`", "diamonds"][1]
    assert moved.outcome == against.UNDECIDED
    for name, of in to_the_loss.every().items():
        for label, arm in to_the_loss.WAYS.items():
            free = label in ("AdamW, unchanged", "AdamW, by `transfer`")
            ratio = 1 if "small" in label else 8
            searched = of.spent(arm, ratio)[:, 1].min() > 0
            assert searched == ("find_rate" in label), (name, label)
            assert (of.search(arm, ratio) == 0 and not searched) is free, (name, label)
        for line in runs(f"equivalence_{name}", arm="find_rate muon", ratio=8, horizon=1):
            assert line["search"] > 0.3 * FROZEN["workloads"][name]["examples"]


def the_card_was_busy():
    """An example takes hardly less at 2,048 than at 256, so that 8 times saves no time."""
    each = figures()["lm_each"]
    assert each[256] / each[2048] < 1.2
    lm = figures()["lm"]
    assert lm["transfer adamw 2048"] > 0.3 and lm["transfer muon 2048"] > 0.3


def a_language_model_lost():
    """Each constant way that was run at 2,048 ended above its own base and AdamW's."""
    lm = figures()["lm"]
    constant = [lost for key, lost in lm.items() if key.endswith(" 2048") and "grow" not in key]
    assert len(constant) == 3 and min(constant) > figures()["lm_muon"]


def transfer_gained_nothing_that_is_seen():
    """Over AdamW unchanged at 2,048: the interval has 0 in it."""
    mean, half = figures()["lm_gained"]
    assert abs(mean) < half


def one_seed_misses_its_own_mark():
    """Of AdamW's base, the mark that its mean and deviation make."""
    found = report.Found(runs("language_model"))
    lines = found.runs["tuned adamw", 256]
    assert sum(min(line["looks"]) > found.target for line in lines) == 1


def only_these_keep_at_32_times():
    """What keeps AdamW's result there; and no other way keeps any."""
    made = outcomes(32)
    kept = {
        (label, name) for (label, name), (_, adamw) in made.items()
        if against.WAYS[label][1] and adamw.outcome == against.KEEPS
    }  # fmt: skip
    assert kept == {
        ("Muon, tuned again", "flights"), ("SOAP, tuned again", "flights"),
        ("SOAP, tuned again", "diamonds"), ("SOAP, by `transfer`", "diamonds"),
    }  # fmt: skip
    shown = set(re.findall(r"^\| (\w[^|]+) \|", against.table(logs(), 32, kept=True), re.M))
    somewhere = {
        label for (label, _), cells in made.items()
        if against.WAYS[label][1] and any(c and c.outcome == against.KEEPS for c in cells)
    }  # fmt: skip
    assert shown == somewhere
    nothing_is_kept_at_128_times()


def early_steps_fall_where_whole_runs_lose():
    """On flights from 64 to 1,024 Muon takes far fewer steps; at 2,048 a whole run loses."""
    assert figures()["fewer_flights"] > 8
    cells = against.compared(
        "flights", against.found("flights", logs()["flights"]), "transfer muon", "tuned muon"
    )
    assert cells[32].outcome == against.WORSE


@pytest.mark.parametrize("check", claims.CHECKS)
def test_the_rows_bear_what_is_inferred(check):
    globals()[check]()
