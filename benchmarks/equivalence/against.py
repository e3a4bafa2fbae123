"""What is tuned at a large batch, against the AdamW that was tuned at the small one.

    python -m benchmarks.equivalence.against

The registered experiment compares an optimizer with its own base. A user has one base. Runs are
those of the logs; margins and tests are those of docs/protocol.md.
"""

import dataclasses
import os
import statistics

import tqdm

from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.report import told
from benchmarks.equivalence.runs import Run, Runs, by_cell
from benchmarks.equivalence.statistics import holm, worse_by

WORKLOADS, BASE = ("flights", "diamonds"), "adamw"
SEARCHED = "find_rate tf_lamb:SOAP"
ARMS = {
    "tuned adamw": "AdamW", "tuned lamb": "LAMB", "tuned tf_lamb:LANS": "LANS",
    "tuned muon": "Muon", "tuned benchmarks.soap:OfPackage": "SOAP",
    "find_rate muon": "Muon, by `find_rate`", SEARCHED: "SOAP, by `find_rate`",
}  # fmt: skip


def scores(lines) -> dict:
    """Arm and ratio -> the test scores of its seeds, in their order; None where it refuses."""
    return {cell: [line.get("test") for line in own] for cell, own in by_cell(lines).items()}


def table(lines: dict) -> str:
    """A row an arm, in Markdown; `lines` are those of each workload's log."""
    head = ["", *(f"{name}, {ratio} times" for name in lines for ratio in FROZEN["ratios"])]
    rows = {arm: [name] for arm, name in ARMS.items()}
    for name, own in lines.items():
        found = scores(own)
        for arm, row in rows.items():
            row += _cells(found, arm, FROZEN["workloads"][name]["margin"])
    every = [head, ["---"] * len(head), *rows.values()]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def _cells(found, arm, margin):
    tests = []
    for ratio in FROZEN["ratios"]:
        made = found[arm, ratio]
        base = found[f"tuned {BASE}", 1][: len(made)]
        answered = None not in made
        tests.append(worse_by(made, base, margin * statistics.mean(base)) if answered else None)
    held = holm([test[2] if test else 1.0 for test in tests])
    return [
        told(1000 * test[0], 1000 * test[1], ok) if test else "no answer"
        for test, ok in zip(tests, held, strict=True)
    ]


def main():
    """Makes the searches for SOAP that are missing, and prints."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    lines = {}
    for name in WORKLOADS:
        runs = Runs(f"benchmarks/logs/equivalence_{name}.jsonl", 1, tqdm.tqdm(disable=None))
        settings = dataclasses.replace(tuned(runs, name, BASE, 1), beta_2=0.95)  # SOAP's
        seeds = range(1, FROZEN["workloads"][name]["fewer_seeds"] + 1)
        runs.all(
            [Run(name, SEARCHED, k, settings, seed) for k in FROZEN["ratios"] for seed in seeds]
        )
        lines[name] = runs.log.lines
    print(table(lines))


if __name__ == "__main__":
    main()
