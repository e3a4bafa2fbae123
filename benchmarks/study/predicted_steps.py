"""The steps at large batches as runs at smaller ones predict them, against those that were made.

    python -m benchmarks.study.predicted_steps

From the logs of steps_to_target.py, of every rival at its preferred rate; what is predicted is the
median of the seeds. A factor is the larger of predicted/seen and seen/predicted. A fit is made of
two batches, of all seeds that arrived or of each seed in turn, and predicts every batch beyond both
and within eight times the larger; or of one batch and the last reading of the noise scale in a run
of LAMB at it. `inside` counts what lies between the fewest and the most likely steps.
"""

import collections
import functools
import json
import math
import os
import statistics

from absl import app, flags

from tf_lamb.find.goodput import steps as counts

PAIRS = [(16, 64), (64, 256), (16, 256), (16, 512), (16, 1024), (64, 1024)]


def read(path):
    """(rival -> batch -> seed -> steps at the rate of the fewest; the batch of the reading, it).

    The steps of a run that did not arrive are infinite.
    """
    runs, readings = collections.defaultdict(lambda: collections.defaultdict(dict)), []
    with open(path) as file:
        for line in map(json.loads, file):
            if "rate" in line:
                of = runs[line["rival"], line["batch"]]
                of[line["rate"]][line["seed"]] = line["steps"] or math.inf
            elif "noise_at" in line:
                readings.append((line["batch"], line["noise_scale"][-1]))
    found = collections.defaultdict(dict)
    for (rival, batch), rates in runs.items():
        tried = [seeds for seeds in rates.values() if len(seeds) > 1]
        if tried:
            best = min(tried, key=lambda seeds: statistics.median(seeds.values()))
            if statistics.median(best.values()) < math.inf:
                found[rival][batch] = best
    return found, min(readings)


def pair_fits(batches, pair, one):
    """The fits of a rival's two batches: one of all seeds, or one of each that arrived at both."""
    if not set(pair) <= set(batches):
        return
    seeds = [{seed} for seed in batches[pair[0]]] if one else [set(batches[pair[0]])]
    for chosen in seeds:
        runs = [
            (batch, steps)
            for batch in pair
            for seed, steps in batches[batch].items()
            if seed in chosen and steps < math.inf
        ]
        if {batch for batch, _ in runs} == set(pair):
            yield counts.curve_from_runs(runs)


def reading_fits(batches, reading):
    """The fit of a rival's first batch."""
    batch, noise = reading
    if batch in batches:
        yield counts.curve_from_noise(noise, batch, statistics.median(batches[batch].values()))


def cells(found, largest, fits):
    """(rival, batch, predicted, seen, whether it is inside, noise scale) of every prediction."""
    for rival, batches in found.items():
        for fit in fits(batches):
            for batch, seeds in batches.items():
                if largest < batch <= fit.largest_batch:
                    seen, (low, high) = statistics.median(seeds.values()), fit.steps_interval(batch)
                    yield rival, batch, fit.steps_at(batch), seen, low <= seen <= high, fit.noise


def main(_):
    """A line for each way to fit; with --cells, one for each prediction."""
    print(f"{'':9}{'from':>12}{'seeds':>7}{'cells':>7}{'no bend':>9}"
          f"{'median':>8}{'90 %':>7}{'worst':>7}{'inside':>8}")  # fmt: skip
    for task in ("pictures", "text"):
        found, reading = read(os.path.join(flags.FLAGS.logs, f"steps_{task}.jsonl"))
        for pair in PAIRS:
            for one in (False, True):
                fits = functools.partial(pair_fits, pair=pair, one=one)
                report(task, str(pair), "one" if one else "all", list(cells(found, pair[1], fits)))
        fits = functools.partial(reading_fits, reading=reading)
        report(task, "reading", "all", list(cells(found, reading[0], fits)))


def report(task, source, seeds, found):
    """Prints the factors of some predictions."""
    if not found:
        return
    factors = sorted(max(p / s, s / p) for _, _, p, s, _, _ in found)
    most = factors[math.ceil(0.9 * len(factors)) - 1]
    straight = sum(noise == math.inf for *_, noise in found)
    inside = statistics.fmean(cell[4] for cell in found)
    middle = statistics.median(factors)
    print(f"{task:9}{source:>12}{seeds:>7}{len(found):7}{straight:9}"
          f"{middle:8.2f}{most:7.2f}{factors[-1]:7.2f}{inside:8.0%}")  # fmt: skip
    if flags.FLAGS.cells:
        for rival, batch, predicted, seen, _, noise in found:
            print(f"    {rival:9}{batch:6,}{predicted:8,.0f}{seen:8,.0f}"
                  f"{predicted / seen:7.2f}   noise scale {noise:,.0f}")  # fmt: skip


if __name__ == "__main__":
    flags.DEFINE_string("logs", "benchmarks/logs", "Where the logs of steps_to_target.py are.")
    flags.DEFINE_bool("cells", False, "Whether each prediction is a line.")
    app.run(main)
