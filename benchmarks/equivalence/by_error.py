"""What is scored by errors is chosen by errors: the searches of two workloads, made again.

    python -m benchmarks.equivalence.by_error --estimate
    python -m benchmarks.equivalence.by_error --workload=perceptron --processes=2

The registered experiment chose the best of 16 points by its held-out loss, and scored it by its
share of test errors. On pictures the two differ. Here the same 16 points of AdamW, Muon and LAMB
are trained again at the base batch, 8 and 32 times it, on the same seed; the one with the fewest
held-out errors is chosen, of several the one with the lowest held-out loss. It is run on as many
fresh seeds as the protocol has. Then come the arms that begin at the new base: AdamW unchanged,
and `recipes.transfer`.

Every run is a line of the log, with its commit and machine, written as soon as it is made; what is
there is not made again. `python -m benchmarks.equivalence.tables` writes what came of it.
--estimate prints the hours on the machine of equivalence_seconds.jsonl, one run at a time. On an
accelerator set JAX_PLATFORMS, and --processes=1.
"""

import itertools
import math
import os

import tqdm
from absl import app, flags

from benchmarks.equivalence.protocol import FROZEN, Settings, points
from benchmarks.equivalence.runs import Run, Runs
from benchmarks.shared.run_log import Log, commit, machine

LOG = "benchmarks/logs/equivalence_by_error.jsonl"
SECONDS = "benchmarks/logs/equivalence_seconds.jsonl"
WORKLOADS, SPECS, RATIOS = ("perceptron", "fashion"), ("adamw", "muon", "lamb"), (1, 8, 32)
ARMS = ("unchanged adamw", *(f"transfer {spec}" for spec in SPECS))


class Noted(Runs):
    """Runs that are written one by one, each with the commit and the machine that made it."""

    def _made(self, groups):
        where = {"commit": commit(), "device": device()} if groups else {}
        for made in super()._made([[run] for group in groups for run in group]):
            yield [(run, {**found, **where}) for run, found in made]


def device() -> str:
    """The processor, or the accelerator that JAX was told to use."""
    if os.environ["JAX_PLATFORMS"] == "cpu":
        return machine()["cpu"]
    import jax

    return jax.devices()[0].device_kind


def chosen(lines: list[dict]) -> dict:
    """The line with the fewest held-out errors; of several, with the lowest held-out loss."""

    def rank(line):
        lost = line["test"] is None
        return (math.inf, math.inf) if lost else (line["valid_error"], line["valid"][-1])

    return min(lines, key=rank)


def search(name: str, spec: str, ratio: int) -> list[Run]:
    """The runs of the 16 points."""
    seed = FROZEN["search"]["seed"]
    return [Run(name, f"tuned {spec}", ratio, point, seed) for point in points()]


def fresh(name: str, arm: str, ratio: int, best: dict) -> list[Run]:
    """The runs of the fresh seeds with what was chosen."""
    seeds = range(1, FROZEN["workloads"][name]["seeds"] + 1)
    return [Run(name, arm, ratio, Settings(**best["settings"]), seed) for seed in seeds]


def make(runs, name: str, specs=SPECS, ratios=RATIOS):
    """Makes what the log does not have: the searches and their fresh seeds, then the arms."""
    best = {}
    for ratio, spec in itertools.product(ratios, specs):
        best[spec, ratio] = chosen(runs.all(search(name, spec, ratio)))
        runs.all(fresh(name, f"tuned {spec}", ratio, best[spec, ratio]))
    for ratio, arm in itertools.product(ratios, ARMS):
        spec = arm.split()[1]
        if ratio > 1 and (spec, 1) in best:
            runs.all(fresh(name, arm, ratio, best[spec, 1]))


def best_of(lines: list[dict], name: str) -> dict:
    """Optimizer and ratio -> the settings that are chosen, where the search is complete."""
    best = {}
    for spec, ratio in itertools.product(SPECS, RATIOS):
        of = {"workload": name, "arm": f"tuned {spec}", "ratio": ratio}
        of["seed"] = FROZEN["search"]["seed"]
        tried = [line for line in lines if of.items() <= line.items()]
        if len(tried) == FROZEN["search"]["points"]:
            best[spec, ratio] = chosen(tried)["settings"]
    return best


def errors(lines: list[dict], name: str) -> dict:
    """Arm and ratio -> the test errors of the fresh seeds, where search and seeds are complete."""
    found, best = {}, best_of(lines, name)
    own = [line for line in lines if line.get("workload") == name]
    for arm, ratio in itertools.product((*(f"tuned {spec}" for spec in SPECS), *ARMS), RATIOS):
        rule, spec = arm.split()
        settings = best.get((spec, ratio if rule == "tuned" else 1))
        made = [
            line for line in own
            if (line["arm"], line["ratio"], line["settings"]) == (arm, ratio, settings)
            and line["seed"] != FROZEN["search"]["seed"]
        ]  # fmt: skip
        if made and len(made) == FROZEN["workloads"][name]["seeds"]:
            made.sort(key=lambda line: line["seed"])
            tests = (line["test"] for line in made)
            found[arm, ratio] = [math.inf if test is None else test for test in tests]
    return found


def hours(name: str, lines: list[dict]) -> dict[str, float]:
    """Of the searches with their seeds, and of the arms, by the milliseconds of a step."""
    frozen = FROZEN["workloads"][name]
    least = {(line["batch"], spec): min(each) for line in lines if line["workload"] == name
             for spec, each in line["ms"].items()}  # fmt: skip

    def taken(spec, ratio):
        batch = ratio * frozen["base"]
        return frozen["examples"] // batch * least[batch, spec] / 3_600_000

    cells = [taken(spec, ratio) for ratio in RATIOS for spec in SPECS]
    arms = [taken(arm.split()[1], ratio) for arm in ARMS for ratio in RATIOS[1:]]
    return {
        "searches": (FROZEN["search"]["points"] + frozen["seeds"]) * sum(cells),
        "arms": frozen["seeds"] * sum(arms),
    }


def main(_):
    """Makes what is missing, or prints how long that takes."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    args = flags.FLAGS
    for name in args.workload:
        if args.estimate:
            lines = [line for line in Log(SECONDS).lines if "ms" in line]
            print(name, {part: round(each, 2) for part, each in hours(name, lines).items()})
            continue
        with tqdm.tqdm(desc=name, disable=None) as bar:
            runs = Noted(args.log, args.processes, bar)
            make(runs, name, args.optimizer, args.ratio)


def define():
    """Defines the flags."""
    every = list(FROZEN["workloads"])
    flags.DEFINE_multi_enum("workload", list(WORKLOADS), every, "What is learned.")
    flags.DEFINE_multi_enum("optimizer", list(SPECS), list(SPECS), "These alone.")
    flags.DEFINE_multi_integer("ratio", list(RATIOS), "These alone; 1 is the base batch.")
    flags.DEFINE_string("log", LOG, "Where every run is a line.")
    flags.DEFINE_integer("processes", 2, "Runs at a time, one thread each.", lower_bound=1)
    flags.DEFINE_bool("estimate", False, "Whether to print the hours, and to run nothing.")


if __name__ == "__main__":
    define()
    app.run(main)
