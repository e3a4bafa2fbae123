"""What a search for a learning rate has found."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tf_lamb.api import plots
from tf_lamb.api.find.data import Written
from tf_lamb.core import search
from tf_lamb.core.messages import table
from tf_lamb.core.recipes.recipe import ARGUMENTS, Recipe


def training(batch_size: int, epochs: float, data: Written, note: str = "") -> str:
    """The lines of code that train with a `FoundRate`."""
    whole = math.ceil(epochs)
    end = "" if whole == epochs else f"  # the schedule ends after {epochs:.3g} of them"
    given, note_on_data = data.at(batch_size)
    notes = [note_on_data, end.removeprefix("  # ")]
    end = "  # " * any(notes) + "; ".join(filter(None, notes))
    validation = ", validation_data=validation_data" * ("validation_data" in data.more)
    return (
        "# with your other arguments of compile: metrics, loss_weights, ...\n"
        f"model.compile(optimizer=found.optimizer(), loss=model.loss){note}\n"
        f"model.fit({given}, epochs={whole}{validation}){end}"
    )


def told_by(optimizer: Any) -> dict[str, Any]:
    """The arguments of an optimizer of this package that a recipe has: not a schedule of decay."""
    if not hasattr(optimizer, "from_recipe"):
        return {}
    config = optimizer.get_config()
    found = {name: config[name] for name in ARGUMENTS if config.get(name) is not None}
    if not config.get("use_ema"):
        found.pop("ema_momentum", None)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if not isinstance(value, dict)
    }


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An optimizer that a search tries."""

    name: str  # of its class
    make: Callable[[Any], Any]  # rate -> the optimizer
    start: float  # the rate to begin with, for the whole run
    is_baseline: bool = False  # whether that is the user's own, scaled
    counted: int = 1  # steps of its schedule in an update


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a search found for one optimizer that came to the second rung."""

    rate: float | None  # for the real run
    why: str  # it was chosen, or none could be
    interval: tuple[float, float]  # where the best is, as far as the held-out examples tell
    loss: float  # held-out, the lowest of the second rung


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundRate:
    """What `find_rate` found. Print it, `plot()` it, train with `optimizer()`."""

    optimizer_name: str  # the best of those that were tried
    why_optimizer: str  # it was taken
    answers: dict[str, Answer]  # by name, of the optimizers on the second rung
    batch_size: int  # of the run that it is for, to `decay`
    train_steps: int
    warmup_steps: int
    epochs: float
    examples: int
    decay: str
    calls: int  # micro-batches of an update
    data: Written  # as lines of code have them
    trials: tuple[search.Trial, ...]  # every short run
    cost: float  # examples that the search trained on, over those of the real run
    candidates: tuple[Candidate, ...] = dataclasses.field(repr=False)
    wrapped: Callable[[Any], Any] = dataclasses.field(repr=False)  # by what scales the loss
    schedules: Any = dataclasses.field(repr=False)

    @property
    def rate(self) -> float | None:
        """The peak rate, or None where the search could not decide."""
        return self.answers[self.optimizer_name].rate

    @property
    def why(self) -> str:
        """How the rate was chosen, or why none could be."""
        return self.answers[self.optimizer_name].why

    @property
    def interval(self) -> tuple[float, float]:
        """Between which rates the best is, as far as the held-out examples tell."""
        return self.answers[self.optimizer_name].interval

    @property
    def baseline(self) -> float | None:
        """The rate of the baseline at this batch, by square-root scaling, or None."""
        return next((each.start for each in self.candidates if each.is_baseline), None)

    @property
    def learning_rate(self) -> float:
        """The peak rate; raises `ValueError` where the search could not decide."""
        if self.rate is None:
            low, high = self.interval
            other = (
                "with baseline_batch_size= and the rate that was tuned there"
                if self.baseline is None
                else "with another baseline_learning_rate=, by which it begins"
            )
            raise ValueError(
                f"The search did not decide on a rate for {self.optimizer_name}: {self.why}. It "
                f"lies between {low:.3g} and {high:.3g} or beyond. Search with more held-out "
                f"examples, validation_data=, with a larger budget=, or {other}."
            )
        return self.rate

    @property
    def _candidate(self) -> Candidate:
        """The optimizer that is taken, as it was tried."""
        return next(each for each in self.candidates if each.name == self.optimizer_name)

    def recipe(self) -> Recipe:
        """The recipe of the real run: rate, warmup, and decay.

        Of an optimizer of this package it has what a recipe has room for, of Keras's nothing more:
        `optimizer()` has all of it, momentum and clipping included.
        """
        return Recipe(
            title="Found rate",
            optimizer=self.optimizer_name,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            train_steps=self.train_steps,
            decay=self.decay,
            examples=self.examples,
            epochs=self.epochs,
            arithmetic=(f"learning_rate: {self.why}",),
            source="find_rate, on this model and data",
            **told_by(self._candidate.make(self.learning_rate)),
        )

    def optimizer(self) -> Any:
        """The optimizer for the real run, with its schedule and loss scale, for `compile`."""
        recipe, counted = self.recipe(), self._candidate.counted
        steps = {name: counted * getattr(recipe, name) for name in ("warmup_steps", "train_steps")}
        schedule = dataclasses.replace(recipe, **steps).schedule(self.schedules)
        return self.wrapped(self._candidate.make(schedule))

    @property
    def script(self) -> str:
        """The lines of code that train with it."""
        note = f"  # {self.optimizer_name}, peak {self.learning_rate:.3g}"
        return training(self.batch_size // self.calls, self.epochs, self.data, note)

    def __str__(self) -> str:
        rows = [("optimizer", "learning rate", "tried at", "steps", "held-out loss", "")]
        tried = {trial.optimizer for trial in self.trials}
        best = [trial for name in tried for trial in self._best_runs(name)]
        for trial in sorted(self.trials, key=lambda t: (t.optimizer, t.steps, t.rate)):
            is_best = trial.losses and trial in best
            rows.append((
                trial.optimizer, f"{trial.rate:.3g}", f"{trial.tried:.3g}", f"{trial.steps:,}",
                f"{trial.loss:.4g}" if trial.losses else "lost", "best" if is_best else "",
            ))  # fmt: skip
        low, high = self.interval
        rate = "undecided" if self.rate is None else f"{self.rate:.3g}"
        lines = [
            f"{self.optimizer_name} at batch {self.batch_size:,}: learning rate {rate}; "
            f"{low:.3g} to {high:.3g} are level",
            f"  {self.why}",
        ]
        if self.rate is not None:
            longest = max(trial.steps for trial in self.trials)
            uncorrected = search.short_run_rate(self.rate, longest, self.train_steps)
            lines.append(
                f"  {uncorrected:.3g} in the longer short runs, before the correction for "
                f"{self.train_steps:,} steps"
            )
        if self.baseline is not None:
            lines.append(f"  the baseline's by square-root scaling: {self.baseline:.3g}")
        if search.is_level(*self._best_runs(self.optimizer_name)):
            lines.append(
                f"  runs of {search.LONGER} times the steps ended no lower, as on a plateau where "
                "training begins: they tell little of the rate"
            )
        lines.append(f"  the search took {self.cost:.2f} times the examples of the run")
        lines += (f"  {line}" for line in (*self._optimizers(), *table(rows, right=(1, 2, 3, 4))))
        return "\n".join(lines)

    def _best_runs(self, name):
        """The best run of an optimizer on each rung."""
        own = [trial for trial in self.trials if trial.optimizer == name]
        return [
            min((trial for trial in own if trial.steps == steps), key=lambda trial: trial.loss)
            for steps in sorted({trial.steps for trial in own})
        ]

    def _optimizers(self):
        """A line an optimizer, of several: its rate, its loss, and why it was taken or not."""
        if len(self.candidates) == 1:
            return []
        rows = [("optimizer", "learning rate", "level from", "to", "held-out loss", "")]
        for each in self.candidates:
            if (found := self.answers.get(each.name)) is None:
                rows.append((each.name, "", "", "", "", self._why_left(each.name)))
                continue
            low, high = found.interval
            rows.append((
                each.name, f"{found.rate:.3g}" if found.rate else "undecided", f"{low:.3g}",
                f"{high:.3g}", f"{found.loss:.4g}",
                f"taken: {self.why_optimizer}" if each.name == self.optimizer_name else "",
            ))  # fmt: skip
        return table(rows, right=(1, 2, 3, 4))

    def _why_left(self, name):
        """Why an optimizer has no answer."""
        short, *longer = self._best_runs(name)
        if longer or not short.losses:
            return "lost"
        for other in self.answers:
            if search.is_level(short, self._best_runs(other)[0]):
                return f"level with {other} in shorter runs, not run longer: search with it alone"
        return "not among the best of the shorter runs"

    def plot(self, ax: Any = None) -> Any:
        """Draws held-out loss over learning rate; returns the `Axes`, `ax` or a new figure's."""
        return plots.rates(self, ax)

    def _repr_html_(self) -> str:
        """What a notebook shows: the text, and the plot where matplotlib is installed."""
        return plots.in_notebook(self)
