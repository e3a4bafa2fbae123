"""Seconds of a step, and which batch, how long, what it costs: a table, and what to take."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from tf_lamb.core import checks
from tf_lamb.core.goodput.steps import StepCurve
from tf_lamb.core.messages import table

WRONG_BY = 2.0  # of the noise scale, for the regret
NEAR = 1.1  # times the least hours
LEVEL = 1.001  # times the least of hours: no gain


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The seconds that a step is made of, and how well they are known.

        C(b) = micro_batch + example b      a micro-batch of b examples
        T    = k C(b) + update + network    k micro-batches; the network of several devices

    Between sizes that were timed C is on the line through them: time bends where a cache or a
    device is full. Source: Qiao et al., Pollux, arXiv:2008.12260, with a network that is not
    hidden.
    """

    micro_batch: float
    example: float  # one more in a micro-batch
    update: float = 0.0
    residual: float = 0.0  # the largest of the fit, relative
    timed: tuple[tuple[float, float], ...] = ()  # micro-batches and the seconds of each, in order

    def call(self, size: float) -> float:
        """C of a micro-batch; below and beyond the sizes that were timed, by the fit."""
        points = ((0.0, self.micro_batch), *self.timed)
        for (smaller, less), (larger, more) in itertools.pairwise(points):
            if size <= larger:
                return less + (more - less) * (size - smaller) / (larger - smaller)
        largest, most = points[-1]
        return most + self.example * (size - largest)

    def step(self, size: float, accumulation: int = 1) -> float:
        """T of micro-batches of a size, without the network."""
        return accumulation * self.call(size) + self.update


def fit_time(
    micro_batches: Sequence[float], seconds: Sequence[float], update: float = 0.0
) -> StepTime:
    """Fits C to the seconds of measured steps, each with its update, by relative least squares.

    The sum of (C(b)/(t - update) - 1)^2 is the least with micro_batch, example >= 0.
    """
    sizes = [checks.number("micro_batches", size, "(0, inf)") for size in micro_batches]
    if len(set(sizes)) < 2:
        raise ValueError(
            f"A fit needs two different micro-batches at least, not {sizes}: time a smaller one."
        )
    checks.number("update", update, "[0, inf)")
    rest = [checks.number("seconds", t, "(0, inf)") - update for t in seconds]
    if min(rest) <= 0:
        raise ValueError(f"update={update:g} s is no less than a step of {min(seconds):g} s.")
    rows = [(1 / t, size / t) for size, t in zip(sizes, rest, strict=True)]
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    alpha, beta = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if alpha < 0:
        alpha, beta = 0.0, y / yy
    elif beta < 0:
        alpha, beta = x / xx, 0.0
    residual = max(abs(alpha * r[0] + beta * r[1] - 1) for r in rows)
    least: dict[float, float] = {}
    for size, t in zip(sizes, rest, strict=True):
        least[size] = min(t, least.get(size, t))
    return StepTime(alpha, beta, update, residual=residual, timed=tuple(sorted(least.items())))


def calls_of_epoch(examples: int, size: int, drops: bool = False) -> int:
    """The calls of an epoch; with `drops` without the last, where it is smaller than `size`."""
    return max(1, examples // size if drops else math.ceil(examples / size))


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What `fit` takes besides its steps.

    Attributes:
        examples: Of an epoch.
        start: Seconds of an epoch beside its steps.
        evaluation: Seconds a and b of its evaluation, a + b/micro-batch.
        compiled: Seconds before the first step, for one size of a call.
        evaluated: Seconds before the first evaluation.
        drops: Whether the last call of an epoch, where it is smaller, is left out.
    """

    examples: int
    start: float = 0.0
    evaluation: tuple[float, float] = (0.0, 0.0)
    compiled: float = 0.0
    evaluated: float = 0.0
    drops: bool = False

    def calls(self, size: int) -> int:
        """The calls of an epoch, of so many examples on all devices."""
        return calls_of_epoch(self.examples, size, self.drops)

    def seconds(self, size: int) -> float:
        """Those of an epoch beside its steps."""
        const, calls = self.evaluation
        return self.start + const + calls / size

    def begin(self, size: int) -> float:
        """Those before the first step, and before the first smaller call."""
        smaller = self.examples > size and self.examples % size > 0 and not self.drops
        return self.compiled * (1 + smaller) + self.evaluated


@dataclasses.dataclass(frozen=True)
class Machine:
    """What trains."""

    time: StepTime
    micro_batch: int  # the largest that fits a device; larger batches accumulate
    devices: tuple[int, ...] = (1,)  # how many; several numbers are compared
    price: float | None = None  # of a device for an hour
    network: Mapping[int, float] | None = None  # devices -> its seconds; None: not counted
    epoch: Epoch | None = None  # None: an epoch is its steps

    def seconds(self, batch: int, devices: int, micro_batch: int | None = None) -> float:
        """Seconds of a step and of its share of the epoch, k p/c of c calls.

        On devices that hold a micro-batch of any size if it is given.
        """
        micro, accumulation = arrange(batch, devices, micro_batch or self.micro_batch)
        seconds = self.time.step(micro, accumulation) + (self.network or {}).get(devices, 0.0)
        if self.epoch is None:
            return seconds
        call = micro * devices
        return seconds + accumulation * self.epoch.seconds(call) / self.epoch.calls(call)

    def begin(self, batch: int, devices: int) -> float:
        """Seconds before the first step: compilation."""
        micro, _ = arrange(batch, devices, self.micro_batch)
        return self.epoch.begin(micro * devices) if self.epoch else 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """Training at one batch."""

    batch: int
    micro_batch: int
    accumulation: int  # micro-batches an update
    devices: int
    steps: int  # updates
    examples: int
    relative: float  # examples over those of the baseline
    seconds: float  # of a step, with its share of what an epoch takes besides
    hours: float  # compilation included
    between: tuple[float, float]  # hours, as well as the steps are known
    device_hours: float
    cost: float | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What can be trained, and what to take. `str` of it is the table."""

    steps: StepCurve
    machine: Machine
    baseline: int
    rows: tuple[Row, ...]
    fastest: Row  # the smallest within 0.1% of the least hours
    cheapest: Row  # likewise
    deadline: float | None
    by_deadline: Row | None  # the largest batch that ends by then
    why_not_larger: str
    regret: dict[float, float]  # noise scale -> time that `fastest` would lose if it were this one
    optimum: float | None  # the batch of `optimum`; None on several devices
    left_out: tuple[tuple[int, str], ...] = ()  # of the batches that were given, and why

    def __str__(self) -> str:
        return "\n".join((*_measured(self), *_table(self), *_advice(self)))


def arrange(batch: int, devices: int, largest: int) -> tuple[int, int]:
    """The micro-batch, and how few of one size make this batch, or the next that divides evenly."""
    local = batch / devices
    accumulation = math.ceil(local / largest)
    return math.ceil(local / accumulation), accumulation


def optimum(time: StepTime, noise: float) -> float:
    """The fastest batch of one device that holds any, without accumulation.

        B* = sqrt(a Bn/b),  a = micro_batch + update, b = example

    It minimizes (a + b B)(1 + Bn/B); at B* that is (sqrt(a) + sqrt(b Bn))^2.
    """
    return math.sqrt((time.micro_batch + time.update) * noise / time.example)


def regret(rows: Iterable[Row], taken: Row, noise: float) -> float:
    """The share of time that a row loses to the best one, if the noise scale is this."""

    def time(row):
        return row.seconds * (1 / row.batch if noise == math.inf else 1 + noise / row.batch)

    return time(taken) / min(map(time, rows)) - 1


def plan(
    steps: StepCurve, machine: Machine, *, baseline: int, examples: int,
    batches: Iterable[int] | None = None, most: int | None = None, deadline: float | None = None,
) -> Answer:  # fmt: skip
    """What training takes at every batch from the baseline's on, and which batches to name.

        hours = S(B) T(B)/3600,  device-hours = devices x hours

    Args:
        baseline: The batch of the tuned baseline.
        examples: Those to train on, which no batch exceeds.
        batches: Those to compare. Defaults to None: powers of two times the baseline, and the
            largest that fits.
        most: The largest batch that is wanted.
        deadline: In hours.

    Example:
        >>> from tf_lamb.core.goodput.steps import from_noise
        >>> steps = from_noise(1000, batch=32, steps=4800)
        >>> machine = Machine(StepTime(0.05, 0.001), micro_batch=512)
        >>> answer = plan(steps, machine, baseline=32, examples=60000)
        >>> answer.fastest.batch, round(answer.fastest.hours * 60, 1)
        (256, 3.7)
    """
    _check(machine, baseline, examples, most, deadline)
    base = steps.at(baseline) * baseline
    why_not = functools.partial(_why_not, steps=steps, examples=examples, most=most)
    wanted, beyond = _wanted(batches, baseline, machine, why_not)
    made, kept, left_out = set(), set(), {}
    for devices, batch in itertools.product(machine.devices, wanted):
        even, why = batch, f"{devices:,} devices cannot share it"
        if devices <= batch:
            micro, accumulation = arrange(batch, devices, machine.micro_batch)
            even = micro * accumulation * devices
            why = why_not(even)
        if why:
            left_out[batch] = why
        else:
            kept.add(batch)
            made.add(_row(steps, machine, base, even, devices))
    rows = sorted(made, key=lambda row: (row.batch, row.devices))
    if not rows:
        counts = " or ".join(map(str, machine.devices))
        raise ValueError(f"No batch can be planned for {counts} devices: {beyond}.")
    fastest = _smallest(rows, lambda row: row.hours)
    in_time = [row for row in rows if deadline is not None and row.hours <= deadline]
    bends = 0 < steps.noise < math.inf
    low, high = steps.interval  # farther where the runs scatter
    wrong = steps.noise / WRONG_BY, steps.noise * WRONG_BY
    around = [min(low, wrong[0]), max(high, wrong[1])] if bends else [low]
    alone = machine.devices == (1,) and bends and machine.time.example > 0
    time = machine.time
    if machine.epoch:  # an epoch is a number of examples
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
        why_not_larger=_why_not_larger(machine, rows, fastest, beyond),
        regret={noise: regret(rows, fastest, noise) for noise in around},
        optimum=optimum(time, steps.noise) if alone else None,
        left_out=tuple((b, why) for b, why in left_out.items() if batches and b not in kept),
    )


def _check(machine, baseline, examples, most, deadline):
    """One error for what is no number, or out of range."""
    if not machine.devices:
        raise ValueError("devices must name a number of devices at least, such as (1, 8).")
    checks.integer("examples", examples, most=math.inf)
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
    """Why a batch is not possible, or nothing."""
    if batch > examples:
        return f"the data has {examples:,} examples to train on"
    if most is not None and batch > most:
        return f"{most:,} is the largest that is wanted"
    if batch > steps.largest:
        return f"{steps.source} reaches to {steps.largest:,.0f}; run a larger batch first"
    return ""


def _wanted(batches, baseline, machine, why_not):
    """The batches to compare, and why none beyond them is."""
    if batches is None:
        doubled = (baseline * 2**k for k in itertools.count())
        wanted = list(itertools.takewhile(lambda batch: not why_not(batch), doubled))
        beyond = why_not(baseline * 2 ** len(wanted))
        full = (machine.micro_batch * devices for devices in machine.devices)
        return wanted + [batch for batch in full if batch > baseline], beyond
    wanted = sorted(checks.integer("batches", batch) for batch in batches)
    if not wanted:
        raise ValueError("batches must name one at least; None stands for powers of two.")
    end = f"{wanted[-1]:,} is the largest that was given"
    return wanted, next(filter(None, map(why_not, wanted)), end)


def _row(steps, machine, base, batch, devices):
    """Training at a batch that divides evenly."""
    micro, accumulation = arrange(batch, devices, machine.micro_batch)
    seconds, updates = machine.seconds(batch, devices), max(1, round(steps.at(batch)))
    begin = machine.begin(batch, devices)
    low, high = ((begin + each * seconds) / 3600 for each in steps.between(batch))
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
    """The smallest batch whose measure is the least, or level with it."""
    most = LEVEL * min(map(measure, rows))
    return next(row for row in rows if measure(row) <= most)


def _why_not_larger(machine, rows, fastest, beyond):
    """What ends the gain: a limit, the largest micro-batch, or time itself."""
    same = (row for row in rows if row.devices == fastest.devices)
    after = next((row for row in same if row.batch > fastest.batch), None)
    if after is None:
        return f"at the edge: {beyond}"
    local = after.batch // after.devices
    whole = after.steps * machine.seconds(after.batch, after.devices, local)
    whole += machine.begin(after.batch, after.devices)
    if LEVEL * whole < 3600 * fastest.hours:
        return (
            f"{after.batch:,} would be faster in one micro-batch of {local:,} examples a device; "
            f"{machine.micro_batch:,} is the largest here"
        )
    return f"{after.batch:,} takes {after.hours / fastest.hours:.3g}x as long"


def _measured(answer):
    """What the table rests on, in lines."""
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
        counted = (f"{duration(taken)} on {count}" for count, taken in seconds)
        network = f", network {', '.join(counted) or 'not counted'}"
    yield (
        f"{duration(time.micro_batch)} a micro-batch + {duration(time.example)} an example (worst "
        f"residual {time.residual:.0%}){update}{network}"
    )
    if (epoch := answer.machine.epoch) is not None:
        size = answer.machine.micro_batch
        evaluation = epoch.seconds(size) - epoch.start
        of_this = f", {duration(evaluation)} of it the evaluation" if evaluation else ""
        yield (
            f"{duration(epoch.seconds(size))} an epoch besides{of_this}, shared out among its "
            f"steps; {duration(epoch.begin(size))} once to compile"
        )


def _table(answer):
    """The rows as text, numbers to the right."""
    priced = answer.machine.price is not None
    head = ["batch", "= micro x accum x devices", "steps", "examples", "vs base", "a step", "time",
            "device-hours", *(["cost"] if priced else []), ""]  # fmt: skip
    cells = [head]
    for row in answer.rows:
        cells.append([
            f"{row.batch:,}", f"= {row.micro_batch:,} x {row.accumulation:,} x {row.devices:,}",
            f"{row.steps:,}", f"{row.examples:,}", f"{row.relative:.2f}x",
            duration(row.seconds), duration(3600 * row.hours), _digits(row.device_hours),
            *([f"{row.cost:,.2f}"] if priced else []), ", ".join(_notes(answer, row)),
        ])  # fmt: skip
    return table(cells, right=(0, *range(2, len(head) - 1)))


def _notes(answer, row):
    if row.batch == answer.baseline:
        yield "baseline"
    named = {"fastest": answer.fastest, "cheapest": answer.cheapest}
    named["largest by the deadline"] = answer.by_deadline
    yield from (name for name, each in named.items() if each == row)


def _advice(answer):
    """What to take, in lines."""
    for batch, why in answer.left_out:
        yield f"left out {batch:,}: {why}"
    best = answer.fastest
    near = [
        row.batch
        for row in answer.rows
        if row.devices == best.devices and row.hours <= NEAR * best.hours
    ]
    low, high = (duration(3600 * hours) for hours in best.between)
    where = f" on {best.devices}" if len(answer.machine.devices) > 1 else ""
    others = "no other batch is" if len(near) == 1 else f"{min(near):,} to {max(near):,} are"
    yield f"take {best.batch:,}{where}: {low} to {high}; {others} within {NEAR - 1:.0%} of its time"
    yield f"why not larger: {answer.why_not_larger}"
    scales = " or ".join(f"{noise:,.0f}" for noise in answer.regret)
    longer = " or ".join(f"{loss:.1%}" for loss in answer.regret.values())
    yield f"if the noise scale is {scales}, it takes {longer} more time than the best batch"
    last = answer.by_deadline
    if last is not None and last.between[1] > answer.deadline:
        most = duration(3600 * last.between[1])
        yield f"{last.batch:,} may miss the deadline: it takes up to {most}"
    if answer.optimum is not None:
        yield f"with unlimited memory one device is fastest at batch {max(1, answer.optimum):,.0f}"
    if answer.deadline is not None and answer.by_deadline is None:
        yield f"no batch ends within {answer.deadline:g} hours"


def duration(seconds):
    """In ms, s, min or h."""
    for unit, size, most in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7200)):
        if seconds < most:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def _digits(number):
    """Three digits at least."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"
