"""Prints the tables of docs/updates_left.md from the log, and draws its figure.

python -m benchmarks.updates_left.report --figure=benchmarks/logs/updates_left.png
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from absl import app, flags

from benchmarks.updates_left import analysis, runs
from benchmarks.updates_left.analysis import BASE, Cell

FLAGS = flags.FLAGS
flags.DEFINE_string("log", "benchmarks/logs/updates_left.jsonl", "Raw results.")
flags.DEFINE_string("figure", "", "Where to draw the excess over the updates; nowhere if empty.")


PRINTED = ("AdamW", "LAMB")  # the optimizers of docs/updates_left.md, whose runs are complete


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _signed(share):
    """Formats a share in percent with its sign, `+0.0` where it rounds to 0."""
    return f"{100 * share:+.1f}".replace("-0.0", "+0.0")


def _percent(share):
    return "lost" if math.isinf(share) else f"{_signed(share)} %"


def by_updates(cells: Sequence[Cell]) -> str:
    """A row of each chain: the base, its margin, and the excess of each batch by `transfer`."""
    chains = analysis.by_transfer(cells)
    batches = sorted({cell.batch for chain in chains.values() for cell in chain})
    head = ["task, optimizer, examples", "batch 16: updates, score", "margin"]
    rows = []
    for (task, optimizer, length), chain in chains.items():
        base = next(
            cell for cell in cells
            if (cell.task, cell.optimizer, cell.length, cell.batch)
            == (task, optimizer, length, BASE)
        )  # fmt: skip
        of_batch = {cell.batch: cell for cell in chain}
        rows.append([
            f"{task}, {optimizer}, 2^{math.log2(length):.0f}",
            f"{base.updates:,}; {base.score:.4g}", f"{100 * chain[0].margin:.1f} %",
            *(_excess(of_batch.get(batch)) for batch in batches),
        ])  # fmt: skip
    return markdown([*head, *(f"{batch:,}" for batch in batches)], sorted(rows))


def _excess(cell):
    if cell is None:
        return "-"
    text = f"{cell.updates:,}: {_percent(cell.excess)}"
    return f"**{text}**" if cell.is_kept else text


def by_updates_left(cells: Sequence[Cell]) -> str:
    """A row of each number of updates left: least and greatest excess, and batches that keep."""
    found = analysis.outcomes(cells)
    names = [
        name for name in analysis.FROZEN["optimizers"] if any(name in row for row in found.values())
    ]
    rows = [
        [f"{updates:,}", *(_outcome(row.get(name)) for name in names)]
        for updates, row in found.items()
    ]
    return markdown(["updates left", *names], rows)


def _outcome(seen):
    """Formats how some runs ended, such as `-0.1 to +0.3% (3 of 3)`; one result as `+0.3%`."""
    if seen is None:
        return "-"
    least, most = _signed(seen.least), _signed(seen.most)
    excess = f"{least}%" if seen.count == 1 else f"{least} to {most}%"
    return f"{excess} ({seen.kept} of {seen.count})"


def by_rule(cells: Sequence[Cell]) -> str:
    """A row of each larger batch and rule: the excess over the base, the best and AdamW's base."""
    rows = [
        (
            f"{cell.task}, {cell.optimizer}, 2^{math.log2(cell.length):.0f}", f"{cell.batch:,}",
            cell.rule, f"{cell.updates:,}", _percent(cell.excess), _percent(cell.over_best),
            _percent(cell.over_adamw), f"{cell.seconds:.1f}",
        )
        for cell in sorted(
            cells, key=lambda cell: (cell.task, cell.optimizer, cell.length, cell.batch, cell.rule)
        )
        if cell.batch > BASE
    ]  # fmt: skip
    head = (
        "task, optimizer, examples", "batch", "rule", "updates", "over its base",
        "over the best smaller batch", "over AdamW's base", "seconds",
    )  # fmt: skip
    return markdown(head, rows)


def own_numbers(found: Sequence[analysis.OwnNumbers]) -> str:
    """A row of each optimizer that was taken from the user's own small batch to the large one."""
    rows = [
        (
            own.optimizer,
            *(f"{n:,}: {loss:.4f}" for n, loss in zip(own.updates, own.scores, strict=True)),
            ", ".join(map(_percent, own.excess)),
        )
        for own in found
    ]  # fmt: skip
    frozen = analysis.FROZEN["own_numbers"]
    batches = (f"batch {frozen[name]:,}" for name in ("base_batch", "batch"))
    return markdown(["optimizer", *batches, "excess, by seed"], rows)


def needed(cells: Sequence[Cell]) -> dict[tuple, float]:
    """Returns the updates at which each chain's excess is its margin, where they are known."""
    found = {
        chain: analysis.updates_needed(own) for chain, own in analysis.by_transfer(cells).items()
    }
    return {chain: updates for chain, updates in found.items() if not math.isnan(updates)}


def by_optimizer(cells: Sequence[Cell]) -> str:
    """A row of each optimizer: updates needed, the geometric mean and the range over its chains."""
    rows = []
    updates = needed(cells)
    for optimizer in dict.fromkeys(optimizer for _, optimizer, _ in updates):
        own = [updates[chain] for chain in updates if chain[1] == optimizer]
        rows.append([
            optimizer, str(len(own)), f"{statistics.geometric_mean(own):,.0f}",
            f"{min(own):,.0f} to {max(own):,.0f}",
        ])  # fmt: skip
    return markdown(["optimizer", "chains", "updates needed", "range"], rows)


def by_model(cells: Sequence[Cell]) -> str:
    """A row of each model: what it leaves unexplained in chains that it was not fitted to."""
    larger = [cell for chain in analysis.by_transfer(cells).values() for cell in chain]
    found = analysis.compared(larger).items()
    return markdown(
        ["updates needed depend on", "error in chains that were left out"],
        [(name, f"{error:.3f}") for name, error in found],
    )


def figure(cells: Sequence[Cell], path: str):
    """Draws the excess over the updates that are left, on one scale for all chains."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chains = analysis.by_transfer(cells)
    tasks = list(dict.fromkeys(task for task, _, _ in chains))
    drawn, axes = pyplot.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.6), sharey=True)
    colors = {name: f"C{i}" for i, name in enumerate(("AdamW", "LAMB", "Muon", "SOAP"))}
    for task, axis in zip(tasks, axes if len(tasks) > 1 else [axes], strict=True):
        for (of_task, optimizer, length), chain in chains.items():
            if of_task == task:
                axis.plot(
                    [cell.updates for cell in chain], [100 * cell.excess for cell in chain],
                    {18: ":", 21: "--", 24: "-"}.get(round(math.log2(length)), "-."),
                    marker="o", markersize=3, color=colors.get(optimizer, "k"),
                    label=f"{optimizer}, 2^{math.log2(length):.0f} examples",
                )  # fmt: skip
        axis.set(xscale="log", yscale="symlog", xlabel="updates left", title=task)
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_formatter("{x:,.0f}")
        axis.axhline(0, color="gray", linewidth=0.5)
        axis.legend(fontsize=6)
    drawn.axes[0].set_ylabel("change against batch 16, %")
    drawn.tight_layout()
    drawn.savefig(path, dpi=120)


def main(_):
    lines = list(runs.runs_of(FLAGS.log))
    cells = analysis.cells_of(lines)
    for part in (by_updates_left, by_updates, by_rule, by_optimizer, by_model):
        print(part(cells), end="\n\n")
    if found := analysis.own_numbers_of(lines):
        print(own_numbers(found), end="\n\n")
    if exponents := analysis.growth(needed(cells)):
        rows = [(*name, f"{power:.2f}") for name, power in exponents.items()]
        print(markdown(["task", "optimizer", "critical batch = c x examples^a, a"], rows))
    if FLAGS.figure:
        figure(cells, FLAGS.figure)


if __name__ == "__main__":
    app.run(main)
