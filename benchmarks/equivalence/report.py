"""What the runs of a workload decide, as rows and as a table."""

import math
from collections.abc import Iterable

from benchmarks.equivalence.arms import grown
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.statistics import holm, margin, saving, worse_by

TAUS = (1, 1.25, 1.5, 2, 4)


def rows(name, found):
    """A row an arm and ratio: n, updates, examples, worse by, its bound, held, saved, interval.

    A batch that grows holds at no ratio that it does not come to.
    """
    made = {}
    for (arm, ratio), (lines, updates, base) in found.items():
        if ratio == 1:
            continue
        scores = [_score(line) for line in lines]
        own = [_score(line) for line in base[: len(lines)]]
        absolute = margin(name, own)
        made[arm, ratio] = *worse_by(scores, own, absolute), absolute, lines, updates, base
    for arm in dict.fromkeys(arm for arm, _ in made):
        held = holm([made[arm, ratio][2] for ratio in FROZEN["ratios"]])
        for ratio, ok in zip(FROZEN["ratios"], held, strict=True):
            mean, bound, _, absolute, lines, updates, base = made[arm, ratio]
            taken = [line["updates"][-1] for line in lines if not line.get("refused")]
            whole = base[0]["updates"][-1]
            ends = _ends(name, arm, ratio, lines[0])
            yield {
                "arm": arm, "ratio": ratio, "n": len(lines), "ends": ends,
                "updates": sum(taken) / len(taken) if taken else math.inf,
                "lost": sum(_score(line) == math.inf for line in lines),
                "refused": sum("refused" in line for line in lines),
                "worse": mean, "bound": bound, "margin": absolute, "holds": ok and ends == ratio,
                "whole": whole,
                "saved": saving(updates, [whole] * len(updates)) if updates else None,
            }  # fmt: skip


def _ends(name, arm, ratio, line):
    """How many times the base batch the largest batch of a run is."""
    if not arm.startswith("growing"):
        return ratio
    stages = grown(name, Settings(**line["settings"]), ratio)
    return stages[-1].batch_size // FROZEN["workloads"][name]["base"]


def largest(of) -> int:
    """The largest ratio up to which all hold; 1 for none. `of` are the rows of an arm."""
    best = 1
    for row in sorted(of, key=lambda row: row["ratio"]):
        if not row["holds"]:
            break
        best = row["ratio"]
    return best


def unit(name: str) -> tuple[int, int]:
    """By what scores are multiplied, and their digits: thousandths of a nat, or points of error."""
    return (1000, 1) if FROZEN["workloads"][name]["score"] == "loss" else (100, 2)


def table(name, found) -> str:
    """The rows of each arm as one, in Markdown: what it loses, up to where it holds, what it saves.

    Losses are in thousandths, errors in points. Without updates, what it loses alone.
    """
    times, digits = unit(name)
    ratios = [f"{ratio} times" for ratio in FROZEN["ratios"]]
    every = list(rows(name, found))
    saves = any(row["saved"] for row in every)
    head = ["arm", "n", *ratios, "holds up to"]
    head += [f"updates, {ratio}" for ratio in ratios if saves]
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in every):
        own = [row for row in every if row["arm"] == arm]
        losses = [_loss(row, times, digits) for row in own]
        savings = [_saving(row) for row in own if saves]
        lines.append([f"`{arm}`", str(own[0]["n"]), *losses, str(largest(own)), *savings])
    return markdown(head, lines)


def profile(of: dict) -> str:
    """A performance profile, in Markdown: an arm's share of workloads and ratios, within tau.

    A share counts where it needs at most tau times the updates of the best arm there. `of` has the
    rows of each workload; where no arm arrives, there is nothing to compare.
    """
    saved: dict = {}
    for name, every in of.items():
        for row in every:
            saved.setdefault((name, row["ratio"]), {})[row["arm"]] = row["saved"][0]
    saved = {key: arms for key, arms in saved.items() if any(arms.values())}
    head = ["arm", *(f"tau = {tau:g}" for tau in TAUS)]
    lines = []
    for arm in dict.fromkeys(arm for arms in saved.values() for arm in arms):
        own = [max(arms.values()) / arms[arm] if arms.get(arm) else math.inf
               for arms in saved.values()]  # fmt: skip
        shares = [sum(each <= tau for each in own) for tau in TAUS]
        lines.append([f"`{arm}`", *(f"{share} of {len(own)}" for share in shares)])
    return markdown(head, lines)


def markdown(head: list[str], lines: Iterable[list[str]]) -> str:
    """A table of these cells."""
    every = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


def _loss(row, times, digits):
    """How much worse, its bound, and whether that holds."""
    if row["ends"] < row["ratio"]:
        return f"ends at {row['ends']} times"
    if row["refused"]:
        return "no answer" if row["refused"] == row["n"] else f"{row['refused']} without answer"
    if row["lost"]:
        return f"{row['lost']} lost"
    return told(times * row["worse"], times * row["bound"], row["holds"], digits)


def told(mean, bound, holds, digits=1):
    """How much worse, and the bound of it; bold where it holds."""
    text = f"{mean:+.{digits}f} ({bound:+.{digits}f})"
    return f"**{text}**" if holds else text


def _saving(row):
    """How many times fewer updates to the loss of the base, and the interval."""
    best, low, high = row["saved"]
    if row["ends"] < row["ratio"]:
        return f"as at {row['ends']} times"
    return f"{best:.1f} ({low:.1f} to {high:.1f})" if best else "-"


def _score(line):
    test = line.get("test")
    return math.inf if test is None else test
