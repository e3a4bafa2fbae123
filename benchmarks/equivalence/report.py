"""What the runs of a workload decide, as rows and as a table."""

import math

from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.statistics import holm, saving, worse_by


def rows(name, found):
    """A row an arm and ratio: n, updates, examples, worse by, its bound, held, saved, interval."""
    margin = FROZEN["workloads"][name]["margin"]
    relative = FROZEN["workloads"][name]["score"] == "loss"
    made = {}
    for (arm, ratio), (lines, updates, base) in found.items():
        if ratio == 1:
            continue
        scores = [_score(line) for line in lines]
        own = [_score(line) for line in base[: len(lines)]]
        absolute = margin * sum(own) / len(own) if relative else margin
        made[arm, ratio] = *worse_by(scores, own, absolute), lines, updates, base
    for arm in dict.fromkeys(arm for arm, _ in made):
        held = holm([made[arm, ratio][2] for ratio in FROZEN["ratios"]])
        for ratio, ok in zip(FROZEN["ratios"], held, strict=True):
            mean, bound, _, lines, updates, base = made[arm, ratio]
            taken = [line["updates"][-1] for line in lines if not line.get("refused")]
            whole = base[0]["updates"][-1]
            yield {
                "arm": arm, "ratio": ratio, "n": len(lines),
                "updates": sum(taken) / len(taken) if taken else math.inf,
                "lost": sum(_score(line) == math.inf for line in lines),
                "worse": mean, "bound": bound, "holds": ok, "whole": whole,
                "saved": saving(updates, [whole] * len(updates)),
            }  # fmt: skip


def largest(of) -> int:
    """The largest ratio up to which all hold; 1 for none. `of` are the rows of an arm."""
    best = 1
    for row in sorted(of, key=lambda row: row["ratio"]):
        if not row["holds"]:
            break
        best = row["ratio"]
    return best


def table(name, found) -> str:
    """The rows as text."""
    lines = [f"{name:22}{'k':>5}{'n':>4}{'lost':>6}{'updates':>9}{'worse by':>11}{'bound':>10}"
             f"{'holds':>7}{'to the loss of the base':>30}"]  # fmt: skip
    every = list(rows(name, found))
    for row in every:
        best, low, high = row["saved"]
        told = f"{best:.1f} times fewer ({low:.1f} to {high:.1f})"
        lines.append(
            f"{row['arm']:22}{row['ratio']:>5}{row['n']:>4}{row['lost']:>6}{row['updates']:>9,.0f}"
            f"{row['worse']:>11.5f}{row['bound']:>10.5f}{'yes' if row['holds'] else 'no':>7}"
            f"{told:>30}"
        )
    for arm in dict.fromkeys(row["arm"] for row in every):
        ratio = largest([row for row in every if row["arm"] == arm])
        lines.append(f"{arm}: holds up to {ratio} times the batch")
    return "\n".join(lines)


def _score(line):
    test = line.get("test")
    return math.inf if test is None else test
