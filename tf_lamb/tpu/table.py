"""A preflight's report, as a table that a person reads in ten seconds."""

from tf_lamb.tpu.roofline import gib


def table(report) -> str:
    """The rows that there is something to say in."""
    return _text(_rows(report))


def news(report, before=None) -> str:
    """The rows that a report has and an earlier one had not; all of them where there was none."""
    known = _rows(before) if before else []
    return _text([row for row in _rows(report) if row not in known])


def _rows(report):
    """Each line with the name of its part."""
    topology = report.topology
    head = (f"{report.subject} on {topology}: {topology.chips:,} chips, {topology.replicas:,} "
            "replicas")  # fmt: skip
    batch = (f"{report.batch_size:,} = {report.share:,} examples x {report.split:,} "
             f"{_part(report)}s x {report.micro_batches:,} micro-batch"
             f"{'es' * (report.micro_batches != 1)}")  # fmt: skip
    parts = {
        "": [head], "batch": [batch], "memory": _memory(report), "step": _step(report),
        "schedule": _schedule(report), "compiler": [report.compiler],
    }  # fmt: skip
    return [(name, line) for name, lines in parts.items() for line in lines if line]


def _text(rows):
    """The name of a part stands before the first of its lines."""
    before = [""] + [name for name, _ in rows]
    return "\n".join(
        f"{'' if name == last else name:<10}{line}" if name else line
        for last, (name, line) in zip(before, rows, strict=False)
    )


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
    if report.published:
        yield f"published: {report.published}"


def _seconds(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _hours(hours):
    return f"{60 * hours:.3g} minutes" if hours < 1 else f"{hours:.3g} hours"
