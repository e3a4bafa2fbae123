"""Says what the runs decide, as docs/protocol_ladder.md registers it: updates to a target loss."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.equivalence.statistics import holm
from benchmarks.ladder.climb import loss_of
from benchmarks.ladder.protocol import FROZEN, batches_of

BASELINE = FROZEN["baseline"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Holds what an optimizer needed for a task at a batch size.

    Attributes:
        task, optimizer, batch_size: Which runs these are.
        updates: Of a whole run.
        learning_rate: That the search chose.
        is_at_edge: Whether the search tried no rate beyond it, on one side.
        updates_to_target: Of each seed; infinite where the run ends above the target.
        seconds: Of the processor for one update, the mean over the seeds.
    """

    task: str
    optimizer: str
    batch_size: int
    updates: int
    learning_rate: float
    is_at_edge: bool
    updates_to_target: tuple[float, ...]
    seconds: float

    @property
    def reached(self) -> int:
        """How many seeds come to the target."""
        return sum(map(math.isfinite, self.updates_to_target))

    @property
    def is_reached(self) -> bool:
        """Whether all seeds come to the target."""
        return self.reached == len(self.updates_to_target)

    @property
    def log_updates(self) -> np.ndarray:
        """The logarithms of the updates to the target, of each seed.

        A run that ends above the target counts with its whole length, which is a lower bound.
        """
        return np.log(np.minimum(self.updates_to_target, self.updates))

    @property
    def geometric_mean(self) -> float:
        """Of the updates to the target, with the same lower bounds."""
        return float(np.exp(self.log_updates.mean()))

    @property
    def seconds_to_target(self) -> float:
        """Of the processor, for as many updates as the geometric mean has."""
        return self.seconds * self.geometric_mean


def _scored(lines: Iterable[dict]) -> dict[tuple, list[dict]]:
    """Returns (task, optimizer, batch size) -> the lines of all seeds, where they are all there."""
    groups: dict = collections.defaultdict(list)
    for line in lines:
        if "test_losses" in line:
            groups[line["task"], line["optimizer"], line["batch_size"]].append(line)
    return {own: made for own, made in groups.items() if len(made) == len(FROZEN["seeds"])}


def targets_of(lines: Iterable[dict]) -> dict[str, float]:
    """Returns task -> the target loss, in nats; without tasks of which a seed is missing or lost.

    It is the mean test loss with which the baseline ends at its smallest batch, and 0.2% more: at
    the mean itself about half of the baseline's own seeds would not come to it.
    """
    found, scored = {}, _scored(lines)
    for task in FROZEN["updates"]:
        baseline = scored.get((task, BASELINE, min(batches_of(task))), [])
        losses = [loss_of(line["test_losses"][-1]) for line in baseline]
        if losses and math.isfinite(sum(losses)):
            found[task] = (1 + FROZEN["target_allowance"]) * sum(losses) / len(losses)
    return found


def updates_to(line: dict, target: float) -> float:
    """Returns after how many updates the test loss of a run first comes to the target.

    Between two evaluations the loss is taken to be linear in the updates. Infinite where the run
    ends above the target.
    """
    losses = [loss_of(loss) for loss in line["test_losses"]]
    every = line["updates"] / (len(losses) - 1)
    for i, (before, after) in enumerate(itertools.pairwise(losses)):
        if after <= target:
            share = (before - target) / (before - after) if math.isfinite(before) else 1.0
            return every * (i + share)
    return math.inf


def cells_of(lines: Iterable[dict]) -> list[Cell]:
    """Returns the cells of a log whose seeds and targets are there, in the log's order."""
    lines = list(lines)
    targets, tried = targets_of(lines), collections.defaultdict(set)
    for line in lines:
        if "test_losses" not in line:
            own = line["task"], line["optimizer"], line["batch_size"]
            tried[own].add(line["learning_rate"])
    cells = []
    for own, made in _scored(lines).items():
        if own[0] in targets:
            updates, rate = made[0]["updates"], made[0]["learning_rate"]
            edges = min(tried[own], default=math.nan), max(tried[own], default=math.nan)
            reached = tuple(updates_to(line, targets[own[0]]) for line in made)
            seconds = float(np.mean([line["seconds"] for line in made])) / updates
            cells.append(Cell(*own, updates, rate, rate in edges, reached, seconds))
    return cells


# -- fewer or more updates than the baseline ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Holds how an optimizer compares with the baseline at the same batch size.

    Attributes:
        cell: The optimizer's.
        ratio: Its updates to the target over the baseline's, by geometric means; with the lower
            bounds of runs that end above the target.
        p: Two-sided, that both need as many updates; 1 where the bounds leave that open.
        is_decided: Whether Holm's method rejects that, among all comparisons of the task.
        is_upper_bound: Whether the ratio is an upper bound, because a run of the baseline ends
            above the target.
    """

    cell: Cell
    ratio: float
    p: float
    is_decided: bool = False
    is_upper_bound: bool = False

    @property
    def ratio_text(self) -> str:
        """The ratio, such as "0.71", or "under 0.71"."""
        return f"{'under ' * self.is_upper_bound}{self.ratio:.2f}"

    @property
    def outcome(self) -> str:
        """Returns "fewer", "more" or "undecided"."""
        if not self.is_decided:
            return "undecided"
        return "fewer" if self.ratio < 1 else "more"


def pooled_deviation(cells: Sequence[Cell]) -> float:
    """Returns the standard deviation of log(updates to the target) over the seeds of a task.

    It is pooled over the cells in which all seeds come to the target, because three seeds alone say
    too little of their spread. NaN where there are too few such cells.
    """
    variances = [np.var(cell.log_updates, ddof=1) for cell in cells if cell.is_reached]
    if len(variances) < FROZEN["least_cells"]:
        return math.nan
    return math.sqrt(float(np.mean(variances)))


def p_value(cell: Cell, baseline: Cell, deviation: float) -> float:
    """Returns the two-sided p of a z-test that both need as many updates to the target.

    Runs that end above the target have a lower bound in place of their updates. That supports one
    direction alone: with such a run of the baseline, that the other needs fewer; of the other, that
    it needs more. In the wrong direction, with such runs of both, or without a deviation, p is 1.
    """
    difference = float(cell.log_updates.mean() - baseline.log_updates.mean())
    supports_fewer, supports_more = cell.is_reached, baseline.is_reached
    if not (supports_fewer if difference < 0 else supports_more) or math.isnan(deviation):
        return 1.0
    if difference == 0:
        return 1.0
    counts = len(cell.log_updates), len(baseline.log_updates)
    error = deviation * math.sqrt(sum(1 / count for count in counts))
    return math.erfc(abs(difference) / error / math.sqrt(2)) if error else 0.0


def comparisons_of(cells: Iterable[Cell], task: str) -> list[Comparison]:
    """Returns each cell of a task against the baseline at its batch size, decided by Holm."""
    cells = [cell for cell in cells if cell.task == task]
    baselines = {cell.batch_size: cell for cell in cells if cell.optimizer == BASELINE}
    deviation = pooled_deviation(cells)
    found = [
        Comparison(
            cell, cell.geometric_mean / baselines[cell.batch_size].geometric_mean,
            p_value(cell, baselines[cell.batch_size], deviation),
            is_upper_bound=not baselines[cell.batch_size].is_reached,
        )
        for cell in cells
        if cell.optimizer != BASELINE and cell.batch_size in baselines
    ]  # fmt: skip
    decided = holm([comparison.p for comparison in found])
    return [
        dataclasses.replace(comparison, is_decided=is_decided)
        for comparison, is_decided in zip(found, decided, strict=True)
    ]
