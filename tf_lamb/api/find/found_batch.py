"""What a search for a batch has found."""

import dataclasses
import math
from typing import Any

from tf_lamb.api import frontends, plots
from tf_lamb.api.find import reach
from tf_lamb.api.find.checks import accumulates
from tf_lamb.api.find.data import Written
from tf_lamb.api.find.found import told_by, training
from tf_lamb.api.find.trials import AVERAGED
from tf_lamb.core import search
from tf_lamb.core.goodput.plan import Answer, Row, arrange, calls_of_epoch, duration
from tf_lamb.core.recipes.recipe import Recipe
from tf_lamb.core.recipes.transfer import exponents, transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundBatch:
    """What `find_batch` found. Print it, `plot()` it, train with `script` or `recipe()`."""

    answer: Answer  # steps, hours and cost at each batch, and the batches to name
    runs: tuple[reach.Run, ...]  # every short run
    target: float | None  # the held-out loss that they ran to
    timed: str  # how far the seconds of a step were measured
    baseline_epochs: float
    examples: int  # of an epoch
    cost: float  # examples that the short runs trained on, over those of the baseline
    optimizer: Any = dataclasses.field(repr=False)
    learning_rate: float
    normalizes: bool  # whether there is batch normalization, which `find_rate` takes time for
    data: Written  # as lines of code have them
    took: float = dataclasses.field(compare=False)  # seconds of the search, all that was waited
    # Seconds of a step without the making of its input, by micro-batch; of arrays none.
    idle: tuple[tuple[int, float], ...] = ()

    @property
    def row(self) -> Row:
        """The fastest; with a deadline the largest batch that ends by then."""
        if self.answer.deadline is None:
            return self.answer.fastest
        if self.answer.by_deadline is None:
            raise ValueError(
                f"No batch ends within {self.answer.deadline:g} hours; the fastest takes "
                f"{self.answer.fastest.hours:.3g}."
            )
        return self.answer.by_deadline

    @property
    def batch_size(self) -> int:
        """The batch to train with."""
        return self.row.batch

    @property
    def epochs(self) -> int:
        """Whole epochs to the baseline's loss at this batch, for the steps of the table."""
        return math.ceil(self.row.steps * self.row.accumulation / self._calls)

    @property
    def _calls(self) -> int:
        """Micro-batches in an epoch of `fit`; an update goes on beyond its end."""
        return math.ceil(self.examples / (self.row.batch // self.row.accumulation))

    @property
    def _updates(self) -> int:
        """Those of whole epochs."""
        return self.epochs * self._calls // self.row.accumulation

    @property
    def _budget(self) -> float:
        """What `find_rate` needs at this batch, its default at least."""
        averaging_updates = math.ceil(AVERAGED / self.row.accumulation) if self.normalizes else 0
        return max(0.5, search.least_budget(self.row.steps, 1, averaging_updates))

    def _why_not_searched(self) -> str | None:
        """Why `find_rate` cannot search the rate of this batch."""
        row, name = self.row, type(self.optimizer).__name__
        if row.steps < search.SHORTEST:
            return f"{row.steps} steps are too few to search the rate in"
        if row.accumulation > 1 and not accumulates(self.optimizer):
            return f"{name} accumulates no gradients for the {row.accumulation} calls of an update"
        return None

    def recipe(self) -> Recipe:
        """The baseline at this batch, by `recipes.transfer`; what that does not move stays."""
        name, config = type(self.optimizer).__name__, self.optimizer.get_config()
        decay = config.get("weight_decay") or None
        noise = self.answer.steps.noise
        told = self._updates / math.ceil(self.examples / self.batch_size)  # epochs of as many steps
        moved = transfer(
            self.batch_size,
            self.answer.baseline,
            self.learning_rate,
            examples=self.examples,
            epochs=told,
            baseline_epochs=self.baseline_epochs,
            optimizer=name if name in exponents() else None,
            weight_decay=None if isinstance(decay, dict) else decay,  # a schedule
            beta_2=config.get("beta_2", config.get("adam_beta_2")),  # that of Keras's Muon
            ema_momentum=config.get("ema_momentum") if config.get("use_ema") else None,
            noise_scale=noise if 0 < noise < math.inf else None,
        )
        stays = {n: v for n, v in told_by(self.optimizer).items() if getattr(moved, n) is None}
        # Where gradients accumulate, an epoch has a part of an update: it is longer than told.
        if (longer := self.epochs / told) > 1:
            fewer = longer**-search.SLOPE
            stays["learning_rate"] = fewer * moved.learning_rate
            if moved.weight_decay:
                stays["weight_decay"] = moved.weight_decay / fewer
            line = (
                f"learning_rate x {fewer:.3g}: {self.epochs} epochs, {longer:.3g} x those of steps"
            )
            stays["arithmetic"] = (*moved.arithmetic, line)
        return dataclasses.replace(moved, epochs=self.epochs, **stays)

    @property
    def script(self) -> str:
        """The lines that search the rate at it, and train."""
        row, calls = self.row, self.row.accumulation
        if row.batch == self.answer.baseline:
            return f"# keep your run: {row.batch:,} is the batch that you have tuned"
        if why := self._why_not_searched():
            return f"print(found.recipe())  # {why}"
        more = f" micro_batch_size={row.batch // calls}," if calls > 1 else ""
        if self._budget > 0.5:
            more += f" budget={self._budget},"
        given = ""
        if self.optimizer.get_config()["learning_rate"] != self.learning_rate:
            given = f", baseline_learning_rate={self.learning_rate}"
        keras = frontends.of(self.optimizer).host.__name__
        return (
            f"found = tf_lamb.{keras}.find_rate(\n"
            f"    model, {self.data.data}, {row.batch}, epochs={self.epochs},{more}\n"
            f"    baseline_batch_size={self.answer.baseline}{given}{self.data.more})\n"
            + training(row.batch // calls, self.epochs, self.data)
        )

    def __str__(self) -> str:
        return "\n".join(
            [
                *self._short_runs(),
                self.timed,
                *self._input(),
                str(self.answer),
                *self._price(),
                *self._in_whole_epochs(),
            ]
        )

    def _in_whole_epochs(self):
        """What becomes of the table's saving in whole epochs, and what the rate's search costs."""
        answer = self.answer
        if answer.deadline is not None and answer.by_deadline is None:
            return
        if (row := self.row).batch == answer.baseline:
            return
        machine, of_base = answer.machine, answer.steps.at(answer.baseline)
        base = machine.begin(answer.baseline, row.devices)
        base += of_base * machine.seconds(answer.baseline, row.devices)
        whole = machine.begin(row.batch, row.devices) + self._updates * row.seconds
        saved = f"{1 - whole / base:.0%} is saved" if whole < base else "nothing is saved"
        if answer.deadline is not None and whole > 3600 * answer.deadline:
            saved += ", and the deadline is missed"
        yield (
            f"in whole epochs, as the script trains: {self.epochs}, {self._updates:,} steps, "
            f"{duration(whole)}; batch {answer.baseline:,} takes {duration(base)}: {saved}"
        )
        if self.epochs > self.baseline_epochs:
            yield (
                f"{self.epochs} epochs in place of {self.baseline_epochs:g}: a model may overfit, "
                "which short runs do not see; evaluate it on held-out examples"
            )
        if why := self._why_not_searched():
            yield f"find_rate cannot search here: {why}; recipe() has the rate of transfer"
        else:
            yield (
                f"find_rate searches the rate here for {self._budget:g} of the run at most, "
                f"{duration(self._budget * whole)}"
            )

    def fit_seconds(self, batch_size: int, epochs: float) -> float:
        """Seconds that `fit` takes on one device for so many epochs, compilation included.

        Without what is not known of it: your callbacks. Of seconds that were given, it has the
        steps alone.
        """
        machine = self.answer.machine
        micro, accumulation = arrange(batch_size, 1, machine.micro_batch)
        drops = machine.epoch is not None and machine.epoch.drops
        calls = calls_of_epoch(self.examples, micro, drops)
        updates = epochs * calls / accumulation
        return machine.begin(batch_size, 1) + updates * machine.seconds(batch_size, 1)

    def _input(self):
        """Which share of a step is the making of its input."""
        time, shares = self.answer.machine.time, []
        for size, idle in self.idle:
            whole = time.step(size)
            shares.append(f"{max(0.0, 1 - idle / whole):.0%} at {size:,}")
        if shares:
            yield f"of a step, waiting for its input is {', '.join(shares)}"

    def _price(self):
        """The whole wait for the search."""
        steps = sum(run.made * self.answer.machine.time.call(run.batch) for run in self.runs)
        of_steps = f", {duration(steps)} of it steps of the short runs" if self.runs else ""
        yield f"the search took {duration(self.took)}, with compilation and evaluation{of_steps}"

    def _short_runs(self):
        if not self.runs:
            return
        yield f"short runs to a held-out loss of {self.target:.4g}, at the best rate of each batch:"
        for batch, runs in reach.of_best_rates(self.runs).items():
            reached = ", ".join(f"{run.steps:.3g}" for run in runs)
            yield f"  batch {batch:,}, learning rate {runs[0].rate:.3g}: {reached} steps"
        yield f"  they took {self.cost:.2f} times the examples of the baseline"
        yield "  noise grows as the loss falls: at the end of a run the scale is rather larger"

    def plot(self, ax: Any = None) -> Any:
        """Draws the likely hours over the batch; returns the `Axes`, `ax` or a new figure's."""
        return plots.batches(self.answer, ax)

    def _repr_html_(self) -> str:
        """What a notebook shows: the text, and the plot where matplotlib is installed."""
        return plots.in_notebook(self)
