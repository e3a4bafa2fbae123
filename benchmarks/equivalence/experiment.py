"""The experiment of docs/protocol.md: bases, what is tuned at each batch, and the arms."""

import itertools
import math
import statistics

from benchmarks.equivalence.protocol import FROZEN, points
from benchmarks.equivalence.runs import Run

BY_FIT = "find_rate", "autowarmup", "adascale"
SMALL = "growing", "adascale"  # train at the base batch, at first or wholly


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


def compare(runs, name, specs, arms, longer=True):
    """(arm, ratio) -> its lines, its updates to the target, and the lines of its base.

    Without `longer`, what does not arrive is not made again, and updates are empty.
    """
    frozen = FROZEN["workloads"][name]
    seeds, few = range(1, frozen["seeds"] + 1), frozen["fewer_seeds"]
    bases, targets, settings, found = {}, {}, {}, {}
    for spec in specs:
        settings[spec] = tuned(runs, name, spec, 1)
        bases[spec] = runs.all([Run(name, f"tuned {spec}", 1, settings[spec], s) for s in seeds])
        targets[spec] = target_of(bases[spec])
        found[f"tuned {spec}", 1] = bases[spec], [], bases[spec]
    made = {
        (arm, ratio): [
            Run(name, arm, ratio, settings[arms[arm]], seed)
            for seed in (seeds[:few] if arm.startswith(BY_FIT) else seeds)
        ]
        for arm, ratio in itertools.product(arms, FROZEN["ratios"])
    }
    runs.all(sum(made.values(), []))  # of all, as many at a time as there are processes
    for (arm, ratio), own in made.items():
        lines, target = runs.all(own), targets[arms[arm]]
        if not longer:
            updates = []
        elif arm.startswith("adascale"):  # it takes more examples by its nature
            updates = [arrived(line, target) or math.inf for line in lines]
        else:
            updates = with_longer(runs, own[:few], target)
        found[arm, ratio] = lines, updates, bases[arms[arm]]
    return found


def reference(runs, name, specs, found, longer=True):
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
            updates = with_longer(runs, own[:few], target) if longer else []
            found[f"tuned {spec}", ratio] = runs.all(own), updates, bases


def hours(name: str, lines: list[dict]) -> float:
    """What all runs of as many examples take, one at a time: bases, reference and arms.

    `lines` have the milliseconds of a step. Left out are the examples of searches, and those of
    AdaScale beyond the base's.
    """
    frozen, ratios = FROZEN["workloads"][name], (1, *FROZEN["ratios"])
    least = {(line["batch"], spec): min(each) for line in lines if line.get("workload") == name
             for spec, each in line["ms"].items()}  # fmt: skip

    def taken(spec, ratio):
        batch = ratio * frozen["base"]
        return frozen["examples"] // batch * least[batch, spec]

    searched = sum(taken(spec, ratio) for spec in FROZEN["optimizers"] for ratio in ratios)
    total = (FROZEN["search"]["points"] + frozen["seeds"]) * searched
    for arm in FROZEN["arms"]:
        seeds = frozen["fewer_seeds" if arm.startswith(BY_FIT) else "seeds"]
        at = [1] * len(FROZEN["ratios"]) if arm.startswith(SMALL) else FROZEN["ratios"]
        total += seeds * sum(taken(arm.split()[-1], ratio) for ratio in at)
    return total / 3_600_000
