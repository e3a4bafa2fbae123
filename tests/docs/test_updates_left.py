"""The study on updates left: its analysis finds what made-up runs were made from."""

import dataclasses
import itertools
import math
import statistics
import sys

import numpy as np
import pytest
from support.figures import LOG_OF_UPDATES_LEFT as LOG
from support.figures import cells_of_pages, kept_with_2048
from support.pages import ROOT, words

sys.path.insert(0, str(ROOT))
from benchmarks.study import find_batch_kept
from benchmarks.updates_left import analysis, chains, report, runs
from benchmarks.updates_left.protocol import FROZEN, HASH, Run, Settings
from tf_lamb.core.recipes.updates_left import EXCESS_PERCENT

pytestmark = pytest.mark.once
NEEDED = {"AdamW": 600, "LAMB": 1200}  # updates at which the made-up excess is the margin
POWER, MARGIN = 1.3, 0.01


def line(task, optimizer, length, examples, batch, rule, seed, loss):
    run = Run(task, optimizer, length, examples, batch, rule, Settings(0.01), seed)
    found = {"loss": loss, "error": loss}
    return run.line | {"updates": examples // batch, "test": found, "seconds": 1.0}


def made_up(growth=0.0, noise=0.0):
    """Lines whose excess is margin (U0 / updates)^p, U0 = NEEDED (length / 2^18)^growth."""
    rng = np.random.default_rng(0)
    halved = 1 + MARGIN / math.log2(1 / 0.95)  # half of the examples lose so much
    for task, optimizer in itertools.product(FROZEN["lengths"], NEEDED):
        for length, seed in itertools.product(FROZEN["lengths"][task], [1, 2, 3, 4]):
            needed = NEEDED[optimizer] * (length / 2**18) ** growth
            own = task, optimizer, length
            yield line(*own, length, 16, "tuned", seed, 2.0)
            yield line(*own, length // 2, 16, "tuned", seed, 2.0 * halved)
            for batch in FROZEN["batches"]:
                excess = MARGIN * (needed / (length / batch)) ** POWER
                loss = 2.0 * (1 + excess) * (1 + noise * rng.normal())
                yield line(*own, length, batch, "transfer", seed, loss)


def larger(cells):
    return [cell for chain in analysis.by_transfer(cells).values() for cell in chain]


def test_the_margin_is_what_was_made_up():
    cells = analysis.cells_of(made_up())
    assert [cell.margin for cell in cells] == pytest.approx([MARGIN] * len(cells))


@pytest.mark.parametrize("optimizer", NEEDED)
def test_the_updates_needed_are_found(optimizer):
    cells = analysis.cells_of(made_up())
    found = [
        analysis.updates_needed(chain)
        for (_, name, _), chain in analysis.by_transfer(cells).items() if name == optimizer
    ]  # fmt: skip
    known = [updates for updates in found if not math.isnan(updates)]
    assert known == pytest.approx([NEEDED[optimizer]] * len(known), rel=0.25)
    assert len(known) >= 5


def test_of_runs_that_differ_by_optimizer_the_optimizer_adds_and_nothing_else():
    errors = analysis.compared(larger(analysis.cells_of(made_up(noise=0.001))))
    alone, best = errors["updates alone"], errors["and the optimizer"]
    assert best < 0.9 * alone
    assert all(errors[name] > 0.9 * best for name in analysis.MODELS)


def test_of_runs_that_differ_by_length_the_length_adds():
    cells = analysis.cells_of(made_up(growth=0.5, noise=0.001))
    errors = analysis.compared(larger(cells))
    assert errors["and the length"] < 0.9 * errors["and the optimizer"]
    # U0 grows as D^0.5, so the critical batch D / U0 does, too.
    updates = {
        chain: analysis.updates_needed(own) for chain, own in analysis.by_transfer(cells).items()
    }
    powers = analysis.growth(updates)
    assert powers and [*powers.values()] == pytest.approx([0.5] * len(powers), abs=0.1)


def test_a_run_that_is_lost_keeps_nothing():
    lines = [*made_up()]
    lost = lines.index(next(x for x in lines if x["batch"] == 128))
    lines[lost] = lines[lost] | {"test": {"loss": None, "error": None}}
    cell = next(c for c in analysis.cells_of(lines) if c.batch == 128)
    assert math.isinf(cell.excess) and not cell.is_kept


def test_five_percent_fewer_examples_lose_a_thirteenth_of_what_half_of_them_lose():
    assert chains.margin_of(2.0, 2.2) == pytest.approx(0.1 * math.log2(1 / 0.95))
    assert chains.margin_of(2.0, 2.0) == FROZEN["least_margin"]


def test_a_search_ends_between_two_rates_that_are_worse():
    asked = []

    def make(run):
        asked.append(run.settings.rate)
        return {"validation": {"loss": abs(math.log2(run.settings.rate / 0.004))}}

    chain = chains.Chain("letters", "AdamW", 2**18, Settings(0.001), make)
    assert chain.search(16, "tuned", Settings(0.001)).rate == 0.004
    assert asked == [0.001, 0.0005, 0.002, 0.004, 0.008]


def test_a_line_of_the_log_is_known_by_its_run():
    run = Run("letters", "AdamW", 2**18, 2**18, 16, "tuned", Settings(0.001), 1)
    from benchmarks.updates_left.protocol import key

    other = dataclasses.replace(run, seed=2)
    assert key(run.line) != key(other.line)
    assert run.line["protocol"] == HASH


def test_half_of_the_examples_more_are_a_cell_of_their_own():
    own = "letters", "AdamW", 2**18
    more = [line(*own, 3 * 2**17, 16_384, "transfer", seed, 2.1) for seed in (1, 2)]
    cells = analysis.cells_of([*made_up(), *more])
    (cell,) = (cell for cell in cells if cell.rule == analysis.MORE)
    assert (cell.updates, cell.excess) == (24, pytest.approx(0.05))
    assert cell not in larger(cells)


def test_the_own_numbers_are_compared_seed_by_seed():
    own = "letters", "LAMB", 2**25
    lines = [
        line(*own, 2**25, batch, rule, seed, loss + 0.1 * seed)
        for seed in (1, 2)
        for batch, rule, loss in ((256, "tuned", 1.0), (32_768, "transfer from 256", 1.1))
    ]
    (found,) = analysis.own_numbers_of([*made_up(), *lines])
    assert found.updates == (131_072, 1_024)
    assert found.scores == pytest.approx((1.15, 1.25))
    assert found.excess == pytest.approx((1.2 / 1.1 - 1, 1.3 / 1.2 - 1))


# -- the blind check of find_batch -----------------------------------------------------------------


def critical_batches():
    """Examples / updates needed of each made-up chain, as `find_batch` should name them."""
    return {
        (task, optimizer, length): round(length / needed)
        for task, (optimizer, needed) in itertools.product(FROZEN["lengths"], NEEDED.items())
        for length in FROZEN["lengths"][task]
    }


@pytest.mark.parametrize("factor, right", [(1.0, 1.0), (1.6, 0.9), (0.6, 0.9), (4.0, 0.2)])
def test_a_named_batch_is_right_within_a_factor_of_two(factor, right):
    named = {chain: round(factor * batch) for chain, batch in critical_batches().items()}
    found = find_batch_kept.scored(named, analysis.cells_of(made_up()))
    assert len(found) == len(named) == 16
    share = sum(each.is_right for each in found) / len(found)
    assert share >= right if factor < 2 else share <= right
    assert find_batch_kept.is_passed(found) == (factor < 2)
    assert "| letters, LAMB, 2^18 |" in find_batch_kept.table(found)


def test_to_keep_the_batch_where_8_times_kept_it_fails_the_check():
    named = critical_batches()
    one = next(chain for chain, batch in named.items() if batch > 8 * 16)
    found = find_batch_kept.scored(named | {one: 16}, analysis.cells_of(made_up()))
    assert sum(each.is_right for each in found) >= 0.9 * len(found)
    assert not find_batch_kept.is_passed(found)
    assert "keeps needlessly" in find_batch_kept.table(found)


def test_what_no_batch_or_every_batch_keeps_is_judged_by_the_ends():
    scored = find_batch_kept.Scored
    none = scored(("flights", "LAMB", 2**18), 100, 16, 128, math.nan)
    every = scored(("letters", "AdamW", 2**24), 9000, 16_384, math.inf, math.nan)
    assert none.is_right and not dataclasses.replace(none, named=200).is_right
    assert not dataclasses.replace(none, named=16).keeps_needlessly
    assert every.is_right and not dataclasses.replace(every, named=4096).is_right


def test_a_chain_that_was_not_searched_is_not_scored(tmp_path):
    lines = list(made_up())
    log = find_batch_kept.Log(tmp_path / "log.jsonl")
    what = {"protocol": HASH, "task": "letters", "optimizer": "LAMB", "length": 2**18}
    log.note({**what, "named": 200})
    named = find_batch_kept.searched(log, lines, is_made=False)
    assert named == {("letters", "LAMB", 2**18): 200}
    assert len(find_batch_kept.scored(named, analysis.cells_of(lines))) == 1
    log.note({**what, "task": "flights", "refused": "No run reaches it."})
    assert find_batch_kept.searched(log, lines, is_made=False)["flights", "LAMB", 2**18] == 16


def first_table(page):
    """Returns the rows of the first table of a page, as lists of cells, the head first."""
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if "|" in line[:1]]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def outcomes_in_percent():
    """Returns of the log what `EXCESS_PERCENT` has: updates -> optimizer -> least and greatest.

    Of numbers of updates that runs of all three networks had.
    """
    return {
        updates: {
            name: (round(100 * outcome.least, 1) + 0.0, round(100 * outcome.most, 1) + 0.0)
            for name, outcome in of_optimizer.items()
        }
        for updates, of_optimizer in analysis.outcomes(cells_of_pages()).items()
        if all(outcome.count >= 3 for outcome in of_optimizer.values())
    }


def test_a_recipe_says_what_the_log_says():
    assert outcomes_in_percent() == EXCESS_PERCENT


@pytest.mark.parametrize("page", ["README.md", "docs/updates_left.md"])
def test_a_page_has_the_table_by_updates_left(page):
    assert report.by_updates_left(cells_of_pages()) in (ROOT / page).read_text()


def test_the_page_of_the_study_has_the_table_of_the_chains():
    chains = report.by_updates(cells_of_pages()).replace(" %", "%")
    assert chains in (ROOT / "docs" / "updates_left.md").read_text()


@pytest.mark.parametrize(
    ("row", "fewest", "most"),
    [(1, 10_000, math.inf), (2, 2000, 10_000), (3, 500, 2000), (4, 100, 500), (5, 0, 100)],
)
@pytest.mark.parametrize("optimizer", report.PRINTED)
def test_a_case_of_should_i_has_what_the_study_saw(row, fewest, most, optimizer):
    outcomes = [
        of_optimizer[optimizer]
        for updates, of_optimizer in analysis.outcomes(cells_of_pages()).items()
        if fewest <= updates < most
    ]
    least, greatest = min(one.least for one in outcomes), max(one.most for one in outcomes)
    cell_text = f"{optimizer} {100 * least:+.1f} to {100 * greatest:+.1f}%".replace("-0.0", "+0.0")
    assert cell_text in first_table("should_i.md")[row][2]


def test_what_the_page_says_of_growing_batches_is_in_the_log():
    grown = [cell for cell in cells_of_pages() if cell.rule == "growing"]
    least, most = min(cell.excess for cell in grown), max(cell.excess for cell in grown)
    kept_count = sum(cell.is_kept for cell in grown)
    text = words(ROOT / "docs" / "updates_left.md")
    assert f"kept the result in {kept_count} of {len(grown)} chains" in text
    assert f"It ended {100 * least:+.1f} to {100 * most:+.1f}% against batch 16" in text
    assert f"[{kept_count} of {len(grown)} kept the result]" in words(ROOT / "docs" / "should_i.md")
    saved_share = {round(1 - cell.updates / (cell.length / 16), 2) for cell in grown}
    assert saved_share <= {0.32, 0.33}


def test_what_the_page_says_of_searching_again_is_in_the_log():
    searched = [cell for cell in cells_of_pages() if cell.rule == "searched"]
    kept_cells = [cell for cell in searched if cell.is_kept]
    assert (
        f"brought the result back in {len(kept_cells)} of {len(searched)} cells, all with "
        f"{min(cell.updates for cell in kept_cells):,} updates or more left"
    ) in words(ROOT / "docs" / "updates_left.md")


def test_the_chains_beyond_a_factor_of_two_are_those_that_the_page_names():
    updates = report.needed(cells_of_pages())
    of_adamw = {(task, length): n for (task, name, length), n in updates.items() if name == "AdamW"}
    mean = statistics.geometric_mean(of_adamw.values())
    far = {chain: n > mean for chain, n in of_adamw.items() if not mean / 2 <= n <= 2 * mean}
    assert len(of_adamw) == 7
    assert far == {("flights", 2**18): False, ("pictures", 2**21): True}
    needed = {
        name: [n for chain, n in updates.items() if chain[1] == name] for name in report.PRINTED
    }
    said = "AdamW's needed {:,.0f} to {:,.0f}, and LAMB's {:,.0f} to {:,.0f}".format(
        *(end(needed[name]) for name in report.PRINTED for end in (min, max))
    )
    assert said in words(ROOT / "docs" / "updates_left.md")


def test_the_page_says_how_many_batches_of_adamw_the_second_expectation_holds_for():
    cells = [c for c in larger(cells_of_pages()) if c.optimizer == "AdamW" and c.updates >= 2000]
    (lost,) = (cell for cell in cells if not cell.is_kept)
    assert (
        f"Of {len(cells)} batches, {len(cells) - 1} kept it; {lost.task} with {lost.updates:,} "
        f"left ended {100 * lost.excess:.1f}% above the base, and {100 * lost.margin:.1f}% was"
    ) in words(ROOT / "docs" / "updates_left.md")


def test_the_page_says_where_lamb_needs_fewer_updates_than_adamw():
    """Where no batch keeps the result, more are needed than the smallest one has left."""
    needed = {}
    for (task, name, length), chain in analysis.by_transfer(cells_of_pages()).items():
        updates = analysis.updates_needed(chain)
        needed.setdefault((task, length), {})[name] = (
            analysis.crossing(chain)[1] if math.isnan(updates) else updates
        )
    fewer = {chain for chain, of in needed.items() if of["LAMB"] < of["AdamW"]}
    assert fewer == {("flights", 2**18), ("letters", 2**21)}
    said = f"In {len(needed) - len(fewer)} of {len(needed)} pairs of chains."
    assert said in words(ROOT / "docs" / "updates_left.md")


def test_the_page_says_how_the_critical_batch_grows():
    grows = analysis.growth(report.needed(cells_of_pages()))
    assert len(grows) == 4 and not any(0.4 <= power <= 0.6 for power in grows.values())
    of = {f"{task}, {name}": f"^{power:.2f}" for (task, name), power in grows.items()}
    assert (
        f"letters {of['letters, AdamW']} (AdamW) and {of['letters, LAMB']} (LAMB), pictures "
        f"{of['pictures, AdamW']} (AdamW), flights {of['flights, AdamW']} (AdamW)"
    ) in words(ROOT / "docs" / "updates_left.md")


def test_the_page_has_the_comparison_of_models():
    page = (ROOT / "docs" / "updates_left.md").read_text()
    assert report.by_model(cells_of_pages()) in page
    errors = analysis.compared(larger(cells_of_pages()))
    assert min(errors.values()) > 0.9 * errors["updates alone"]


def test_the_page_counts_what_was_kept_with_2048_left_or_more():
    counts = [text.split(" of ") for text in kept_with_2048().values()]
    kept, count = (sum(map(int, numbers)) for numbers in zip(*counts, strict=True))
    said = f"{kept} of {count} batches kept the result"
    assert said in words(ROOT / "docs" / "updates_left.md")


def test_the_page_has_the_table_from_256_to_32768():
    own = analysis.own_numbers_of(runs.runs_of(LOG))
    assert [found.optimizer for found in own] == ["AdamW", "LAMB"]
    page = (ROOT / "docs" / "updates_left.md").read_text()
    assert report.own_numbers(own).replace(" %", "%") in page


# -- Muon, of which not all tasks have run ---------------------------------------------------------


def cells_of_muon():
    """Returns the cells of the tasks on which Muon's runs are complete."""
    cells = analysis.cells_of(runs.runs_of(LOG))
    return [c for c in cells if c.optimizer == "Muon" and c.task in ("letters", "flights")]


def test_the_page_has_the_table_of_muon():
    page = (ROOT / "docs" / "updates_left.md").read_text()
    assert report.by_updates(cells_of_muon()).replace(" %", "%") in page


def test_the_page_says_how_many_updates_muon_needs():
    updates = report.needed([*cells_of_pages(), *cells_of_muon()])
    on_letters = {
        name: [updates["letters", name, length] for length in (2**18, 2**21)]
        for name in ("Muon", "AdamW")
    }
    text = words(ROOT / "docs" / "updates_left.md")
    (short, long), (of_adamw, of_adamw_long) = on_letters.values()
    assert (
        f"{short:.0f} and {long:.0f}, where AdamW needed {of_adamw:,.0f} and {of_adamw_long:,.0f}."
    ) in text
    assert f"{100 * long / of_adamw_long:.0f} and {100 * short / of_adamw:.0f}% of them" in text
    on_flights = "flights", "Muon", 2**21
    assert updates[on_flights] > updates["flights", "AdamW", 2**21]
    of_18 = [
        c for c in cells_of_muon() if (c.task, c.length, c.rule) == ("flights", 2**18, "transfer")
    ]
    assert not any(cell.is_kept for cell in of_18)
    (cell,) = (
        c for c in cells_of_muon()
        if (c.task, c.length, c.batch, c.rule) == ("letters", 2**21, 2048, "transfer")
    )  # fmt: skip
    below = f"ended {-100 * cell.excess:.1f}% below its own base, and {-100 * cell.over_adamw:.1f}%"
    assert below in text


def test_the_page_says_how_a_rate_at_an_edge_moved():
    own = {"task": "flights", "optimizer": "Muon", "length": 2**21, "batch": 16, "rule": "tuned"}
    tuned = [line for line in runs.runs_of(LOG) if own.items() <= line.items()]
    by_rate = {
        line["settings"]["rate"]: line["validation"]["loss"] for line in tuned if not line["seed"]
    }
    assert min(by_rate, key=by_rate.get) == 0.08
    assert by_rate[0.16] > max(loss for rate, loss in by_rate.items() if rate != 0.16) + 0.02
    excess = {
        (c.batch, c.rule): f"+{100 * c.excess:.1f}" for c in cells_of_muon()
        if (c.task, c.length) == ("flights", 2**21)
    }  # fmt: skip
    assert (
        "from {} to {}% at 512, and from {} to {}% at 2,048".format(
            *(excess[batch, rule] for batch in (512, 2048) for rule in ("transfer", "searched"))
        )
    ) in words(ROOT / "docs" / "updates_left.md")
