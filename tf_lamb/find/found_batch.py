"""The result of a search for a batch: `FoundBatch`."""

import dataclasses
import math
from typing import Any

from tf_lamb.api import frontends, plots
from tf_lamb.core.recipes.largest import largest_batch
from tf_lamb.core.recipes.recipe import Recipe
from tf_lamb.core.recipes.scaling import fit_steps
from tf_lamb.core.recipes.transfer import exponents, transfer
from tf_lamb.core.recipes.updates_left import ENOUGH_UPDATES, LOST_PERCENT
from tf_lamb.find import reach, search
from tf_lamb.find.checks import can_accumulate
from tf_lamb.find.data import DataCode
from tf_lamb.find.found import recipe_fields, training_code
from tf_lamb.find.goodput.answer_text import duration_text
from tf_lamb.find.goodput.costs import Answer, Row, calls_per_epoch, split_batch
from tf_lamb.find.goodput.steps import EXTRA_EXAMPLES
from tf_lamb.find.trials import BATCH_NORM_BATCHES


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundBatch:
    """Holds the result of `find_batch`. Print it, `plot()` it, train with `script` or `recipe()`.

    It has two batches, because they answer two questions: `largest_batch` is the largest that keeps
    the baseline's result over the same number of examples, and `batch_size` is the fastest to the
    baseline's loss, over more examples.

    Attributes:
        answer: The table of steps, hours and cost at each batch, and which batches are the best.
        runs: Every short run.
        target: The held-out loss at which the short runs ended; None without short runs.
        timed: A sentence on which micro-batches were timed.
        baseline_epochs: The epochs of the baseline's run.
        examples: The number of examples in an epoch.
        cost: The examples that the short runs trained on, divided by those of the baseline's run.
        optimizer: The model's optimizer, which the baseline was tuned with.
        learning_rate: The peak rate of the baseline.
        normalizes: Whether the model has batch normalization. If so, `find_rate` makes further
            updates to estimate the running averages.
        data: The source code of arguments that pass the user's data.
        took: Seconds that the whole search took, including compilation and evaluation.
        idle: Pairs (examples of a micro-batch, seconds of a step that does not wait for its input),
            one for each micro-batch that was timed. Empty if the data are arrays or if steps were
            not timed. Defaults to ().
    """

    answer: Answer
    runs: tuple[reach.Run, ...]
    target: float | None
    timed: str
    baseline_epochs: float
    examples: int
    cost: float
    optimizer: Any = dataclasses.field(repr=False)
    learning_rate: float
    normalizes: bool
    data: DataCode
    took: float = dataclasses.field(compare=False)
    idle: tuple[tuple[int, float], ...] = ()

    @property
    def row(self) -> Row:
        """The row of the batch to train with.

        It is the fastest row of the table. With a deadline, it is the row of the largest batch that
        ends by the deadline.

        Raises:
            ValueError: if no batch ends by the deadline.
        """
        if self.answer.deadline_hours is None:
            return self.answer.fastest
        if self.answer.by_deadline is None:
            raise ValueError(
                f"No batch ends within {self.answer.deadline_hours:g} hours; the fastest takes "
                f"{self.answer.fastest.hours:.3g}."
            )
        return self.answer.by_deadline

    @property
    def batch_size(self) -> int:
        """The batch that is the fastest to the baseline's loss.

        With a deadline, it is the largest batch that reaches the loss by the deadline.
        """
        return self.row.batch

    @property
    def largest_batch(self) -> int:
        """The largest batch that keeps the baseline's result over the same number of examples.

        "Keeps" means that its loss is no worse than the baseline's loss after 5% fewer examples. If
        the runs give no upper end of the noise scale, the batch is also limited so that the
        baseline's epochs have at least 2,048 updates. This limit never takes it below the lower end
        of the interval in which it is likely to be.
        """
        return self._largest_batch_interval()[0]

    def _largest_batch_interval(self) -> tuple[int, int, int]:
        """Returns `largest_batch`, and the lower and upper end of the interval in which it lies."""
        curve, baseline = self.answer.curve, self.answer.baseline
        limit = min(curve.largest_batch, self.examples)
        kept_batch, least, largest = (
            max(baseline, int(min(batch, limit))) for batch in curve.largest_keeping_batch(baseline)
        )
        if curve.interval[1] == math.inf:
            kept_batch = max(least, min(kept_batch, self._largest_with_enough_updates or baseline))
        return kept_batch, least, largest

    @property
    def _largest_with_enough_updates(self) -> int | None:
        """The largest batch that has 2,048 updates in the baseline's epochs.

        None if even a batch of one example would have fewer updates.
        """
        if fit_steps(self.baseline_epochs, self.examples, 1) < ENOUGH_UPDATES:
            return None
        return largest_batch(self.examples, self.baseline_epochs)

    @property
    def epochs(self) -> int:
        """The epochs of `fit` that make the steps of `row` to the baseline's loss, rounded up."""
        return math.ceil(self.row.steps * self.row.accumulation / self._calls_per_epoch)

    @property
    def _calls_per_epoch(self) -> int:
        """The number of micro-batches in an epoch of `fit`.

        It need not be a multiple of those of an update, because an update may continue in the next
        epoch.
        """
        return math.ceil(self.examples / (self.row.batch // self.row.accumulation))

    @property
    def _total_updates(self) -> int:
        """The number of updates in the whole run, which has `epochs` epochs."""
        return self.epochs * self._calls_per_epoch // self.row.accumulation

    @property
    def _search_budget(self) -> float:
        """The `budget` that `find_rate` needs at `batch_size`; at least its default, 0.5."""
        averaging_updates = (
            math.ceil(BATCH_NORM_BATCHES / self.row.accumulation) if self.normalizes else 0
        )
        return max(0.5, search.min_budget(self.row.steps, 1, averaging_updates))

    def _why_not_searched(self) -> str | None:
        """Returns why `find_rate` cannot search a rate at `batch_size`, as text; None if it can."""
        row, name = self.row, type(self.optimizer).__name__
        if row.steps < search.MIN_RUN_STEPS:
            return f"{row.steps} steps are too few to search the rate in"
        if row.accumulation > 1 and not can_accumulate(self.optimizer):
            return f"{name} accumulates no gradients for the {row.accumulation} calls of an update"
        return None

    def recipe(self) -> Recipe:
        """Returns a recipe for a run at `batch_size`.

        `recipes.transfer` computes it from the settings of the baseline. Settings that `transfer`
        does not change are those of the model's optimizer.
        """
        name, config = type(self.optimizer).__name__, self.optimizer.get_config()
        decay = config.get("weight_decay") or None
        noise_scale = self.answer.curve.noise
        epochs_of_updates = self._total_updates / math.ceil(self.examples / self.batch_size)
        transferred = transfer(
            self.batch_size,
            self.answer.baseline,
            self.learning_rate,
            examples=self.examples,
            epochs=epochs_of_updates,
            baseline_epochs=self.baseline_epochs,
            optimizer=name if name in exponents() else None,
            weight_decay=None if isinstance(decay, dict) else decay,  # a dict is a schedule
            beta_2=config.get("beta_2", config.get("adam_beta_2")),  # Keras's Muon: adam_beta_2
            ema_momentum=config.get("ema_momentum") if config.get("use_ema") else None,
            noise_scale=noise_scale if 0 < noise_scale < math.inf else None,
        )
        settings = {
            setting: value
            for setting, value in recipe_fields(self.optimizer).items()
            if getattr(transferred, setting) is None
        }
        # An update of accumulated gradients may continue in the next epoch. Then the run has more
        # epochs than `transfer` was given. The rate is lowered for the longer run, because the best
        # rate falls with the length of training.
        if (stretch := self.epochs / epochs_of_updates) > 1:
            rate_factor = stretch**-search.LENGTH_EXPONENT
            settings["learning_rate"] = rate_factor * transferred.learning_rate
            if transferred.weight_decay:
                settings["weight_decay"] = transferred.weight_decay / rate_factor
            rate_line = (
                f"learning_rate x {rate_factor:.3g}: {self.epochs} epochs, {stretch:.3g} x those "
                "of steps"
            )
            settings["arithmetic"] = (*transferred.arithmetic, rate_line)
        return dataclasses.replace(transferred, epochs=self.epochs, **settings)

    @property
    def script(self) -> str:
        """The lines of code that search the learning rate at `batch_size`, and then train.

        If there is nothing to search, the code only says so, or prints the recipe.
        """
        row, calls = self.row, self.row.accumulation
        if row.batch == self.answer.baseline:
            return f"# keep your run: {row.batch:,} is the batch that you have tuned"
        if reason := self._why_not_searched():
            return f"print(found.recipe())  # {reason}"
        arguments = f" micro_batch_size={row.batch // calls}," if calls > 1 else ""
        if self._search_budget > 0.5:
            arguments += f" budget={self._search_budget},"
        rate_argument = ""
        if self.optimizer.get_config()["learning_rate"] != self.learning_rate:
            rate_argument = f", baseline_learning_rate={self.learning_rate}"
        host = frontends.of(self.optimizer).host.__name__
        return (
            f"found = tf_lamb.{host}.find_rate(\n"
            f"    model, {self.data.data}, {row.batch}, epochs={self.epochs},{arguments}\n"
            f"    baseline_batch_size={self.answer.baseline}{rate_argument}"
            f"{self.data.search_arguments})\n"
            + training_code(row.batch // calls, self.epochs, self.data)
        )

    def __str__(self) -> str:
        return "\n".join(
            [
                *self._largest_lines(),
                str(self.answer),
                *_short_run_lines(self.runs, self.target, self.cost),
                self.timed,
                *self._input_wait_lines(),
                *self._search_time_lines(),
                *self._whole_epochs_lines(),
            ]
        )

    def _largest_lines(self):
        """Yields lines on the largest batch that keeps the result, and on its number of updates."""
        kept_batch, least, largest = self._largest_batch_interval()
        baseline, batch_with_enough = self.answer.baseline, self._largest_with_enough_updates
        updates_left, all_updates = (
            fit_steps(self.baseline_epochs, self.examples, batch)
            for batch in (kept_batch, baseline)
        )
        yield (
            f"the result is kept over the same examples up to batch {kept_batch:,} (likely "
            f"{least:,} to {largest:,}): {updates_left:,} of {all_updates:,} updates are left there"
        )
        yield f"  kept: no worse than batch {baseline:,} on {EXTRA_EXAMPLES:.0%} fewer examples"
        if self.answer.curve.interval[1] == math.inf:
            reason = f"has at least {ENOUGH_UPDATES:,} updates left"
            if updates_left < ENOUGH_UPDATES:
                reason = "is the least that is likely"
            yield f"  the runs tell no upper end: {kept_batch:,} {reason}"
        has_enough = batch_with_enough is not None and batch_with_enough >= baseline
        where = f"up to batch {batch_with_enough:,}" if has_enough else "at no larger batch"
        yield (
            f"  {ENOUGH_UPDATES:,} updates are left {where}: networks of a study lost at most "
            f"{LOST_PERCENT}% with so many"
        )

    def _whole_epochs_lines(self):
        """Yields lines on the time that `batch_size` saves, and on what `find_rate` would cost.

        The time is that of whole epochs, because the script trains for whole epochs.
        """
        answer = self.answer
        if answer.deadline_hours is not None and answer.by_deadline is None:
            return
        if (row := self.row).batch == answer.baseline:
            return
        machine, base_steps = answer.machine, answer.curve.steps_at(answer.baseline)
        base_seconds = machine.compile_seconds(answer.baseline, row.devices)
        base_seconds += base_steps * machine.step_seconds(answer.baseline, row.devices)
        run_seconds = (
            machine.compile_seconds(row.batch, row.devices) + self._total_updates * row.step_seconds
        )
        saving_text = (
            f"{1 - run_seconds / base_seconds:.0%} is saved"
            if run_seconds < base_seconds
            else "nothing is saved"
        )
        if answer.deadline_hours is not None and run_seconds > 3600 * answer.deadline_hours:
            saving_text += ", and the deadline is missed"
        yield (
            f"batch {row.batch:,} in whole epochs, as the script trains: {self.epochs}, "
            f"{self._total_updates:,} steps, "
            f"{duration_text(run_seconds)}; batch {answer.baseline:,} takes "
            f"{duration_text(base_seconds)}: {saving_text}"
        )
        if self.epochs > self.baseline_epochs:
            yield (
                f"{self.epochs} epochs in place of {self.baseline_epochs:g}: a model may overfit, "
                "which short runs do not see; evaluate it on held-out examples"
            )
        if reason := self._why_not_searched():
            yield f"find_rate cannot search here: {reason}; recipe() has the rate of transfer"
        else:
            yield (
                f"find_rate searches the rate here for {self._search_budget:g} of the run at most, "
                f"{duration_text(self._search_budget * run_seconds)}"
            )

    def fit_seconds(self, batch_size: int, epochs: float) -> float:
        """Returns the seconds that `fit` takes on one device, compilation included.

        The time of your callbacks is not included, because the search did not measure it. If you
        passed `step_seconds`, only the time of the steps is included.

        Args:
            batch_size: The number of examples in an update. A batch that does not fit in memory is
                divided into micro-batches, whose gradients are accumulated.
            epochs: The number of epochs to train for.
        """
        machine = self.answer.machine
        micro_size, accumulation = split_batch(batch_size, 1, machine.max_micro_batch)
        drop_remainder = machine.epoch is not None and machine.epoch.drop_remainder
        calls = calls_per_epoch(self.examples, micro_size, drop_remainder)
        updates = epochs * calls / accumulation
        return machine.compile_seconds(batch_size, 1) + updates * machine.step_seconds(
            batch_size, 1
        )

    def _input_wait_lines(self):
        """Yields a line on the share of its time that a step waits for its input."""
        step_time, share_texts = self.answer.machine.step_time, []
        for size, seconds_without_input in self.idle:
            seconds = step_time.step_seconds(size)
            share_texts.append(f"{max(0.0, 1 - seconds_without_input / seconds):.0%} at {size:,}")
        if share_texts:
            yield f"of a step, waiting for its input is {', '.join(share_texts)}"

    def _search_time_lines(self):
        """Yields a line on how long the whole search took, which was measured.

        The steps of the short runs are counted, and their seconds are estimated from those of a
        step. The estimate can be above the measured time, because a step in a short run may be
        faster than the step that was timed, or than `step_seconds` says.
        """
        text = f"the search took {duration_text(self.took)}, with compilation and evaluation"
        if not self.runs:
            yield text
            return
        steps_text = f"{sum(run.steps_trained for run in self.runs):,} steps of the short runs"
        estimate = sum(
            run.steps_trained * self.answer.machine.step_time.call_seconds(run.batch)
            for run in self.runs
        )
        estimate_text = duration_text(estimate)
        if estimate <= self.took:
            part_text = f"about {estimate_text} of it {steps_text}"
            yield f"{text}, {part_text}, by the seconds of a step above"
        else:
            yield (
                f"{text}: less than the {estimate_text} that the seconds of a step above give for "
                f"{steps_text}, so these were faster"
            )

    def plot(self, ax: Any = None) -> Any:
        """Draws the hours of training, with their interval, as a function of the batch size.

        Args:
            ax: The matplotlib `Axes` to draw on. Defaults to None: those of a new figure.

        Returns:
            The `Axes`.
        """
        return plots.batches(self.answer, ax)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the text, and the plot where matplotlib is installed."""
        return plots.notebook_html(self)


def _short_run_lines(runs, target, cost):
    """Yields lines on the short runs: steps to the target at the best rate of each batch.

    Args:
        runs: The short runs.
        target: The held-out loss that they trained to.
        cost: Their examples, as a multiple of those of the baseline.
    """
    if not runs:
        return
    yield f"short runs to a held-out loss of {target:.4g}, at the best rate of each batch:"
    for batch, best_runs in reach.best_runs_by_batch(runs).items():
        steps_text = ", ".join(f"{'>' * run.is_given_up}{run.steps:.3g}" for run in best_runs)
        yield f"  batch {batch:,}, learning rate {best_runs[0].rate:.3g}: {steps_text} steps"
    yield f"  they took {cost:.2f} times the examples of the baseline"
