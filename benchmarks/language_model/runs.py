"""Runs by what they are of: those that the log lacks are made while there is time for them."""

import dataclasses
import time
from types import SimpleNamespace

from benchmarks.equivalence import arms
from benchmarks.language_model.protocol import FROZEN, HASH, Settings
from benchmarks.shared.run_log import Log

COMPILATION = 30.0  # seconds that a program is expected to take which is not compiled yet
OVERHEAD = 1.06  # evaluations


class OutOfTime(Exception):
    """What is next would not end in time."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: an arm at a batch, from what was tuned at the base."""

    arm: str  # "tuned adamw" for settings as they are, "fewer adamw" with fewer examples
    batch: int
    settings: Settings
    seed: int
    examples: int

    @property
    def optimizer(self) -> str:
        """Its name in the protocol."""
        return self.arm.split()[-1]

    @property
    def line(self) -> dict:
        """By what the log knows it."""
        return {"protocol": HASH, **dataclasses.asdict(self)}

    def moved(self):
        """Settings and recipe at the batch."""
        base = FROZEN["base"]
        plain = self.arm.startswith(("tuned", "fewer"))
        own = SimpleNamespace(base=self.batch if plain else base, examples=self.examples)
        if plain:
            return self.settings, arms.plain(own, self.settings, 1, 1)
        return arms.arm(self.arm, own, self.settings, self.batch // base, 1)


class Work:
    """A log, and what makes the lines that it lacks until the seconds are over.

    Args:
        path: Of the log.
        task: The `train.Task`.
        seconds: From now, after which nothing more is begun that would not have ended.
        about: What every line says of commit, card, versions and program.
    """

    def __init__(self, path: str, task, seconds: float, about: dict):
        self.log, self.task, self.about = Log(path), task, about
        self.end = time.monotonic() + seconds
        self.updates: dict = {}

    def lines(self, **what) -> list[dict]:
        """The lines of the log that have all this."""
        wanted = {"protocol": HASH, **what}
        return [line for line in self.log.lines if wanted.items() <= line.items()]

    def run(self, run: Run) -> dict:
        """The line of a run."""

        def make():
            from benchmarks.language_model import train

            self._ask_for(self._expected(run))
            return train.run(
                self.task, self._update(run.optimizer), *run.moved(), run.seed, FROZEN["looks"]
            )

        return self._line(run.line, make)

    def step(self, optimizer: str, batch: int) -> dict:
        """The line of the seconds of a step."""

        def make():
            from benchmarks.language_model import train

            fresh = not {self.task.micro_of(batch), self.updates.get(optimizer)} <= (
                self.task.compiled
            )
            self._ask_for(5 + COMPILATION * fresh)
            return train.seconds_of_a_step(self.task, self._update(optimizer), batch)

        what = {"protocol": HASH, "step": optimizer, "batch": batch}
        return self._line(what, make)

    def note(self, what: dict, make) -> dict:
        """The line of anything else."""
        return self._line({"protocol": HASH, **what}, make)

    def _line(self, what, make):
        def timed():
            since = time.monotonic()
            made = make()
            return {**made, "wall": round(time.monotonic() - since, 2), **self.about}

        return self.log.run(what, timed)

    def _expected(self, run):
        fresh = self.task.micro_of(run.batch) not in self.task.compiled
        like = [
            line["wall"] - line["compilation"]
            for line in self.lines(batch=run.batch, examples=run.examples)
            if line["arm"].endswith(run.optimizer)
        ]
        if not like:
            (base,) = self.lines(step=run.optimizer, batch=FROZEN["base"])
            steps = run.examples / FROZEN["base"]
            like = [OVERHEAD * steps * base["seconds_a_step"]]
        return max(like) * 1.05 + COMPILATION * fresh

    def _ask_for(self, seconds):
        if (left := self.end - time.monotonic()) < seconds:
            raise OutOfTime(f"{left:.0f} s are left, and about {seconds:.0f} s are needed")

    def _update(self, optimizer):
        from benchmarks.language_model.train import Update

        if optimizer not in self.updates:
            self.updates[optimizer] = Update(optimizer, self.task.model.trainable_variables)
        return self.updates[optimizer]
