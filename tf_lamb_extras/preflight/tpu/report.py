"""A report on a run before it starts: whether it fits, and the least that it costs.

It prints as a table that a person reads in ten seconds.
"""

import dataclasses

from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb_extras.preflight.tpu.roofline import Bounds, Topology, bounds, gib


def table(report) -> str:
    """The rows that there is something to say in; the name of a part is before its first one."""
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
    return "replica" if report.split == report.topology.replicas else "part"


def _memory(report):
    if report.refused:
        yield f"the compiler refuses this step: {report.refused}"
        return
    available = report.topology.chip.memory
    over = report.needed - available
    verdict = f"it does not fit, by {gib(over)}" if over > 0 else f"{gib(-over)} are left"
    yield f"{gib(report.needed)} of {gib(available)} a replica: {verdict}"
    if memory := report.memory:
        rest = f", the rest {gib(memory.rest)}" if gib(memory.rest) != gib(0) else ""
        yield (
            f"weights {gib(memory.weights)}, slots {gib(memory.slots)}, activations and "
            f"temporaries {gib(memory.temporaries)}{rest}"
        )
    if report.largest is not None:
        yield from _largest(report)


def _largest(report):
    part, fits, fails = _part(report), report.largest, report.too_large
    should = f"; {report.predicted:,} should" if report.predicted else ""
    whole = f"examples a {part} fit: {fits * report.split:,} in all"
    if fails == 1:
        yield "not even one example fits: the weights or the slots have to shrink"
    elif not fits:
        yield f"of the batches that were compiled none fits, down to {fails:,} examples{should}"
    elif fails is None:
        yield f"at least {fits:,} {whole}; more were not compiled{should}"
    elif fails == fits + 1:
        yield f"at most {fits:,} {whole}"
    else:
        yield f"at least {fits:,} {whole}"
        yield f"{fails:,} examples do not, and between them nothing was compiled{should}"
    needed = report.needed_micro_batches or 0
    if needed > report.micro_batches:
        yield (
            f"for a batch of {report.batch_size:,}: gradient_accumulation_steps={needed}, "
            f"{report.batch_size // report.split // needed:,} examples at once"
        )


def _step(report):
    if report.work is None:
        return
    work, least = report.work, report.bounds
    one = ", one micro-batch of them and the update" if report.is_of_one_micro_batch else ""
    yield f"at least {_seconds(least.step)}, which {least.binding} takes{one}"
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
    if report.steps is None:
        return
    examples = f"{report.steps:,} steps, {report.steps * report.batch_size:,} examples"
    if report.hours is None:
        yield examples
    else:
        chip_hours = report.hours * report.topology.chips
        yield f"{examples}: at least {_hours(report.hours)}, {chip_hours:,.3g} chip-hours"


def _seconds(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _hours(hours):
    return f"{60 * hours:.3g} minutes" if hours < 1 else f"{hours:.3g} hours"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one replica, and what it may have.

    Slots are all that the optimizer keeps; the rest, the batch and the metrics; temporaries, what
    lives within a step, such as activations and gradients.
    """

    weights: float
    slots: float
    rest: float
    temporaries: float
    available: float

    @classmethod
    def of(cls, program, weights: float, slots: float, available: float) -> "Memory":
        """The report of a compiled step, whose program has no variable that it does not touch."""
        rest = max(program.memory - program.temporaries - weights - slots, 0)
        return cls(weights, slots, rest, program.temporaries, available)

    @property
    def needed(self) -> float:
        """All of it together."""
        return self.weights + self.slots + self.rest + self.temporaries


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one replica in one step, an update of the weights.

    The optimizer's update is part of it: `update_flops` and `update_bytes` are None where the
    compiler refuses it alone, and the rest is of one micro-batch and the update then. `reduced` are
    bytes to all-reduce.
    """

    flops: float
    bytes_moved: float
    update_flops: float | None
    update_bytes: float | None
    reduced: float
    update_reduced: float = 0.0

    def times(self, micro_batches: int, update_flops: float, update_bytes: float) -> "Work":
        """The step of as many micro-batches, the last of which takes such an update."""
        more = micro_batches - 1
        return Work(
            self.flops + more * (self.flops - update_flops),
            self.bytes_moved + more * (self.bytes_moved - update_bytes),
            update_flops,
            update_bytes,
            self.reduced + more * (self.reduced - self.update_reduced),
            self.update_reduced,
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """The figures of a run before it starts. `print` shows a table, `as_dict` is for JSON.

    Attributes:
        batch_size, micro_batches: examples an update, and in how many turns they are taken.
        parts: how many parts a batch is split into; None for one a replica. Where a model is
            sharded, too, several replicas share the examples of a part.
        memory: None where the compiler says only what is `needed`, in bytes of one replica.
        work: None where the step does not compile.
        largest, too_large, predicted: as `answers.Largest` has them, of a part; None where nobody
            looked for them.
        steps: of the whole schedule.
        refused: why the compiler takes it for no TPU of this kind.
        collectives: by kind, how many the compiled program has and their bytes; None where a
            replica was compiled alone.
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
        """The examples of a part that are seen at once."""
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
        """Whether the work is that of one of several micro-batches, for the update is not known."""
        if self.work is None or self.micro_batches == 1:
            return False
        return self.work.update_flops is None

    @property
    def bounds(self) -> Bounds | None:
        """The least seconds of a step."""
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
        """The least hours of the whole schedule."""
        if self.bounds is None or self.steps is None or self.is_of_one_micro_batch:
            return None
        return self.steps * self.bounds.step / 3600

    def as_dict(self) -> dict:
        """Plain numbers and words: bytes, operations, seconds, hours."""
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
