"""Which runs there are, and in which order: batch after batch, from the smallest one."""

import dataclasses
import math
from collections.abc import Callable

from benchmarks.ladder.protocol import FROZEN, Run, batches_of
from benchmarks.shared import rate_search

SEARCH = FROZEN["search"]
Make = Callable[[Run], dict]  # makes a run that the log lacks, and returns its line


def loss_of(value: float | None) -> float:
    """Returns a loss of the log as a number; one that was not finite is infinite."""
    return math.inf if value is None else value


@dataclasses.dataclass(frozen=True)
class Climb:
    """Makes the runs of an optimizer on a task.

    Attributes:
        task, optimizer: Their names.
        make: Makes a run, or returns the line that is in the log.
    """

    task: str
    optimizer: str
    make: Make

    def all(self):
        """Searches the learning rate at each batch size, and makes the runs that are scored."""
        learning_rate = FROZEN["optimizers"][self.optimizer]["learning_rate"]
        before = min(batches_of(self.task))
        for batch_size in batches_of(self.task):
            start = learning_rate * math.sqrt(batch_size / before)
            learning_rate, before = self.searched(batch_size, start), batch_size
            for seed in FROZEN["seeds"]:
                self._run(batch_size, learning_rate, seed)

    def searched(self, batch_size: int, start: float) -> float:
        """Returns the learning rate of the lowest validation loss, of a grid of 2 around `start`.

        Every search has the same number of points, see `rate_search.best_of`.
        """

        def loss_at(power):
            line = self._run(batch_size, _at(start, power), SEARCH["seed"])
            return loss_of(line["validation"])

        best, _ = rate_search.best_of(loss_at, SEARCH["points"])
        return _at(start, best)

    def _run(self, batch_size, learning_rate, seed):
        updates = batches_of(self.task)[batch_size]
        return self.make(Run(self.task, self.optimizer, batch_size, updates, learning_rate, seed))


def _at(start, power):
    return float(f"{start * 2.0**power:.4g}")
