"""The page of a batch that grows: what it prints is printed, its table is in the log."""

import itertools
import math
import statistics

import pytest
from support.pages import ROOT, blocks, number, runs, span, table, words

from tf_lamb import recipes

pytestmark = pytest.mark.once
PAGE = ROOT / "docs" / "growing.md"
TEXT = words(PAGE)
STUDENT = 2.132  # 95% of its t, 4 degrees of freedom
NO_DECAY = "no decay"


def test_what_it_prints_is_what_the_recipe_prints():
    (_, printed), *_ = blocks(PAGE, "")
    recipe = recipes.transfer(64, 64, 0.01, examples=4096, epochs=8)
    assert printed == str(recipes.growing(recipe, largest_batch=1024))


def of_seeds(task, optimizer, batch, arm):
    """The runs of an arm, at the rate that was tuned."""
    of = {"task": task, "optimizer": optimizer, "batch": batch}
    (rate,) = {run["rate"] for run in runs("growing", **of, arm=NO_DECAY)}
    return runs("growing", **of, arm=arm, rate=rate)


def difference(task, optimizer, batch, arm):
    """How much higher the loss is, in %: its mean, half of its interval; and the updates saved."""
    made = of_seeds(task, optimizer, batch, arm)
    if not made:
        return None
    base = of_seeds(task, optimizer, batch, 1)
    losses = {run["seed"]: run["loss"] for run in base}
    each = [100 * (run["loss"] / losses[run["seed"]] - 1) for run in made]
    assert len(each) == 5
    half = STUDENT * statistics.stdev(each) / math.sqrt(5)
    return statistics.mean(each), half, 100 * (1 - made[0]["updates"] / base[0]["updates"])


NAMES = {"flights": "flights", "Fashion-MNIST": "pictures", "letters": "text"}


def test_the_table_is_in_the_log():
    _, *rows = table(PAGE, "What was measured")
    assert len(rows) == 12
    for task, name, batch, *cells in rows:
        found = [
            difference(NAMES[task], name.lower(), number(batch), arm) for arm in (4, 16, NO_DECAY)
        ]
        assert cells == [f"{mean:+.2f} ± {half:.2f}" for mean, half, _ in found]


def test_what_is_lost_on_pictures_is_in_the_log():
    lost = {
        (name, arm): difference("pictures", name, 64, arm)
        for name in ("adamw", "muon", "lamb", "lans")
        for arm in (4, 16)
    }
    for arm in (4, 16):
        means = [lost[name, arm][0] for name in ("adamw", "muon")]
        assert "{:.1f} and {:.1f}%".format(*means) in TEXT
    decided = {key for key, (mean, half, _) in lost.items() if mean - half > 0}
    assert decided == {(name, arm) for name in ("adamw", "muon") for arm in (4, 16)}
    assert all(sum(lost[key][:2]) > 0.5 for key in lost)


def test_what_is_lost_on_letters_is_in_the_log():
    made = {
        (name, arm): difference("text", name, 16, arm)
        for name in ("adamw", "muon", "lamb", "lans")
        for arm in (4, 16, NO_DECAY)
    }
    assert [f"{made['muon', arm][0]:.1f}" for arm in (4, 16)] == ["0.5", "1.0"]
    assert [f"{made['muon', arm][2]:.1f}" for arm in (4, 16)] == ["29.7", "31.5"]
    within = {key for key, (mean, half, _) in made.items() if abs(mean) + half <= 0.5}
    assert within == {("lamb", 4)}
    ends = [run["loss"] for run in of_seeds("text", "adamw", 16, 1)]
    assert f"between {min(ends):.2f} and {max(ends):.2f}" in TEXT
    for arm in (1, 4, 16):
        stay = [run for run in of_seeds("text", "lamb", 16, arm) if f"{run['loss']:.2f}" == "2.88"]
        assert len(stay) == 3


def test_what_stays_on_flights_is_in_the_log():
    optimizers, batches = ("adamw", "muon", "lamb", "lans"), (64, 256, 1024)
    keys = [("flights", *of) for of in itertools.product(optimizers, batches)]
    grown = [each for key in keys for arm in (4, 16) if (each := difference(*key, arm))]
    assert len(grown) == 20 and all(abs(mean) + half <= 0.5 for mean, half, _ in grown)
    assert max(mean for mean, *_ in grown) <= 0.2
    undecayed = [difference(*key, NO_DECAY)[0] for key in keys]
    assert f"{span(undecayed, '.1f')}%" in TEXT
    for arm in (4, 16):
        saved = [difference(*key, arm)[2] for key in keys if difference(*key, arm)]
        assert f"{span(saved, '.1f')}%" in TEXT
