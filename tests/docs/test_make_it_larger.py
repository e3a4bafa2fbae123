"""The page that leads: what it prints is in the logs, and so is what came of it."""

import itertools
import math
import re
import statistics
import sys

import pytest
from support.pages import LOGS, ROOT, blocks, number, reworded, runs, table

sys.path.insert(0, str(ROOT))
from benchmarks import search_again

PAGE, TRUST = (ROOT / "docs" / f"{name}.md" for name in ("make_it_larger", "find_rate_trust"))
pytestmark = pytest.mark.once


def test_what_it_shows_of_the_finders_is_what_they_printed():
    printed = [reworded("\n".join(line["print"])) for line in runs("larger") if "print" in line]
    shown = [text for _, text in blocks(PAGE, "")]
    assert len(shown) == 2
    assert all(text in printed for text in shown)


def test_what_came_of_it_is_in_the_log():
    _, *rows = table(PAGE, "What came of it")
    assert len(rows) == 5
    for _, batch, epochs, rate, steps, loss, accuracy in rows:
        made = [
            run
            for run in runs("larger", batch=number(batch), epochs=int(epochs))
            if f"{run.get('rate', 0):.4g}" == rate and run["steps"] == number(steps)
        ]
        assert len(made) == 3
        for cell, key, digits in ((loss, "loss", 3), (accuracy, "accuracy", 1)):
            values = [run[key] for run in made]
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            assert cell == f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def tuned_in(task, rival, batch):
    """The best rate of the grid, and the steps of its three seeds."""
    grid = {}
    for run in runs(f"steps_{task}", rival=rival, batch=batch):
        grid.setdefault(run["rate"], {})[run["seed"]] = run["steps"] or math.inf
    whole = {rate: list(of.values()) for rate, of in grid.items() if len(of) == 3}
    rate = min(whole, key=lambda each: statistics.median(whole[each]))
    return rate, statistics.median(whole[rate])


def cells(*tasks):
    """(task, optimizer, batch), the tuned rate and steps, the rates found, and the steps made."""
    found = {}
    for line in runs("find_rate"):
        if line["task"] not in tasks:
            continue
        of = found.setdefault((line["task"], line["rival"], line["batch"]), ([], []))
        of["seed" in line].append(line)
    for (task, rival, batch), (searches, made) in found.items():
        steps = [run["steps"] or math.inf for run in made]
        yield (
            (task, rival, batch),
            tuned_in(task, rival, batch),
            [line["found"] for line in searches],
            (statistics.median(steps), searches[0]["cost"], sum(map(math.isinf, steps))),
        )


def shown_as(tuned, found, made):
    """The last cells of a row of such a table."""
    (rate, least), (steps, cost, lost) = tuned, made
    more = f", {lost} lost" * (lost > 0)
    arrives = math.isfinite(steps)
    return [
        f"{rate:.3g}", ", ".join(f"{each:.3g}" if each else "-" for each in found), f"{least:,.0f}",
        (f"{steps:,.0f}" if arrives else "-") + more, f"{steps / least:.2f}" if arrives else "-",
        f"{cost:.2f}",
    ]  # fmt: skip


def test_its_table_of_trust_is_in_the_log():
    _, *rows = table(TRUST, "At the best rate of a grid")
    shown = {}
    for task, rival, batch, *figures in rows:
        key = (task.lower(), re.sub("adamw", "adamw", rival.lower()), number(batch))
        shown[key] = figures
    every = list(cells("flights", "pictures"))
    assert len(every) == len(rows)
    ratios, near = [], []
    for key, tuned, found, made in every:
        ratios.append(made[0] / tuned[1])
        near += [max(pair) <= 2 * min(pair) for pair in itertools.combinations(found, 2)]
        assert shown[key] == shown_as(tuned, found, made)
    text = re.sub(r"\s+", " ", TRUST.read_text())
    assert (
        f"The median ratio is {statistics.median(ratios):.2f}; {sum(r > 1.5 for r in ratios)} of "
        f"{len(ratios)} is above 1.5, at {max(ratios):.2f}." in text
    )
    assert f"within a factor of two in {sum(near)} of {len(near)} pairs" in text
    short = re.sub(r"\s+", " ", PAGE.read_text())
    assert f"takes {statistics.median(ratios):.2f} times the steps at the best rate" in short
    assert f"1 of {len(ratios)} is above 1.5, at {max(ratios):.2f}." in short
    worst = {"rival": "lamb", "batch": 256}
    (rate,) = {run["rate"] for run in runs("find_rate", task="flights", **worst) if "seed" in run}
    assert abs(rate / 0.01 - 1) <= 0.04
    for made in (runs("find_rate", task="flights", rate=rate, **worst),
                 runs("steps_flights", rate=0.01, **worst)):  # fmt: skip
        steps = [run["steps"] for run in made]
        assert f"{min(steps):,.0f} to {max(steps):,.0f}" in text


def test_its_table_of_letters_is_in_the_log():
    _, *rows = table(TRUST, "On letters, where training begins on a plateau")
    every = {key[1:]: each for key, *each in cells("text")}
    shown = {(rival.lower(), number(batch)): figures for rival, batch, *figures in rows}
    assert shown == {key: shown_as(*each) for key, each in every.items()}
    found = [each for (rival, _), each in every.items() if rival != "adamw"]
    ratios = [steps / tuned for (_, tuned), _, (steps, *_) in found if math.isfinite(steps)]
    assert (len(ratios), len(found), sum(each[2][2] for each in found)) == (8, 9, 2)
    near = [
        max(pair) <= 2 * min(pair)
        for _, rates, _ in every.values()
        for pair in itertools.combinations(rates, 2)
    ]
    lost = [every["adamw", batch][2][2] for batch in (16, 64)]
    text = re.sub(r"\s+", " ", TRUST.read_text())
    assert f"in {min(ratios):.2f} to {max(ratios):.2f} times the tuned steps" in text
    assert f"{sum(near)} of {len(near)} pairs of searches are within" in text
    assert f"{lost[0]} of 3 seeds is lost at 16" in text and f"and {lost[1]} of 3 at 64" in text
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
    searches = [line for line in runs("find_rate") if "trials" in line]

    def told(**of):
        every = [s for s in searches if of.items() <= s.items()]
        return sum(map(ends_no_lower, every)), len(every)

    text = re.sub(r"\s+", " ", TRUST.read_text())
    assert "in {} of {} searches here, ".format(*told(task="text")) in text
    assert "here, {} of AdamW's {} among".format(*told(task="text", rival="adamw")) in text
    assert "in {} of {} on flights".format(*told(task="flights")) in text
    assert "in {} of {} on pictures".format(*told(task="pictures")) in text
    assert told(task="text", rival="lamb", batch=256) == (1, 4)


def test_what_it_says_of_searching_anew_is_so():
    every = [search_again.compared(task) for task in search_again.TASKS]
    count, wider = (sum(row[name] for row in every) for name in ("searches", "wider"))
    among, undecided, near, pairs = (
        [sum(row[name][i] for row in every) for i in (0, 1)]
        for name in ("among", "undecided", "near", "pairs")
    )
    assert among[1] == count and undecided == [0, 0]
    text = re.sub(r"\s+", " ", TRUST.read_text())
    assert (
        f"none of the {count} is undecided, {wider} intervals are wider, the rate is within a "
        f"factor of two of the tuned one in {near[1]}, before in {near[0]}, and two searches of a "
        f"cell in {pairs[1]} of 192 pairs, before in {pairs[0]}." in text
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
    text = re.sub(r"\s+", " ", TRUST.read_text())
    decided, rates = ([line["found"] for line in lines if line["found"]] for lines in (now, before))
    assert f"intervals overlap in {count} of {of} pairs of ten seeds, before in {was}" in text
    assert f"{len(now) - len(decided)} are undecided, and count as every rate" in text
    assert f"found {min(decided):.3g} to {max(decided):.3g}, before {min(rates):.3g} to" in text
    assert f"before {min(rates):.3g} to {max(rates):.3g}" in text
    wide, narrow = (
        statistics.median(line["interval"][1] / line["interval"][0] for line in lines)
        for lines in (now, before)
    )
    assert f"a factor of {wide:.0f} at the median, before {narrow:.0f}" in text
    whole = {}
    for line in runs("find_rate", task="adapters"):
        if "loss" in line:
            whole.setdefault(line["rate"], []).append(line["loss"] or math.inf)
    ends = {rate: statistics.mean(losses) for rate, losses in whole.items()}
    best, low = min(ends, key=ends.get), 0.016
    assert (
        f"Whole runs end the lowest at {best:.3g}, at {ends[best]:.3f}; at {low} at {ends[low]:.3f}"
        in text
    )


def test_its_table_of_what_needs_no_search_is_in_the_log():
    _, *shown = table(TRUST, "Beside what needs no search")
    wanted, ratios, lost = [], {}, {}
    for task, batches in ("flights", (64, 256, 1024)), ("pictures", (16, 64, 256, 512, 1024, 2048)):
        for batch in batches:
            _, tuned = tuned_in(task, "adamw", batch)
            row = [task, f"{batch:,}", f"{tuned:,.0f}"]
            for rival in ("nadamw", "prodigy", "dog"):
                lines = runs("searchless", task=task, rival=rival, batch=batch)
                made = [line["steps"] or math.inf for line in lines]
                assert len(made) == 3
                ratio, gone = statistics.median(made) / tuned, sum(map(math.isinf, made))
                ratios[rival, task, batch], lost[rival, task, batch] = ratio, gone
                row.append((f"{ratio:.2f}" if gone < 2 else "-") + f", {gone} lost" * (gone > 0))
            wanted.append(row)
    assert shown == wanted
    text = re.sub(r"\s+", " ", TRUST.read_text())
    few, many = ([r for (of, _, batch), r in ratios.items() if of == "nadamw" and
                  (batch <= 64) is small] for small in (True, False))  # fmt: skip
    assert f"takes {min(few):.2f} to {max(few):.2f} times the tuned AdamW's steps" in text
    assert f"From 256 on it takes {min(many):.2f} to {max(many):.2f} times" in text
    found = [
        steps / tuned
        for (_, of, _), (_, tuned), _, (steps, *_) in cells("flights", "pictures")
        if of == "adamw"
    ]
    assert f"finds takes {min(found):.2f} to {max(found):.2f} times" in text
    assert min(gone for (of, *_), gone in lost.items() if of == "prodigy") == 1
    assert {key[1:] for key, gone in lost.items() if key[0] == "dog" and gone < 2} == {
        ("pictures", 16), ("pictures", 64), ("pictures", 256),
    }  # fmt: skip


def test_what_it_says_of_the_seconds_is_in_the_log():
    errors = [
        abs(each["predicted"] / each["seconds"] - 1)
        for line in runs("find_batch")
        for each in line["between"]
    ]
    text = re.sub(r"\s+", " ", PAGE.read_text())
    assert f"15% of measured ones in {sum(e < 0.15 for e in errors)} of {len(errors)} cases" in text
    assert f"the worst was {max(errors):.0%} off" in text


def test_the_logs_that_it_links_to_are_there():
    for page in (PAGE, TRUST):
        for name in re.findall(r"benchmarks/logs/(\w+\.\w+)", page.read_text()):
            assert (LOGS / name).exists()
