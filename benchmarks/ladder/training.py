"""Trains one run in the loop of benchmarks/updates_left, with the test loss as it goes."""

import functools

import jax
import numpy as np

from benchmarks.ladder import tasks
from benchmarks.ladder.protocol import FROZEN, Run
from benchmarks.updates_left import training
from tf_lamb.core import schedules


class Program(training.Program):
    """Compiles a network with an optimizer, and trains it at any batch size and rate."""

    def curve(self, run: Run) -> dict:
        """Trains a run; returns what its line in the log ends with.

        Returns:
            "validation": the loss at the end. "test_losses", of runs that are scored: the test loss
            before the first update and after every 1/32 of the run. "seconds": of the processor,
            for the steps alone, without compilation and evaluation.
        """
        recipe = training.as_tuned(run, run.batch_size)
        rates = recipe.schedule(schedules).value(np, np.arange(run.updates))
        state, key, done, seconds = self._start(run.seed), jax.random.key(run.seed), 0, 0.0
        losses = [] if run.is_of_search else [self._loss(state, self.task.test)]
        # A search has the same parts, so that no second program is compiled for it.
        for part in np.split(rates, FROZEN["evaluations"]):
            state, taken = self.steps(state, key, run.batch_size, done, part)
            done, seconds = done + len(part), seconds + taken
            if losses:
                losses.append(self._loss(state, self.task.test))
        found = {"validation": self._loss(state, self.task.validation)}
        found |= {"test_losses": losses} if losses else {}
        return found | {"seconds": round(seconds, 3)}

    def _loss(self, state, part):
        """Returns the loss in nats, None where it is not finite."""
        return training._short(float(self.told(state, *part)[0]))


_task = functools.cache(tasks.task)


# A process makes all runs of an optimizer on a task before it goes on to the next.
@functools.lru_cache(maxsize=1)
def _program(task, name):
    about = FROZEN["optimizers"][name]
    # The learning rate and its schedule are arguments of the compiled program.
    settings = Run(task, name, 1, 1, 1.0, 0).settings
    optimizer = training.optimizer(about["class"], settings, **about["arguments"])
    return Program(_task(task), optimizer)


def result_of(run: Run) -> dict:
    """Makes a run; returns what its line in the log ends with."""
    return _program(run.task, run.optimizer).curve(run)
