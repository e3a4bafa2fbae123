"""Estimates how long the runs take, before they are made.

python -m benchmarks.ladder.hours

The seconds of an update come from the log of updates_left/, where it has the task and the
optimizer. The rest was measured on cores that other programs used as well.
"""

import collections
import json
import statistics

import numpy as np
from absl import app, flags

from benchmarks.equivalence.report import markdown
from benchmarks.ladder.protocol import FROZEN, batches_of, optimizers_of

LOGGED = "benchmarks/logs/updates_left.jsonl"
FIRST = 16  # the batch size of that log at which what an optimizer adds to AdamW is read

# Seconds of the processor. An example of the transformer is of one process alone: beside a second
# one the rehearsal took 235e-6 to 300e-6, and up to twice the log's seconds for AdamW's updates.
TRANSFORMER_EXAMPLE = 180e-6  # with AdamW
ADDED_BY_SOAP = {"letters": 2.7e-3, "pictures": 18e-3, "flights": 1.7e-3, "hidden letters": 4.5e-3}
ADDED_BY_MUON = {"flights": 1e-3, "hidden letters": 2.5e-3}  # of which that log has no runs
EVALUATION = {"letters": 0.04, "pictures": 0.02, "flights": 0.01, "hidden letters": 0.15}
COMPILATION = 10.0  # of the programs of an optimizer at one batch size
START = 0.5  # of a run: a new network


def seconds_of_updates(lines) -> dict[tuple, dict[int, float]]:
    """Returns (task, optimizer) -> batch size -> seconds of an update, the median of the runs."""
    found: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in lines:
        if line.get("updates") and line["rule"] != "growing":
            own = found[line["task"], line["optimizer"]]
            own[line["batch"]].append(line["seconds"] / line["updates"])
    return {
        own: {batch: statistics.median(seconds) for batch, seconds in sorted(of_batch.items())}
        for own, of_batch in found.items()
    }


def seconds_of_update(logged, task: str, optimizer: str, batch_size: int) -> float:
    """Returns the seconds of an update: AdamW's, and what the optimizer adds at every batch size.

    AdamW's are linear in the batch size between those of the log.
    """
    name = FROZEN["optimizers"][optimizer]["class"]
    if task == "hidden letters":
        adamw = TRANSFORMER_EXAMPLE * batch_size
    else:
        own = logged[task, "AdamW"]
        adamw = float(np.interp(batch_size, [*own], [*own.values()]))
    if name == "SOAP":
        return adamw + ADDED_BY_SOAP[task]
    if name == "Muon" and task in ADDED_BY_MUON:
        return adamw + ADDED_BY_MUON[task]
    if task == "hidden letters":
        return adamw  # LAMB adds about nothing to AdamW's update on the other tasks
    return adamw + max(0.0, logged[task, name][FIRST] - logged[task, "AdamW"][FIRST])


def seconds_of_cell(logged, task: str, optimizer: str, batch_size: int) -> float:
    """Returns the seconds of all runs of an optimizer on a task at a batch size."""
    updates, scored = batches_of(task)[batch_size], len(FROZEN["seeds"])
    runs = FROZEN["search"]["points"] + scored
    evaluations = runs + scored * (FROZEN["evaluations"] + 1)
    return (
        runs * (updates * seconds_of_update(logged, task, optimizer, batch_size) + START)
        + evaluations * EVALUATION[task] + COMPILATION
    )  # fmt: skip


def main(_):
    with open(flags.FLAGS.logged) as file:
        logged = seconds_of_updates(map(json.loads, file))
    rows, total = [], 0.0
    for task in FROZEN["updates"]:
        cells = {
            (optimizer, batch_size): seconds_of_cell(logged, task, optimizer, batch_size)
            for optimizer in optimizers_of(task)
            for batch_size in batches_of(task)
        }
        total += sum(cells.values())
        rows.append([task, f"{len(cells)}", f"{sum(cells.values()):,.0f}"])
    print(markdown(["task", "cells", "processor seconds"], rows))
    print(f"\n{total / 3600:.1f} hours of one core, {total / 7200:.1f} of two")


if __name__ == "__main__":
    flags.DEFINE_string("logged", LOGGED, "The log of benchmarks/updates_left.")
    app.run(main)
