"""What `find_rate` finds now, by the losses of the searches in the log of find_rate.py.

    python -m benchmarks.study.find_rate_again

The shorter runs are those of the log. A longer run at a rate that its seed did not try has the loss
on the line between those of the rates next to it, of all seeds, over the logarithm of the rate;
beyond them it rises as the shorter runs do. The log has the means of the blocks alone: what is
within 0.5% is level. The tuned rates are those of steps_to_target.py.
"""

import itertools
import json
import math
import pathlib
import statistics

from absl import app

from tf_lamb.find import search
from tf_lamb.find.found import Candidate
from tf_lamb.find.rate import _run_second_rung

LOGS = pathlib.Path(__file__).parents[1] / "logs"
TASKS = "flights", "pictures", "text"
NEAR = 2.001  # the log has four digits


def read(name):
    """The lines of a log."""
    return map(json.loads, (LOGS / f"{name}.jsonl").read_text().splitlines())


def tuned(task):
    """(rival, batch) -> the rate of the fewest steps, by the median of three seeds."""
    grid = {}
    for line in read(f"steps_{task}"):
        if "rate" in line:
            of = grid.setdefault((line["rival"], line["batch"]), {}).setdefault(line["rate"], {})
            of[line["seed"]] = line["steps"] or math.inf
    best = {}
    for cell, rates in grid.items():
        whole = {rate: list(of.values()) for rate, of in rates.items() if len(of) == 3}
        if whole:
            best[cell] = min(whole, key=lambda rate: statistics.median(whole[rate]))
    return best


def logged(task):
    """(rival, batch) -> the searches, one a seed."""
    found = {}
    for line in read("find_rate"):
        if line.get("task") == task and "trials" in line:
            found.setdefault((line["rival"], line["batch"]), []).append(line)
    return found


def again(searches):
    """The searches of a cell, each with what it finds now: (line, trials, rate, interval)."""
    pooled = {}
    for line in searches:
        for rate, loss in _longer(line):
            pooled.setdefault(rate, []).append(loss)
    for line in searches:
        known = {rate: statistics.fmean(each) for rate, each in pooled.items()}
        points = sorted((known | dict(_longer(line))).items())
        long = max(steps for _, steps, _ in line["trials"])
        shorter = [_trial(rate, _or_inf(loss), steps) for rate, steps, loss in line["trials"]
                   if steps < long]  # fmt: skip
        start, is_baseline = shorter[0].rate, line["rival"] == "adamw"
        candidate = Candidate(line["rival"], None, start, is_baseline)
        first, short = search.find_plateau(shorter), sorted((t.rate, t.loss) for t in shorter)

        def run(_, rate, steps, order=0, curves=(points, short)):
            return _trial(rate, _loss_at(*curves, rate), steps)

        made = _run_second_rung(run, candidate, shorter, first, long)
        second = search.find_plateau(made)
        rate, _ = search.decide_rate(first, second, start if is_baseline else None)
        yield line, made, rate, search.rate_interval(first, second)


def _longer(line):
    """(rate, loss) of its longer runs; where one was made twice, the better."""
    long = max(steps for _, steps, _ in line["trials"])
    made = [(rate, _or_inf(loss)) for rate, steps, loss in line["trials"] if steps == long]
    return sorted(made, key=lambda each: -each[1])


def _or_inf(loss):
    return math.inf if loss is None else loss


def _trial(rate, loss, steps):
    return search.Trial("", rate, rate, steps, (loss,) * 16 if loss < math.inf else ())


def _loss_at(longer, shorter, rate):
    """The loss of a longer run; beyond those that were made it rises as that of the shorter."""
    end = min(max(rate, longer[0][0]), longer[-1][0])
    more = _on_line(shorter, rate) - _on_line(shorter, end) if end != rate else 0.0
    return _on_line(longer, end) + max(0.0, more)


def _on_line(points, rate):
    """The loss between the two points that are nearest; beyond all, that of the last."""
    rate = min(max(rate, points[0][0]), points[-1][0])
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return (before if share < 1 else 0.0) * (1 - share) + (after * share if share else 0.0)


def compared(task):
    """How many searches there are, and how many have a wider interval now; and before and now,
    how many have the best short run among the longer, are undecided, are within a factor of two of
    the tuned rate, and pairs of a cell that are so.
    """  # fmt: skip
    best = tuned(task)
    count = wider = 0
    among, undecided, near, pairs = ([0, 0] for _ in range(4))
    for cell, lines in logged(task).items():
        rates = ([], [])
        for line, made, rate, (low, high) in again(lines):
            count += 1
            shorter = [each for each in line["trials"] if each[1] < made[0].steps]
            short = min(shorter, key=lambda each: _or_inf(each[2]))[0]
            longer = _longer(line)
            was = search.find_plateau(_trial(*each, made[0].steps) for each in longer)
            wider += high / low > 1.001 * was.high / was.low
            for i, (found, tried) in enumerate((
                (line["found"], [each for each, _ in longer]),
                (rate, [each.rate for each in made]),
            )):  # fmt: skip
                among[i] += any(math.isclose(short, each, rel_tol=1e-3) for each in tried)
                undecided[i] += found is None
                rates[i].append(found)
                near[i] += bool(found) and _apart(found, best[cell]) <= NEAR
        for i, each in enumerate(rates):
            both = filter(all, itertools.combinations(each, 2))
            pairs[i] += sum(_apart(*pair) <= NEAR for pair in both)
    return {"searches": count, "wider": wider, "among": among, "undecided": undecided,
            "near": near, "pairs": pairs}  # fmt: skip


def _apart(a, b):
    return max(a, b) / min(a, b)


def main(_):
    """A line a task."""
    for task in TASKS:
        print(task, *(f"{name} {each}" for name, each in compared(task).items()), sep="; ")


if __name__ == "__main__":
    app.run(main)
