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

from benchmarks.equivalence import arms, by_error
from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.report import markdown, told, unit
from benchmarks.equivalence.runs import Run, Runs, by_cell
from benchmarks.equivalence.statistics import holm, margin, worse_by
from benchmarks.equivalence.warmups import LOG, TRANSFER
from benchmarks.shared.run_log import Log

PERCEPTRON = "perceptron"  # its bases, too, were chosen by another quantity than scores it
TASKS = {"flights": "flights", "diamonds": "diamonds", "fashion": "Fashion-MNIST",
         PERCEPTRON: "a perceptron", "letters": "letters"}  # fmt: skip
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
    """The same, with `recipes.transfer` as it is now where the workload's log has it otherwise.

    Of the perceptron, what was chosen by errors, and earlier runs that begin at the same point.
    """
    if name == PERCEPTRON:
        return _begun(name, lines) | by_errors(name)
    own, later = scores(lines), _by_transfer(name)
    return own | later if name == "flights" else later | own


@functools.cache
def _by_transfer(name):
    rule = {"workload": name, **TRANSFER}
    lines = [line for line in Log(LOG).lines if rule.items() <= line.items()]
    return {(f"transfer {line['spec']}", line["ratio"]): line["test"] for line in lines}


@functools.cache
def _again():
    """The lines of what was chosen again."""
    return Log(by_error.LOG).lines


@functools.cache
def by_errors(name: str) -> dict:
    """Arm and ratio -> the test errors, of what was chosen again by held-out errors."""
    return by_error.errors(_again(), name)


def _begun(name, lines):
    """The scores of earlier runs, of rules that begin at the base that errors choose, too."""
    best = by_error.best_of(_again(), name)
    begun = (line for line in lines if line.get("arm") in by_error.ARMS)
    return scores(x for x in begun if x["settings"] == best.get((x["arm"].split()[1], 1)))


def compared(name: str, own: dict, arm: str, base: str) -> dict[int, Cell]:
    """Ratio -> the arm against a base at the small batch; by Holm over all ratios, run or not."""
    if (base, 1) not in own:
        return {}
    made = {ratio: own.get((arm, ratio), [None]) for ratio in FROZEN["ratios"]}
    cells = _cells(name, made, own[base, 1])
    return {ratio: cell for ratio, cell in cells.items() if (arm, ratio) in own}


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


def is_by_loss(name: str, label: str) -> bool:
    """Whether a way was first chosen by losses at the larger batch, and is scored by errors."""
    arm, base = WAYS[label]
    is_beyond = base is not None and arm.startswith("tuned")
    return is_beyond and FROZEN["workloads"][name]["score"] == "error"


def ways(name: str, lines: list[dict]):
    """Label, arm, arm of the own base, and the scores by which the way is judged."""
    own, again = found(name, lines), by_errors(name)
    for label, (arm, base) in WAYS.items():
        yield label, arm, base, again if is_by_loss(name, label) else own


def outcomes(logs: dict, ratio: int) -> dict:
    """(label, workload) -> the cells against the own base and AdamW's; of the arms that were run.

    The own cell is None at the small batch and where the own base was not run.
    """
    made = {}
    for name, lines in logs.items():
        for label, arm, base, own in ways(name, lines):
            if base is None:
                if cell := at_base(name, own, arm):
                    made[label, name] = None, cell
            elif (arm, ratio) in own:
                made[label, name] = (
                    compared(name, own, arm, base).get(ratio),
                    compared(name, own, arm, "tuned adamw")[ratio],
                )
    return made


def only_alone(logs: dict, ratios=(8, 32)) -> set:
    """What neither keeps nor is worse any longer with one correction of Holm's for all cells.

    As (ratio, label, workload, 0 for the own base or 1 for AdamW's).
    """
    every = {}
    for ratio in ratios:
        for (label, name), (own, adamw) in outcomes(logs, ratio).items():
            if WAYS[label][1] is None and ratio != ratios[0]:
                continue  # at the small batch: it is there once
            for i, cell in enumerate((None if own == adamw else own, adamw)):
                if cell and math.isfinite(cell.worse):
                    every[ratio, label, name, i] = cell
    still = {
        KEEPS: holm([cell.p for cell in every.values()]),
        WORSE: holm([1 - cell.p for cell in every.values()]),
    }
    return {key for i, (key, cell) in enumerate(every.items())
            if cell.outcome in still and not still[cell.outcome][i]}  # fmt: skip


def table(logs: dict, ratio: int, kept=False) -> str:
    """The outcomes in Markdown: a row a way, a column a task, own base / AdamW's base.

    Of tasks that have any; with `kept`, of the ways that keep a result at a larger batch.
    """
    made, alone = outcomes(logs, ratio), only_alone(logs)
    ran = {name: scores(lines) for name, lines in logs.items()}
    rows: dict = {}
    for label, (arm, base) in WAYS.items():
        cells = {
            name: _shown(made[label, name], (ratio, label, name), alone) if (label, name) in made
            else _unjudged(ran[name], arm, ratio if base else 1)
            for name in logs
        }  # fmt: skip
        if not kept or (base and any(KEEPS in cell for cell in cells.values())):
            rows[label] = cells
    judged = {name for label, name in made if label in rows and WAYS[label][1]}
    names = [name for name in logs if name in judged]
    bases = {name: FROZEN["workloads"][name]["base"] for name in names}
    head = [f"{TASKS[name]}, {base} to {ratio * base:,}" for name, base in bases.items()]
    return markdown(["", *head], ([label, *map(of.get, names)] for label, of in rows.items()))


def _unjudged(ran, arm, ratio):
    """What stands for an arm that is not: it was run and is void, or it was not run."""
    return "void" if (arm, ratio) in ran else "-"


def _shown(cells, key, alone):
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
    rows: dict = {label: {} for label, (_, base) in WAYS.items() if base}
    for name, lines in logs.items():
        ran = scores(lines)
        for label, arm, base, own in ways(name, lines):
            if base:
                cells = compared(name, own, arm, "tuned adamw")
                rows[label] |= {
                    (name, ratio): _above(name, cells[ratio]) if ratio in cells
                    else _unjudged(ran, arm, ratio)
                    for ratio in FROZEN["ratios"]
                }  # fmt: skip
    every = [(name, ratio) for name in logs for ratio in FROZEN["ratios"]]
    columns = [c for c in every if any(of[c] not in ("void", "-") for of in rows.values())]
    head = ["", *(f"{TASKS[name]}, {ratio} times" for name, ratio in columns)]
    return markdown(head, ([label, *(of[c] for c in columns)] for label, of in rows.items()))


def _above(name, cell):
    if cell.outcome == "no answer" or not math.isfinite(cell.worse):
        return "no answer" if cell.outcome == "no answer" else "lost"
    times, digits = unit(name)
    return told(times * cell.worse, times * cell.bound, cell.outcome == KEEPS, digits)


def chosen_again(name: str) -> str:
    """Test errors of what was chosen by held-out errors, above the own base and AdamW's."""
    own, base = by_errors(name), FROZEN["workloads"][name]["base"]
    labels = {arm: label for label, (arm, of) in WAYS.items() if of}
    rows = []
    for (arm, ratio), tests in own.items():
        label, spec = labels[arm], arm.split()[1]
        if ratio == 1:
            label = f"{label.partition(',')[0]}, at the small batch"
            cells = None, at_base(name, own, arm) if spec != "adamw" else None
        else:
            bases = f"tuned {spec}", "tuned adamw"
            cells = [compared(name, own, arm, of).get(ratio) for of in bases]
        percent = f"{100 * np.mean(tests):.2f} ± {100 * np.std(tests, ddof=1):.2f}"
        above = (f"{_above(name, cell)}, {cell.outcome}" if cell else "-" for cell in cells)
        rows.append([label, f"{ratio * base:,}", percent, *above])
    return markdown(["", "batch", "errors, %", "above its own base", "above AdamW's"], rows)


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
        if ("growing adamw", max(FROZEN["ratios"])) not in found(name, lines):
            continue
        it = grown(name, lines)
        times, digits = unit(name)
        of = " points" if FROZEN["workloads"][name]["score"] == "error" else ""
        rows.append([
            TASKS[name], str(it["base"]),
            f"{it['largest']:,} ({it['largest'] // it['base']} times, {it['last']} updates)",
            f"{it['updates']:,} of {it['whole']:,}",
            f"{100 * (1 - it['updates'] / it['whole']):.0f}%",
            f"{100 * it['at_8']:.0f}%", f"{100 * it['loss']:+.1f}%",
            told(times * it["cell"].worse, times * it["cell"].bound, False, digits) + of,
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
