"""Which batch a model and its data want, how long it takes and what it costs: `find_batch`."""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.data import mapped
from tf_lamb.api.find import reach
from tf_lamb.api.find.checks import accumulates, anew, check, check_shared, tuned_rate
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.found_batch import FoundBatch
from tf_lamb.api.find.search_log import SearchLog, settings_by_name
from tf_lamb.api.find.trials import Trials, normalizations
from tf_lamb.api.progress import Progress
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
    device_counts: int | Iterable[int] | Mapping[int, float] = 1,
    deadline_hours: float | None = None, examples: int | None = None, validation_data: Any = None,
    directory: str | os.PathLike | None = None, verbose: bool = True,
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
        device_counts: Numbers of devices to compare, as (1, 8), each of which steps as was timed;
            or a dict from each to the seconds that its network adds to a step, as
            {1: 0, 8: 0.002}. Without one the network is not counted, and the answer says so.
            Defaults to 1.
        deadline_hours: The most hours that training may take. Defaults to None.
        examples: Examples of an epoch, at which endless data end. Defaults to None: counted, if
            the data says how many batches it has.
        validation_data: Held-out examples, like `data`. Defaults to None: a tenth of `data`,
            which then may not be shuffled anew for each pass.
        directory: A folder in which the seconds of a step and every short run are saved, and from
            which a search that was killed goes on: with the weights that it began with, to the
            same answer bit for bit, where every pass over the data is the same and no layer draws
            from a global generator. Defaults to None.
        verbose: Whether to print the cost beforehand, a progress bar, and each short run. Defaults
            to True.

    Returns:
        A `FoundBatch`: print it.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: for a model that is not compiled, fewer examples than a batch, a loss that is
            not finite from the start, a baseline that learns nothing in a tenth of its run, a
            large batch that does not reach its loss, or a `directory` with another search: of
            another model, on other data, or with other arguments.

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
    counts, network = _device_counts(device_counts)
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
        mapped(_check_numbers, read.blocks[0])
        if devices > 1:
            raise ValueError(
                f"keras.distribution shares a call among {devices} devices, and a step is timed on "
                "one: pass step_seconds=, or search without it, with a model that is built anew."
            )
        most = min(read.training, large * steps.FARTHEST)
        sizes = sizes_from(max(1, base // GROWTH), most)
    log = SearchLog(directory, "find_batch", model, read, {
        "baseline_batch_size": base, "steps": total, "learning_rate": rate,
        "large_batch_size": large, "optimizer": type(own).__name__, **settings_by_name(own),
        "loss_scale": "LossScale" in type(model.optimizer).__name__,
    })  # fmt: skip
    search = _Search(model, read, own, log, base, large, rate, verbose)
    timed = "seconds of a step: as given"
    if machine is None:
        machine, timed = search.machine(sizes)
    machine = dataclasses.replace(machine, devices=counts, network=network)
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

    def __init__(self, model, read, own, log, base, large, rate, verbose):
        self.model, self.read, self.own, self.log = model, read, own, log
        self.base, self.large, self.rate, self.verbose = base, large, rate, verbose
        self.progress: Progress | None = None

    def machine(self, sizes):
        """What trains, by the seconds of its steps, and how far they were measured."""
        seen, update, how = self.log.cached(["seconds", sizes], lambda: self._measured(sizes))
        timed, taken = zip(*seen, strict=True)
        return plan.Machine(plan.fit_time(timed, taken, update), max(timed)), how

    def _measured(self, sizes):
        """The seconds by micro-batch, those of an update alone, and what ended the list."""
        of_update = accumulates(self.own)
        most = (1 + ROUNDS) * (len(sizes) + of_update)
        with Progress(self.model, most, self.verbose, unit="timing") as progress:
            names = ", ".join(map(str, sizes))
            progress.say(f"find_batch: steps are timed at micro-batches of {names}")
            with self._trials(self.base) as trials:
                seen, how = seconds_of_steps(trials, sizes, progress.add)
            pairs = [*seen.items()]
            if not of_update:
                return pairs, 0.0, how
            first, calls = sizes[0], ACCUMULATED
            with self._trials(calls * first, calls) as trials:
                alone = seconds_of_update(trials, first, seen[first], progress.add)
            return pairs, min(alone, 0.5 * min(seen.values())), how

    def short_runs(self, machine, total):
        """The target, and the runs to it; `total` are the steps of the baseline."""
        base, large = self.base, self.large
        length = round(PART * total)
        of_runs = reach.examples(base, length)
        few, many = (each / (base * total) for each in of_runs)
        example = sum(machine.seconds(batch, 1) / batch for batch in (base, large)) / 2
        quick, slow = (plan.duration(each * example) for each in of_runs)
        fits = machine.micro_batch if accumulates(self.own) else large
        _, calls = plan.arrange(large, 1, fits)
        of_base = micro_batches(base, fits)
        check_shared(self.model, base // of_base)
        check_shared(self.model, large // calls)
        calls_of = {base: (of_base, AVERAGED), (large := large // calls * calls): (calls, 1)}
        about, most = of_runs
        with Progress(self.model, most, self.verbose, about) as self.progress:
            self.progress.say(
                f"find_batch: short runs at batch {base:,} and {large:,}, on about {few:.1f} to "
                f"at most {many:.1f} times the examples of the baseline, {quick} to {slow} of "
                f"steps; {self.read.held_out:,} are held out"
            )
            self.log.tell(self.progress.say)
            return reach.short_runs(
                lambda batch: self._trials(batch, *calls_of[batch]),
                self.rate, base, large, length, self.progress.say, self.log,
            )  # fmt: skip

    @contextlib.contextmanager
    def _trials(self, batch, calls=1, averaged=1):
        """Trials with the model's optimizer, which make an update in so many calls."""
        with Trials(self.model, self.read, batch, batch // calls, averaged=averaged) as trials:
            self.log.begin(trials)
            trials.choose("own", lambda: anew(self.own, calls))
            if self.progress:
                trials.tell = self.progress.add
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


def _device_counts(given):
    """The numbers of devices, and the seconds of the network by number, or None."""
    counts = tuple(given) if isinstance(given, Iterable) else (given,)
    if not counts:
        raise ValueError("device_counts must name a number of devices at least, such as (1, 8).")
    for count in counts:
        checks.integer("device_counts", count)
    if not isinstance(given, Mapping):
        return counts, None
    for seconds in given.values():
        checks.number("Seconds of the network in device_counts", seconds, "[0, inf)")
    return counts, dict(given)


def _check_numbers(array):
    """Raises where `fit` takes no generator of such arrays."""
    if array.dtype.kind in "OSU":
        raise ValueError(
            "Steps on strings cannot be timed: pass step_seconds=, or data that are numbers, as "
            "data.map(preprocessor) makes them."
        )


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


def seconds_of_steps(
    trials: Trials, sizes: list[int], tell: Callable[[int], None] = lambda timings: None
) -> tuple[dict[int, float], str]:
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
        tell(1)
        if len(seen) > 2 and found[1] >= LINEAR * size / smaller * seen[smaller][1]:
            how = "beyond, an example takes no less time"
            break
    how = f"micro-batches up to {max(seen):,}: {how or 'larger ones were not tried'}"
    return in_turn(trials, {size: steps for size, (steps, _) in seen.items()}, tell), how


def seconds_of_update(
    trials: Trials, size: int, whole: float, tell: Callable[[int], None] = lambda timings: None
) -> float:
    """Seconds of an update alone: (whole - mean) k/(k - 1), with the mean of its k calls."""
    k, (steps, _) = trials.calls, lasting(trials, size)
    return max(0.0, (whole - in_turn(trials, {size: steps}, tell)[size]) * k / (k - 1))


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


def in_turn(
    trials: Trials, steps: dict[int, int], tell: Callable[[int], None] = lambda timings: None
) -> dict[int, float]:
    """Seconds of a call in the quickest epoch of each micro-batch, from the steps of an epoch."""
    quickest = dict.fromkeys(steps, math.inf)
    batches = {size: next(trials.data.batches(size, 0)) for size in steps}
    trials.start()
    for size in ROUNDS * [*steps]:
        lasts = min(trials.epochs(batches[size], steps[size], TIMED))
        quickest[size] = min(quickest[size], lasts / steps[size])
        tell(1)
    return quickest
