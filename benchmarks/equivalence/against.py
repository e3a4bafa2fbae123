"""Every way to a larger batch against its own base and against AdamW's: what docs/results.md says.

    python -m benchmarks.equivalence.against

The registered experiment compares an optimizer with its own base. A user who has a tuned AdamW has
one base, AdamW's. Runs are those of the logs; margins and tests are those of docs/protocol.md.
"""

import dataclasses
import functools
import math
import os

import numpy as np
import tqdm

from benchmarks.equivalence import arms
from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.report import markdown, told
from benchmarks.equivalence.runs import Run, Runs, by_cell
from benchmarks.equivalence.statistics import holm, margin, worse_by
from benchmarks.equivalence.warmups import LOG, TRANSFER
from benchmarks.run_log import Log

TASKS = {"flights": "flights", "diamonds": "diamonds", "fashion": "Fashion-MNIST",
         "letters": "letters"}  # fmt: skip
VOID = "perceptron"  # its bases are not tuned for what is scored
SOAP, SEARCHED = "benchmarks.soap:OfPackage", "find_rate tf_lamb:SOAP"
KEEPS, UNDECIDED, WORSE = "keeps", "undecided", "worse"
WAYS = {  # label -> the arm, and the arm of its own base
    "AdamW, unchanged": ("unchanged adamw", "tuned adamw"),
    "AdamW, by `transfer`": ("transfer adamw", "tuned adamw"),
    "AdamW, tuned again": ("tuned adamw", "tuned adamw"),
    "Muon, at the small batch": ("tuned muon", None),
    "Muon, by `transfer`": ("transfer muon", "tuned muon"),
    "Muon, by `find_rate`": ("find_rate muon", "tuned muon"),
    "Muon, tuned again": ("tuned muon", "tuned muon"),
    "SOAP, at the small batch": (f"tuned {SOAP}", None),
    "SOAP, by `transfer`": (f"transfer {SOAP}", f"tuned {SOAP}"),
    "SOAP, by `find_rate`": (SEARCHED, f"tuned {SOAP}"),
    "SOAP, tuned again": (f"tuned {SOAP}", f"tuned {SOAP}"),
    "LAMB, at the small batch": ("tuned lamb", None),
    "LAMB, by `transfer`": ("transfer lamb", "tuned lamb"),
    "LAMB, by `find_rate`": ("find_rate lamb", "tuned lamb"),
    "LAMB, by LEGW": ("legw lamb", "tuned lamb"),
    "LAMB, AutoWarmup": ("autowarmup lamb", "tuned lamb"),
    "LAMB, tuned again": ("tuned lamb", "tuned lamb"),
    "LANS, at the small batch": ("tuned tf_lamb:LANS", None),
    "LANS, tuned again": ("tuned tf_lamb:LANS", "tuned tf_lamb:LANS"),
    "SGD, at the small batch": ("tuned momentum", None),
    "SGD in AdaScale": ("adascale momentum", "tuned momentum"),
    "SGD, tuned again": ("tuned momentum", "tuned momentum"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """An arm at a ratio against a base: how much worse, the bound of it, p of "keeps", outcome."""

    worse: float
    bound: float
    p: float
    outcome: str


def scores(lines) -> dict:
    """Arm and ratio -> the test scores of its seeds, in order; None where it refuses the batch."""

    def score(line):
        if "refused" in line:
            return None
        return math.inf if line["test"] is None else line["test"]

    return {cell: list(map(score, own)) for cell, own in by_cell(lines).items()}


def found(name: str, lines: list[dict]) -> dict:
    """The same, with `recipes.transfer` as it is now where the workload's log has it otherwise."""
    own, later = scores(lines), _by_transfer(name)
    return own | later if name == "flights" else later | own


@functools.cache
def _by_transfer(name):
    rule = {"workload": name, **TRANSFER}
    lines = [line for line in Log(LOG).lines if rule.items() <= line.items()]
    return {(f"transfer {line['spec']}", line["ratio"]): line["test"] for line in lines}


def compared(name: str, own: dict, arm: str, base: str) -> dict[int, Cell]:
    """Ratio -> the arm against a base at the small batch; by Holm over the ratios of the arm."""
    ratios = [ratio for ratio in FROZEN["ratios"] if (arm, ratio) in own]
    if (base, 1) not in own:
        return {}
    return _cells(name, {ratio: own[arm, ratio] for ratio in ratios}, own[base, 1])


def at_base(name: str, own: dict, arm: str) -> Cell | None:
    """What is tuned at the small batch against the AdamW that is."""
    if (arm, 1) not in own:
        return None
    return _cells(name, {1: own[arm, 1]}, own["tuned adamw", 1])[1]


def _cells(name, of, base):
    answered = {ratio: made for ratio, made in of.items() if None not in made}
    tests = {
        ratio: worse_by(made, base[: len(made)], margin(name, base[: len(made)]))
        for ratio, made in answered.items()
    }
    ps = [tests[ratio][2] if ratio in tests else 1.0 for ratio in of]
    kept = holm(ps)
    worse = holm([1 - p if ratio in tests else 1.0 for ratio, p in zip(of, ps, strict=True)])
    cells = {}
    for ratio, is_kept, is_worse in zip(of, kept, worse, strict=True):
        mean, bound, p = tests.get(ratio, (math.nan, math.nan, 1.0))
        outcome = KEEPS if is_kept else WORSE if is_worse else UNDECIDED
        cells[ratio] = Cell(mean, bound, p, outcome if ratio in tests else "no answer")
    return cells


def is_void(name: str, arm: str) -> bool:
    """Whether an arm beyond the base was chosen by another quantity than the one that is scored."""
    by_loss = FROZEN["workloads"][name]["score"] == "error"
    return name == VOID or (by_loss and arm.startswith("tuned"))


def outcomes(logs: dict, ratio: int) -> dict:
    """(label, workload) -> the cells against the own base and AdamW's; of the arms that were run.

    The own cell is None at the small batch and where the own base was not run.
    """
    made = {}
    for name, lines in logs.items():
        own = found(name, lines)
        for label, (arm, base) in WAYS.items():
            if base is None:
                if cell := at_base(name, own, arm):
                    made[label, name] = None, cell
            elif (arm, ratio) in own and not is_void(name, arm):
                made[label, name] = (
                    compared(name, own, arm, base).get(ratio),
                    compared(name, own, arm, "tuned adamw")[ratio],
                )
    return made


def only_alone(logs: dict, ratios=(8, 32)) -> set:
    """What keeps its result no longer with one correction of Holm's for all cells.

    As (ratio, label, workload, 0 for the own base or 1 for AdamW's).
    """
    every = {}
    for ratio in ratios:
        for (label, name), cells in outcomes(logs, ratio).items():
            for i, cell in enumerate(cells):
                if cell and math.isfinite(cell.worse) and not (i == 0 and cells[0] == cells[1]):
                    every[ratio, label, name, i] = cell
    still = holm([cell.p for cell in every.values()])
    return {key for (key, cell), ok in zip(every.items(), still, strict=True)
            if cell.outcome == KEEPS and not ok}  # fmt: skip


def table(logs: dict, ratio: int, kept=False) -> str:
    """The outcomes in Markdown: a row a way, a column a task, own base / AdamW's base.

    With `kept`, of the ways that keep a result somewhere, at a larger batch.
    """
    made, alone = outcomes(logs, ratio), only_alone(logs)
    head = [""]
    for name in logs:
        base = FROZEN["workloads"][name]["base"]
        head.append(f"{TASKS[name]}, {base} to {ratio * base:,}")
    rows = []
    for label, (arm, base) in WAYS.items():
        cells = [
            "void" if base and is_void(name, arm)
            else _shown(made.get((label, name)), (ratio, label, name), alone)
            for name in logs
        ]  # fmt: skip
        if not kept or (base and any(KEEPS in cell for cell in cells)):
            rows.append([label, *cells])
    return markdown(head, rows)


def _shown(cells, key, alone):
    if cells is None:
        return "-"
    own, adamw = (
        f"{cell.outcome}\\*" if (*key, i) in alone else cell.outcome if cell else "-"
        for i, cell in enumerate(cells)
    )
    if cells[0] == cells[1] or "no answer" in adamw:
        return adamw
    return adamw if WAYS[key[1]][1] is None else f"{own} / {adamw}"


def count(made: dict, label: str, base: str = "AdamW") -> dict[str, int]:
    """Outcome -> on how many tasks, of all on which the way and that base are finished.

    `made` are the outcomes at a ratio.
    """
    cells = [each[base == "AdamW"] for (of, _), each in made.items() if of == label]
    return {each: sum(cell.outcome == each for cell in cells if cell) for each in
            (KEEPS, UNDECIDED, WORSE, "no answer")}  # fmt: skip


def differences(logs: dict) -> str:
    """How much worse than AdamW's base each way ends, in Markdown: mean, and bound of it."""
    head = ["", *(f"{TASKS[n]}, {r} times" for n in logs for r in FROZEN["ratios"])]
    rows = []
    for label, (arm, base) in WAYS.items():
        row = [label]
        for name, lines in logs.items():
            unit, digits = (1000, 1) if FROZEN["workloads"][name]["score"] == "loss" else (100, 2)
            own = found(name, lines)
            cells = compared(name, own, arm, "tuned adamw")
            for ratio in FROZEN["ratios"]:
                cell = cells.get(ratio)
                if is_void(name, arm):
                    row.append("void")
                elif cell is None:
                    row.append("-")
                elif cell.outcome == "no answer" or not math.isfinite(cell.worse):
                    row.append("no answer" if cell.outcome == "no answer" else "lost")
                else:
                    held = cell.outcome == KEEPS
                    row.append(told(unit * cell.worse, unit * cell.bound, held, digits))
        if base is not None and any(cell not in ("-", "void") for cell in row[1:]):
            rows.append(row)
    return markdown(head, rows)


def grown(name: str, lines: list[dict]) -> dict:
    """What `growing adamw` was at the largest ratio, and against its base."""
    frozen, own = FROZEN["workloads"][name], found(name, lines)
    asked = max(FROZEN["ratios"])
    made = [
        line for line in lines
        if (line.get("arm"), line.get("ratio"), line.get("horizon")) == ("growing adamw", asked, 1)
    ]  # fmt: skip
    stages = arms.grown(name, Settings(**made[0]["settings"]), asked)
    examples = [(stage.batch_size, stage.batch_size * stage.train_steps) for stage in stages]
    total = sum(each for _, each in examples)
    at_8 = sum(each for batch, each in examples if batch >= 8 * frozen["base"])
    base = [line["valid"][-1] for line in lines if _is_base(line)]
    loss = np.mean([line["valid"][-1] for line in made]) / np.mean(base) - 1
    return {
        "base": frozen["base"], "largest": stages[-1].batch_size, "last": stages[-1].train_steps,
        "updates": sum(stage.train_steps for stage in stages),
        "whole": frozen["examples"] // frozen["base"], "at_8": at_8 / total, "loss": loss,
        "cell": compared(name, own, "growing adamw", "tuned adamw")[asked],
    }  # fmt: skip


def _is_base(line):
    of = line.get("arm"), line.get("ratio"), line.get("horizon")
    return of == ("tuned adamw", 1, 1) and line["seed"]


def growing(logs: dict) -> str:
    """A row a task, in Markdown."""
    head = ["", "from", "largest batch", "updates", "fewer", "examples at 8 times or more",
            "held-out loss", "score", "outcome"]  # fmt: skip
    rows = []
    for name, lines in logs.items():
        it = grown(name, lines)
        unit, digits, of = (1000, 1, "") if FROZEN["workloads"][name]["score"] == "loss" else (
            100, 2, " points")  # fmt: skip
        rows.append([
            TASKS.get(name, name), str(it["base"]),
            f"{it['largest']:,} ({it['largest'] // it['base']} times, {it['last']} updates)",
            f"{it['updates']:,} of {it['whole']:,}",
            f"{100 * (1 - it['updates'] / it['whole']):.0f}%",
            f"{100 * it['at_8']:.0f}%", f"{100 * it['loss']:+.1f}%",
            told(unit * it["cell"].worse, unit * it["cell"].bound, False, digits) + of,
            it["cell"].outcome,
        ])  # fmt: skip
    return markdown(head, rows)


def logs_of(names=TASKS) -> dict:
    """Workload -> the lines of its log."""
    return {name: Log(f"benchmarks/logs/equivalence_{name}.jsonl").lines for name in names}


def main():
    """Makes the searches for SOAP that are missing, and prints."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for name in ("flights", "diamonds"):
        runs = Runs(f"benchmarks/logs/equivalence_{name}.jsonl", 1, tqdm.tqdm(disable=None))
        settings = dataclasses.replace(tuned(runs, name, "adamw", 1), beta_2=0.95)  # SOAP's
        seeds = range(1, FROZEN["workloads"][name]["fewer_seeds"] + 1)
        runs.all(
            [Run(name, SEARCHED, k, settings, seed) for k in FROZEN["ratios"] for seed in seeds]
        )
    logs = logs_of()
    for ratio in (8, 32):
        print(table(logs, ratio, kept=ratio > 8), "\n")
    print(growing(logs))


if __name__ == "__main__":
    main()
