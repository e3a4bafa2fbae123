"""Which runs there are, and in which order: one chain of each task and optimizer.

A chain goes from the shortest length to the longest, each searched from what the one before found.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

from benchmarks.shared import rate_search
from benchmarks.updates_left.protocol import FROZEN, Run, Settings, judged, score_of

BASE, SEARCH = FROZEN["base_batch"], FROZEN["search"]
Make = Callable[[Run], dict]  # makes a run that the log lacks, and returns its line


@dataclasses.dataclass(frozen=True)
class Chain:
    """The runs of a task with an optimizer, at one length.

    Attributes:
        task, optimizer: Their names.
        length: Examples of a run.
        start: The settings to search from.
        make: Makes a run, or returns the line that is in the log.
    """

    task: str
    optimizer: str
    length: int
    start: Settings
    make: Make

    def run(self, batch, rule, settings, seed, examples=None) -> dict:
        examples = examples or self.length
        return self.make(
            Run(self.task, self.optimizer, self.length, examples, batch, rule, settings, seed)
        )

    def judged(self, line, part) -> float:
        """Returns the number that counts for this task."""
        return judged(line, part, score_of(self.task))

    def search(self, batch: int, rule: str, start: Settings) -> Settings:
        """Finds a rate on a grid of 2, until the best has a worse one on either side."""

        def loss_at(power):
            line = self.run(batch, rule, _at(start, power), SEARCH["seed"])
            return self.judged(line, "validation")

        losses = rate_search.bracketed(loss_at, SEARCH["most_rates"])
        return _at(start, min(losses, key=losses.__getitem__))

    def tuned(self) -> Settings:
        """Searches the base batch: rate, then warmup, then weight decay, then the rate again."""
        settings = self.search(BASE, "tuned", self.start)
        for name in ("warmup", "weight_decay"):
            others = (
                SEARCH[f"other_{name}s"] if self.length == FROZEN["lengths"][self.task][0] else []
            )
            tried = [settings, *(dataclasses.replace(settings, **{name: v}) for v in others)]
            lines = [self.run(BASE, "tuned", each, SEARCH["seed"]) for each in tried]
            scores = [self.judged(line, "validation") for line in lines]
            settings = tried[scores.index(min(scores))]
        return self.search(BASE, "tuned", settings)

    def seeds(self, batch, rule, settings, seeds: Iterable[int], examples=None) -> float:
        """Makes the runs of fresh seeds; returns the mean of what they are judged by."""
        lines = [self.run(batch, rule, settings, seed, examples) for seed in seeds]
        scores = [self.judged(line, "test") for line in lines]
        return sum(scores) / len(scores)

    def all(self) -> Settings:
        """Makes all runs of this length; returns what was tuned."""
        settings = self.tuned()
        of_base, fresh = FROZEN["seeds"][str(self.length)], FROZEN["seeds_of_larger"]
        base = self.seeds(BASE, "tuned", settings, of_base)
        shorter = self.seeds(BASE, "tuned", settings, of_base[:2], self.length // 2)
        most = base * (1 + margin_of(base, shorter))
        failing = []
        for batch in FROZEN["batches"]:
            if self.seeds(batch, "transfer", settings, fresh) > most:
                failing.append(batch)
        for batch in failing:
            here = self._transferred(batch, settings)
            found = self.search(batch, "searched", here)
            self.seeds(batch, "searched", found, fresh)
        if failing and self.length < FROZEN["lengths"]["letters"][-1]:
            self.seeds(failing[-1], "growing", settings, fresh)
            self.seeds(failing[-1], "transfer", settings, fresh, self.length * 3 // 2)
        return settings

    def _transferred(self, batch, settings) -> Settings:
        """Returns what `recipes.transfer` says, as settings of that batch."""
        from benchmarks.updates_left.training import moved

        run = Run(
            self.task, self.optimizer, self.length, self.length, batch, "transfer", settings, 0
        )
        here, recipe = moved(run, BASE)
        warmup = recipe.warmup_steps / recipe.train_steps
        return dataclasses.replace(here, rate=_short(here.rate), warmup=_short(warmup))


def margin_of(base: float, shorter: float) -> float:
    """What 5% fewer examples lose, as a share of the base's score.

    The score is taken to be linear in the logarithm of the examples, between half of them and all:
    margin = log2(1/0.95) (shorter - base) / base, at least as FROZEN has it.
    """
    lost = math.log2(1 / (1 - FROZEN["fewer_examples"])) * (shorter - base) / base
    return max(lost, FROZEN["least_margin"])


def all_of(task: str, optimizer: str, make: Make, most_lengths: int) -> Settings:
    """Makes the runs of so many lengths; returns what was tuned at the longest."""
    about = FROZEN["optimizers"][optimizer]
    settings = Settings(about["rate"])
    for length in FROZEN["lengths"][task][: min(about["lengths"], most_lengths)]:
        settings = Chain(task, optimizer, length, settings, make).all()
    return settings


def own_numbers(optimizer: str, make: Make, settings: Settings):
    """From 256 to 32,768, with what the longest length of the same task was tuned to."""
    from benchmarks.updates_left.training import moved

    own = FROZEN["own_numbers"]
    run = Run(
        own["task"], optimizer, own["examples"], own["examples"], own["base_batch"], "transfer",
        settings, 0,
    )  # fmt: skip
    at_base = moved(run, BASE)[0]
    for seed in own["seeds"]:
        for batch, rule in ((own["base_batch"], "tuned"), (own["batch"], "transfer from 256")):
            make(dataclasses.replace(run, batch=batch, rule=rule, settings=at_base, seed=seed))


def _at(settings, power):
    return dataclasses.replace(settings, rate=_short(settings.rate * 2.0**power))


def _short(number):
    return float(f"{number:.4g}")
