"""Prints the tables of the study from the log, one for each task, and draws its figure.

python -m benchmarks.ladder.report --figure=benchmarks/logs/ladder.png
"""

import math
from collections.abc import Sequence

from absl import app, flags

from benchmarks.equivalence.report import markdown
from benchmarks.ladder import analysis, runs
from benchmarks.ladder.analysis import Cell
from benchmarks.ladder.protocol import FROZEN, batches_of, optimizers_of
from benchmarks.shared import drawing

# Where a run ends above the target its mark is open; a variant has its optimizer's colour.
STYLES = {
    "AdamW": drawing.style("adamw"),
    "LAMB": drawing.style("lamb"),
    "Muon": drawing.style("muon"),
    "Muon, heads": drawing.style("muon") | {"marker": "<", "ls": ":"},
    "Muon, floor": drawing.style("muon") | {"marker": "^", "ls": "--"},
    "Muon, constant norm": drawing.style("muon") | {"marker": "s", "ls": "-."},
    "SOAP": drawing.style("lars"),
    "SOAP, floor": drawing.style("lars") | {"marker": "X", "ls": "--"},
}


def summary(cells: Sequence[Cell]) -> str:
    """Returns a row of each optimizer and a column of each task: what is decided, and the ratios.

    Such as "fewer at 3 of 4 batches: 0.39 to 0.63". A ratio is that to the baseline's updates.
    """
    tasks = [task for task in FROZEN["updates"] if any(cell.task == task for cell in cells)]
    decided = {task: analysis.comparisons_of(cells, task) for task in tasks}
    rows = []
    for name in FROZEN["optimizers"]:
        if name != FROZEN["baseline"]:
            of_tasks = ([c for c in decided[task] if c.cell.optimizer == name] for task in tasks)
            rows.append([name, *map(_outcomes, of_tasks)])
    return markdown(["optimizer", *tasks], rows)


def _outcomes(comparisons):
    """Formats what is decided of the batches of an optimizer and a task."""
    if not comparisons:
        return "-"
    texts = []
    for outcome in ("fewer", "more"):
        ratios = [c.ratio for c in comparisons if c.outcome == outcome]
        if ratios:
            bounds = sorted({f"{min(ratios):.2f}", f"{max(ratios):.2f}"})
            batches = f"{len(ratios)} of {len(comparisons)} batches"
            texts.append(f"{outcome} at {batches}: {' to '.join(bounds)}")
    return "; ".join(texts) or "undecided"


def table(cells: Sequence[Cell], task: str) -> str:
    """Returns a row of each optimizer of a task: updates and seconds to the target, by batch size.

    In brackets the ratio to the baseline's updates; bold where they are fewer or more.
    """
    own = {(cell.optimizer, cell.batch_size): cell for cell in cells if cell.task == task}
    compared = {
        (each.cell.optimizer, each.cell.batch_size): each
        for each in analysis.comparisons_of(cells, task)
    }
    head = ["optimizer", *(f"batch {size:,}" for size in batches_of(task))]
    rows = [
        [name, *(_text(own.get((name, size)), compared.get((name, size)))
                 for size in batches_of(task))]
        for name in optimizers_of(task)
    ]  # fmt: skip
    return markdown(head, rows)


def _text(cell, comparison):
    """Formats a cell, such as `**2,048 (0.71), 12.5 s**`."""
    if cell is None:
        return "-"
    if not cell.reached:
        text = f"not reached in {cell.updates:,}"
    else:
        ratio = f" ({comparison.ratio_text})" if comparison else ""
        text = f"{cell.geometric_mean:,.0f}{ratio}, {cell.seconds_to_target:.1f} s"
        if not cell.is_reached:
            text = f"over {text}, reached by {cell.reached} of {len(cell.updates_to_target)}"
    return f"**{text}**" if comparison and comparison.is_decided else text


def heading(cells: Sequence[Cell], task: str, target: float) -> str:
    """Returns what stands above the table of a task: its target, and how sure the table is."""
    own = [cell for cell in cells if cell.task == task]
    count = sum(len(batches_of(task)) for _ in optimizers_of(task))
    text = f"{task}: updates to a test loss of {target:.4f} nats; {len(own)} of {count} cells. "
    deviation = analysis.pooled_deviation(own)
    if math.isnan(deviation):
        text += "Too few cells come to it with all seeds for a test."
    else:
        text += f"The standard deviation of log(updates) over seeds is {deviation:.3f}."
    edges = [f"{cell.optimizer} at {cell.batch_size:,}" for cell in own if cell.is_at_edge]
    if edges:
        text += f"\nThe best learning rate is the last that was tried: {'; '.join(edges)}."
    return text


def figure(cells: Sequence[Cell], path: str):
    """Draws the updates to the target over the batch size, a panel a task, a line an optimizer."""
    pyplot = drawing.pyplot()
    tasks = [task for task in FROZEN["updates"] if any(cell.task == task for cell in cells)]
    drawn, axes = pyplot.subplots(
        1, len(tasks), figsize=(3.6 * len(tasks) + 1.6, 3.8), layout="constrained", squeeze=False
    )
    for task, axis in zip(tasks, axes[0], strict=True):
        for name in optimizers_of(task):
            _draw_line([c for c in cells if (c.task, c.optimizer) == (task, name)], name, axis)
        lengths = batches_of(task)
        axis.plot([*lengths], [*lengths.values()], color="gray", lw=0.8, ls=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks([*lengths], [f"{size:,}" for size in lengths])
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.set(xlabel="batch", title=task)
    axes[0][0].set_ylabel("updates to the target")
    for name in FROZEN["optimizers"]:
        axes[0][-1].plot([], [], label=name, **STYLES[name])
    axes[0][-1].plot([], [], color="gray", lw=0.8, ls=":", label="end of the run")
    drawn.legend(loc="outside right upper", fontsize=8)
    drawn.savefig(path)


def _draw_line(cells, name, axis):
    """Draws the cells of an optimizer; the line joins those in which all seeds come to the target.

    Where some do not, the open mark is at the lower bound.
    """
    reached = [cell for cell in cells if cell.is_reached]
    axis.plot(
        [cell.batch_size for cell in reached], [cell.geometric_mean for cell in reached],
        **STYLES[name],
    )  # fmt: skip
    for cell in cells:
        if not cell.is_reached:
            style = STYLES[name] | {"mfc": "none", "mec": STYLES[name]["color"]}
            axis.plot(cell.batch_size, cell.geometric_mean, **style)


def main(_):
    lines = runs.runs_of(flags.FLAGS.log)
    cells, targets = analysis.cells_of(lines), analysis.targets_of(lines)
    print(summary(cells), end="\n\n")
    for task, target in targets.items():
        print(heading(cells, task, target), table(cells, task), sep="\n\n", end="\n\n")
    if flags.FLAGS.figure and cells:
        figure(cells, flags.FLAGS.figure)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/ladder.jsonl", "Raw results.")
    flags.DEFINE_string("figure", "", "Where to draw the updates; nowhere if empty.")
    app.run(main)
