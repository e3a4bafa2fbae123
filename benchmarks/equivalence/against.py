"""Optimizers at a large batch, tuned there or not, against the AdamW tuned at the small one.

    python -m benchmarks.equivalence.against

The registered experiment compares an optimizer with its own base. A user has one base. Runs are
those of the logs; margins and tests are those of docs/protocol.md.
"""

import dataclasses
import os

import tqdm

from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.report import markdown, told
from benchmarks.equivalence.runs import Run, Runs, by_cell
from benchmarks.equivalence.statistics import holm, margin, worse_by
from benchmarks.equivalence.warmups import LOG, SPECS, TRANSFER
from benchmarks.run_log import Log

WORKLOADS, BASE = ("flights", "diamonds"), "adamw"
IN_ALL = (*WORKLOADS, "fashion", "perceptron", "letters")  # of which that AdamW has a base
SOAP, SEARCHED = "benchmarks.soap:OfPackage", "find_rate tf_lamb:SOAP"
ARMS = {
    "tuned adamw": "AdamW", "tuned lamb": "LAMB", "tuned tf_lamb:LANS": "LANS",
    "tuned muon": "Muon", f"tuned {SOAP}": "SOAP",
    "find_rate muon": "Muon, by `find_rate`", SEARCHED: "SOAP, by `find_rate`",
}  # fmt: skip
WAYS = {
    "Muon, by `transfer`": "transfer muon",
    "Muon, by `find_rate`": "find_rate muon",
    "SOAP, by `transfer`": f"transfer {SOAP}",
    "SOAP, by `find_rate`": SEARCHED,
    "LAMB, by `transfer`": "transfer lamb",
    "LAMB, by `find_rate`": "find_rate lamb",
    "LAMB, by LEGW": "legw lamb",
    "LAMB, AutoWarmup": "autowarmup lamb",
    "AdamW, unchanged": "unchanged adamw",
    "AdamW, by `transfer`": "transfer adamw",
    "AdamW, a batch that grows": "growing adamw",
    "SGD in AdaScale": "adascale momentum",
    "AdamW, tuned again": "tuned adamw",
    "LAMB, tuned again": "tuned lamb",
    "Muon, tuned again": "tuned muon",
    "SOAP, tuned again": f"tuned {SOAP}",
}
ARMS |= {f"by transfer {spec}": f"{ARMS[f'tuned {spec}']}, by `transfer`" for spec in SPECS}


def scores(lines) -> dict:
    """Arm and ratio -> the test scores of its seeds, in their order; None where it refuses."""
    return {cell: [line.get("test") for line in own] for cell, own in by_cell(lines).items()}


def by_transfer(workload: str) -> dict:
    """The same of `recipes.transfer` as it is now, which other runs have led to."""
    rule = {"workload": workload, **TRANSFER}
    lines = [line for line in Log(LOG).lines if rule.items() <= line.items()]
    return {(f"by transfer {line['spec']}", line["ratio"]): line["test"] for line in lines}


def table(lines: dict) -> str:
    """A row an arm, in Markdown; `lines` are those of each workload's log."""
    head = ["", *(f"{name}, {ratio} times" for name in lines for ratio in FROZEN["ratios"])]
    rows = {arm: [name] for arm, name in ARMS.items()}
    for name, own in lines.items():
        found = scores(own) | by_transfer(name)
        for arm, row in rows.items():
            row += _cells(name, found, arm)
    return markdown(head, rows.values())


def _cells(name, found, arm):
    tests, held = _tests(name, found, arm)
    return [
        told(1000 * test[0], 1000 * test[1], ok) if test else "no answer"
        for test, ok in zip(tests, held, strict=True)
    ]


def _tests(name, found, arm):
    """How much worse than the tuned AdamW at each ratio, None without answer; and what holds."""
    tests = []
    for ratio in FROZEN["ratios"]:
        made = found[arm, ratio]
        base = found[f"tuned {BASE}", 1][: len(made)]
        tests.append(None if None in made else worse_by(made, base, margin(name, base)))
    return tests, holm([test[2] if test else 1.0 for test in tests])


def kept(lines: dict) -> str:
    """On how many workloads each way keeps the result of the tuned AdamW, in Markdown.

    `lines` are those of each workload's log that has that AdamW. What was not run does not count.
    """
    head = ["", *(f"{ratio} times" for ratio in FROZEN["ratios"])]
    held: dict = {way: [] for way in WAYS}
    for name, own in lines.items():
        found = scores(own)
        found |= {
            (arm.removeprefix("by "), k): each for (arm, k), each in by_transfer(name).items()
        }
        for way, arm in WAYS.items():
            if all((arm, ratio) in found for ratio in FROZEN["ratios"]):
                held[way].append(_tests(name, found, arm)[1])
    rows = [
        [way, *(f"{sum(each)} of {len(each)}" for each in zip(*own, strict=True))]
        for way, own in held.items()
    ]
    return markdown(head, rows)


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
    print(kept({name: Log(f"benchmarks/logs/equivalence_{name}.jsonl").lines for name in IN_ALL}))


if __name__ == "__main__":
    main()
