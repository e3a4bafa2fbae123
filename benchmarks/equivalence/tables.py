"""Writes docs/results_tables.md: every table of the registered experiment, from its logs.

python -m benchmarks.equivalence.tables
"""

import os
import pathlib
from types import SimpleNamespace

import numpy as np

from benchmarks.equivalence import against, experiment, report, warmups
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.runs import Runs
from benchmarks.shared.run_log import Log

PAGE = pathlib.Path("docs/results_tables.md")
IN_FULL = ("flights", "diamonds")
# Workload -> the optimizers that have a base, those tuned again at every batch.
DECIDED = {
    "flights": (tuple(FROZEN["optimizers"]), tuple(FROZEN["optimizers"])),
    "diamonds": (tuple(FROZEN["optimizers"]), tuple(FROZEN["optimizers"])),
    "fashion": (("adamw", "lamb", "muon"), ()),  # tuned again: by errors
    "letters": (("adamw", "lamb"), ()),
}
TUNED = {
    "SOAP": against.SOAP, "Muon": "muon", "LANS": "tf_lamb:LANS", "AdamW": "adamw",
    "LAMB": "lamb",
}  # fmt: skip
TEXT = """\
---
orphan: true
---

# Small tasks: every table

**These runs had few updates left**: 576 to 2,992 at 8 times their batch, 144 to 748 at 32 times
and 36 to 187 at 128 times.

`python -m benchmarks.equivalence.tables` writes this page from the logs. [What it
says](results.md), [how it was decided](protocol.md). An arm's *base* is the same optimizer tuned
at the small batch; of `find_rate` and AutoWarmup it is AdamW.

- Losses are test losses above those of the base, in thousandths of a nat; errors are in points.
  In brackets: the most that it may be (95%).
- **Bold**: it keeps the result, by Holm's correction for the ratios of that arm.
- "Updates": how many times fewer a run takes to the held-out loss of its base, in up to 4 times
  the examples: median and 95% interval of 8 seeds. "-": it does not arrive. "Lost": it is not
  done within 4 times the examples. "No answer": it refuses.

## Against the AdamW that was tuned at the small batch

On flights `transfer` is that of today, with [its longer warmup](#why-transfer-lost-on-flights),
and not that of the table of flights.

{differences}

## Flights

{flights}

![Losses and updates saved over the ratio of batches](../benchmarks/logs/equivalence_flights.png)

## Diamonds

{diamonds}

![Losses and updates saved over the ratio of batches](../benchmarks/logs/equivalence_diamonds.png)

## Fashion-MNIST

{fashion}

[Chosen again by held-out errors](results.md#how-to-read-them), on other machines than the rows
above; 8 seeds:

{fashion_again}

## A perceptron

Chosen by held-out errors; 8 seeds:

{perceptron}

## Letters

{letters}

## A batch that grows

From the base up to 128 times it where four updates of a batch are left. The perceptron's was not
run from the base that was chosen by errors.

{growing}

## Five optimizers tuned at each batch

Mean test loss of the fresh seeds; each by the same 16 points at each batch. SOAP has a beta_2 of
0.95, the others 0.999.

{optimizers}

## Why `transfer` lost on flights

`transfer` multiplied the rate by √k and kept the warmup of 0 that was tuned. So warmups and rates
were varied, against the own base of each; 8 seeds:

{warmups}

## Both in full together

A performance profile of flights and diamonds: at how many of the six an arm needs at most tau
times the updates of the best.

{profile}
"""


class _Logged(Runs):
    """The runs of a log; one that is missing is an error."""

    def _made(self, groups):
        if groups:
            raise LookupError(f"the log has no run of {groups[0][0]}")
        return []


def decided(name: str) -> dict:
    """What the log of a workload decides of the arms that it has at every ratio."""
    runs = _Logged(f"benchmarks/logs/equivalence_{name}.jsonl", 1, SimpleNamespace(total=0))
    made = {(line["arm"], line["ratio"]) for line in runs.known.values()}
    specs, again = DECIDED[name]
    arms = {
        arm: of for arm, of in FROZEN["arms"].items()
        if of in specs and made.issuperset((arm, ratio) for ratio in FROZEN["ratios"])
    }  # fmt: skip
    longer = name in IN_FULL
    found = experiment.compare(runs, name, specs, arms, longer)
    experiment.reference(runs, name, again, found, longer)
    return found


def optimizers(logs: dict) -> str:
    """Test losses of what is tuned at each batch, in Markdown."""
    head = ["", *(f"{name}, {FROZEN['workloads'][name]['base'] * k:,}" for name in logs
                  for k in (1, *FROZEN["ratios"]))]  # fmt: skip
    found = {name: against.scores(lines) for name, lines in logs.items()}
    rows = [
        [label, *(f"{np.mean(own[f'tuned {spec}', k]):.4f}" for own in found.values()
                  for k in (1, *FROZEN["ratios"]))]
        for label, spec in TUNED.items()
    ]  # fmt: skip
    return report.markdown(head, rows)


def varied(logs: dict) -> str:
    """Losses of `transfer` with other warmups and rates, in Markdown."""
    columns = [(spec, ratio) for ratio in warmups.RATIOS for spec in warmups.SPECS]
    names = {spec: label for label, spec in TUNED.items()}
    head = ["", *(f"{names[spec]}, {ratio} times" for spec, ratio in columns)]
    rows = []
    for name, lines in logs.items():
        bases = against.scores(lines)
        for power in warmups.POWERS:
            for warmup in warmups.WARMUPS[name]:
                rate = "x √k" if power else "kept"
                cells = [_varied(name, bases, power, warmup, *column) for column in columns]
                rows.append([f"{name}: rate {rate}, warmup {100 * warmup:.0f}%", *cells])
    return report.markdown(head, rows)


def _varied(name, bases, power, warmup, spec, ratio):
    of = {"workload": name, "power": power, "warmup": warmup, "spec": spec, "ratio": ratio}
    (tests,) = (line["test"] for line in Log(warmups.LOG).lines if of.items() <= line.items())
    return f"{1000 * (np.mean(tests) - np.mean(bases[f'tuned {spec}', 1])):+.1f}"


def page() -> str:
    """The whole page."""
    found = {name: decided(name) for name in DECIDED}
    logs = against.logs_of()
    full = {name: logs[name] for name in IN_FULL}
    rows = {name: list(report.rows(name, found[name])) for name in IN_FULL}
    return TEXT.format(
        differences=against.differences(logs), growing=against.growing(logs),
        fashion_again=against.chosen_again("fashion"),
        perceptron=against.chosen_again(against.PERCEPTRON),
        optimizers=optimizers(full), warmups=varied(full), profile=report.profile(rows),
        **{name: report.table(name, own) for name, own in found.items()},
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    PAGE.write_text(page())
