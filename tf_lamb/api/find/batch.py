"""Which batch a model and its data want, how long it takes and what it costs: `find_batch`."""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.find import reach
from tf_lamb.api.find.checks import accumulates, anew, check, check_shared, tuned_rate
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.found_batch import FoundBatch
from tf_lamb.api.find.trials import Progress, Trials, normalizations
from tf_lamb.api.variables import unwrapped
from tf_lamb.core import checks
from tf_lamb.core.goodput import plan, steps
from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb.core.recipes.scaling import fit_steps, training

PART = 0.1  # of the baseline's run, that a short run has
AVERAGED = 4  # batches of the baseline, for averages of batch normalization; one of the large batch
# Epochs of a micro-batch, of which the quickest counts, as other programs only add to it: to see
# how many steps an epoch needs that lasts as long, in seconds, and in each round. In a round all
# micro-batches take turns, so that a slow moment of the machine is not that of one of them.
SEEN, ROUNDS, TIMED, LASTS = 2, 4, 2, 0.15
MORE = 8  # times the steps from one epoch to the next, at most, until it lasts
ACCUMULATED = 4  # calls of an update
GROWTH = 4  # from one micro-batch to the next
LINEAR = 0.95  # of GROWTH: nearly as many times the seconds as the examples
FULL = re.compile(
    r"resource.?exhausted|out of memory|\bOOM\b|MemoryError|failed to allocate", re.IGNORECASE
)


def find_batch(
    model: Any, data: Any, *, baseline_batch_size: int, baseline_epochs: float,
    baseline_learning_rate: float | None = None,
    noise_scale: float | Iterable[tuple[float, float]] | None = None,
    large_batch_size: int | None = None, step_seconds: Mapping[int, float] | None = None,
    deadline_hours: float | None = None, examples: int | None = None, validation_data: Any = None,
    verbose: bool = True,
) -> FoundBatch:  # fmt: skip
    """Finds which batch to train with: the fastest, the cheapest, the largest by a deadline.

        hours(B) = S(B) T(B)/3600,  S(B) = S_min (1 + Bn/B)

    S, the steps to the loss that the baseline ends at, goes through the baseline; its noise scale
    Bn is given, or comes from short runs here: at the baseline's batch for a tenth of its run,
    whose held-out loss is the target, and at a batch sixteen times as large until it is reached.
    Each has the best of several rates, constant after a warmup, and that one again for two other
    orders of the data. As noise grows while the loss falls, early runs find a Bn that is rather too
    small. T, the seconds of a step, is given or measured here.

    Weights, optimizer, averages and seeds of the model are as before afterwards, also after an
    interruption. Short runs begin with the weights that the model has: build it anew for a search.

    Args:
        model: A compiled model, with the optimizer of the baseline.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or an array x alone; a `tf.data.Dataset`
            of batches, a `PyDataset`, or a list of batches.
        baseline_batch_size: The batch of the tuned baseline.
        baseline_epochs: The epochs that it takes.
        baseline_learning_rate: Its peak rate. Defaults to None: the model's optimizer's.
        noise_scale: The last reading of `NoiseScale` in the baseline's run, which is right to a
            factor of two; or runs of yours to one loss, from which it follows: (batch, steps) at
            two batches at least, sixteen times apart, with rates tuned at each. Defaults to None:
            by short runs.
        large_batch_size: Of the large short runs. Defaults to None: 16 times the baseline's.
        step_seconds: Seconds of a step by micro-batch, two at least. Larger batches than the
            largest accumulate gradients. Defaults to None: measured on one device, up to the
            largest that fits, or that saves time.
        deadline_hours: The most hours that training may take. Defaults to None.
        examples: Examples of an epoch, at which endless data end. Defaults to None: counted, if
            the data says how many batches it has.
        validation_data: Held-out examples, like `data`. Defaults to None: a tenth of `data`,
            which then may not be shuffled anew for each pass.
        verbose: Whether to print the cost beforehand, a progress bar, and each short run. Defaults
            to True.

    Returns:
        A `FoundBatch`: print it.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: for a model that is not compiled, fewer examples than a batch, a loss that is
            not finite from the start, a baseline that learns nothing in a tenth of its run, or a
            large batch that does not reach its loss.

    Example:

    >>> import numpy as np, keras, tf_lamb.keras
    >>> x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> found = tf_lamb.keras.find_batch(
    ...     model, (x, x[:, :1]), baseline_batch_size=32, baseline_epochs=20, noise_scale=500,
    ...     step_seconds={32: 0.01, 128: 0.012})
    >>> found.batch_size
    128

    References:
        - McCandlish et al., https://arxiv.org/abs/1812.06162
        - Qiao et al., Pollux, https://arxiv.org/abs/2008.12260, the seconds of a step
    """
    base = checks.integer("baseline_batch_size", baseline_batch_size)
    checks.number("baseline_epochs", baseline_epochs, "(0, inf)")
    if deadline_hours is not None:
        checks.number("deadline_hours", deadline_hours, "(0, inf)")
    check(model, base, None)
    own = unwrapped(model.optimizer)
    rate = tuned_rate(own, baseline_learning_rate)
    devices = frontends.of(model).devices(model)
    read = Examples(data, validation_data, examples, devices)
    if read.training < base:
        raise ValueError(
            f"{read.training:,} examples to train on are fewer than a batch of {base:,}: "
            f"{read.held_out:,} are held out; pass validation_data= to train on all."
        )
    total = training(baseline_epochs, read.examples, base, fit_steps)
    curve = _given_curve(noise_scale, base, total)
    large = steps.RELIABLE * base
    if large_batch_size is not None:
        large = checks.integer("large_batch_size", large_batch_size)
    if curve is None:
        _check_large(large, base, read.training, total)
    machine, sizes = _given_machine(step_seconds), []
    if machine is None:
        if devices > 1:
            raise ValueError(
                f"keras.distribution shares a call among {devices} devices, and a step is timed on "
                "one: pass step_seconds=, or search without it, with a model that is built anew."
            )
        most = min(read.training, large * steps.FARTHEST)
        sizes = sizes_from(max(1, base // GROWTH), most)
    search = _Search(model, read, own, base, large, rate, verbose)
    timed = "seconds of a step: as given"
    if machine is None:
        machine, timed = search.machine(sizes)
    target, runs = None, []
    if curve is None:
        target, runs = search.short_runs(machine, total)
        best = reach.of_best_rates(runs).values()
        arrived = [(run.batch, run.steps) for each in best for run in each]
        curve = steps.from_runs(arrived).through(base, total)
    answer = plan.plan(
        curve, machine, baseline=base, examples=read.training, deadline=deadline_hours
    )
    return FoundBatch(
        answer=answer, runs=tuple(runs), target=target, timed=timed, optimizer=own,
        learning_rate=rate, baseline_epochs=baseline_epochs, examples=read.examples,
        cost=sum(run.batch * run.made for run in runs) / (base * total),
        normalizes=bool(normalizations(model)), data=read.written,
    )  # fmt: skip


class _Search:
    """What `find_batch` has to run: steps that are timed, and short runs at two batches."""

    def __init__(self, model, read, own, base, large, rate, verbose):
        self.model, self.read, self.own = model, read, own
        self.base, self.large, self.rate, self.verbose = base, large, rate, verbose
        self.progress: Progress | None = None

    def machine(self, sizes):
        """What trains, by the seconds of its steps, and how far they were measured."""
        if self.verbose:
            print(f"find_batch: steps are timed at micro-batches of {', '.join(map(str, sizes))}")
        seen, update, how = self._measured(sizes)
        return plan.Machine(plan.fit_time([*seen], [*seen.values()], update), max(seen)), how

    def _measured(self, sizes):
        """The seconds by micro-batch, those of an update alone, and what ended the list."""
        with self._trials(self.base) as trials:
            seen, how = seconds_of_steps(trials, sizes)
        if not accumulates(self.own):
            return seen, 0.0, how
        first, calls = sizes[0], ACCUMULATED
        with self._trials(calls * first, calls) as trials:
            alone = seconds_of_update(trials, first, seen[first])
        return seen, min(alone, 0.5 * min(seen.values())), how

    def short_runs(self, machine, total):
        """The target, and the runs to it; `total` are the steps of the baseline."""
        base, large = self.base, self.large
        length = round(PART * total)
        of_runs = reach.examples(base, length)
        few, many = (each / (base * total) for each in of_runs)
        example = sum(machine.seconds(batch, 1) / batch for batch in (base, large)) / 2
        quick, slow = (plan.duration(each * example) for each in of_runs)
        self.progress = Progress(self.model, of_runs[1], self.verbose)
        self.progress.say(
            f"find_batch: short runs at batch {base:,} and {large:,}, on about {few:.1f} to "
            f"at most {many:.1f} times the examples of the baseline, {quick} to {slow} of steps; "
            f"{self.read.held_out:,} are held out"
        )
        fits = machine.micro_batch if accumulates(self.own) else large
        _, calls = plan.arrange(large, 1, fits)
        of_base = micro_batches(base, fits)
        check_shared(self.model, base // of_base)
        check_shared(self.model, large // calls)
        calls_of = {base: (of_base, AVERAGED), (large := large // calls * calls): (calls, 1)}
        found = reach.short_runs(
            lambda batch: self._trials(batch, *calls_of[batch]),
            self.rate, base, large, length, self.progress.say,
        )  # fmt: skip
        self.progress.end()
        return found

    @contextlib.contextmanager
    def _trials(self, batch, calls=1, averaged=1):
        """Trials with the model's optimizer, which make an update in so many calls."""
        with Trials(self.model, self.read, batch, batch // calls, averaged=averaged) as trials:
            trials.check_loss()
            trials.choose("own", lambda: anew(self.own, calls))
            trials.tell = self.progress.add if self.progress else None
            yield trials


def _given_curve(noise_scale, base, total):
    """The steps at a batch by a reading of the noise scale, or by runs; None of neither."""
    if noise_scale is None:
        return None
    if isinstance(noise_scale, Iterable):
        return steps.from_runs(noise_scale).through(base, total)
    return steps.from_noise(noise_scale, base, total)


def _given_machine(step_seconds):
    """What trains, by the seconds of its steps; None where they are to be measured."""
    if step_seconds is None:
        return None
    if not isinstance(step_seconds, Mapping) or len(step_seconds) < 2:
        raise ValueError(
            "step_seconds must map two micro-batches or more to seconds, such as "
            f"{{32: 0.01, 128: 0.012}}, but it is {step_seconds!r}."
        )
    sizes = [checks.integer("A micro-batch of step_seconds", size) for size in step_seconds]
    return plan.Machine(plan.fit_time(sizes, [*step_seconds.values()]), max(sizes))


def _check_large(large, base, examples, total):
    """Raises for a large batch at which short runs tell nothing."""
    most = min(examples, round(PART * total) * base // reach.LEAST_STEPS)
    if not 2 * base <= large <= most:
        raise ValueError(
            f"Short runs at batch {large:,} tell nothing beside {base:,}: {2 * base:,} is the "
            f"least, and {examples:,} examples to train on and a tenth of {total:,} steps allow "
            f"{most:,} at most. Pass another large_batch_size=, or noise_scale=."
        )


def sizes_from(first: int, most: int) -> list[int]:
    """Micro-batches, each `GROWTH` times the one before, and `most` where it is the second."""
    sizes = [first]
    while GROWTH * sizes[-1] <= most:
        sizes.append(GROWTH * sizes[-1])
    return sizes if len(sizes) > 1 or first == most else [first, most]


def seconds_of_steps(trials: Trials, sizes: list[int]) -> tuple[dict[int, float], str]:
    """Seconds of a call with its update, by micro-batch, and what ended the list."""
    seen: dict[int, tuple[int, float]] = {}
    how = ""
    for size in sizes:
        smaller = max(seen, default=size)
        if (found := _fitting(trials, size, seen)) is None:
            if (found := _fitting(trials, size // 2, seen)) is not None:
                seen[size // 2] = found
            how = f"{2 * max(seen):,} does not fit"
            break
        seen[size] = found
        if len(seen) > 2 and found[1] >= LINEAR * size / smaller * seen[smaller][1]:
            how = "beyond, an example takes no less time"
            break
    how = f"micro-batches up to {max(seen):,}: {how or 'larger ones were not tried'}"
    return in_turn(trials, {size: steps for size, (steps, _) in seen.items()}), how


def seconds_of_update(trials: Trials, size: int, whole: float) -> float:
    """Seconds of an update alone: (whole - mean) k/(k - 1), with the mean of its k calls."""
    k, (steps, _) = trials.calls, lasting(trials, size)
    return max(0.0, (whole - in_turn(trials, {size: steps})[size]) * k / (k - 1))


def _fitting(trials, size, seen):
    """What lasts; None where there is no memory for it, but for the first size."""
    try:
        return lasting(trials, size)
    except Exception as error:
        if not seen or not FULL.search(f"{type(error).__name__}: {error}"):
            raise
        trials.start()  # some variables may be lost
        return None


def lasting(trials: Trials, size: int) -> tuple[int, float]:
    """Steps of an epoch that lasts, with whole updates, and about the seconds of a call."""
    batch, steps = next(trials.data.batches(size, 0)), trials.calls
    trials.start()
    while (lasts := min(trials.epochs(batch, steps, SEEN))) < LASTS:
        more = min(MORE, 1.2 * LASTS / lasts)
        steps = trials.calls * math.ceil(more * steps / trials.calls)
    return steps, lasts / steps


def in_turn(trials: Trials, steps: dict[int, int]) -> dict[int, float]:
    """Seconds of a call in the quickest epoch of each micro-batch, from the steps of an epoch."""
    quickest = dict.fromkeys(steps, math.inf)
    batches = {size: next(trials.data.batches(size, 0)) for size in steps}
    trials.start()
    for size in ROUNDS * [*steps]:
        lasts = min(trials.epochs(batches[size], steps[size], TIMED))
        quickest[size] = min(quickest[size], lasts / steps[size])
    return quickest
