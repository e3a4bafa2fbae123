"""Computes the time and the cost of training at each batch size, and which sizes are the best.

"Batch" is short for batch size in this module.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from tf_lamb.core import checks
from tf_lamb.find.goodput.answer_text import answer_text
from tf_lamb.find.goodput.steps import StepCurve

# `Answer.regret` assumes that the true noise scale is this many times the measured one, or that it
# is the measured one divided by this. Where the curve's own interval reaches farther, its end is
# assumed instead.
NOISE_ERROR_FACTOR = 2.0
# Batches tie if their hours, or device-hours, are at most this many times the least.
TIE_FACTOR = 1.001


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Holds a model of the seconds of a training step, which was fitted to measurements.

        C(b) = micro_batch_seconds + example_seconds b

        T    = k C(b) + update_seconds + network

    C(b) is the seconds of a micro-batch of b examples, and T those of a step of k micro-batches.
    `network` is the seconds that the network of several devices adds to a step. Between two sizes
    that were timed, C is interpolated linearly instead, because its slope changes where a cache or
    a device is full. Source: Qiao et al., Pollux, arXiv:2008.12260. Unlike in that paper, the
    network does not overlap the computation.

    Attributes:
        micro_batch_seconds: Seconds of a micro-batch that do not depend on its size.
        example_seconds: Seconds of one more example in a micro-batch.
        update_seconds: Seconds of the update of the weights. Defaults to 0.0.
        residual: The largest relative residual of the fit of C. Defaults to 0.0.
        measurements: Pairs (examples of a micro-batch, its measured seconds without
            `update_seconds`), in ascending order. Defaults to ().
    """

    micro_batch_seconds: float
    example_seconds: float
    update_seconds: float = 0.0
    residual: float = 0.0
    measurements: tuple[tuple[float, float], ...] = ()

    def call_seconds(self, size: float) -> float:
        """Returns C, the seconds of a micro-batch.

        C is interpolated linearly between the nearest timed sizes. Beyond the largest timed size it
        grows by `example_seconds` for each further example.

        Args:
            size: The number of examples in the micro-batch.
        """
        points = ((0.0, self.micro_batch_seconds), *self.measurements)
        for (smaller, smaller_seconds), (larger, larger_seconds) in itertools.pairwise(points):
            if size <= larger:
                return smaller_seconds + (larger_seconds - smaller_seconds) * (size - smaller) / (
                    larger - smaller
                )
        largest, largest_seconds = points[-1]
        return largest_seconds + self.example_seconds * (size - largest)

    def step_seconds(self, size: float, accumulation: int = 1) -> float:
        """Returns T, the seconds of a step, without those that a network adds.

        Args:
            size: The number of examples in a micro-batch.
            accumulation: k, the micro-batches of a step. Defaults to 1.
        """
        return accumulation * self.call_seconds(size) + self.update_seconds


def fit_step_time(
    micro_batches: Sequence[float], seconds: Sequence[float], update_seconds: float = 0.0
) -> StepTime:
    """Fits a `StepTime` to measured steps: C, the seconds of a micro-batch, by least squares.

    The fit minimizes the sum of (C(b)/(t - update_seconds) - 1)^2, where a step on one micro-batch
    of b examples takes t seconds. Both coefficients of C are kept from being negative.

    Args:
        micro_batches: b, the sizes that were timed, in examples.
        seconds: t, the seconds of a step at each size.
        update_seconds: The seconds of the update that each step contains. Defaults to 0.0.

    Returns:
        A `StepTime` with the coefficients of C, and with the least measured seconds at each size,
        less `update_seconds`.

    Raises:
        ValueError: for fewer than two different sizes, or for an update that is no shorter than a
            step.
    """
    sizes = [checks.number("micro_batches", size, "(0, inf)") for size in micro_batches]
    if len(set(sizes)) < 2:
        raise ValueError(
            f"A fit needs two different micro-batches at least, not {sizes}: time a smaller one."
        )
    checks.number("update", update_seconds, "[0, inf)")
    call_seconds = [
        checks.number("seconds", elapsed, "(0, inf)") - update_seconds for elapsed in seconds
    ]
    if min(call_seconds) <= 0:
        raise ValueError(
            f"update={update_seconds:g} s is no less than a step of {min(seconds):g} s."
        )
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
    least_seconds: dict[float, float] = {}
    for size, elapsed in zip(sizes, call_seconds, strict=True):
        least_seconds[size] = min(elapsed, least_seconds.get(size, elapsed))
    return StepTime(
        alpha,
        beta,
        update_seconds,
        residual=residual,
        measurements=tuple(sorted(least_seconds.items())),
    )


def calls_per_epoch(examples: int, call_size: int, drop_remainder: bool = False) -> int:
    """Returns how often `fit` calls the training step in an epoch.

    Args:
        examples: The number of examples in an epoch.
        call_size: The number of examples in a call, on all devices.
        drop_remainder: Whether the last call is left out if it is smaller than `call_size`.
            Defaults to False.
    """
    return max(1, examples // call_size if drop_remainder else math.ceil(examples / call_size))


@dataclasses.dataclass(frozen=True)
class Epoch:
    """Holds the seconds that `fit` takes besides its training steps.

    Attributes:
        examples: The number of examples in an epoch.
        start_seconds: Seconds of an epoch besides its steps and its evaluation. Defaults to 0.0.
        evaluation_coefficients: The pair (a, b): the evaluation of an epoch takes a + b/call_size
            seconds, where `call_size` is the examples of a call of the training step. Defaults to
            (0.0, 0.0).
        step_compile_seconds: Seconds of compiling the training step for one size of its batch.
            Defaults to 0.0.
        evaluation_compile_seconds: Seconds of compiling the evaluation. Defaults to 0.0.
        drop_remainder: Whether the last call of the training step in an epoch is left out if it is
            smaller. Defaults to False.
    """

    examples: int
    start_seconds: float = 0.0
    evaluation_coefficients: tuple[float, float] = (0.0, 0.0)
    step_compile_seconds: float = 0.0
    evaluation_compile_seconds: float = 0.0
    drop_remainder: bool = False

    def calls(self, call_size: int) -> int:
        """Returns how often `fit` calls the training step in an epoch.

        Args:
            call_size: The number of examples in a call of the training step, on all devices.
        """
        return calls_per_epoch(self.examples, call_size, self.drop_remainder)

    def overhead_seconds(self, call_size: int) -> float:
        """Returns the seconds of an epoch besides its steps.

        Args:
            call_size: The number of examples in a call of the training step, on all devices.
        """
        constant, coefficient = self.evaluation_coefficients
        return self.start_seconds + constant + coefficient / call_size

    def compile_seconds(self, call_size: int) -> float:
        """Returns the seconds of all compilation in a `fit`.

        The training step is compiled, and once more if the last call of an epoch is smaller than
        the others. The evaluation is compiled, too.

        Args:
            call_size: The number of examples in a call of the training step, on all devices.
        """
        has_smaller = (
            self.examples > call_size and self.examples % call_size > 0 and not self.drop_remainder
        )
        return self.step_compile_seconds * (1 + has_smaller) + self.evaluation_compile_seconds


@dataclasses.dataclass(frozen=True)
class Machine:
    """Holds what is known of the hardware that trains: its memory, its speed and its price.

    Attributes:
        step_time: The seconds of a step.
        max_micro_batch: The largest micro-batch that fits in the memory of a device. Larger batches
            accumulate gradients.
        device_counts: The numbers of devices to compare. Defaults to (1,).
        price: The price of a device for an hour. Defaults to None: not known.
        network_seconds: The seconds that the network adds to a step, by the number of devices.
            Defaults to None: not counted.
        epoch: The seconds that `fit` takes besides its steps. Defaults to None: not counted.
    """

    step_time: StepTime
    max_micro_batch: int
    device_counts: tuple[int, ...] = (1,)
    price: float | None = None
    network_seconds: Mapping[int, float] | None = None
    epoch: Epoch | None = None

    def step_seconds(self, batch: int, devices: int, max_micro_batch: int | None = None) -> float:
        """Returns the seconds of a step, plus its share of what an epoch takes besides its steps.

        The share is k p/c. Here p is the seconds of an epoch besides its steps, and c is the number
        of calls of the training step in an epoch. A step makes k calls, one for each micro-batch.

        Args:
            batch: The number of examples in a step.
            devices: The number of devices.
            max_micro_batch: The largest micro-batch of a device. Defaults to None: the attribute of
                this name.
        """
        micro_size, accumulation = split_batch(
            batch, devices, max_micro_batch or self.max_micro_batch
        )
        network_seconds = (self.network_seconds or {}).get(devices, 0.0)
        seconds = self.step_time.step_seconds(micro_size, accumulation) + network_seconds
        if self.epoch is None:
            return seconds
        call_size = micro_size * devices
        overhead_seconds = accumulation * self.epoch.overhead_seconds(call_size)
        return seconds + overhead_seconds / self.epoch.calls(call_size)

    def compile_seconds(self, batch: int, devices: int) -> float:
        """Returns the seconds of all compilation in a `fit`: see `Epoch.compile_seconds`.

        Args:
            batch: The number of examples in a step.
            devices: The number of devices.
        """
        micro_size, _ = split_batch(batch, devices, self.max_micro_batch)
        return self.epoch.compile_seconds(micro_size * devices) if self.epoch else 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """Holds the steps, hours and cost of training to the target loss at one batch size.

    Attributes:
        batch: The number of examples in an update.
        micro_batch: The number of examples in a micro-batch on one device.
        accumulation: The number of micro-batches of an update.
        devices: The number of devices.
        steps: The number of updates to the target.
        examples: The number of examples to the target.
        examples_ratio: `examples`, divided by the examples that the baseline takes to the target.
        step_seconds: Seconds of a step, plus its share of the seconds that an epoch takes besides
            its steps, such as those of its start.
        hours: Hours to the target, compilation included.
        hours_interval: The lower and the upper bound of the hours, for the ends of the 90 %
            interval in which the steps to the target are known.
        device_hours: Hours times devices.
        cost: The price of the device-hours; None without a price.
    """

    batch: int
    micro_batch: int
    accumulation: int
    devices: int
    steps: int
    examples: int
    examples_ratio: float
    step_seconds: float
    hours: float
    hours_interval: tuple[float, float]
    device_hours: float
    cost: float | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """Holds a `Row` for each batch, and which rows are the best. `str()` shows it as a table.

    Attributes:
        curve: The steps to the target loss at each batch.
        machine: The hardware that trains.
        baseline: The batch of the tuned baseline.
        rows: A row for each batch and number of devices.
        fastest: The row of the smallest batch within 0.1% of the least hours.
        cheapest: The row of the smallest batch within 0.1% of the least device-hours.
        deadline_hours: The deadline in hours, or None.
        by_deadline: The row of the largest batch that ends by the deadline, or None.
        why_not_larger: Why no larger batch is the fastest.
        regret: A dict from a noise scale to the share of time by which `fastest` would be slower
            than the best row, if that noise scale were the true one. The time is without
            compilation.
        optimum: The batch that `optimal_batch` returns. None if several devices are compared, if
            the noise scale is 0 or infinite, or if one more example takes no time.
        left_out: Pairs (batch, reason), one for each batch of the user that has no row. Defaults to
            ().
    """

    curve: StepCurve
    machine: Machine
    baseline: int
    rows: tuple[Row, ...]
    fastest: Row
    cheapest: Row
    deadline_hours: float | None
    by_deadline: Row | None
    why_not_larger: str
    regret: dict[float, float]
    optimum: float | None
    left_out: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return answer_text(self)


def split_batch(batch: int, devices: int, max_micro_batch: int) -> tuple[int, int]:
    """Splits a batch into the smallest possible number of micro-batches of one size.

    Args:
        batch: The number of examples in an update.
        devices: The number of devices that share the batch.
        max_micro_batch: The largest micro-batch of a device.

    Returns:
        The pair (examples of a micro-batch on one device, number of micro-batches). Both are
        rounded up, so that all micro-batches on all devices together may have a few more examples
        than `batch`.
    """
    device_batch = batch / devices
    accumulation = math.ceil(device_batch / max_micro_batch)
    return math.ceil(device_batch / accumulation), accumulation


def optimal_batch(step_time: StepTime, noise: float) -> float:
    """Returns the batch B* that is fastest on one device with unlimited memory.

        B* = sqrt(a Bn/b),  a = micro_batch_seconds + update_seconds, b = example_seconds

    B* minimizes the time to the target, which is proportional to (a + b B)(1 + Bn/B). At B* this
    product is (sqrt(a) + sqrt(b Bn))^2.

    Args:
        step_time: The seconds of a step.
        noise: The noise scale Bn.
    """
    constant_seconds = step_time.micro_batch_seconds + step_time.update_seconds
    return math.sqrt(constant_seconds * noise / step_time.example_seconds)


def regret(rows: Iterable[Row], chosen: Row, noise: float) -> float:
    """Returns the share by which a row takes longer to the target than the fastest row.

        T(B)(1 + Bn/B) of the row, divided by the least one of all rows, minus 1

    T(B) is the seconds of a step and Bn the noise scale. A share of 0.1 means that the row takes
    10% longer. The seconds of compilation are not counted.

    Args:
        rows: The rows to compare with.
        chosen: The row that was taken.
        noise: The noise scale that is assumed to be the true one.
    """

    def relative_time(row):
        return row.step_seconds * (1 / row.batch if noise == math.inf else 1 + noise / row.batch)

    return relative_time(chosen) / min(map(relative_time, rows)) - 1


def plan(
    curve: StepCurve, machine: Machine, *, baseline: int, examples: int,
    batches: Iterable[int] | None = None, max_batch: int | None = None,
    deadline_hours: float | None = None,
) -> Answer:  # fmt: skip
    """Computes the hours and the cost of training at several batches, and which are the best.

        hours = S(B) T(B)/3600,  device-hours = devices x hours

    S(B) is the steps to the target loss at batch B, and T(B) the seconds of a step. The hours of
    compilation are added.

    Args:
        curve: The steps to the target at each batch.
        machine: The hardware that trains.
        baseline: The batch of the tuned baseline.
        examples: The number of training examples, which is the largest batch that is possible.
        batches: Batches to compare. Defaults to None: the baseline times powers of two, and the
            largest batch that fits without accumulation on each number of devices, if it is above
            the baseline.
        max_batch: The largest batch that is wanted. Defaults to None: no limit.
        deadline_hours: The most hours that the run `by_deadline` may take. Defaults to None: no
            deadline.

    Returns:
        An `Answer` with a row for each batch and number of devices.

    Raises:
        TypeError: for an argument that is no number.
        ValueError: if none of the batches is possible, or for a number that is out of range.

    Example:
        >>> from tf_lamb.find.goodput.steps import curve_from_noise
        >>> curve = curve_from_noise(1000, batch=32, steps=4800)
        >>> machine = Machine(StepTime(0.05, 0.001), max_micro_batch=512)
        >>> answer = plan(curve, machine, baseline=32, examples=60000)
        >>> answer.fastest.batch, round(answer.fastest.hours * 60, 1)
        (256, 3.7)
    """
    _check_arguments(machine, baseline, examples, max_batch, deadline_hours)
    baseline_examples = curve.steps_at(baseline) * baseline
    why_impossible = functools.partial(
        _why_impossible, curve=curve, examples=examples, max_batch=max_batch
    )
    sizes, limit_reason = _batches_to_compare(batches, baseline, machine, why_impossible)
    distinct_rows, planned, left_out = set(), set(), {}
    for devices, batch in itertools.product(machine.device_counts, sizes):
        even_batch, reason = batch, f"{devices:,} devices cannot share it"
        if devices <= batch:
            micro_size, accumulation = split_batch(batch, devices, machine.max_micro_batch)
            even_batch = micro_size * accumulation * devices
            reason = why_impossible(even_batch)
        if reason:
            left_out[batch] = reason
        else:
            planned.add(batch)
            distinct_rows.add(_make_row(curve, machine, baseline_examples, even_batch, devices))
    rows = sorted(distinct_rows, key=lambda row: (row.batch, row.devices))
    if not rows:
        counts = " or ".join(map(str, machine.device_counts))
        raise ValueError(f"No batch can be planned for {counts} devices: {limit_reason}.")
    fastest = _smallest_best_row(rows, lambda row: row.hours)
    rows_by_deadline = [
        row for row in rows if deadline_hours is not None and row.hours <= deadline_hours
    ]
    has_bend = 0 < curve.noise < math.inf
    # If the measured runs scatter, the interval may be wider than NOISE_ERROR_FACTOR either way.
    low, high = curve.interval
    error_scales = curve.noise / NOISE_ERROR_FACTOR, curve.noise * NOISE_ERROR_FACTOR
    scales = [min(low, error_scales[0]), max(high, error_scales[1])] if has_bend else [low]
    has_optimum = (
        machine.device_counts == (1,) and has_bend and machine.step_time.example_seconds > 0
    )
    step_time = machine.step_time
    if machine.epoch:  # add to each example its share of an epoch's seconds besides its steps
        overhead_per_example = (
            machine.epoch.overhead_seconds(machine.max_micro_batch) / machine.epoch.examples
        )
        step_time = dataclasses.replace(
            step_time, example_seconds=step_time.example_seconds + overhead_per_example
        )
    return Answer(
        curve=curve,
        machine=machine,
        baseline=baseline,
        rows=tuple(rows),
        fastest=fastest,
        cheapest=_smallest_best_row(rows, lambda row: row.device_hours),
        deadline_hours=deadline_hours,
        by_deadline=max(rows_by_deadline, key=lambda row: (row.batch, -row.devices), default=None),
        why_not_larger=_why_not_larger(machine, rows, fastest, limit_reason),
        regret={noise: regret(rows, fastest, noise) for noise in scales},
        optimum=optimal_batch(step_time, curve.noise) if has_optimum else None,
        left_out=tuple(
            (size, reason) for size, reason in left_out.items() if batches and size not in planned
        ),
    )


def _check_arguments(machine, baseline, examples, max_batch, deadline_hours):
    """Raises TypeError or ValueError for an argument of `plan` that is no number or out of range.

    It also raises ValueError if `machine` names no number of devices.
    """
    if not machine.device_counts:
        raise ValueError("devices must name a number of devices at least, such as (1, 8).")
    checks.integer("examples", examples, maximum=math.inf)
    checks.integer("baseline", baseline)
    checks.integer("micro_batch", machine.max_micro_batch)
    if max_batch is not None:
        checks.integer("max_batch", max_batch)
    for count in machine.device_counts:
        checks.integer("devices", count)
    for name, number in (("price", machine.price), ("deadline", deadline_hours)):
        if number is not None:
            checks.number(name, number, "(0, inf)")


def _why_impossible(batch, curve, examples, max_batch):
    """Returns why a batch is not possible, as a part of a sentence; "" if it is possible.

    Args:
        batch: The number of examples in an update.
        curve: The `StepCurve`, which has a largest batch.
        examples: The number of examples to train on.
        max_batch: The largest batch that is wanted, or None.
    """
    if batch > examples:
        return f"the data has {examples:,} examples to train on"
    if max_batch is not None and batch > max_batch:
        return f"{max_batch:,} is the largest that is wanted"
    if batch > curve.largest_batch:
        return f"{curve.source} reaches to {curve.largest_batch:,.0f}; run a larger batch first"
    return ""


def _batches_to_compare(batches, baseline, machine, why_impossible):
    """Returns the batches to compare, and a text on why no larger ones are compared.

    Args:
        batches: The user's batches. None for the baseline times powers of two, and for the largest
            batch that fits without accumulation on each number of devices, if it is above the
            baseline.
        baseline: The batch of the tuned baseline.
        machine: The hardware that trains.
        why_impossible: A function that takes a batch and returns why it is not possible, or "".

    Raises:
        TypeError, ValueError: if one of the user's batches is no positive integer, or if they are
            none.
    """
    if batches is None:
        powers_of_two = (baseline * 2**k for k in itertools.count())
        sizes = list(itertools.takewhile(lambda batch: not why_impossible(batch), powers_of_two))
        limit_reason = why_impossible(baseline * 2 ** len(sizes))
        full_batches = (machine.max_micro_batch * devices for devices in machine.device_counts)
        return sizes + [batch for batch in full_batches if batch > baseline], limit_reason
    sizes = sorted(checks.integer("batches", batch) for batch in batches)
    if not sizes:
        raise ValueError("batches must name one at least; None stands for powers of two.")
    list_limit = f"{sizes[-1]:,} is the largest that was given"
    return sizes, next(filter(None, map(why_impossible, sizes)), list_limit)


def _make_row(curve, machine, baseline_examples, batch, devices):
    """Returns the `Row` of a batch.

    Args:
        curve: The steps to the target at each batch.
        machine: The hardware that trains.
        baseline_examples: Examples with which the baseline reaches the target.
        batch: The number of examples in an update, a number that divides evenly among devices and
            micro-batches.
        devices: The number of devices.
    """
    micro_size, accumulation = split_batch(batch, devices, machine.max_micro_batch)
    step_seconds = machine.step_seconds(batch, devices)
    step_count = max(1, round(curve.steps_at(batch)))
    compile_seconds = machine.compile_seconds(batch, devices)
    low_hours, high_hours = (
        (compile_seconds + likely_steps * step_seconds) / 3600
        for likely_steps in curve.steps_interval(batch)
    )
    hours = (compile_seconds + step_count * step_seconds) / 3600
    return Row(
        batch=batch,
        micro_batch=micro_size,
        accumulation=accumulation,
        devices=devices,
        steps=step_count,
        examples=step_count * batch,
        examples_ratio=step_count * batch / baseline_examples,
        step_seconds=step_seconds,
        hours=hours,
        hours_interval=(low_hours, high_hours),
        device_hours=devices * hours,
        cost=None if machine.price is None else machine.price * devices * hours,
    )


def _smallest_best_row(rows, measure):
    """Returns the row of the smallest batch whose measure is within 0.1% of the least one.

    Args:
        rows: Rows, sorted by batch in ascending order.
        measure: A function that takes a row and returns the number to compare, such as its hours.
    """
    threshold = TIE_FACTOR * min(map(measure, rows))
    return next(row for row in rows if measure(row) <= threshold)


def _why_not_larger(machine, rows, fastest, limit_reason):
    """Returns a text on why no larger batch is faster than the fastest.

    The reason is one of three: no larger batch was compared, the next larger one would be faster
    without accumulation but does not fit a device, or the next larger one takes longer.

    Args:
        machine: The hardware that trains.
        rows: All rows, sorted by batch in ascending order.
        fastest: The fastest of them.
        limit_reason: Why no batches beyond those of `rows` are compared.
    """
    rows_of_devices = (row for row in rows if row.devices == fastest.devices)
    larger_row = next((row for row in rows_of_devices if row.batch > fastest.batch), None)
    if larger_row is None:
        return f"at the edge: {limit_reason}"
    device_batch = larger_row.batch // larger_row.devices
    unsplit_seconds = larger_row.steps * machine.step_seconds(
        larger_row.batch, larger_row.devices, device_batch
    )
    unsplit_seconds += machine.compile_seconds(larger_row.batch, larger_row.devices)
    if TIE_FACTOR * unsplit_seconds < 3600 * fastest.hours:
        return (
            f"{larger_row.batch:,} would be faster in one micro-batch of {device_batch:,} examples "
            f"a device; {machine.max_micro_batch:,} is the largest here"
        )
    return f"{larger_row.batch:,} takes {larger_row.hours / fastest.hours:.3g}x as long"
