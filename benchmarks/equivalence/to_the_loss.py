"""Seconds to the loss of the tuned AdamW, the search included: outcome 3 of docs/protocol.md.

    python -m benchmarks.equivalence.to_the_loss

Updates until the held-out loss is that of AdamW's base, its mean and one standard deviation, times
the least milliseconds of an update on two idle cores; over the seconds in which AdamW's base itself
arrives there. Medians of the seeds. A search is paid once: what `find_rate` takes at the larger
batch; 16 runs there for what is tuned again; for another optimizer by `transfer`, or at the small
batch, 16 runs at the small batch; for the AdamW that was tuned, nothing.
"""

import math
import statistics

from benchmarks.equivalence import against
from benchmarks.equivalence.experiment import arrived, target_of
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.report import markdown
from benchmarks.run_log import Log

TASKS, RATIOS = ("flights", "diamonds"), (8, 32)
SECONDS = "benchmarks/logs/equivalence_seconds.jsonl"
WAYS = {
    label: against.WAYS[label][0] for label in (
        "AdamW, unchanged", "AdamW, by `transfer`", "AdamW, tuned again",
        "Muon, at the small batch", "Muon, by `transfer`", "Muon, by `find_rate`",
        "Muon, tuned again", "SOAP, at the small batch", "SOAP, by `find_rate`",
        "SOAP, tuned again",
    )
}  # fmt: skip


class Times:
    """A workload's arrivals, in seconds over those of AdamW's base."""

    def __init__(self, name: str, lines: list[dict], seconds: list[dict]):
        self.frozen = FROZEN["workloads"][name]
        self.milliseconds = {
            (line["batch"], spec): min(each)
            for line in seconds if line.get("workload") == name
            for spec, each in line["ms"].items()
        }  # fmt: skip
        self.runs: dict = {}
        for line in lines:
            if line.get("seed") and line["seed"] <= self.frozen["fewer_seeds"]:
                of = self.runs.setdefault((line["arm"], line["ratio"]), {})
                of.setdefault(line["seed"], []).append(line)
        base = [line for line in lines if line.get("arm") == "tuned adamw" and line["seed"]
                and (line["ratio"], line["horizon"]) == (1, 1)]  # fmt: skip
        self.target = target_of(base)
        self.base = statistics.median(self.arrivals("tuned adamw", 1))

    def step(self, arm: str, ratio: int) -> float:
        """Seconds of an update."""
        spec = arm.split()[1].replace("tf_lamb:SOAP", against.SOAP)
        return self.milliseconds[ratio * self.frozen["base"], spec] / 1000

    def arrivals(self, arm: str, ratio: int) -> list[float]:
        """Seconds to the target of each seed, infinite where it does not arrive."""
        return [
            min(arrived(line, self.target) or math.inf for line in lines) * self.step(arm, ratio)
            for lines in self.runs[arm, ratio].values()
        ]

    def search(self, arm: str, ratio: int) -> float:
        """Seconds of the search before it."""
        rule, spec = arm.split()
        batch = ratio * self.frozen["base"]
        if rule == "find_rate":
            taken = [lines[0]["search"] for lines in self.runs[arm, ratio].values()]
            return statistics.mean(taken) / batch * self.step(arm, ratio)
        if spec == "adamw" and rule != "tuned":
            return 0.0
        at = ratio if rule == "tuned" else 1
        whole = self.frozen["examples"] // (at * self.frozen["base"]) * self.step(arm, at)
        return FROZEN["search"]["points"] * whole

    def times(self, arm: str, ratio: int) -> tuple[float, float, int, int] | None:
        """Over AdamW's base: alone, with the search; how many arrive, of how many."""
        lines = sum(self.runs.get((arm, ratio), {}).values(), [])
        if not lines or any("refused" in line for line in lines):
            return None
        each = self.arrivals(arm, ratio)
        alone, came = statistics.median(each), sum(map(math.isfinite, each))
        with_search = alone + self.search(arm, ratio)
        return alone / self.base, with_search / self.base, came, len(each)


def every() -> dict:
    """Workload -> its times."""
    seconds, logs = Log(SECONDS).lines, against.logs_of(TASKS)
    return {name: Times(name, logs[name], seconds) for name in TASKS}


def table(of: dict) -> str:
    """Alone / with the search, in Markdown."""
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


def _shown(times):
    if times is None:
        return "no answer"
    alone, searched, came, of = times
    if math.isinf(alone):
        return f"{came} of {of} arrive"
    told = f"{alone:.2f}" if alone == searched else f"{alone:.2f} / {_short(searched)}"
    return told if came == of else f"{told}, {came} of {of}"


def _short(number):
    return f"{number:.2f}" if number < 10 else f"{number:.0f}"


if __name__ == "__main__":
    print(table(every()))
