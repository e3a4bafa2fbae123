"""The portions of docs/protocol_language_model.md, in the order in which their runs are made."""

import math

from benchmarks.language_model.protocol import FROZEN, HASH, points
from benchmarks.language_model.runs import OVERHEAD, Run, Work

SEARCHED = tuple(FROZEN["search"]["default_rate"])
STEPS = (16, 64, 256, 1024, 2048, 8192, 32768)


def base(work: Work, examples: int | None = None):
    """Calibration; the search at the base; fresh seeds; AdamW with fewer examples."""
    for optimizer in SEARCHED:
        work.step(optimizer, FROZEN["base"])
    whole = decided(work, examples)
    tried = {name: [_tuned(name, p, FROZEN["search"]["seed"], whole) for p in points(name)]
             for name in SEARCHED}  # fmt: skip
    for runs in zip(*tried.values(), strict=True):
        for run in runs:
            work.run(run)
    best = chosen(work.log.lines)
    for seed in seeds():
        for name in SEARCHED:
            work.run(_tuned(name, best[name], seed, whole))
    fewer = round((1 - FROZEN["fewer"]) * whole / FROZEN["base"]) * FROZEN["base"]
    for seed in seeds():
        work.run(Run("fewer adamw", FROZEN["base"], best["adamw"], seed, fewer))


def large(work: Work, examples: int | None = None):
    """The arms of the primary table."""
    _arms(work, FROZEN["arms"], FROZEN["large"])


def beyond(work: Work, examples: int | None = None):
    """A growing batch, then `transfer` to larger batches."""
    _arms(work, ["growing adamw"], FROZEN["large"])
    for batch in FROZEN["beyond"]:
        _arms(work, ["transfer adamw", "transfer muon"], batch)


def steps(work: Work, examples: int | None = None):
    """The seconds of a step of each optimizer, from small batches to large ones."""
    for optimizer in ("adamw", "muon", "lamb"):
        for batch in STEPS:
            work.step(optimizer, batch)


def soap(work: Work, examples: int | None = None):
    """The same for SOAP, whose program takes long to compile."""
    for batch in STEPS:
        work.step("soap", batch)


PORTIONS = {each.__name__: each for each in (base, large, steps, beyond, soap)}


def seeds() -> range:
    """Those that no search has seen."""
    first = FROZEN["search"]["seed"] + 1
    return range(first, first + FROZEN["seeds"])


def chosen(lines: list[dict]) -> dict:
    """Optimizer -> the settings of its point with the lowest validation loss."""
    found = {}
    for name in SEARCHED:
        own = {point: line for point in points(name) for line in lines
               if _is_of(line, f"tuned {name}", point)}  # fmt: skip
        losses = {p: _number(line["validation"]) for p, line in own.items()}
        found[name] = min(losses, key=losses.__getitem__)
    return found


def decided(work: Work, examples: int | None = None) -> int:
    """The examples of a run: all, or half of them on a card that is slow; decided once."""

    def make():
        step = {name: work.step(name, FROZEN["base"]) for name in SEARCHED}
        whole = FROZEN["data"]["train"]
        needed = _needed({name: line["seconds_a_step"] for name, line in step.items()}, whole)
        tflops = step["adamw"]["tflops"]
        slow = tflops < FROZEN["halved_below_tflops"] or needed > FROZEN["card_seconds"]
        return {
            "examples": examples or (whole // 2 if slow else whole),
            "tflops": tflops,
            "needed": round(needed),
        }

    return work.note({"decided": "examples"}, make)["examples"]


def _needed(step, whole):
    """The seconds of portions base and large with all examples."""
    run = {name: each * whole / FROZEN["base"] for name, each in step.items()}
    points, many, arms = FROZEN["search"]["points"], FROZEN["seeds"], len(FROZEN["arms"])
    adamw = points + many * (2 - FROZEN["fewer"] + arms)  # an arm has few updates
    return OVERHEAD * (adamw * run["adamw"] + (points + many) * run["muon"])


def _arms(work, names, batch):
    best, whole = chosen(work.log.lines), decided(work)
    for seed in seeds():
        for arm in names:
            work.run(Run(arm, batch, best[arm.split()[-1]], seed, whole))


def _tuned(name, settings, seed, examples):
    return Run(f"tuned {name}", FROZEN["base"], settings, seed, examples)


def _is_of(line, arm, point):
    return (
        line.get("protocol") == HASH
        and line.get("arm") == arm
        and line["seed"] == FROZEN["search"]["seed"]
        and line["settings"] == vars(point)
    )


def _number(loss):
    return math.inf if loss is None else loss
