"""Three cells of the registered experiment, chosen by lot, run again on as many fresh seeds.

    python -m benchmarks.equivalence.again

A cell is an arm of a workload at a ratio. The mean score of the fresh seeds shall lie within the
95% interval that the log predicts for it. Left out is `transfer` on flights, whose log has another
rule, and what has no finite score.
"""

import dataclasses
import itertools
import math
import os
import random
import statistics

import tqdm

from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.runs import Run, Runs, by_cell
from benchmarks.shared.run_log import Log

WORKLOADS, CELLS, LOT = ("flights", "diamonds"), 3, 20261126
LOG, REGISTERED = "benchmarks/logs/equivalence_again.jsonl", "benchmarks/logs/equivalence_{}.jsonl"


def cells(name, lines):
    """Arm and ratio -> the lines of its seeds, of the cells that can be drawn."""
    known = {*FROZEN["arms"], *(f"tuned {spec}" for spec in FROZEN["optimizers"])}
    return {
        (name, arm, ratio): own
        for (arm, ratio), own in by_cell(lines).items()
        if arm in known and all(line.get("test") is not None for line in own)
        if (name, arm.split()[0]) != ("flights", "transfer")
    }


def drawn(read) -> dict:
    """The cells of the lot; `read` gives the lines of a workload's log."""
    every = dict(itertools.chain(*(cells(name, read(name)).items() for name in WORKLOADS)))
    return {cell: every[cell] for cell in random.Random(LOT).sample(sorted(every), CELLS)}


def fresh(line, more: int) -> Run:
    """The run of a line, of a seed so much later."""
    own = {field.name: line[field.name] for field in dataclasses.fields(Run)}
    return Run(**own | {"settings": Settings(**line["settings"]), "seed": line["seed"] + more})


def interval(scores) -> tuple[float, float]:
    """Where the mean of as many more lies, in 95 of 100 times."""
    from scipy import stats

    n = len(scores)
    reach = stats.t.ppf(0.975, n - 1) * statistics.stdev(scores) * math.sqrt(2 / n)
    return statistics.mean(scores) - reach, statistics.mean(scores) + reach


def main():
    """Makes what is missing, and prints."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    runs = Runs(LOG, 1, tqdm.tqdm(disable=None))
    for (name, arm, ratio), lines in drawn(lambda name: Log(REGISTERED.format(name)).lines).items():
        made = runs.all([fresh(line, len(lines)) for line in lines])
        low, high = interval([line["test"] for line in lines])
        mean = statistics.mean(line["test"] for line in made)
        print(f"{name}, {arm}, {ratio}: {low:.5f} to {high:.5f}; again {mean:.5f}")


if __name__ == "__main__":
    main()
