"""Which warmup and rate does a larger batch need? `transfer` on flights, with several of both.

    python -m benchmarks.equivalence.warmups

The bases are those of the registered experiment, from its log; 8 and 32 times their batch, eight
seeds. Warmup is a share of the run; the rate is the base's, or times the square root of the ratio.
A line of the log has the losses of eight seeds on test flights.
"""

import dataclasses
import itertools
import os
import statistics

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tqdm

from benchmarks.equivalence import arms, workloads
from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.runs import Runs, program
from benchmarks.run_log import Log

REGISTERED = "benchmarks/logs/equivalence_flights.jsonl"
LOG = "benchmarks/logs/equivalence_warmups.jsonl"
SPECS, RATIOS, SEEDS = ("adamw", "muon", "lamb"), (8, 32), range(1, 9)
WARMUPS, POWERS = (0.05, 0.1), (0.5, 0.0)


def losses(base, spec, ratio, warmup, power):
    """On test flights, by seed; `base` is what was tuned at the base batch."""
    flights = workloads.workload("flights")
    settings, recipe = arms.arm(f"transfer {spec}", flights, base, ratio, 1)
    recipe = dataclasses.replace(
        recipe, learning_rate=base.rate * ratio**power,
        warmup_steps=round(warmup * recipe.train_steps),
    )  # fmt: skip
    made = program("flights", spec, settings)
    return [made.run(recipe, seed)["test"] for seed in SEEDS]


def main():
    """Makes what is missing, and prints."""
    log, registered = Log(LOG), Runs(REGISTERED, 1, tqdm.tqdm(disable=True))
    bases = {spec: tuned(registered, "flights", spec, 1) for spec in SPECS}
    for cell in itertools.product(SPECS, RATIOS, WARMUPS, POWERS):
        what = dict(zip(("spec", "ratio", "warmup", "power"), cell, strict=True))
        line = log.run(what, lambda cell=cell: {"test": losses(bases[cell[0]], *cell)})
        told = statistics.mean(line["test"]), statistics.stdev(line["test"])
        print(*cell, *(f"{each:.5f}" for each in told))


if __name__ == "__main__":
    main()
