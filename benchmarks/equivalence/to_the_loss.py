"""Seconds to the loss of the tuned AdamW, the search included: outcome 3 of docs/protocol.md.

    python -m benchmarks.equivalence.to_the_loss

Updates until the held-out loss is that of AdamW's base, its mean and one standard deviation, times
the least milliseconds of an update on two idle cores; over the seconds in which AdamW's base itself
arrives there. Medians of the seeds, with 95% bootstrap intervals. A run of as many examples that
does not arrive is made anew with twice, then with four times as many, but for SOAP by `find_rate`:
all runs of a seed count, and so do all of its searches by `find_rate`. Any other search is paid
once: 16 runs at the larger batch for what is tuned again; for another optimizer by `transfer`, or
at the small batch, 16 runs at the small batch; for the AdamW that was tuned, nothing.

A batch that grows has sizes that were not timed. An example in them is taken to last as long as in
the next smaller size that was, so that what they save is not counted.
"""

import dataclasses
import math

import numpy as np

from benchmarks.equivalence import against, arms
from benchmarks.equivalence.experiment import arrived, target_of
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.report import markdown
from benchmarks.shared.run_log import Log

TASKS, RATIOS = ("flights", "diamonds"), (8, 32)
SECONDS = "benchmarks/logs/equivalence_seconds.jsonl"
WAYS = {
    label: against.WAYS[label][0] for label in (
        "AdamW, unchanged", "AdamW, by `transfer`", "AdamW, tuned again",
        "Muon, at the small batch", "Muon, by `transfer`", "Muon, by `find_rate`",
        "Muon, tuned again", "SOAP, at the small batch", "SOAP, by `find_rate`",
        "SOAP, tuned again",
    )
} | {"AdamW, growing": "growing adamw"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """Over AdamW's base: median, low and high, without the search and with it; seeds that came."""

    alone: tuple[float, float, float]
    with_search: tuple[float, float, float]
    at_first: int  # in a run of as many examples as the base's
    came: int
    of: int
    longer: bool  # whether those that did not come were made anew


class Times:
    """A workload's arrivals, in seconds over those of AdamW's base."""

    def __init__(self, name: str, lines: list[dict], seconds: list[dict]):
        self.name, self.frozen = name, FROZEN["workloads"][name]
        self.milliseconds = {
            (line["batch"], spec): min(each)
            for line in seconds if line.get("workload") == name
            for spec, each in line["ms"].items()
        }  # fmt: skip
        self.runs: dict = {}
        for line in lines:
            if line.get("seed") and line["seed"] <= self.frozen["fewer_seeds"]:
                of = self.runs.setdefault((line["arm"], line["ratio"]), {})
                of.setdefault(line["seed"], {})[line["horizon"]] = line
        base = [line for line in lines if line.get("arm") == "tuned adamw" and line["seed"]
                and (line["ratio"], line["horizon"]) == (1, 1)]  # fmt: skip
        self.target = target_of(base)
        self.base = self.spent("tuned adamw", 1)[:, 0]

    def step(self, arm: str, ratio: int) -> float:
        """Seconds of an update."""
        spec = arm.split()[1].replace("tf_lamb:SOAP", against.SOAP)
        return self.milliseconds[ratio * self.frozen["base"], spec] / 1000

    def spent(self, arm: str, ratio: int) -> np.ndarray:
        """Seconds of each seed to the target: in its runs, and in its own searches.

        Infinite where it does not arrive. What a run that did not arrive took is in them.
        """
        step, found = self.step(arm, ratio), []
        for _, runs in sorted(self.runs[arm, ratio].items()):
            trained = searched = 0.0
            for _, line in sorted(runs.items()):
                searched += line.get("search", 0) / (ratio * self.frozen["base"]) * step
                came = arrived(line, self.target)
                trained += self._lasted(line, came or line["updates"][-1])
                if came:
                    break
            else:
                trained = math.inf
            found.append((trained, searched))
        return np.array(found)

    def _lasted(self, line, updates):
        """Seconds of the first updates of a run."""
        arm, ratio, base = line["arm"], line["ratio"], self.frozen["base"]
        if not arm.startswith("growing"):
            return updates * self.step(arm, ratio)
        seconds = 0.0
        for stage in arms.grown(self.name, Settings(**line["settings"]), ratio, line["horizon"]):
            made = min(updates, stage.train_steps)
            updates -= made
            larger = stage.batch_size // base
            timed = max(each for each in (1, *FROZEN["ratios"]) if each <= larger)
            seconds += made * larger / timed * self.step(arm, timed)
        return seconds

    def search(self, arm: str, ratio: int) -> float:
        """Seconds of the search that is paid once, for all seeds."""
        rule, spec = arm.split()
        if rule == "find_rate" or (spec == "adamw" and rule != "tuned"):
            return 0.0
        at = ratio if rule == "tuned" else 1
        whole = self.frozen["examples"] // (at * self.frozen["base"]) * self.step(arm, at)
        return FROZEN["search"]["points"] * whole

    def times(self, arm: str, ratio: int) -> Cell | None:
        """None where the arm was not run, or refuses."""
        seeds = self.runs.get((arm, ratio), {}).values()
        if not seeds or any("refused" in line for runs in seeds for line in runs.values()):
            return None
        alone, searched = self.spent(arm, ratio).T
        return Cell(
            self._over_base(alone),
            self._over_base(alone + searched + self.search(arm, ratio)),
            sum(bool(arrived(runs[1], self.target)) for runs in seeds),
            int(np.isfinite(alone).sum()),
            len(alone),
            any(horizon > 1 for runs in seeds for horizon in runs),
        )

    def _over_base(self, seconds):
        """The ratio of medians, and its 95% bootstrap interval over the seeds, base and arm."""
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, len(seconds), (FROZEN["resamples"], len(seconds)))
        arm, base = np.median(seconds[drawn], 1), np.median(self.base[drawn], 1)
        with np.errstate(invalid="ignore"):
            ratios = np.where(np.isfinite(arm), arm / base, math.inf)
        low, high = np.quantile(ratios, [0.025, 0.975], method="nearest")
        return float(np.median(seconds) / np.median(self.base)), float(low), float(high)


def every() -> dict:
    """Workload -> its times."""
    seconds, logs = Log(SECONDS).lines, against.logs_of(TASKS)
    return {name: Times(name, logs[name], seconds) for name in TASKS}


def table(of: dict) -> str:
    """Without the search / with it, in Markdown; an interval where it tells something."""
    head = ["", *(f"{name}, {ratio} times" for name in of for ratio in RATIOS)]
    rows = []
    for label, arm in WAYS.items():
        small = "small batch" in label
        cells = [
            _shown(times.times(arm, 1 if small else ratio))
            for times in of.values() for ratio in RATIOS
        ]  # fmt: skip
        rows.append([label, *cells])
    return markdown(head, rows)


def _shown(cell):
    if cell is None:
        return "no answer"
    longer = "" if cell.longer else ", not run longer"
    if math.isinf(cell.alone[0]):
        return f"{cell.came} of {cell.of} {'arrive' if cell.longer else 'at first'}{longer}"
    told = _interval(*cell.alone)
    if cell.alone != cell.with_search:
        told += f" / {_interval(*cell.with_search)}"
    if cell.at_first < cell.of:
        told += f"; {cell.at_first} of {cell.of} at first{longer}"
    return f"{told}, {cell.came} in all" if cell.at_first < cell.came < cell.of else told


def _interval(median, low, high):
    if median >= 10:
        return f"{median:.0f}"
    return f"{median:.2f} ({low:.2f} to {'∞' if math.isinf(high) else f'{high:.2f}'})"


if __name__ == "__main__":
    print(table(every()))
