"""What the runs say, as docs/updates_left.md registers it: excess against updates that are left."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.updates_left.chains import margin_of
from benchmarks.updates_left.protocol import FROZEN, judged, score_of

BASE = FROZEN["base_batch"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of a task with an optimizer, at a length, a batch and a rule.

    Attributes:
        updates: That are left at this batch.
        score: The mean over the seeds of the test's loss, or share of errors.
        error: The standard error of that mean.
        loss: The mean of the test's loss.
        seconds: The mean of the seconds of the steps.
        excess: (score - score of the base) / score of the base.
        over_best: The same over the best of all smaller batches, of the base among them.
        over_adamw: The same over AdamW's base.
        margin: What 5% fewer examples lose at the base, as such a share.
    """

    task: str
    optimizer: str
    length: int
    batch: int
    rule: str
    updates: int
    score: float
    error: float
    loss: float
    seconds: float
    excess: float = math.nan
    over_best: float = math.nan
    over_adamw: float = math.nan
    margin: float = math.nan

    @property
    def is_kept(self) -> bool:
        """Whether the result of the own base is kept, within the margin."""
        return self.excess <= self.margin


def _scores(lines, what) -> list[float]:
    return [judged(line, "test", what) for line in lines]


MORE = "transfer, half more"  # the rule of a cell whose runs saw half as many examples more


def cells_of(lines: Iterable[dict]) -> list[Cell]:
    """Returns the cells of a log, of fresh seeds alone.

    A cell has runs of as many examples as its base saw, or of half as many more, as its rule says.
    """
    groups: dict = collections.defaultdict(list)
    shorter: dict = collections.defaultdict(list)
    for line in lines:
        chain = line["task"], line["optimizer"], line["length"]
        if not line["seed"] or "256" in line["rule"] or line["batch"] == 256:
            continue
        if line["examples"] < line["length"]:
            shorter[chain].append(line)
        else:
            # The settings that were chosen last are those of the seeds.
            rule = line["rule"] if line["examples"] == line["length"] else MORE
            groups[*chain, line["batch"], rule].append(line)
    found = {}
    for (*chain, batch, rule), own in groups.items():
        scores = _scores(own, score_of(chain[0]))
        error = float(np.std(scores, ddof=1) / math.sqrt(len(scores))) if len(own) > 1 else math.nan
        found[*chain, batch, rule] = Cell(
            *chain, batch, rule, own[0].get("updates", 0), float(np.mean(scores)), error,
            float(np.mean(_scores(own, "loss"))),
            float(np.mean([line.get("seconds", math.nan) for line in own])),
        )  # fmt: skip
    return [_compared(cell, found, shorter) for cell in found.values()]


def _compared(cell, found, shorter) -> Cell:
    chain = cell.task, cell.optimizer, cell.length
    base = found.get((*chain, BASE, "tuned"))
    if base is None:
        return cell
    smaller = [
        other.score
        for other in found.values()
        if (other.task, other.optimizer, other.length) == chain
        and other.batch < cell.batch
        and other.rule in ("tuned", "transfer")
    ]
    adamw = found.get((cell.task, "AdamW", cell.length, BASE, "tuned"))
    margin = math.nan
    if lines := shorter.get(chain):
        margin = margin_of(base.score, float(np.mean(_scores(lines, score_of(cell.task)))))
    return dataclasses.replace(
        cell,
        excess=cell.score / base.score - 1,
        over_best=cell.score / min(smaller, default=base.score) - 1,
        over_adamw=cell.score / adamw.score - 1 if adamw else math.nan,
        margin=margin,
    )


@dataclasses.dataclass(frozen=True)
class OwnNumbers:
    """What an optimizer did from the user's own small batch to the large one.

    Attributes:
        optimizer: Its name.
        updates: At the small batch and at the large one.
        scores: The mean of the test's loss over the seeds, at each.
        excess: Of the large batch over the small one, by seed.
    """

    optimizer: str
    updates: tuple[int, int]
    scores: tuple[float, float]
    excess: tuple[float, ...]


def own_numbers_of(lines: Iterable[dict]) -> list[OwnNumbers]:
    """Returns what became of the step from 256 to 32,768, of each optimizer that made it."""
    frozen = FROZEN["own_numbers"]
    groups: dict = collections.defaultdict(dict)
    for line in lines:
        is_base = line["batch"] == frozen["base_batch"] and line["rule"] == "tuned"
        if is_base or line["rule"] == f"transfer from {frozen['base_batch']}":
            groups[line["optimizer"]].setdefault(line["seed"], {})[is_base] = line
    found = []
    for optimizer, of_seed in groups.items():
        pairs = [(pair[True], pair[False]) for pair in of_seed.values() if len(pair) == 2]
        if not pairs:
            continue
        scores = [[judged(line, "test", "loss") for line in pair] for pair in pairs]
        found.append(
            OwnNumbers(
                optimizer,
                tuple(line["updates"] for line in pairs[0]),
                tuple(map(float, np.mean(scores, axis=0))),
                tuple(large / small - 1 for small, large in scores),
            )
        )
    return found


# -- where the result is kept ---------------------------------------------------------------------


def by_transfer(cells: Iterable[Cell]) -> dict[tuple, list[Cell]]:
    """Returns the larger batches of each chain, by `transfer` alone, from the smallest."""
    chains: dict = collections.defaultdict(list)
    for cell in cells:
        if cell.rule == "transfer" and not math.isnan(cell.margin):
            chains[cell.task, cell.optimizer, cell.length].append(cell)
    return {chain: sorted(own, key=lambda cell: cell.batch) for chain, own in chains.items()}


def crossing(chain: Sequence[Cell]) -> tuple[float, float]:
    """Returns between how many updates the result is lost: fewest that keep it, most that lose it.

    Walks from the smallest batch, as a user would: the first that loses ends the walk. Infinite
    where none keeps it, 0 where all do.
    """
    kept = math.inf
    for cell in chain:
        if not cell.is_kept:
            return kept, cell.updates
        kept = cell.updates
    return kept, 0


def updates_needed(chain: Sequence[Cell]) -> float:
    """Returns the updates at which the excess is the margin, between two batches on log scales.

    In between asinh(excess / margin) is linear in the logarithm of the updates. NaN where no batch
    keeps the result, or all do.
    """
    kept, lost = crossing(chain)
    if math.isinf(kept) or not lost:
        return math.nan
    above, below = (next(c for c in chain if c.updates == updates) for updates in (kept, lost))
    high, low = (math.asinh(cell.excess / cell.margin) for cell in (above, below))
    share = 1.0 if math.isinf(low) else (low - math.asinh(1)) / (low - high)
    return math.exp(math.log(lost) + share * (math.log(kept) - math.log(lost)))


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """How the runs of an optimizer ended that had one number of updates left, by `transfer` alone.

    Attributes:
        least: The least excess over the base, over tasks and lengths.
        most: The greatest.
        kept: How many of the batches keep the result of their base.
        count: How many batches there are.
    """

    least: float
    most: float
    kept: int
    count: int


def outcomes(cells: Iterable[Cell]) -> dict[int, dict[str, Outcomes]]:
    """Returns updates left -> optimizer -> how its runs ended, the fewest updates first."""
    groups: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for chain in by_transfer(cells).values():
        for cell in chain:
            groups[cell.updates][cell.optimizer].append(cell)
    return {
        updates: {
            optimizer: Outcomes(
                min(cell.excess for cell in own), max(cell.excess for cell in own),
                sum(cell.is_kept for cell in own), len(own),
            )
            for optimizer, own in groups[updates].items()
        }
        for updates in sorted(groups)
    }  # fmt: skip


# -- one curve, or more than one ------------------------------------------------------------------

# What the number of updates at which the excess is the margin may depend on.
MODELS = {
    "updates alone": (),
    "and the optimizer": ("optimizer",),
    "and the task": ("optimizer", "task"),
    "and the length": ("optimizer", "length"),
    "all of these": ("optimizer", "task", "length"),
}


def _columns(cells, names):
    """One column of ones, one for each optimizer or task but the first, log2 of the length."""
    columns = [np.ones(len(cells))]
    for name in names:
        values = [getattr(cell, name) for cell in cells]
        if name == "length":
            columns.append(np.log2(values) - 18)
        else:
            columns += [np.equal(values, value).astype(float) for value in sorted(set(values))[1:]]
    return np.stack(columns, 1)


def _target(cells):
    # A run that ended in no number counts as an excess of a hundred margins.
    excess = np.minimum([cell.over_best / cell.margin for cell in cells], 100)
    return np.arcsinh(excess)


def _predicted(parameters, columns, updates):
    """asinh((U / updates)^p), log2 U = columns @ parameters[1:], p = exp(parameters[0])."""
    gap = columns @ parameters[1:] - np.log2(updates)
    return np.arcsinh(2.0 ** np.clip(np.exp(parameters[0]) * gap, -60, 60))


def fitted(cells: Sequence[Cell], names: Sequence[str], columns=None):
    """Fits a model by least squares; returns its parameters."""
    from scipy.optimize import least_squares

    columns = _columns(cells, names) if columns is None else columns
    updates, target = np.array([cell.updates for cell in cells], float), _target(cells)
    start = np.zeros(1 + columns.shape[1])
    start[1] = 9.0  # 512 updates
    return least_squares(lambda p: _predicted(p, columns, updates) - target, start).x


def left_out(cells: Sequence[Cell], names: Sequence[str]) -> float:
    """Returns the root of the mean squared error of what a fit to the other chains predicts."""
    columns, errors = _columns(cells, names), []
    chains = [(cell.task, cell.optimizer, cell.length) for cell in cells]
    for chain in sorted(set(chains)):
        out = np.array([each == chain for each in chains])
        kept = [cell for cell, is_out in zip(cells, out, strict=True) if not is_out]
        parameters = fitted(kept, names, columns[~out])
        updates = np.array([cell.updates for cell in cells], float)[out]
        target = _target(cells)[out]
        errors += [*(_predicted(parameters, columns[out], updates) - target)]
    return float(np.sqrt(np.mean(np.square(errors))))


def compared(cells: Sequence[Cell]) -> dict[str, float]:
    """Returns what each model leaves unexplained in chains that it has not seen."""
    return {name: left_out(cells, names) for name, names in MODELS.items()}


def growth(needed: dict[tuple, float]) -> dict[tuple, float]:
    """Returns by task and optimizer the exponent a of critical batch = c x length^a."""
    found: dict = collections.defaultdict(list)
    for (task, optimizer, length), updates in needed.items():
        if not math.isnan(updates):
            found[task, optimizer].append((math.log(length), math.log(length / updates)))
    return {
        name: float(np.polyfit(*zip(*points, strict=True), 1)[0])
        for name, points in found.items()
        if len(points) > 1
    }
