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

from benchmarks.equivalence import arms, training, workloads
from benchmarks.equivalence.protocol import Settings
from benchmarks.run_log import Log

REGISTERED = "benchmarks/logs/equivalence_flights.jsonl"
LOG = "benchmarks/logs/equivalence_warmups.jsonl"
SPECS, RATIOS, SEEDS = ("adamw", "muon", "lamb"), (8, 32), range(1, 9)
WARMUPS, POWERS = (0.05, 0.1), (0.5, 0.0)


def base(spec):
    """What was tuned at the base batch."""
    made = (line for line in Log(REGISTERED).lines if line.get("arm") == f"tuned {spec}")
    own = next(line for line in made if line["ratio"] == 1 and line["seed"])
    return Settings(**own["settings"])


def losses(spec, ratio, warmup, power):
    """On test flights, by seed."""
    flights = workloads.workload("flights")
    settings, recipe = arms.arm(f"transfer {spec}", flights, base(spec), ratio, 1)
    recipe = dataclasses.replace(
        recipe, learning_rate=base(spec).rate * ratio**power,
        warmup_steps=round(warmup * recipe.train_steps),
    )  # fmt: skip
    constants = dataclasses.replace(settings, rate=1.0, warmup=0.0)  # what is not compiled
    program = training.Program(flights, spec, constants)
    return [program.run(recipe, seed)["test"] for seed in SEEDS]


def main():
    """Makes what is missing, and prints."""
    log = Log(LOG)
    for cell in itertools.product(SPECS, RATIOS, WARMUPS, POWERS):
        what = dict(zip(("spec", "ratio", "warmup", "power"), cell, strict=True))
        line = log.run(what, lambda cell=cell: {"test": losses(*cell)})
        told = statistics.mean(line["test"]), statistics.stdev(line["test"])
        print(*cell, *(f"{each:.5f}" for each in told))


if __name__ == "__main__":
    main()
