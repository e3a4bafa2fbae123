"""What the runs of docs/protocol_language_model.md decide, in Markdown.

python -m benchmarks.language_model.report --log=benchmarks/logs/language_model.jsonl
"""

import math
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from benchmarks.equivalence.report import markdown
from benchmarks.equivalence.statistics import holm, worse_by
from benchmarks.language_model import plan
from benchmarks.language_model.protocol import FROZEN, HASH
from benchmarks.shared.run_log import Log

LEVEL = 0.05
KEEPS, UNDECIDED, WORSE = "keeps", "undecided", "worse"


class Found:
    """The lines of a log by what they are of.

    Attributes:
        runs: (arm, batch) -> the lines of its fresh seeds, in their order.
        searched: Optimizer -> the lines of its points.
        steps: (optimizer, batch) -> the line of its seconds of a step.
        all: All lines of the protocol.
    """

    def __init__(self, lines: list[dict]):
        self.all = own = [line for line in lines if line.get("protocol") == HASH]
        self.searched: dict = {name: [] for name in plan.SEARCHED}
        self.runs: dict = {}
        for line in sorted((line for line in own if "arm" in line), key=lambda each: each["seed"]):
            name = line["arm"].split()[-1]
            if line["seed"] == FROZEN["search"]["seed"]:
                self.searched[name].append(line)
            else:
                self.runs.setdefault((line["arm"], line["batch"]), []).append(line)
        self.steps = {(line["step"], line["batch"]): line for line in own if "step" in line}
        self.decided = next((line for line in own if "decided" in line), None)

    def scores(self, arm: str, batch: int) -> dict[int, float]:
        """Seed -> test loss; infinite for a run that was lost."""
        return {line["seed"]: _number(line["test"]) for line in self.runs.get((arm, batch), [])}

    @property
    def base(self) -> dict[int, float]:
        """AdamW's base."""
        return self.scores("tuned adamw", FROZEN["base"])

    @property
    def margin(self) -> float:
        """What AdamW loses with fewer examples."""
        return float(np.mean(paired(self.scores("fewer adamw", FROZEN["base"]), self.base)))

    @property
    def target(self) -> float:
        """The validation loss that counts as AdamW's: its mean at the last look, and one sd."""
        last = [_number(line["looks"][-1]) for line in self.runs["tuned adamw", FROZEN["base"]]]
        return float(np.mean(last) + np.std(last, ddof=1))


def paired(scores: dict[int, float], base: dict[int, float]) -> list[float]:
    """Scores minus those of the base, of the seeds that both have."""
    return [scores[seed] - base[seed] for seed in scores if seed in base]


def interval(each: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the 95 % interval by seed."""
    from scipy import stats

    mean = float(np.mean(each))
    if not math.isfinite(mean) or len(each) < 2:
        return mean, -math.inf, math.inf
    half = stats.t.ppf(1 - LEVEL / 2, len(each) - 1) * np.std(each, ddof=1) / math.sqrt(len(each))
    return mean, float(mean - half), float(mean + half)


def comparisons(found: Found, batch: int, arms: Sequence[str]) -> list[dict]:
    """Each arm against its own base and against AdamW's; all together by Holm.

    p is two-sided, that the difference is the margin: an arm whose difference is less keeps the
    loss, one whose difference is more is worse.
    """
    made = []
    for arm in arms:
        scores = found.scores(arm, batch)
        for base in (f"tuned {arm.split()[-1]}", "tuned adamw"):
            each = paired(scores, found.scores(base, FROZEN["base"]))
            mean, low, high = interval(each) if each else (math.nan,) * 3
            one = worse_by(each, [0.0] * len(each), found.margin)[2] if len(each) > 1 else 0.5
            made.append({"arm": arm, "base": base, "n": len(each), "mean": mean, "low": low,
                         "high": high, "p": 2 * min(one, 1 - one), "less": one < 0.5})  # fmt: skip
    rejected = holm([row["p"] for row in made])
    for row, is_rejected in zip(made, rejected, strict=True):
        row["outcome"] = UNDECIDED
        if is_rejected and found.margin > 0:
            row["outcome"] = KEEPS if row["less"] else WORSE
    return made


def power(found: Found) -> float:
    """Of one comparison without Holm, that an arm with no difference at all is seen to keep.

    The deviation of a difference is that of AdamW's with fewer examples from its base.
    """
    from scipy import stats

    each = paired(found.scores("fewer adamw", FROZEN["base"]), found.base)
    n, error = len(each), float(np.std(each, ddof=1)) / math.sqrt(len(each))
    bound = stats.t.ppf(LEVEL / 2, n - 1)
    return float(stats.nct.cdf(bound, n - 1, -found.margin / error))


def seconds(found: Found, arm: str, batch: int) -> dict:
    """Means over the seeds: of a run, to AdamW's loss, and that with the search, whole or shared.

    And when the first and the last seed reached the loss. None to it where a run does not arrive.
    """
    lines = found.runs[arm, batch]
    search = sum(line["seconds"] for line in found.searched[arm.split()[-1]])
    reached = [_arrived(line, found.target) for line in lines]
    to = None if None in reached else float(np.mean(reached))
    return {
        "run": float(np.mean([line["seconds"] for line in lines])),
        "to": to,
        "reached": None if to is None else (min(reached), max(reached)),
        "search": search,
        "once": None if to is None else to + search,
        "spread": None if to is None else to + search / FROZEN["spread_over"],
    }


def _arrived(line, target):
    looks = zip(line["at"], line["looks"], strict=True)
    return next((at for at, loss in looks if loss is not None and loss <= target), None)


def primary(found: Found, batch: int, arms: Sequence[str]) -> str:
    """The table of the arms at a batch: test loss, and what it is worse by."""
    rows = comparisons(found, batch, arms)
    lines = []
    for own, other in zip(rows[::2], rows[1::2], strict=True):
        mean = np.mean([*found.scores(own["arm"], batch).values()] or [math.nan])
        lines.append([f"`{own['arm']}`", str(own["n"]), f"{mean:.4f}", _told(own), _told(other)])
    head = ["arm", "n", "test loss", "over its own base", "over AdamW's base"]
    return markdown(head, lines)


def table_of_seconds(found: Found) -> str:
    """Of all arms that have runs."""
    lines = []
    for arm, batch in found.runs:
        own = seconds(found, arm, batch)
        cells = ["-" if own[name] is None else f"{own[name]:.1f}"
                 for name in ("run", "to", "once", "spread")]  # fmt: skip
        lines.append([f"`{arm}`", f"{batch:,}", str(len(found.runs[arm, batch])), *cells])
    spread = f"with a tenth of the search ({FROZEN['spread_over']} runs)"
    head = ["arm", "batch", "n", "seconds a run", "to AdamW's loss", "with its search", spread]
    return markdown(head, lines)


def table_of_steps(found: Found) -> str:
    """Milliseconds of a step by batch and optimizer."""
    names = list(dict.fromkeys(name for name, _ in found.steps))
    batches = sorted({batch for _, batch in found.steps})
    lines = [
        [f"{batch:,}", *(f"{1e3 * found.steps[name, batch]['seconds_a_step']:.2f}"
                         if (name, batch) in found.steps else "-" for name in names)]
        for batch in batches
    ]  # fmt: skip
    return markdown(["batch", *(f"{name}, ms" for name in names)], lines)


def bases(found: Found) -> str:
    """What was chosen at the base, and what it came to on fresh seeds."""
    best, lines = plan.chosen([each for own in found.searched.values() for each in own]), []
    for name in plan.SEARCHED:
        own = best[name]
        scores = [*found.scores(f"tuned {name}", FROZEN["base"]).values()]
        told = f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1):.4f}" if len(scores) > 1 else "-"
        chosen = (own.rate, own.beta_1, own.beta_2, own.warmup, own.weight_decay)
        lines.append([name, str(len(found.searched[name])), *(f"{each:g}" for each in chosen),
                      str(len(scores)), told])  # fmt: skip
    head = ["optimizer", "points", "rate", "beta_1", "beta_2", "warmup", "decay", "n", "test loss"]
    return markdown(head, lines)


def whole(lines: list[dict]) -> str:
    """All that the log has so far."""
    found, parts = Found(lines), []
    if found.decided:
        told = found.decided
        parts.append(f"{told['examples']:,} examples, {told['tflops']} TFLOP/s at {FROZEN['base']}")
    if all(len(own) == FROZEN["search"]["points"] for own in found.searched.values()):
        parts.append(bases(found))
    if len(found.scores("fewer adamw", FROZEN["base"])) > 1:
        parts.append(
            f"The margin is {found.margin:.4f} nats, the power for no difference "
            f"{power(found):.0%} before Holm, by the spread of the seeds with fewer examples. "
            f"AdamW's loss, for the seconds to it, is {found.target:.4f} nats in validation."
        )
        parts.append(primary(found, FROZEN["large"], [*FROZEN["arms"]]))
        by_batch: dict = {}
        for arm, batch in found.runs:
            if arm.startswith(("transfer", "growing")) and arm not in _registered(batch):
                by_batch.setdefault(batch, []).append(arm)
        parts += [f"At {b:,}:\n\n{primary(found, b, arms)}" for b, arms in by_batch.items()]
        parts.append(table_of_seconds(found))
        compiled = [line["compilation"] for line in found.all if line.get("compilation")]
        if compiled:
            parts.append(
                f"Compilation is no part of these: {len(compiled)} programs, "
                f"{min(compiled):.1f} to {max(compiled):.1f} seconds each."
            )
    if found.steps:
        parts.append(table_of_steps(found))
    return "\n\n".join(parts)


def _registered(batch):
    return FROZEN["arms"] if batch == FROZEN["large"] else ()


def _told(row):
    return f"{row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}), {row['outcome']}"


def _number(loss):
    return math.inf if loss is None else loss


def main(_):
    """Prints it."""
    print(whole(Log(flags.FLAGS.log).lines))


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/language_model.jsonl", "Where a run is a line.")
    app.run(main)
