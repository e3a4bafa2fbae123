"""Which batch a model and its data want, how long it takes and what it costs: `find_batch`."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_lamb.api.data import mapped
from tf_lamb.api.find import reach, seconds
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.found_batch import FoundBatch
from tf_lamb.api.find.saved import Saved, settings
from tf_lamb.api.find.trials import (
    Progress,
    Trials,
    accumulates,
    anew,
    check,
    check_shared,
    devices_of,
    is_watched,
    normalizations,
    tuned_rate,
)
from tf_lamb.api.variables import unwrapped
from tf_lamb.core import checks
from tf_lamb.core.goodput import plan, steps, time
from tf_lamb.core.recipes.arithmetic import fit_steps, micro_batches, training

PART = 0.1  # of the baseline's run, that a short run has
AVERAGED = 4  # batches of the baseline, for averages of batch normalization; one of the large batch


def find_batch(
    model: Any, data: Any, *, baseline_batch_size: int, baseline_epochs: float,
    baseline_learning_rate: float | None = None, runs: Iterable[tuple[float, float]] | None = None,
    noise_scale: float | None = None, large_batch_size: int | None = None,
    micro_batch_size: int | None = None, step_seconds: Mapping[int, float] | None = None,
    devices: Sequence[int] = (1,), network_seconds: float | None = None,
    price: float | None = None, deadline: float | None = None, most: int | None = None,
    examples: int | None = None, validation_data: Any = None,
    directory: str | os.PathLike | None = None, verbose: bool = True,
) -> FoundBatch:  # fmt: skip
    """Finds which batch to train with: the fastest, the cheapest, the largest by a deadline.

        hours(B) = S(B) T(B)/3600,  S(B) = S_min (1 + Bn/B)

    S, the steps to the loss that the baseline ends at, goes through the baseline; its noise scale
    Bn comes from `runs`, from `noise_scale`, or from short runs here: at the baseline's batch for a
    tenth of its run, whose held-out loss is the target, and at a batch sixteen times as large until
    it is reached. Each has the best of several rates, constant after a warmup, and that one again
    for two other orders of the data. As noise grows while the loss falls, early runs find a Bn that
    is rather too small. T, the seconds of a step, is measured here.

    Weights, optimizer, averages and seeds of the model are as before afterwards, also after an
    interruption. Short runs begin with the weights that the model has: build it anew for a search.

    Args:
        model: A compiled model, with the optimizer of the baseline.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or an array x alone; a `tf.data.Dataset`
            of batches, a `PyDataset`, or a list of batches.
        baseline_batch_size: The batch of the tuned baseline.
        baseline_epochs: The epochs that it takes.
        baseline_learning_rate: Its peak rate. Defaults to None: the model's optimizer's.
        runs: (batch, steps to one loss) of runs of yours at two batches at least, sixteen times
            apart, with rates tuned at each. Defaults to None.
        noise_scale: The last reading of `NoiseScale` in the baseline's run, which is right to a
            factor of two. Defaults to None.
        large_batch_size: Of the large short runs. Defaults to None: 16 times the baseline's.
        micro_batch_size: The most examples of a call; larger batches accumulate gradients.
            Defaults to None: the largest that fits, or that saves time.
        step_seconds: Seconds of a step by micro-batch, two at least. The largest key is the largest
            micro-batch. Defaults to None: measured.
        devices: Numbers of devices to compare. Defaults to `(1,)`. Only one device is timed; the
            others are computed.
        network_seconds: Seconds that the network adds to a step on several devices. Defaults to
            None: not counted.
        price: The price of a device for an hour. Defaults to None.
        deadline: The most hours that training may take. Defaults to None.
        most: The largest batch that is wanted. Defaults to None.
        examples: Examples of an epoch, at which endless data end. Defaults to None: counted, if
            the data says how many batches it has.
        validation_data: Held-out examples, like `data`. Defaults to None: a tenth of `data`,
            which then may not be shuffled anew for each pass.
        directory: A folder in which the search is saved, and from which it goes on after a kill.
            Defaults to None.
        verbose: Whether to print the cost beforehand, a progress bar, and each short run. Defaults
            to True.

    Returns:
        A `FoundBatch`: print it.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: for a model that is not compiled, fewer examples than a batch, a loss that is
            not finite from the start, a baseline that learns nothing in a tenth of its run, a
            large batch that does not reach its loss, or a `directory` that holds a different
            search.

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
    large = steps.RELIABLE * base if large_batch_size is None else large_batch_size
    large = checks.integer("large_batch_size", large)
    if large < 2 * base:
        raise ValueError(f"large_batch_size={large:,} is less than twice the baseline's {base:,}.")
    if runs is not None and noise_scale is not None:
        raise ValueError("Pass runs= or noise_scale=, not both.")
    searches = runs is None and noise_scale is None
    if micro_batch_size is not None:
        micro_batch_size = checks.integer("micro_batch_size", micro_batch_size)
    if most is not None and (most := checks.integer("most", most)) < base:
        raise ValueError(f"most={most:,} is less than the baseline's batch of {base:,}.")
    if network_seconds is not None:
        checks.number("network_seconds", network_seconds, "[0, inf)")
    if step_seconds is not None:
        _check_step_seconds(step_seconds)
    devices = tuple(devices) if isinstance(devices, Iterable) else (devices,)
    check(model, base, None)
    own = unwrapped(model.optimizer)
    rate = tuned_rate(own, baseline_learning_rate)
    shared = devices_of(model)
    read = Examples(data, validation_data, examples, shared)
    if read.training < base:
        raise ValueError(
            f"{read.training:,} examples to train on are fewer than a batch of {base:,}: "
            f"{read.held_out:,} are held out; pass validation_data= to train on all."
        )
    total = training(baseline_epochs, read.examples, base, fit_steps)
    length = round(PART * total)
    if searches:
        _check_large(large, base, read.training, total, large_batch_size is None)
    step_time, largest = None, micro_batch_size or base
    sizes: list[int] = []
    if step_seconds is not None:
        given = dict(step_seconds)
        step_time = time.fit(list(given), list(given.values()))
        largest = micro_batch_size or max(given)
    else:
        _check_timed(read.blocks[0])
        if shared > 1:
            raise ValueError(
                f"keras.distribution shares a call among {shared} devices, and a step is timed on "
                "one: pass step_seconds=, or search without it, with a model that is built anew."
            )
        sizes = _to_time(base, micro_batch_size, min(read.training, most or large * steps.FARTHEST))
    machine = plan.Machine(step_time or time.StepTime(0.0, 0.0), largest, devices, price=price)
    plan.check(machine, base, read.training, most, deadline=deadline)
    if network_seconds is not None and max(devices) == 1:
        raise ValueError(
            f"network_seconds={network_seconds} is of several devices, and devices={devices}: pass "
            "devices=(1, 8), for instance, or leave it out."
        )
    curve = None
    if noise_scale is not None:
        curve = steps.from_noise(noise_scale, base, total)
    elif runs is not None:
        curve = steps.from_runs(runs).through(base, total)

    saved = Saved(directory, read, {
        "baseline_batch_size": base, "steps": total, "learning_rate": rate,
        "large_batch_size": large, "micro_batch_size": micro_batch_size,
        "optimizer": type(own).__name__, **settings(own),
    })  # fmt: skip

    bar = None

    def begin(batch, calls=1, averaged=1):
        return _trials(model, read, own, saved, batch, calls, averaged, bar and bar.add)

    def say(line):
        if verbose:
            print(f"\n{line}" if bar else line)  # below the bar

    how, target = "seconds of a step: as given", None
    made: list[reach.Run] = []
    if step_time is None:
        say(f"find_batch: steps are timed at micro-batches of {', '.join(map(str, sizes))}")
        seen, update, how = saved.once(
            ["seconds", sizes], lambda: _measured(begin, own, base, sizes)
        )
        timed, taken = zip(*seen, strict=True)
        step_time, largest = time.fit(timed, taken, update), max(timed)
    if network_seconds is not None:
        step_time = time.with_network(step_time, network_seconds, "as given")
    machine = dataclasses.replace(machine, time=step_time, micro_batch=largest)
    if curve is None:
        of_runs = reach.examples(base, length)
        few, many = (each / (base * total) for each in of_runs)
        example = sum(machine.seconds(batch, 1) / batch for batch in (base, large)) / 2
        quick, slow = (plan.duration(each * example) for each in of_runs)
        say(
            f"find_batch: short runs at batch {base:,} and {large:,}, on about {few:.1f} to "
            f"at most {many:.1f} times the examples of the baseline, {quick} to {slow} of steps; "
            f"{read.held_out:,} are held out"
        )
        if verbose and is_watched():
            bar = Progress(model, of_runs[1], "example")
        fits = largest if accumulates(own) else large
        _, calls = plan.arrange(large, 1, fits)
        of_base = micro_batches(base, fits)
        check_shared(model, base // of_base)
        check_shared(model, large // calls)
        target, made = reach.short_runs(
            lambda batch: begin(batch, *((of_base, AVERAGED) if batch == base else (calls,))),
            rate, base, large // calls * calls, length, say, saved.once,
        )  # fmt: skip
        if bar:
            bar.end()
        best = reach.of_best_rates(made).values()
        arrived = [(run.batch, run.steps) for each in best for run in each]
        curve = steps.from_runs(arrived).through(base, total)
    answer = plan.plan(
        curve, machine, baseline=base, examples=read.training, most=most, deadline=deadline
    )
    return FoundBatch(
        answer=answer, runs=tuple(made), target=target, timed=how, optimizer=own,
        learning_rate=rate, baseline_epochs=baseline_epochs, examples=read.examples,
        cost=sum(run.batch * run.made for run in made) / (base * total),
        normalizes=bool(normalizations(model)), data=read.written,
    )  # fmt: skip


def _check_step_seconds(given):
    """Raises for what no line goes through."""
    if not isinstance(given, Mapping) or len(given) < 2:
        raise ValueError(
            "step_seconds must map two micro-batches or more to seconds, such as "
            f"{{32: 0.01, 128: 0.012}}, but it is {given!r}."
        )


def _check_large(large, base, examples, total, is_default):
    """Raises for a large batch that the examples, or short runs of `total` steps, do not reach."""
    most = min(examples, round(PART * total) * base // reach.LEAST_STEPS)
    if large <= most:
        return
    asked = f"a batch of {large:,}"
    if is_default:
        asked += f", {steps.RELIABLE} times the baseline's"
    why = f"{examples:,} examples to train on are fewer than {asked}"
    if large <= examples:
        least = round(math.ceil(reach.LEAST_STEPS * large / base) / PART)
        why = (
            f"A tenth of the baseline's {total:,} steps is too short to compare with {asked}, "
            f"which needs a baseline of {least:,} steps"
        )
    smaller = f"large_batch_size={most} or less, " if most >= 2 * base else ""
    raise ValueError(f"{why}: pass {smaller}runs= or noise_scale=.")


@contextlib.contextmanager
def _trials(model, read, own, saved, batch, calls, averaged, tell):
    """Trials with the model's optimizer, which make an update in so many calls."""
    with Trials(model, read, batch, batch // calls, averaged=averaged) as trials:
        trials.check_loss()
        saved.begin(trials)
        trials.choose("own", lambda: anew(own, calls))
        trials.tell = tell
        yield trials


def _check_timed(batch):
    """Raises where `fit` takes no generator of such batches."""

    def check_numbers(each):
        if each.dtype.kind in "OSU":
            raise ValueError(
                "Steps on strings cannot be timed: pass step_seconds=, or data that are numbers, "
                "as data.map(preprocessor) makes them."
            )

    mapped(check_numbers, batch)


def _to_time(base, micro_batch_size, end):
    """The micro-batches to time, where none is too large."""
    if micro_batch_size is None:
        sizes = seconds.sizes_from(max(1, base // seconds.GROWTH), end)
    else:
        sizes = seconds.sizes_to(micro_batch_size)
    if len(sizes) < 2:
        raise ValueError(
            f"Steps are timed at two micro-batches at least, and {sizes[0]} is the largest that is "
            "wanted: pass step_seconds=."
        )
    return sizes


def _measured(begin, own, base, sizes):
    """The seconds by micro-batch, those of an update alone, and what ended the list."""
    with begin(base) as trials:
        seen, how = seconds.step_seconds(trials, sizes)
        update = 0.0
    if accumulates(own):
        first, calls = sizes[0], seconds.ACCUMULATED
        with begin(calls * first, calls) as trials:
            alone = seconds.update_seconds(trials, first, seen[first])
        update = min(alone, 0.5 * min(seen.values()))
    return [*seen.items()], update, how
