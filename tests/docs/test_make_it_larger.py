"""The page that leads: what it prints is in the logs, and so is what came of it."""

import itertools
import math
import statistics
import sys

import pytest
from support.pages import ROOT, blocks, number, reworded, runs, span, table, words

sys.path.insert(0, str(ROOT))
from benchmarks.study import find_rate_again

PAGE, TRUST, LARGER = (
    ROOT / "docs" / f"{name}.md"
    for name in ("make_it_larger", "find_rate_trust", "measured_larger")
)
SHORT, TEXT = words(PAGE), words(TRUST)
LENGTH = "To the length of your run"
pytestmark = pytest.mark.once


def test_what_it_shows_of_the_finders_is_what_they_printed():
    printed = [reworded("\n".join(line["print"])) for line in runs("larger") if "print" in line]
    shown = [text for heading, text in blocks(PAGE, "") if heading != LENGTH]
    assert len(shown) == 2 and all(text in printed for text in shown)
    (example,) = runs("find_batch_readme")
    parts = [text for heading, text in blocks(PAGE, "") if heading == LENGTH]
    printed = " ".join(" ".join(example["print"]).split())
    shown = [" ".join(part.split()) for text in parts for part in text.split("...")]
    assert len(parts) == 2 and all(part in printed for part in shown)


def test_what_came_of_it_is_in_the_log():
    _, *rows = table(LARGER, "What came of it")
    found, seeds = [], []
    for *given, _, _ in rows:
        _, batch, epochs, rate, steps = given
        made = [
            run
            for run in runs("larger", batch=number(batch), epochs=int(epochs))
            if f"{run.get('rate', 0):.4g}" == rate and run["steps"] == number(steps)
        ]
        seeds.append(len(made))
        ends = []
        for key, digits in (("loss", 3), ("accuracy", 1)):
            values = [run[key] for run in made]
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            ends.append(f"{mean:.{digits}f} ± {deviation:.{digits}f}")
        found.append([*given, *ends])
    assert rows == found
    assert seeds == [3] * 5


def tuned_in(task, rival, batch):
    """The best rate of the grid, and the steps of its three seeds."""
    grid = {}
    for run in runs(f"steps_{task}", rival=rival, batch=batch):
        grid.setdefault(run["rate"], {})[run["seed"]] = run["steps"] or math.inf
    whole = {rate: statistics.median(of.values()) for rate, of in grid.items() if len(of) == 3}
    rate = min(whole, key=whole.get)
    return rate, whole[rate]


def cells(*tasks):
    """(task, optimizer, batch), the tuned rate and steps, the rates found, and the steps made."""
    found = {}
    for line in runs("find_rate"):
        if line["task"] in tasks:
            of = found.setdefault((line["task"], line["rival"], line["batch"]), ([], []))
            of["seed" in line].append(line)
    for key, (searches, made) in found.items():
        steps = [run["steps"] or math.inf for run in made]
        lost = sum(map(math.isinf, steps))
        took = statistics.median(steps), searches[0]["cost"], lost
        yield key, tuned_in(*key), [line["found"] for line in searches], took


def shown_as(tuned, found, made):
    """The last cells of a row of such a table."""
    (rate, least), (steps, cost, lost) = tuned, made
    more, arrives = f", {lost} lost" * (lost > 0), math.isfinite(steps)
    return [
        f"{rate:.3g}", ", ".join(f"{each:.3g}" if each else "-" for each in found), f"{least:,.0f}",
        (f"{steps:,.0f}" if arrives else "-") + more, f"{steps / least:.2f}" if arrives else "-",
        f"{cost:.2f}",
    ]  # fmt: skip


def near(searches):
    """How many pairs of searches of a cell are within a factor of two, of how many."""
    pairs = [pair for found in searches for pair in itertools.combinations(found, 2)]
    return sum(max(pair) <= 2 * min(pair) for pair in pairs), len(pairs)


def test_its_table_of_trust_is_in_the_log():
    _, *rows = table(TRUST, "At the best rate of a grid")
    shown = {(task.lower(), of.lower(), number(batch)): cell for task, of, batch, *cell in rows}
    every = {key: each for key, *each in cells("flights", "pictures")}
    assert shown == {key: shown_as(*each) for key, each in every.items()}
    ratios = [steps / tuned for (_, tuned), _, (steps, *_) in every.values()]
    median, worst, count = statistics.median(ratios), max(ratios), len(ratios)
    above = f"{sum(r > 1.5 for r in ratios)} of {count} is above 1.5, at {worst:.2f}."
    assert f"The median ratio is {median:.2f}; {above}" in TEXT
    pairs = near(found for _, found, _ in every.values())
    assert "within a factor of two in {} of {} pairs".format(*pairs) in TEXT
    assert f"takes {median:.2f} times the steps of a run at the best rate" in SHORT


def test_the_rate_of_lamb_on_flights_that_is_found_is_the_tuned_one():
    of = {"rival": "lamb", "batch": 256}
    (rate,) = {run["rate"] for run in runs("find_rate", task="flights", **of) if "seed" in run}
    assert abs(rate / 0.01 - 1) <= 0.04
    both = [runs("find_rate", task="flights", rate=rate, **of),
            runs("steps_flights", rate=0.01, **of)]  # fmt: skip
    told = [span([run["steps"] for run in made], ",.0f") for made in both]
    assert [each for each in told if each not in TEXT] == []


def test_its_table_of_letters_is_in_the_log():
    _, *rows = table(TRUST, "On letters, where training begins on a plateau")
    every = {key[1:]: each for key, *each in cells("text")}
    shown = {(rival.lower(), number(batch)): figures for rival, batch, *figures in rows}
    assert shown == {key: shown_as(*each) for key, each in every.items()}
    found = [each for (rival, _), each in every.items() if rival != "adamw"]
    ratios = [steps / tuned for (_, tuned), _, (steps, *_) in found if math.isfinite(steps)]
    assert (len(ratios), len(found), sum(each[2][2] for each in found)) == (8, 9, 2)
    lost = [every["adamw", batch][2][2] for batch in (16, 64)]
    pairs = near(rates for _, rates, _ in every.values())
    assert f"in {span(ratios, '.2f')} times the tuned steps" in TEXT
    assert "{} of {} pairs of searches are within".format(*pairs) in TEXT
    assert f"{lost[0]} of 3 seeds is lost at 16" in TEXT and f"and {lost[1]} of 3 at 64" in TEXT
    grid = runs("steps_text", rival="lamb", batch=256)
    assert {run["rate"] for run in grid} == {run["rate"] for run in grid if run["steps"] is None}


def ends_no_lower(search):
    """Whether the best of the longer runs is within 0.5% of the best of the shorter ones."""
    *_, long = sorted({steps for _, steps, _ in search["trials"]})
    best = {True: math.inf, False: math.inf}
    for _, steps, loss in search["trials"]:
        best[steps == long] = min(best[steps == long], math.inf if loss is None else loss)
    return best[False] - best[True] <= 0.005 * best[True]


def test_where_it_warns_of_a_plateau_is_in_the_log():
    def told(**of):
        every = [search for search in runs("find_rate", **of) if "trials" in search]
        return sum(map(ends_no_lower, every)), len(every)

    assert "in {} of {} searches here, ".format(*told(task="text")) in TEXT
    assert "here, {} of AdamW's {} among".format(*told(task="text", rival="adamw")) in TEXT
    assert "in {} of {} on flights".format(*told(task="flights")) in TEXT
    assert "in {} of {} on pictures".format(*told(task="pictures")) in TEXT
    assert told(task="text", rival="lamb", batch=256) == (1, 4)


def test_what_it_says_of_searching_anew_is_so():
    every = [find_rate_again.compared(task) for task in find_rate_again.TASKS]
    count, wider = (sum(row[name] for row in every) for name in ("searches", "wider"))
    among, undecided, close, pairs = (
        [sum(row[name][i] for row in every) for i in (0, 1)]
        for name in ("among", "undecided", "near", "pairs")
    )
    assert among[1] == count and undecided == [0, 0]
    assert (
        f"none of the {count} is undecided, {wider} intervals are wider, the rate is within a "
        f"factor of two of the tuned one in {close[1]}, before in {close[0]}, and two searches of "
        f"a cell in {pairs[1]} of 192 pairs, before in {pairs[0]}." in TEXT
    )


def overlapping(searches):
    """How many pairs of intervals overlap, where undecided is every rate, and the pairs."""
    spans = [line["interval"] if line["found"] else [0, math.inf] for line in searches]
    pairs = list(itertools.combinations(spans, 2))
    return sum(max(a[0], b[0]) <= min(a[1], b[1]) for a, b in pairs), len(pairs)


def test_what_it_says_of_few_held_out_examples_is_in_the_log():
    now, before = (
        [line for line in runs(name, task="adapters") if "search" in line]
        for name in ("find_rate", "find_rate_before")
    )
    assert len(now) == len(before) == 10
    (count, of), (was, _) = overlapping(now), overlapping(before)
    assert count >= 0.9 * of
    decided, rates = ([line["found"] for line in lines if line["found"]] for lines in (now, before))
    assert f"intervals overlap in {count} of {of} pairs of ten seeds, before in {was}" in TEXT
    assert f"{len(now) - len(decided)} are undecided, and count as every rate" in TEXT
    assert f"found {span(decided, '.3g')}, before {span(rates, '.3g')}" in TEXT
    wide, narrow = (
        statistics.median(line["interval"][1] / line["interval"][0] for line in lines)
        for lines in (now, before)
    )
    assert f"a factor of {wide:.0f} at the median, before {narrow:.0f}" in TEXT
    whole = {}
    for line in runs("find_rate", task="adapters"):
        if "loss" in line:
            whole.setdefault(line["rate"], []).append(line["loss"] or math.inf)
    ends = {rate: statistics.mean(losses) for rate, losses in whole.items()}
    best = min(ends, key=ends.get)
    said = f"Whole runs end the lowest at {best:.3g}, at {ends[best]:.3f}; at 0.016 at"
    assert f"{said} {ends[0.016]:.3f}" in TEXT


def test_its_table_of_what_needs_no_search_is_in_the_log():
    _, *shown = table(TRUST, "Beside what needs no search")
    wanted, ratios, lost, seeds = [], {}, {}, set()
    for task, batches in ("flights", (64, 256, 1024)), ("pictures", (16, 64, 256, 512, 1024, 2048)):
        for batch in batches:
            _, tuned = tuned_in(task, "adamw", batch)
            wanted.append(row := [task, f"{batch:,}", f"{tuned:,.0f}"])
            for rival in ("nadamw", "prodigy", "dog"):
                lines = runs("searchless", task=task, rival=rival, batch=batch)
                made = [line["steps"] or math.inf for line in lines]
                seeds.add(len(made))
                ratio, gone = statistics.median(made) / tuned, sum(map(math.isinf, made))
                ratios[rival, task, batch], lost[rival, task, batch] = ratio, gone
                row.append((f"{ratio:.2f}" if gone < 2 else "-") + f", {gone} lost" * (gone > 0))
    assert shown == wanted and seeds == {3}
    few, many = ([r for (of, _, batch), r in ratios.items() if of == "nadamw" and
                  (batch <= 64) is small] for small in (True, False))  # fmt: skip
    assert f"takes {span(few, '.2f')} times the tuned AdamW's steps" in TEXT
    assert f"From 256 on it takes {span(many, '.2f')} times" in TEXT
    found = [
        steps / tuned
        for (_, of, _), (_, tuned), _, (steps, *_) in cells("flights", "pictures")
        if of == "adamw"
    ]
    assert f"finds takes {span(found, '.2f')} times" in TEXT
    assert min(gone for (of, *_), gone in lost.items() if of == "prodigy") == 1
    few_lost = {key[1:] for key, gone in lost.items() if key[0] == "dog" and gone < 2}
    assert few_lost == {("pictures", 16), ("pictures", 64), ("pictures", 256)}


def test_what_it_says_of_the_seconds_is_in_the_log():
    errors = [
        abs(each["predicted"] / each["seconds"] - 1)
        for line in runs("find_batch")
        for each in line["between"]
    ]
    within = sum(error < 0.15 for error in errors)
    assert f"15% of measured ones in {within} of {len(errors)} cases" in words(LARGER)
    assert f"the worst was {max(errors):.0%} off" in words(LARGER)
