"""Does `find_batch` name the batch that keeps the result? Against the log of updates_left/.

    python -m benchmarks.study.find_batch_kept --search    # hours; goes on where its log ends
    python -m benchmarks.study.find_batch_kept             # the table, from both logs

A blind check: `find_batch` is given a task of the registered study and the settings that were tuned
at batch 16, and sees none of the larger batches that the study ran. It begins with its default.
Where its answer tells no upper end of the noise scale, it is called again with a large batch of 8
times the size, as docs/make_it_larger.md says. The last answer counts. Named is
`found.largest_batch`.

The truth is the critical batch of docs/updates_left.md, examples / updates needed by `transfer`. A
named batch is right within a factor of two of it. Where no batch of the study keeps the result, it
is right up to the smallest one; where all do, from half of the largest one on. The check is passed
if nine of ten chains are right, and none is told to keep its batch where 8 times the batch kept the
result.
"""

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping

from absl import app, flags

from benchmarks.shared.run_log import Log, commit
from benchmarks.updates_left import analysis, runs
from benchmarks.updates_left.analysis import BASE, Cell
from benchmarks.updates_left.protocol import HASH, Settings
from benchmarks.updates_left.report import markdown

FACTOR, SHARE, KEPT = 2.0, 0.9, 8
LARGER = 8  # times the large batch of the call before
DRAWN = 1024  # examples that are drawn at a time
Chain = tuple[str, str, int]  # task, optimizer, length


@dataclasses.dataclass(frozen=True)
class Scored:
    """A chain of the study, and what was named for it.

    Attributes:
        chain: Its task, optimizer and length.
        named: The batch that `find_batch` named.
        kept: The largest batch of the study that keeps the result, walking up; the base's if none.
        lost: The batch after it; infinite if all keep the result.
        critical: Examples / updates needed; NaN where none keeps the result, or all do.
    """

    chain: Chain
    named: int
    kept: int
    lost: float
    critical: float

    @property
    def is_right(self) -> bool:
        """Whether the named batch is within a factor of two, as far as the study tells."""
        if not math.isnan(self.critical):
            return self.critical / FACTOR <= self.named <= FACTOR * self.critical
        return self.kept / FACTOR <= self.named <= self.lost

    @property
    def keeps_needlessly(self) -> bool:
        """Whether the user is told to keep the batch, where 8 times it kept the result."""
        return self.named < 2 * BASE and self.kept >= KEPT * BASE


def scored(named: Mapping[Chain, int], cells: Iterable[Cell]) -> list[Scored]:
    """Scores the named batches of the chains for which the study has larger ones."""
    found = []
    for chain, own in analysis.by_transfer(cells).items():
        if chain in named:
            updates = analysis.updates_needed(own)
            _, most_that_lose = analysis.crossing(own)
            lost = next((cell.batch for cell in own if cell.updates == most_that_lose), math.inf)
            kept = max((cell.batch for cell in own if cell.batch < lost), default=BASE)
            found.append(Scored(chain, named[chain], kept, lost, chain[2] / updates))
    return found


def is_passed(found: Iterable[Scored]) -> bool:
    """Returns whether nine of ten are right and none keeps its batch needlessly."""
    found = list(found)
    right = sum(each.is_right for each in found)
    return right >= SHARE * len(found) > 0 and not any(each.keeps_needlessly for each in found)


def table(found: Iterable[Scored]) -> str:
    """A row of each chain: the named batch beside the truth."""
    rows = []
    for each in found:
        task, optimizer, length = each.chain
        critical = f"{each.critical:,.0f}"
        if math.isnan(each.critical):
            critical = f"{each.kept:,} or more" if each.lost == math.inf else f"below {each.lost:,}"
        outcome = "keeps needlessly" if each.keeps_needlessly else "no"
        rows.append(
            (
                f"{task}, {optimizer}, 2^{math.log2(length):.0f}", f"{each.named:,}", critical,
                "yes" if each.is_right else outcome,
            )
        )  # fmt: skip
    return markdown(("task, optimizer, examples", "named", "critical batch", "right"), sorted(rows))


# -- the searches ---------------------------------------------------------------------------------


class Drawn:
    """A task's examples, drawn anew for each pass and without end."""

    def __init__(self, task):
        self.task, self.passes = task, 0

    def __iter__(self):
        import jax
        import numpy as np

        draw = jax.jit(self.task.draw, static_argnums=1)
        self.passes += 1
        key, batches = jax.random.key(10**7 + self.passes), 0
        while True:
            x, y = draw(jax.random.fold_in(key, batches), DRAWN, self.task.arrays)
            yield jax.tree.map(np.asarray, (tuple(x) if isinstance(x, list) else x, y))
            batches += 1


def compiled(task, optimizer, settings):
    """Returns the study's network, compiled with its optimizer."""
    import keras

    from benchmarks.updates_left import training

    keras.utils.set_random_seed(0)
    model = task.network()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    if model.output_shape[-1] > 1:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(training.optimizer(optimizer, settings), loss)
    return model


def search(chain: Chain, settings: Settings) -> dict:
    """Returns what `find_batch` names for a chain, and what it printed."""
    import jax
    import numpy as np

    import tf_lamb.keras
    from benchmarks.updates_left import training

    task_name, optimizer, length = chain
    task = training._task(task_name)
    x, y = jax.tree.map(np.asarray, task.validation)
    validation = tuple(x) if isinstance(x, list) else x, y
    answer, large = None, 16 * BASE
    while True:
        try:
            answer = tf_lamb.keras.find_batch(
                compiled(task, optimizer, settings), Drawn(task), baseline_batch_size=BASE,
                baseline_epochs=1, examples=length, baseline_learning_rate=settings.rate,
                large_batch_size=large, step_seconds={BASE: 1.0, 2**16: 1.0},
                validation_data=validation, verbose=False,
            )  # fmt: skip
        except ValueError as error:
            if answer is None:
                return {"refused": str(error)}
            break
        if answer.answer.curve.interval[1] < math.inf:
            break
        large *= LARGER
    return {"named": answer.largest_batch, "print": str(answer).splitlines(), "commit": commit()}


def searched(log: Log, lines: Iterable[dict], is_made: bool) -> dict[Chain, int]:
    """Returns the named batch of each chain, of the searches that are logged or made now."""
    named = {}
    for line in lines:
        own = line["task"], line["optimizer"], line["length"]
        is_base = line["batch"] == BASE and line["rule"] == "tuned" and line["seed"]
        if not is_base or line["examples"] != line["length"] or own in named:
            continue
        what = {"protocol": HASH, "task": own[0], "optimizer": own[1], "length": own[2]}
        if is_made:
            log.run(what, lambda own=own, line=line: search(own, Settings(**line["settings"])))
        made = [known for known in log.lines if what.items() <= known.items()]
        if made:  # a refusal keeps the batch
            named[own] = made[0].get("named", BASE)
    return named


def main(_):
    args = flags.FLAGS
    lines = runs.runs_of(args.log)
    named = searched(Log(args.searches), lines, args.search)
    found = scored(named, analysis.cells_of(lines))
    print(table(found))
    right = sum(each.is_right for each in found)
    passed = "passed" if is_passed(found) else "not passed"
    print(f"{right} of {len(found)} are right; the check is {passed}")


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The study's log is the flag --log of updates_left/report.py.
    flags.DEFINE_string("searches", "benchmarks/logs/find_batch_kept.jsonl", "What was searched.")
    flags.DEFINE_bool("search", False, "Whether to search where the log has nothing.")
    app.run(main)
