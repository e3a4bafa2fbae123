"""Computes the time and the cost of training at each batch, and which batches are the best."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from tf_lamb.core import checks
from tf_lamb.core.messages import table
from tf_lamb.find.goodput.steps import StepCurve

WRONG_BY = 2.0  # for the regret: the factor by which the noise scale may be wrong either way
NEAR = 1.1  # a batch is near the best if it takes at most this many times the hours
LEVEL = 1.001  # within this many times the least hours, or device-hours, batches are level


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Holds the parts of the seconds of a step, and how well they are known.

        C(b) = micro_batch + example b      a micro-batch of b examples
        T    = k C(b) + update + network    k micro-batches; the network of several devices

    Between two sizes that were timed, C is interpolated linearly, because its slope changes where a
    cache or a device is full. Source: Qiao et al., Pollux, arXiv:2008.12260, with a network that
    does not overlap the computation.

    Attributes:
        micro_batch: Seconds of a micro-batch that do not depend on its size.
        example: Seconds of one more example in a micro-batch.
        update: Seconds of the update. Defaults to 0.0.
        residual: The largest relative residual of the fit. Defaults to 0.0.
        timed: Pairs (micro-batch, its seconds) that were measured, in order. Defaults to ().
    """

    micro_batch: float
    example: float
    update: float = 0.0
    residual: float = 0.0
    timed: tuple[tuple[float, float], ...] = ()

    def call(self, size: float) -> float:
        """Returns C, the seconds of a micro-batch.

        It lies on the line between the two nearest timed sizes, and beyond the largest of them it
        grows by `example` for each further example.
        """
        points = ((0.0, self.micro_batch), *self.timed)
        for (smaller, smaller_seconds), (larger, larger_seconds) in itertools.pairwise(points):
            if size <= larger:
                return smaller_seconds + (larger_seconds - smaller_seconds) * (size - smaller) / (
                    larger - smaller
                )
        largest, largest_seconds = points[-1]
        return largest_seconds + self.example * (size - largest)

    def step(self, size: float, accumulation: int = 1) -> float:
        """Returns T, the seconds of a step, without the network.

        Args:
            size: Examples of a micro-batch.
            accumulation: k, the micro-batches of a step. Defaults to 1.
        """
        return accumulation * self.call(size) + self.update


def fit_time(
    micro_batches: Sequence[float], seconds: Sequence[float], update: float = 0.0
) -> StepTime:
    """Fits C, the seconds of a micro-batch, to measured steps by relative least squares.

    It minimizes the sum of (C(b)/(t - update) - 1)^2 with micro_batch, example >= 0, where a step
    of size b takes t seconds.

    Args:
        micro_batches: b, the sizes that were timed.
        seconds: t, the seconds of a step at each size.
        update: The seconds of the update that each step contains. Defaults to 0.0.

    Raises:
        ValueError: for fewer than two different sizes, or for an update that is no shorter than a
            step.
    """
    sizes = [checks.number("micro_batches", size, "(0, inf)") for size in micro_batches]
    if len(set(sizes)) < 2:
        raise ValueError(
            f"A fit needs two different micro-batches at least, not {sizes}: time a smaller one."
        )
    checks.number("update", update, "[0, inf)")
    call_seconds = [checks.number("seconds", elapsed, "(0, inf)") - update for elapsed in seconds]
    if min(call_seconds) <= 0:
        raise ValueError(f"update={update:g} s is no less than a step of {min(seconds):g} s.")
    rows = [
        (1 / elapsed, size / elapsed) for size, elapsed in zip(sizes, call_seconds, strict=True)
    ]
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    alpha, beta = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if alpha < 0:
        alpha, beta = 0.0, y / yy
    elif beta < 0:
        alpha, beta = x / xx, 0.0
    residual = max(abs(alpha * row[0] + beta * row[1] - 1) for row in rows)
    fastest: dict[float, float] = {}
    for size, elapsed in zip(sizes, call_seconds, strict=True):
        fastest[size] = min(elapsed, fastest.get(size, elapsed))
    return StepTime(alpha, beta, update, residual=residual, timed=tuple(sorted(fastest.items())))


def calls_of_epoch(examples: int, size: int, drops: bool = False) -> int:
    """Returns how often `fit` calls the training step in an epoch.

    Args:
        examples: Examples of an epoch.
        size: Examples of a call, on all devices.
        drops: Whether the last call is left out if it is smaller than `size`. Defaults to False.
    """
    return max(1, examples // size if drops else math.ceil(examples / size))


@dataclasses.dataclass(frozen=True)
class Epoch:
    """Holds the seconds that `fit` takes besides its steps.

    Attributes:
        examples: Examples of an epoch.
        start: Seconds of an epoch besides its steps and its evaluation. Defaults to 0.0.
        evaluation: The pair (a, b): the evaluation of an epoch takes a + b/size seconds, where
            `size` is the examples of a call of the training step. Defaults to (0.0, 0.0).
        compiled: Seconds of compiling the training step for one size of its batch. Defaults to 0.0.
        evaluated: Seconds of compiling the evaluation. Defaults to 0.0.
        drops: Whether the last call of the training step in an epoch is left out if it is smaller.
            Defaults to False.
    """

    examples: int
    start: float = 0.0
    evaluation: tuple[float, float] = (0.0, 0.0)
    compiled: float = 0.0
    evaluated: float = 0.0
    drops: bool = False

    def calls(self, size: int) -> int:
        """Returns how often `fit` calls the training step in an epoch, on `size` examples each."""
        return calls_of_epoch(self.examples, size, self.drops)

    def seconds(self, size: int) -> float:
        """Returns the seconds of an epoch besides its steps.

        Args:
            size: Examples of a call of the training step, on all devices.
        """
        constant, coefficient = self.evaluation
        return self.start + constant + coefficient / size

    def begin(self, size: int) -> float:
        """Returns the seconds of all compilation in a `fit`.

        They are those of the training step, of the training step once more if the last call of an
        epoch is smaller, and of the evaluation.

        Args:
            size: Examples of a call of the training step, on all devices.
        """
        has_smaller = self.examples > size and self.examples % size > 0 and not self.drops
        return self.compiled * (1 + has_smaller) + self.evaluated


@dataclasses.dataclass(frozen=True)
class Machine:
    """Holds the hardware that trains, and the seconds that it takes.

    Attributes:
        time: The seconds of a step.
        micro_batch: The largest micro-batch that fits a device; larger batches accumulate
            gradients.
        devices: The numbers of devices to compare. Defaults to (1,).
        price: The price of a device for an hour. Defaults to None: not known.
        network: The seconds that the network adds to a step, by the number of devices. Defaults to
            None: not counted.
        epoch: The seconds that `fit` takes besides its steps. Defaults to None: not counted.
    """

    time: StepTime
    micro_batch: int
    devices: tuple[int, ...] = (1,)
    price: float | None = None
    network: Mapping[int, float] | None = None
    epoch: Epoch | None = None

    def seconds(self, batch: int, devices: int, micro_batch: int | None = None) -> float:
        """Returns the seconds of a step, plus its share of what an epoch takes besides its steps.

        The share is k p/c, where p is the seconds of an epoch besides its steps, c the number of
        its calls of the training step, and k the micro-batches of a step: a call for each.

        Args:
            batch: Examples of a step.
            devices: The number of devices.
            micro_batch: The largest micro-batch of a device. Defaults to None: the machine's.
        """
        micro_size, accumulation = arrange(batch, devices, micro_batch or self.micro_batch)
        seconds = self.time.step(micro_size, accumulation) + (self.network or {}).get(devices, 0.0)
        if self.epoch is None:
            return seconds
        call_size = micro_size * devices
        return seconds + accumulation * self.epoch.seconds(call_size) / self.epoch.calls(call_size)

    def begin(self, batch: int, devices: int) -> float:
        """Returns the seconds of all compilation in a `fit`: see `Epoch.begin`.

        Args:
            batch: Examples of a step.
            devices: The number of devices.
        """
        micro_size, _ = arrange(batch, devices, self.micro_batch)
        return self.epoch.begin(micro_size * devices) if self.epoch else 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """Holds what training takes at one batch.

    Attributes:
        batch: Examples of an update.
        micro_batch: Examples of a micro-batch on one device.
        accumulation: Micro-batches of an update.
        devices: The number of devices.
        steps: Updates to the target.
        examples: Examples to the target.
        relative: Those examples over those of the baseline.
        seconds: Seconds of a step, with its share of what an epoch takes besides its steps.
        hours: Hours to the target, compilation included.
        between: The least and the most hours, by the likely curves of the steps.
        device_hours: Hours times devices.
        cost: The price of the device-hours; None without a price.
    """

    batch: int
    micro_batch: int
    accumulation: int
    devices: int
    steps: int
    examples: int
    relative: float
    seconds: float
    hours: float
    between: tuple[float, float]
    device_hours: float
    cost: float | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """Holds a row for each batch, and which rows are the best. `str()` shows it as a table.

    Attributes:
        steps: The steps to the target at each batch.
        machine: The hardware that trains.
        baseline: The batch of the tuned baseline.
        rows: A row for each batch and number of devices.
        fastest: The row of the smallest batch within 0.1% of the least hours.
        cheapest: The row of the smallest batch within 0.1% of the least device-hours.
        deadline: The deadline in hours, or None.
        by_deadline: The row of the largest batch that ends by the deadline, or None.
        why_not_larger: Why no larger batch is the fastest.
        regret: Noise scale -> the share of time that `fastest` would lose if this were the true
            one.
        optimum: The result of the function `optimum`; None on several devices, if the steps have no
            bend, and if examples take no time.
        left_out: Pairs (batch, reason) of the user's batches that have no row. Defaults to ().
    """

    steps: StepCurve
    machine: Machine
    baseline: int
    rows: tuple[Row, ...]
    fastest: Row
    cheapest: Row
    deadline: float | None
    by_deadline: Row | None
    why_not_larger: str
    regret: dict[float, float]
    optimum: float | None
    left_out: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return "\n".join((_fastest(self), *_measured(self), *_table(self), *_advice(self)))


def arrange(batch: int, devices: int, largest: int) -> tuple[int, int]:
    """Splits a batch into micro-batches of one size, as few as fit.

    Args:
        batch: Examples of an update.
        devices: The number of devices that share it.
        largest: The largest micro-batch of a device.

    Returns:
        The examples of a micro-batch on one device, and the number of micro-batches. If the batch
        does not divide evenly, they make up the next larger batch that does.
    """
    local = batch / devices
    accumulation = math.ceil(local / largest)
    return math.ceil(local / accumulation), accumulation


def optimum(time: StepTime, noise: float) -> float:
    """Returns the batch that is fastest on one device with unlimited memory.

        B* = sqrt(a Bn/b),  a = micro_batch + update, b = example

    It minimizes (a + b B)(1 + Bn/B); at B* that is (sqrt(a) + sqrt(b Bn))^2.

    Args:
        time: The seconds of a step.
        noise: The noise scale Bn.
    """
    return math.sqrt((time.micro_batch + time.update) * noise / time.example)


def regret(rows: Iterable[Row], chosen: Row, noise: float) -> float:
    """Returns the share of time that a row loses to the best one, if a noise scale is the true one.

    Args:
        rows: The rows to compare with.
        chosen: The row that was taken.
        noise: The noise scale.
    """

    def time(row):
        return row.seconds * (1 / row.batch if noise == math.inf else 1 + noise / row.batch)

    return time(chosen) / min(map(time, rows)) - 1


def plan(
    steps: StepCurve, machine: Machine, *, baseline: int, examples: int,
    batches: Iterable[int] | None = None, most: int | None = None, deadline: float | None = None,
) -> Answer:  # fmt: skip
    """Computes what training takes at each batch from the baseline's on, and which are the best.

        hours = S(B) T(B)/3600,  device-hours = devices x hours

    S(B) is the steps to the target at batch B, and T(B) the seconds of a step. The hours of
    compilation are added.

    Args:
        steps: The steps to the target at each batch.
        machine: The hardware that trains.
        baseline: The batch of the tuned baseline.
        examples: Examples to train on, which no batch exceeds.
        batches: Batches to compare. Defaults to None: powers of two times the baseline, and the
            largest that fits.
        most: The largest batch that is wanted. Defaults to None: no limit.
        deadline: The most hours of a run for `by_deadline`. Defaults to None.

    Raises:
        ValueError: if no batch can be planned, or for a number that is out of range.

    Example:
        >>> from tf_lamb.find.goodput.steps import curve_from_noise
        >>> steps = curve_from_noise(1000, batch=32, steps=4800)
        >>> machine = Machine(StepTime(0.05, 0.001), micro_batch=512)
        >>> answer = plan(steps, machine, baseline=32, examples=60000)
        >>> answer.fastest.batch, round(answer.fastest.hours * 60, 1)
        (256, 3.7)
    """
    _check(machine, baseline, examples, most, deadline)
    baseline_examples = steps.steps_at(baseline) * baseline
    why_not = functools.partial(_why_not, steps=steps, examples=examples, most=most)
    sizes, limit_reason = _wanted(batches, baseline, machine, why_not)
    row_set, planned, left_out = set(), set(), {}
    for devices, batch in itertools.product(machine.devices, sizes):
        even_batch, why = batch, f"{devices:,} devices cannot share it"
        if devices <= batch:
            micro, accumulation = arrange(batch, devices, machine.micro_batch)
            even_batch = micro * accumulation * devices
            why = why_not(even_batch)
        if why:
            left_out[batch] = why
        else:
            planned.add(batch)
            row_set.add(_row(steps, machine, baseline_examples, even_batch, devices))
    rows = sorted(row_set, key=lambda row: (row.batch, row.devices))
    if not rows:
        counts = " or ".join(map(str, machine.devices))
        raise ValueError(f"No batch can be planned for {counts} devices: {limit_reason}.")
    fastest = _smallest(rows, lambda row: row.hours)
    in_time = [row for row in rows if deadline is not None and row.hours <= deadline]
    bends = 0 < steps.noise < math.inf
    low, high = steps.interval  # may be wider than WRONG_BY where the runs scatter
    wrong_scales = steps.noise / WRONG_BY, steps.noise * WRONG_BY
    scales = [min(low, wrong_scales[0]), max(high, wrong_scales[1])] if bends else [low]
    has_optimum = machine.devices == (1,) and bends and machine.time.example > 0
    time = machine.time
    if machine.epoch:  # the seconds of an epoch are shared out among its examples
        share = machine.epoch.seconds(machine.micro_batch) / machine.epoch.examples
        time = dataclasses.replace(time, example=time.example + share)
    return Answer(
        steps=steps,
        machine=machine,
        baseline=baseline,
        rows=tuple(rows),
        fastest=fastest,
        cheapest=_smallest(rows, lambda row: row.device_hours),
        deadline=deadline,
        by_deadline=max(in_time, key=lambda row: (row.batch, -row.devices), default=None),
        why_not_larger=_why_not_larger(machine, rows, fastest, limit_reason),
        regret={noise: regret(rows, fastest, noise) for noise in scales},
        optimum=optimum(time, steps.noise) if has_optimum else None,
        left_out=tuple(
            (size, why) for size, why in left_out.items() if batches and size not in planned
        ),
    )


def _check(machine, baseline, examples, most, deadline):
    """Raises for an argument that is no number, or out of range."""
    if not machine.devices:
        raise ValueError("devices must name a number of devices at least, such as (1, 8).")
    checks.integer("examples", examples, maximum=math.inf)
    checks.integer("baseline", baseline)
    checks.integer("micro_batch", machine.micro_batch)
    if most is not None:
        checks.integer("most", most)
    for count in machine.devices:
        checks.integer("devices", count)
    for name, number in (("price", machine.price), ("deadline", deadline)):
        if number is not None:
            checks.number(name, number, "(0, inf)")


def _why_not(batch, steps, examples, most):
    """Explains why a batch is not possible; "" if it is.

    Args:
        batch: Examples of an update.
        steps: The `StepCurve`, which ends at a largest batch.
        examples: Examples to train on.
        most: The largest batch that is wanted, or None.
    """
    if batch > examples:
        return f"the data has {examples:,} examples to train on"
    if most is not None and batch > most:
        return f"{most:,} is the largest that is wanted"
    if batch > steps.largest_batch:
        return f"{steps.source} reaches to {steps.largest_batch:,.0f}; run a larger batch first"
    return ""


def _wanted(batches, baseline, machine, why_not):
    """Returns the batches to compare, and why there are none beyond them.

    Args:
        batches: The user's batches; None for powers of two times the baseline.
        baseline: The batch of the tuned baseline.
        machine: The hardware that trains.
        why_not: Batch -> why it is not possible, or "".
    """
    if batches is None:
        doubled = (baseline * 2**k for k in itertools.count())
        sizes = list(itertools.takewhile(lambda batch: not why_not(batch), doubled))
        beyond = why_not(baseline * 2 ** len(sizes))
        full_batches = (machine.micro_batch * devices for devices in machine.devices)
        return sizes + [batch for batch in full_batches if batch > baseline], beyond
    sizes = sorted(checks.integer("batches", batch) for batch in batches)
    if not sizes:
        raise ValueError("batches must name one at least; None stands for powers of two.")
    given_limit = f"{sizes[-1]:,} is the largest that was given"
    return sizes, next(filter(None, map(why_not, sizes)), given_limit)


def _row(steps, machine, base, batch, devices):
    """Returns the row of a batch that divides evenly.

    Args:
        steps: The steps to the target at each batch.
        machine: The hardware that trains.
        base: Examples with which the baseline reaches the target.
        batch: Examples of an update.
        devices: The number of devices.
    """
    micro, accumulation = arrange(batch, devices, machine.micro_batch)
    seconds, updates = machine.seconds(batch, devices), max(1, round(steps.steps_at(batch)))
    begin = machine.begin(batch, devices)
    low, high = (
        (begin + step_count * seconds) / 3600 for step_count in steps.steps_interval(batch)
    )
    hours = (begin + updates * seconds) / 3600
    return Row(
        batch=batch,
        micro_batch=micro,
        accumulation=accumulation,
        devices=devices,
        steps=updates,
        examples=updates * batch,
        relative=updates * batch / base,
        seconds=seconds,
        hours=hours,
        between=(low, high),
        device_hours=devices * hours,
        cost=None if machine.price is None else machine.price * devices * hours,
    )


def _smallest(rows, measure):
    """Returns the first row, that of the smallest batch, whose measure is within 0.1% of the least.

    Args:
        rows: Rows in the order of their batches.
        measure: Row -> the number to compare.
    """
    level = LEVEL * min(map(measure, rows))
    return next(row for row in rows if measure(row) <= level)


def _why_not_larger(machine, rows, fastest, beyond):
    """Explains why no larger batch is faster: a limit, the largest micro-batch, or the time itself.

    Args:
        machine: The hardware that trains.
        rows: All rows, in the order of their batches.
        fastest: The fastest of them.
        beyond: Why there are no batches beyond these.
    """
    rows_of_devices = (row for row in rows if row.devices == fastest.devices)
    larger_row = next((row for row in rows_of_devices if row.batch > fastest.batch), None)
    if larger_row is None:
        return f"at the edge: {beyond}"
    local = larger_row.batch // larger_row.devices
    unsplit_seconds = larger_row.steps * machine.seconds(
        larger_row.batch, larger_row.devices, local
    )
    unsplit_seconds += machine.begin(larger_row.batch, larger_row.devices)
    if LEVEL * unsplit_seconds < 3600 * fastest.hours:
        return (
            f"{larger_row.batch:,} would be faster in one micro-batch of {local:,} examples a "
            f"device; {machine.micro_batch:,} is the largest here"
        )
    return f"{larger_row.batch:,} takes {larger_row.hours / fastest.hours:.3g}x as long"


def _fastest(answer):
    """Returns the line on the fastest batch."""
    best = answer.fastest
    near_batches = [
        row.batch
        for row in answer.rows
        if row.devices == best.devices and row.hours <= NEAR * best.hours
    ]
    low, high = (duration(3600 * hours) for hours in best.between)
    on_devices = f" on {best.devices}" if len(answer.machine.devices) > 1 else ""
    level_batches = (
        "no other batch is"
        if len(near_batches) == 1
        else f"{min(near_batches):,} to {max(near_batches):,} are"
    )
    return (
        f"fastest to the same loss: batch {best.batch:,}{on_devices}: {low} to {high}, for "
        f"{best.relative:.2f}x the examples; {level_batches} within {NEAR - 1:.0%} of its time"
    )


def _measured(answer):
    """Yields lines on the measurements that the table rests on."""
    steps, time = answer.steps, answer.machine.time
    low, high = steps.interval
    yield (
        f"noise scale {steps.noise:,.0f} ({low:,.0f} to {high:,.0f}) from "
        f"{steps.source}: a batch that large takes twice the minimum steps and examples"
    )
    yield from steps.notes
    yield (
        f"at any batch {steps.least_steps:,.0f} steps and {steps.least_examples:,.0f} examples "
        "at least"
    )
    update = f", {duration(time.update)} an update" if time.update else ""
    network = ""
    if max(answer.machine.devices) > 1:
        seconds = (answer.machine.network or {}).items()
        network_times = (f"{duration(added)} on {count}" for count, added in seconds)
        network = f", network {', '.join(network_times) or 'not counted'}"
    yield (
        f"{duration(time.micro_batch)} a micro-batch + {duration(time.example)} an example (worst "
        f"residual {time.residual:.0%}){update}{network}"
    )
    if (epoch := answer.machine.epoch) is not None:
        size = answer.machine.micro_batch
        evaluation = epoch.seconds(size) - epoch.start
        of_evaluation = f", {duration(evaluation)} of it the evaluation" if evaluation else ""
        yield (
            f"{duration(epoch.seconds(size))} an epoch besides{of_evaluation}, shared out among "
            f"its steps; {duration(epoch.begin(size))} once to compile"
        )


def _table(answer):
    """Returns the rows as text, with numbers to the right."""
    priced = answer.machine.price is not None
    header = [
        "batch", "= micro x accum x devices", "steps", "examples", "vs base", "a step", "time",
        "device-hours", *(["cost"] if priced else []), "",
    ]  # fmt: skip
    cells = [header]
    for row in answer.rows:
        cells.append([
            f"{row.batch:,}", f"= {row.micro_batch:,} x {row.accumulation:,} x {row.devices:,}",
            f"{row.steps:,}", f"{row.examples:,}", f"{row.relative:.2f}x",
            duration(row.seconds), duration(3600 * row.hours), _digits(row.device_hours),
            *([f"{row.cost:,.2f}"] if priced else []), ", ".join(_notes(answer, row)),
        ])  # fmt: skip
    return table(cells, right_aligned=(0, *range(2, len(header) - 1)))


def _notes(answer, row):
    """Yields what a row is, such as "baseline" or "fastest", for the last column of the table."""
    if row.batch == answer.baseline:
        yield "baseline"
    named = {"fastest": answer.fastest, "cheapest": answer.cheapest}
    named["largest by the deadline"] = answer.by_deadline
    yield from (name for name, named_row in named.items() if named_row == row)


def _advice(answer):
    """Yields lines on which batch to take."""
    for batch, why in answer.left_out:
        yield f"left out {batch:,}: {why}"
    yield f"why not larger: {answer.why_not_larger}"
    scales = " or ".join(f"{noise:,.0f}" for noise in answer.regret)
    losses = " or ".join(f"{loss:.1%}" for loss in answer.regret.values())
    yield f"if the noise scale is {scales}, it takes {losses} more time than the best batch"
    largest = answer.by_deadline
    if largest is not None and largest.between[1] > answer.deadline:
        latest = duration(3600 * largest.between[1])
        yield f"{largest.batch:,} may miss the deadline: it takes up to {latest}"
    if answer.optimum is not None:
        yield f"with unlimited memory one device is fastest at batch {max(1, answer.optimum):,.0f}"
    if answer.deadline is not None and answer.by_deadline is None:
        yield f"no batch ends within {answer.deadline:g} hours"


def duration(seconds):
    """Formats seconds in ms, s, min or h."""
    for unit, size, limit in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7200)):
        if seconds < limit:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def _digits(number):
    """Formats a number with three significant digits below 100, else with all of its digits."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"
