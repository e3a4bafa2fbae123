"""Does what was tuned at a small batch hold at a large one? The experiment of docs/protocol.md.

    python -m benchmarks.equivalence --workload=flights
    python -m benchmarks.equivalence --workload=flights --optimizer=keras.optimizers:Adafactor

The first makes the runs of a workload that its log does not have, and prints what they decide. The
second does for one optimizer of Keras, MODULE:CLASS, or of optax, optax:NAME, what the registered
arm `transfer` does for AdamW: it is tuned at the base batch, its rate moves with the square root of
the batch, and the largest ratio is told at which its result is that of the base. With --tuned it is
tuned at every batch, too.
"""

import itertools
import math
import os
import statistics

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tqdm
from absl import app, flags

from benchmarks.equivalence.protocol import FROZEN, points
from benchmarks.equivalence.report import rows, table
from benchmarks.equivalence.runs import Run, Runs

BY_FIT = "find_rate", "autowarmup", "adascale"


def tuned(runs, name, spec, ratio):
    """The best point at a batch, by its final held-out loss."""
    tried = [Run(name, f"tuned {spec}", ratio, point, FROZEN["search"]["seed"])
             for point in points()]  # fmt: skip
    losses = [line["valid"][-1] for line in runs.all(tried)]
    scores = [math.inf if loss is None else loss for loss in losses]
    return tried[scores.index(min(scores))].settings


def target_of(base):
    """The loss that counts as that of the base: its mean, and one standard deviation."""
    final = [line["valid"][-1] for line in base]
    return statistics.mean(final) + statistics.stdev(final)


def with_longer(runs, made, target):
    """The runs, and where they do not arrive, those of twice and four times the examples."""
    found = [runs.all(made)]
    for horizon in FROZEN["horizons"][1:]:
        longer = [
            Run(run.workload, run.arm, run.ratio, run.settings, run.seed, horizon)
            for run, *lines in zip(made, *found, strict=True)
            if not any(map(lambda line: arrived(line, target), lines))
        ]
        lines = dict(zip([run.seed for run in longer], runs.all(longer), strict=True))
        found.append([lines.get(run.seed) for run in made])
    return [min(arrived(line, target) or math.inf for line in lines if line) for lines in
            zip(*found, strict=True)]  # fmt: skip


def arrived(line, target):
    """The updates at the first look at or below the target, or None."""
    if line is None or line.get("refused"):
        return None
    looks = zip(line["updates"], line["valid"], strict=True)
    return next((n for n, loss in looks if loss is not None and loss <= target), None)


def compare(runs, name, specs, arms):
    """(arm, ratio) -> its lines, its updates to the target, and the lines of its base."""
    frozen = FROZEN["workloads"][name]
    seeds, few = range(1, frozen["seeds"] + 1), range(1, frozen["fewer_seeds"] + 1)
    bases, targets, settings, found = {}, {}, {}, {}
    for spec in specs:
        settings[spec] = tuned(runs, name, spec, 1)
        bases[spec] = runs.all([Run(name, f"tuned {spec}", 1, settings[spec], s) for s in seeds])
        targets[spec] = target_of(bases[spec])
        found[f"tuned {spec}", 1] = bases[spec], [], bases[spec]
    made = {
        (arm, ratio): [
            Run(name, arm, ratio, settings[arms[arm]], seed)
            for seed in (few if arm.startswith(BY_FIT) else seeds)
        ]
        for arm, ratio in itertools.product(arms, FROZEN["ratios"])
    }
    runs.all(sum(made.values(), []))  # of all, as many at a time as there are processes
    for (arm, ratio), own in made.items():
        lines, target = runs.all(own), targets[arms[arm]]
        longer = [] if arm.startswith("adascale") else own[: len(few)]
        updates = with_longer(runs, longer, target) if longer else [
            arrived(line, target) or math.inf for line in lines
        ]  # fmt: skip
        found[arm, ratio] = lines, updates, bases[arms[arm]]
    return found


def reference(runs, name, specs, found):
    """The same for what is tuned at each batch, beside the base of the same optimizer."""
    frozen = FROZEN["workloads"][name]
    seeds, few = range(1, frozen["seeds"] + 1), frozen["fewer_seeds"]
    for spec in specs:
        bases = found[f"tuned {spec}", 1][2]
        target = target_of(bases)
        made = {
            ratio: [Run(name, f"tuned {spec}", ratio, best, seed) for seed in seeds]
            for ratio in FROZEN["ratios"]
            for best in [tuned(runs, name, spec, ratio)]
        }
        runs.all(sum(made.values(), []))
        for ratio, own in made.items():
            updates = with_longer(runs, own[:few], target)
            found[f"tuned {spec}", ratio] = runs.all(own), updates, bases


def main(_):
    """Makes what is missing, and prints."""
    args = flags.FLAGS
    log = args.log or f"benchmarks/logs/equivalence_{args.workload}.jsonl"
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        runs = Runs(log, args.processes, bar)
        if args.optimizer:
            arms = {f"transfer {args.optimizer}": args.optimizer}
            found = compare(runs, args.workload, [args.optimizer], arms)
            if args.tuned:
                reference(runs, args.workload, [args.optimizer], found)
        else:
            found = compare(runs, args.workload, FROZEN["optimizers"], FROZEN["arms"])
            reference(runs, args.workload, FROZEN["optimizers"], found)
    print(table(args.workload, found))
    if args.draw:
        from benchmarks.equivalence.picture import draw

        draw(args.workload, list(rows(args.workload, found)), args.draw)


def define():
    """Defines the flags."""
    flags.DEFINE_enum("workload", "flights", list(FROZEN["workloads"]), "What is learned.")
    flags.DEFINE_string("optimizer", None, "MODULE:CLASS of Keras, or optax:NAME, alone.")
    flags.DEFINE_bool("tuned", False, "Whether --optimizer is tuned at every batch, too.")
    flags.DEFINE_string("log", None, "Where every run is a line; default: of the workload.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_integer("processes", 2, "Runs at a time, one thread each.", lower_bound=1)


if __name__ == "__main__":
    define()
    app.run(main)
