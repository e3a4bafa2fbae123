"""Reports on a training run before it starts: whether a step fits in memory, and its minimum time.

A `Report` prints as a table.
"""

import dataclasses

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.roofline import Bounds, Topology, bounds, gib


def table(report) -> str:
    """Returns a report as text, in sections. The first row of a section starts with its name."""
    topology = report.topology
    lines = [
        f"{report.subject} on {topology}: {topology.chips:,} chips, {topology.replicas:,} replicas"
    ]
    batch = (
        f"{report.batch_size:,} = {report.share:,} examples x {report.split:,} "
        f"{_part(report)}s x {report.micro_batches:,} micro-batch"
        f"{'es' * (report.micro_batches != 1)}"
    )
    parts = {
        "batch": [batch], "memory": _memory(report), "step": _step(report),
        "schedule": _schedule(report), "compiler": [report.compiler],
    }  # fmt: skip
    for name, rows in parts.items():
        for row in filter(None, rows):
            lines.append(f"{name:<10}{row}")
            name = ""
    return "\n".join(lines)


def _part(report):
    """Returns the word for a part of the batch: "replica" if each replica has its own part.

    Otherwise, if several replicas share a part, it is "part".
    """
    return "replica" if report.split == report.topology.replicas else "part"


def _memory(report):
    """Yields the rows of the table on memory."""
    if report.refused:
        yield f"the compiler refuses this step: {report.refused}"
        return
    available = report.topology.chip.memory
    excess = report.needed - available
    verdict = f"it does not fit, by {gib(excess)}" if excess > 0 else f"{gib(-excess)} are left"
    yield f"{gib(report.needed)} of {gib(available)} a replica: {verdict}"
    if memory := report.memory:
        rest_text = f", the rest {gib(memory.rest)}" if gib(memory.rest) != gib(0) else ""
        yield (
            f"weights {gib(memory.weights)}, slots {gib(memory.slots)}, activations and "
            f"temporaries {gib(memory.temporaries)}{rest_text}"
        )
    if report.largest is not None:
        yield from _largest(report)


def _largest(report):
    """Yields the rows of the table on the largest batch that fits."""
    part, fits, fails = _part(report), report.largest, report.too_large
    prediction = f"; {report.predicted:,} should" if report.predicted else ""
    description = f"examples a {part} fit: {fits * report.split:,} in all"
    if fails == 1:
        yield "not even one example fits: the weights or the slots have to shrink"
    elif not fits:
        yield f"of the batches that were compiled none fits, down to {fails:,} examples{prediction}"
    elif fails is None:
        yield f"at least {fits:,} {description}; more were not compiled"
    elif fails == fits + 1:
        yield f"at most {fits:,} {description}"
    else:
        yield f"at least {fits:,} {description}"
        yield f"{fails:,} examples do not, and between them nothing was compiled{prediction}"
    needed = report.needed_micro_batches or 0
    if needed > report.micro_batches:
        yield (
            f"for a batch of {report.batch_size:,}: gradient_accumulation_steps={needed}, "
            f"{report.batch_size // report.split // needed:,} examples at once"
        )


def _step(report):
    """Yields the rows of the table on the minimum time of a step, and on its collectives."""
    if report.work is None:
        return
    work, least = report.work, report.bounds
    scope = ", one micro-batch of them and the update" if report.is_of_one_micro_batch else ""
    yield f"at least {_seconds(least.step)}, which {least.binding} takes{scope}"
    yield (
        f"compute {_seconds(least.compute)} ({work.flops:.3g} operations), memory "
        f"{_seconds(least.memory)} ({work.bytes_moved / 1e9:.3g} GB moved), network "
        f"{_seconds(least.network)} ({work.reduced / 1e9:.3g} GB to all-reduce)"
    )
    if work.update_flops is not None:
        yield (
            f"the update is {work.update_flops / work.flops:.1%} of the operations and "
            f"{work.update_bytes / work.bytes_moved:.0%} of the bytes"
        )
    for kind, (count, size) in (report.collectives or {}).items():
        yield f"{count} {kind}, {size / 1e9:.3g} GB"


def _schedule(report):
    """Yields the row of the table on the whole training schedule."""
    if report.steps is None:
        return
    examples = f"{report.steps:,} steps, {report.steps * report.batch_size:,} examples"
    if report.hours is None:
        yield examples
    else:
        chip_hours = report.hours * report.topology.chips
        yield f"{examples}: at least {_hours(report.hours)}, {chip_hours:,.3g} chip-hours"


def _seconds(seconds):
    """Returns a number of seconds as text, in milliseconds if it is below 1."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _hours(hours):
    """Returns a number of hours as text, in minutes if it is below 1."""
    return f"{60 * hours:.3g} minutes" if hours < 1 else f"{hours:.3g} hours"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Holds the memory that a step needs on one replica, in bytes.

    Attributes:
        weights: The bytes of the model's variables.
        slots: The bytes of all variables of the optimizer.
        rest: The other bytes, mostly of the batch and of the metrics.
        temporaries: The bytes of data that exist only within a step, such as activations and
            gradients.
        available: The bytes that a replica may use.
    """

    weights: float
    slots: float
    rest: float
    temporaries: float
    available: float

    @classmethod
    def of(cls, program, weights: float, slots: float, available: float) -> "Memory":
        """Returns the `Memory` of a compiled step.

        `weights` and `slots` must include variables that the step does not use, because these take
        memory, even if the compiled program has no arguments for them.

        Args:
            program: The compiled `Program`.
            weights: The bytes of the model's variables.
            slots: The bytes of the optimizer's variables.
            available: The bytes that a replica may use.
        """
        remainder = max(program.memory - program.temporaries - weights - slots, 0)
        return cls(weights, slots, remainder, program.temporaries, available)

    @property
    def needed(self) -> float:
        """The bytes that the step needs in all."""
        return self.weights + self.slots + self.rest + self.temporaries


@dataclasses.dataclass(frozen=True)
class Work:
    """Holds the work of one replica in one step, for the gradients and for the optimizer's update.

    If the compiler rejects the update without the rest of the step, `update_flops` and
    `update_bytes` are None, and the work is that of one micro-batch and the update.

    Attributes:
        flops: The number of arithmetic operations.
        bytes_moved: The bytes read from HBM and written to it.
        update_flops: The operations of the update, or None.
        update_bytes: The bytes that the update moves, or None.
        reduced: The bytes to all-reduce.
        update_reduced: The bytes to all-reduce for the update. Defaults to 0.
    """

    flops: float
    bytes_moved: float
    update_flops: float | None
    update_bytes: float | None
    reduced: float
    update_reduced: float = 0.0

    def times(self, micro_batches: int, update_flops: float, update_bytes: float) -> "Work":
        """Returns the work of a step with several micro-batches and one update.

        It is computed from the work of one micro-batch and the update, which this object has.

        Args:
            micro_batches: The number of micro-batches.
            update_flops: The operations of the update.
            update_bytes: The bytes that the update moves.
        """
        extra = micro_batches - 1
        return Work(
            self.flops + extra * (self.flops - update_flops),
            self.bytes_moved + extra * (self.bytes_moved - update_bytes),
            update_flops,
            update_bytes,
            self.reduced + extra * (self.reduced - self.update_reduced),
            self.update_reduced,
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """Holds the memory and the minimum time of a training run before it starts.

    `print` shows it as a table. `as_dict` returns a dict that can be written as JSON.

    Attributes:
        subject: The name of the model or experiment.
        topology: The TPU slice.
        batch_size: The examples of an update.
        micro_batches: The number of micro-batches of an update. Defaults to 1.
        parts: The number of parts that a batch is split into. None, the default, stands for one
            part per replica. If the model is sharded as well, several replicas share the examples
            of a part.
        memory: The memory of a replica. None if the step does not compile.
        needed: The bytes that a replica needs, or None if they are unknown.
        work: The work of a step; None if the step does not compile.
        largest: The most examples of a part that compiled and fit; 0 if no batch did. It and the
            next two default to None, for a report without a search for the largest batch.
        too_large: The fewest examples of a part that do not fit; None if every batch that was tried
            fits.
        predicted: The most examples of a part that should fit, by linear interpolation between the
            bytes of `largest` and `too_large` examples.
        steps: The updates of the whole training schedule, or None.
        refused: Why the compiler rejects the step for this kind of TPU, or None.
        collectives: A dict from each kind of collective in the compiled program to their number and
            bytes. None if the program is that of a single replica, which has no collectives.
        compiler: The versions of the compiler and of JAX.
    """

    subject: str
    topology: Topology
    batch_size: int
    micro_batches: int = 1
    parts: int | None = None
    memory: Memory | None = None
    needed: float | None = None
    work: Work | None = None
    largest: int | None = None
    too_large: int | None = None
    predicted: int | None = None
    steps: int | None = None
    refused: str | None = None
    collectives: dict[str, tuple[int, int]] | None = None
    compiler: str = ""

    @property
    def share(self) -> int:
        """The examples of one micro-batch in one part of the batch."""
        return self.batch_size // self.split // self.micro_batches

    @property
    def split(self) -> int:
        """The number of parts that a batch is split into."""
        return self.parts or self.topology.replicas

    @property
    def fits(self) -> bool:
        """Whether the step compiles for this topology, which means that it fits in memory."""
        return self.work is not None

    @property
    def is_of_one_micro_batch(self) -> bool:
        """Whether `work` counts only one of several micro-batches, and the update.

        That is so if the work of the update is unknown.
        """
        if self.work is None or self.micro_batches == 1:
            return False
        return self.work.update_flops is None

    @property
    def bounds(self) -> Bounds | None:
        """The minimum seconds of a step for each resource, or None if the step does not compile."""
        if self.work is None:
            return None
        return bounds(self.topology, self.work.flops, self.work.bytes_moved, self.work.reduced)

    @property
    def needed_micro_batches(self) -> int | None:
        """The fewest micro-batches with which this batch is known to fit in memory, or None."""
        if not self.largest:
            return None
        return micro_batches(self.batch_size // self.split, self.largest)

    @property
    def hours(self) -> float | None:
        """The minimum hours of the whole training schedule, or None if unknown."""
        if self.bounds is None or self.steps is None or self.is_of_one_micro_batch:
            return None
        return self.steps * self.bounds.step / 3600

    def as_dict(self) -> dict:
        """Returns the report as a dict of plain numbers and text, in bytes, seconds and hours."""
        topology, hours, least = self.topology, self.hours, self.bounds
        return {
            "subject": self.subject, "topology": str(topology), "chips": topology.chips,
            "replicas": topology.replicas, "batch_size": self.batch_size, "parts": self.split,
            "examples_a_replica": self.share, "micro_batches": self.micro_batches,
            "fits": self.fits, "memory": self.memory and dataclasses.asdict(self.memory),
            "needed": self.needed, "available": topology.chip.memory,
            "largest_examples_a_replica": self.largest,
            "too_large_examples_a_replica": self.too_large,
            "predicted_examples_a_replica": self.predicted,
            "needed_micro_batches": self.needed_micro_batches,
            "work": self.work and dataclasses.asdict(self.work),
            "bounds": least and {**dataclasses.asdict(least), "step": least.step},
            "binding": least and least.binding, "steps": self.steps,
            "examples": self.steps and self.steps * self.batch_size, "hours": hours,
            "chip_hours": hours and hours * topology.chips, "refused": self.refused,
            "collectives": self.collectives, "chip_source": topology.chip.source,
            "compiler": self.compiler,
        }  # fmt: skip

    def __str__(self):
        return table(self)
