"""The result of a search for a learning rate: `FoundRate`."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tf_lamb.api import plots
from tf_lamb.core.messages import table
from tf_lamb.core.recipes.recipe import ARGUMENTS, Recipe
from tf_lamb.find import search
from tf_lamb.find.data import DataCode


def training_code(batch_size: int, epochs: float, data: DataCode, note: str = "") -> str:
    """Returns the lines of code that train with the result of a `find_rate`.

    Args:
        batch_size: The `batch_size` of `fit`. If gradients are accumulated, it is the examples of a
            micro-batch.
        epochs: The number of epochs of the run. `fit` trains for this number, rounded up.
        data: The source code of arguments that pass the user's data.
        note: A comment to append to the line that calls `compile`. Defaults to "".
    """
    fit_epochs = math.ceil(epochs)
    comment = "" if fit_epochs == epochs else f"  # the schedule ends after {epochs:.3g} of them"
    fit_arguments, data_note = data.at_batch(batch_size)
    notes = [data_note, comment.removeprefix("  # ")]
    comment = "  # " * any(notes) + "; ".join(filter(None, notes))
    validation = ", validation_data=validation_data" * ("validation_data" in data.search_arguments)
    return (
        "# with your other arguments of compile: metrics, loss_weights, ...\n"
        f"model.compile(optimizer=found.optimizer(), loss=model.loss){note}\n"
        f"model.fit({fit_arguments}, epochs={fit_epochs}{validation}){comment}"
    )


def recipe_fields(optimizer: Any) -> dict[str, Any]:
    """Returns, by name, the optimizer's arguments that are also fields of a `Recipe`.

    A weight decay that is a schedule is left out. The result is empty for an optimizer that is not
    of this package.
    """
    if not hasattr(optimizer, "from_recipe"):
        return {}
    config = optimizer.get_config()
    arguments = {name: config[name] for name in ARGUMENTS if config.get(name) is not None}
    if not config.get("use_ema"):
        arguments.pop("ema_momentum", None)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if not isinstance(value, dict)
    }


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Holds an optimizer that a search for a learning rate tries.

    Attributes:
        name: The name of the optimizer's class.
        make: A function that takes a learning rate or a schedule and makes the optimizer.
        start_rate: The learning rate, for the real run, at which the search begins.
        is_baseline: Whether this is the model's own optimizer, which was tuned at another batch
            size and whose rate was scaled to the new one. Defaults to False.
        schedule_steps: The number of steps by which one update advances a learning rate schedule.
            For an optimizer of Keras it is the number of micro-batches, because Keras counts these.
            Defaults to 1.
    """

    name: str
    make: Callable[[Any], Any]
    start_rate: float
    is_baseline: bool = False
    schedule_steps: int = 1


@dataclasses.dataclass(frozen=True)
class RateAnswer:
    """Holds the result of a search for one optimizer.

    The search makes two rounds of short runs. Only optimizers of the second round have a result.

    Attributes:
        rate: The learning rate for the real run; None if the search could not decide.
        why: Why the rate was chosen, or why none could be.
        interval: The lowest and the highest rate that may be the best, judged by the loss on
            held-out examples.
        loss: The lowest held-out loss of the runs of the second round, which are longer.
    """

    rate: float | None
    why: str
    interval: tuple[float, float]
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundRate:
    """Holds the result of `find_rate`. Print it, `plot()` it, train with `optimizer()`.

    Attributes:
        optimizer_name: The class of the best optimizer that was tried.
        why_optimizer: Why that optimizer was chosen.
        answers: A dict from the name of an optimizer to its `RateAnswer`. It has the optimizers
            that were tried in the second, longer runs.
        batch_size: The number of examples in an update in the real run.
        train_steps: The number of updates of the real run.
        warmup_steps: The number of updates of the linear warmup of the real run.
        epochs: The number of epochs of the real run.
        examples: The number of examples in an epoch.
        decay: The schedule after the warmup: "polynomial", which is linear to 0, or "constant".
        calls: The number of micro-batches of an update.
        data: The source code of arguments that pass the user's data.
        trials: Every short run.
        cost: The examples that the search trained on, divided by those of the real run.
        candidates: The optimizers that were tried.
        wrapped: A function that takes an optimizer and returns it, wrapped in a
            `LossScaleOptimizer` if the optimizer of `compile` is.
        schedules: The module of learning rate schedules that `optimizer()` uses.
    """

    optimizer_name: str
    why_optimizer: str
    answers: dict[str, RateAnswer]
    batch_size: int
    train_steps: int
    warmup_steps: int
    epochs: float
    examples: int
    decay: str
    calls: int
    data: DataCode
    trials: tuple[search.Trial, ...]
    cost: float
    candidates: tuple[Candidate, ...] = dataclasses.field(repr=False)
    wrapped: Callable[[Any], Any] = dataclasses.field(repr=False)
    schedules: Any = dataclasses.field(repr=False)

    @property
    def rate(self) -> float | None:
        """The peak learning rate for the real run, or None if the search could not decide."""
        return self.answers[self.optimizer_name].rate

    @property
    def why(self) -> str:
        """How the rate was chosen, or why none could be."""
        return self.answers[self.optimizer_name].why

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest rate that may be the best, judged by the held-out loss."""
        return self.answers[self.optimizer_name].interval

    @property
    def baseline(self) -> float | None:
        """The baseline's rate, scaled to `batch_size` by the square root; None without a baseline.

        The rate that was tuned at another batch size is multiplied by the square root of the ratio
        of the new batch size to that one.
        """
        return next(
            (candidate.start_rate for candidate in self.candidates if candidate.is_baseline), None
        )

    @property
    def learning_rate(self) -> float:
        """The peak rate of the real run.

        Raises:
            ValueError: if the search could not decide on a rate.
        """
        if self.rate is None:
            low, high = self.interval
            way_out = (
                "with baseline_batch_size= and the rate that was tuned there"
                if self.baseline is None
                else "with another baseline_learning_rate=, by which it begins"
            )
            raise ValueError(
                f"The search did not decide on a rate for {self.optimizer_name}: {self.why}. It "
                f"lies between {low:.3g} and {high:.3g} or beyond. Search with more held-out "
                f"examples, validation_data=, with a larger budget=, or {way_out}."
            )
        return self.rate

    @property
    def _chosen_candidate(self) -> Candidate:
        """The `Candidate` of the best optimizer, which has its name and makes the optimizer."""
        return next(
            candidate for candidate in self.candidates if candidate.name == self.optimizer_name
        )

    def recipe(self) -> Recipe:
        """Returns the recipe of the real run: rate, warmup, and decay.

        If the optimizer is of this package, the recipe also has those settings of the optimizer
        that are fields of a `Recipe`. All other settings, such as momentum and clipping, are only
        in the result of `optimizer()`.

        Raises:
            ValueError: if the search could not decide on a rate.
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
            **recipe_fields(self._chosen_candidate.make(self.learning_rate)),
        )

    def optimizer(self) -> Any:
        """Returns an optimizer for the real run, with its schedule and loss scale, for `compile`.

        Raises:
            ValueError: if the search could not decide on a rate.
        """
        recipe, schedule_steps = self.recipe(), self._chosen_candidate.schedule_steps
        steps = {
            name: schedule_steps * getattr(recipe, name) for name in ("warmup_steps", "train_steps")
        }
        schedule = dataclasses.replace(recipe, **steps).schedule(self.schedules)
        return self.wrapped(self._chosen_candidate.make(schedule))

    @property
    def script(self) -> str:
        """The lines of code that train with the result.

        Raises:
            ValueError: if the search could not decide on a rate.
        """
        note = f"  # {self.optimizer_name}, peak {self.learning_rate:.3g}"
        return training_code(self.batch_size // self.calls, self.epochs, self.data, note)

    def __str__(self) -> str:
        rows = [("optimizer", "learning rate", "tried at", "steps", "held-out loss", "")]
        optimizer_names = {trial.optimizer for trial in self.trials}
        best_runs = [trial for name in optimizer_names for trial in self._best_runs(name)]
        for trial in sorted(self.trials, key=lambda run: (run.optimizer, run.steps, run.rate)):
            is_best = trial.losses and trial in best_runs
            rows.append((
                trial.optimizer, f"{trial.rate:.3g}", f"{trial.peak_rate:.3g}", f"{trial.steps:,}",
                f"{trial.loss:.4g}" if trial.losses else "lost", "best" if is_best else "",
            ))  # fmt: skip
        low, high = self.interval
        rate_text = "undecided" if self.rate is None else f"{self.rate:.3g}"
        lines = [
            f"{self.optimizer_name} at batch {self.batch_size:,}: learning rate {rate_text}; "
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
                f"  runs of {search.RUNG_FACTOR} times the steps ended no lower, as on a plateau "
                "where training begins: they tell little of the rate"
            )
        lines.append(f"  the search took {self.cost:.2f} times the examples of the run")
        table_lines = table(rows, right_aligned=(1, 2, 3, 4))
        lines += (f"  {line}" for line in (*self._optimizer_lines(), *table_lines))
        return "\n".join(lines)

    def _best_runs(self, name):
        """Returns the best run of an optimizer in each round of the search, the first round first.

        A search has two rounds, which differ in the steps of their runs.
        """
        runs = [trial for trial in self.trials if trial.optimizer == name]
        return [
            min((trial for trial in runs if trial.steps == steps), key=lambda trial: trial.loss)
            for steps in sorted({trial.steps for trial in runs})
        ]

    def _optimizer_lines(self):
        """Returns the lines of a table with a row for each optimizer; [] if only one was tried.

        A row has the rate, its interval, and the loss. The last column says why an optimizer was
        taken, or why it has no result.
        """
        if len(self.candidates) == 1:
            return []
        rows = [("optimizer", "learning rate", "level from", "to", "held-out loss", "")]
        for candidate in self.candidates:
            if (answer := self.answers.get(candidate.name)) is None:
                rows.append(
                    (candidate.name, "", "", "", "", self._why_without_answer(candidate.name))
                )
                continue
            low, high = answer.interval
            rows.append((
                candidate.name, f"{answer.rate:.3g}" if answer.rate else "undecided", f"{low:.3g}",
                f"{high:.3g}", f"{answer.loss:.4g}",
                f"taken: {self.why_optimizer}" if candidate.name == self.optimizer_name else "",
            ))  # fmt: skip
        return table(rows, right_aligned=(1, 2, 3, 4))

    def _why_without_answer(self, name):
        """Returns why the search found no learning rate for an optimizer, as text for the table."""
        short_run, *long_runs = self._best_runs(name)
        if long_runs or not short_run.losses:
            return "lost"
        for finalist in self.answers:
            if search.is_level(short_run, self._best_runs(finalist)[0]):
                return (
                    f"level with {finalist} in shorter runs, not run longer: search with it alone"
                )
        return "not among the best of the shorter runs"

    def plot(self, ax: Any = None) -> Any:
        """Draws the held-out loss as a function of the learning rate.

        Args:
            ax: The matplotlib `Axes` to draw on. Defaults to None: those of a new figure.

        Returns:
            The `Axes`.
        """
        return plots.rates(self, ax)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the text, and the plot where matplotlib is installed."""
        return plots.notebook_html(self)
