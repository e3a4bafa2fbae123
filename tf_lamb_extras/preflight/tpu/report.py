"""Reports on a run before it starts: whether it fits, and its minimum cost.

The report prints as a table that a person reads in ten seconds.
"""

import dataclasses

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.roofline import Bounds, Topology, bounds, gib


def table(report) -> str:
    """Returns the report as text; the first row of each section starts with its name."""
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
    """Returns "replica", or "part" if several replicas share a part of the batch."""
    return "replica" if report.split == report.topology.replicas else "part"


def _memory(report):
    """Yields the rows on memory."""
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
    """Yields the rows on the largest batch."""
    part, fits, fails = _part(report), report.largest, report.too_large
    prediction = f"; {report.predicted:,} should" if report.predicted else ""
    description = f"examples a {part} fit: {fits * report.split:,} in all"
    if fails == 1:
        yield "not even one example fits: the weights or the slots have to shrink"
    elif not fits:
        yield f"of the batches that were compiled none fits, down to {fails:,} examples{prediction}"
    elif fails is None:
        yield f"at least {fits:,} {description}; more were not compiled{prediction}"
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
    """Yields the rows on the step's minimum time."""
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
    """Yields the row on the whole schedule."""
    if report.steps is None:
        return
    examples = f"{report.steps:,} steps, {report.steps * report.batch_size:,} examples"
    if report.hours is None:
        yield examples
    else:
        chip_hours = report.hours * report.topology.chips
        yield f"{examples}: at least {_hours(report.hours)}, {chip_hours:,.3g} chip-hours"


def _seconds(seconds):
    """Returns seconds as text, in seconds or milliseconds."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _hours(hours):
    """Returns hours as text, in hours or minutes."""
    return f"{60 * hours:.3g} minutes" if hours < 1 else f"{hours:.3g} hours"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Holds the memory of one replica, in bytes.

    Attributes:
        weights: The model's variables.
        slots: All of the optimizer's variables.
        rest: The batch and the metrics.
        temporaries: Data that lives within a step, such as activations and gradients.
        available: The memory that a replica may use.
    """

    weights: float
    slots: float
    rest: float
    temporaries: float
    available: float

    @classmethod
    def of(cls, program, weights: float, slots: float, available: float) -> "Memory":
        """Returns the memory of a compiled step.

        A compiled program may lack arguments for variables that it does not use, but `weights` and
        `slots` count these variables, too.

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
        """The bytes that the step needs, all parts together."""
        return self.weights + self.slots + self.rest + self.temporaries


@dataclasses.dataclass(frozen=True)
class Work:
    """Holds the work of one replica in one step: the gradients, and the optimizer's update.

    If the compiler refuses the update alone, `update_flops` and `update_bytes` are None, and the
    work is that of one micro-batch and the update.

    Attributes:
        flops: Operations.
        bytes_moved: Bytes read from HBM and written to it.
        update_flops: The update's operations, or None.
        update_bytes: The update's bytes moved, or None.
        reduced: Bytes to all-reduce.
        update_reduced: The update's bytes to all-reduce. Defaults to 0.
    """

    flops: float
    bytes_moved: float
    update_flops: float | None
    update_bytes: float | None
    reduced: float
    update_reduced: float = 0.0

    def times(self, micro_batches: int, update_flops: float, update_bytes: float) -> "Work":
        """Returns the work of several micro-batches and one update, from that of one and an update.

        Args:
            micro_batches: The number of micro-batches.
            update_flops: The update's operations.
            update_bytes: The update's bytes moved.
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
    """Holds the figures of a run before it starts. `print` shows a table, `as_dict` is for JSON.

    Attributes:
        subject: The name of the model or experiment.
        topology: The TPU slice.
        batch_size: The examples of an update.
        micro_batches: The number of micro-batches of an update. Defaults to 1.
        parts: The number of parts that a batch is split into. None, the default, is one per
            replica. If the model is sharded, too, several replicas share the examples of a part.
        memory: The memory of a replica; None if the compiler tells only what is `needed`.
        needed: The bytes that a replica needs, or None.
        work: The work of a step; None if the step does not compile.
        largest: The most examples of a part that compiled and fit; 0 if none did. None, the default
            of this and the next two, if nobody searched; see `answers.Largest`.
        too_large: The fewest examples of a part that do not fit; None if all that was tried fits.
        predicted: The most examples of a part that should fit by the line between those two.
        steps: The updates of the whole schedule, or None.
        refused: Why the compiler does not take the step for this kind of TPU, or None.
        collectives: The number of collectives of the compiled program and their bytes, by kind;
            None if a replica was compiled alone.
        compiler: The versions of the compiler.
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
        """The examples of a part in one micro-batch."""
        return self.batch_size // self.split // self.micro_batches

    @property
    def split(self) -> int:
        """The number of parts that a batch is split into."""
        return self.parts or self.topology.replicas

    @property
    def fits(self) -> bool:
        """Whether this step compiles for this topology."""
        return self.work is not None

    @property
    def is_of_one_micro_batch(self) -> bool:
        """Whether the work is of one of several micro-batches, as the update's work is unknown."""
        if self.work is None or self.micro_batches == 1:
            return False
        return self.work.update_flops is None

    @property
    def bounds(self) -> Bounds | None:
        """The minimum seconds of a step, or None if it does not compile."""
        if self.work is None:
            return None
        return bounds(self.topology, self.work.flops, self.work.bytes_moved, self.work.reduced)

    @property
    def needed_micro_batches(self) -> int | None:
        """The fewest micro-batches of this batch that are known to fit, or None."""
        if not self.largest:
            return None
        return micro_batches(self.batch_size // self.split, self.largest)

    @property
    def hours(self) -> float | None:
        """The minimum hours of the whole schedule, or None if unknown."""
        if self.bounds is None or self.steps is None or self.is_of_one_micro_batch:
            return None
        return self.steps * self.bounds.step / 3600

    def as_dict(self) -> dict:
        """Returns the figures as plain numbers and text: bytes, operations, seconds, hours."""
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
