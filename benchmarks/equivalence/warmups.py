"""Which warmup and rate does a larger batch need? `transfer`, with several of both.

    python -m benchmarks.equivalence.warmups

The bases are those of the registered experiment, from its log; 8 and 32 times their batch, and 128
times by the rule alone, eight seeds. Warmup is a share of the run; the rate is the base's, or times
the square root of the ratio. A line of the log has the losses of eight seeds on the test examples.
Diamonds, with a warmup of a tenth, came after their run in the registered experiment.
"""

import dataclasses
import itertools
import os
import statistics

import tqdm

from benchmarks.equivalence import arms, workloads
from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.runs import Runs, program
from benchmarks.shared.run_log import Log

REGISTERED = "benchmarks/logs/equivalence_{}.jsonl"
LOG = "benchmarks/logs/equivalence_warmups.jsonl"
SPECS, RATIOS, SEEDS = ("adamw", "muon", "lamb", "benchmarks.soap:OfPackage"), (8, 32), range(1, 9)
WARMUPS, POWERS = {"flights": (0.05, 0.1), "diamonds": (0.1,)}, (0.5, 0.0)
TRANSFER = {"warmup": 0.1, "power": 0.5}  # as `recipes.transfer` has it since flights


def losses(base, workload, spec, ratio, warmup, power):
    """On the test examples, by seed; `base` is what was tuned at the base batch."""
    settings, recipe = arms.arm(f"transfer {spec}", workloads.workload(workload), base, ratio, 1)
    recipe = dataclasses.replace(
        recipe, learning_rate=base.rate * ratio**power,
        warmup_steps=round(warmup * recipe.train_steps),
    )  # fmt: skip
    made = program(workload, spec, settings)
    return [made.run(recipe, seed)["test"] for seed in SEEDS]


def main():
    """Makes what is missing, and prints."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    log = Log(LOG)
    for workload, warmups in WARMUPS.items():
        registered = Runs(REGISTERED.format(workload), 1, tqdm.tqdm(disable=True))
        bases = {spec: tuned(registered, workload, spec, 1) for spec in SPECS}
        by_rule = itertools.product(
            SPECS, FROZEN["ratios"], *([each] for each in TRANSFER.values())
        )
        varied = itertools.product(SPECS, RATIOS, warmups, POWERS)
        for cell in dict.fromkeys((*varied, *by_rule)):
            names = "workload", "spec", "ratio", "warmup", "power"
            what = dict(zip(names, (workload, *cell), strict=True))
            base = bases[what["spec"]]
            line = log.run(what, lambda base=base, what=what: {"test": losses(base, **what)})
            told = statistics.mean(line["test"]), statistics.stdev(line["test"])
            print(workload, *cell, *(f"{each:.5f}" for each in told), flush=True)


if __name__ == "__main__":
    main()
