"""Writes the result of a batch size search as text: the best batches, the reasons and a table."""

from tf_lamb.core.messages import table

NEAR_FACTOR = 1.1  # a batch is near the best one if it takes at most this many times its hours


def answer_text(answer) -> str:
    """Returns an `Answer` as text of several lines."""
    return "\n".join(
        (
            _fastest_line(answer),
            *_measurement_lines(answer),
            *_table_lines(answer),
            *_advice_lines(answer),
        )
    )


def _fastest_line(answer):
    """Returns the line of text that names the fastest batch, its time and its examples."""
    best = answer.fastest
    near_batches = [
        row.batch
        for row in answer.rows
        if row.devices == best.devices and row.hours <= NEAR_FACTOR * best.hours
    ]
    low, high = (duration_text(3600 * hours) for hours in best.hours_interval)
    on_devices = f" on {best.devices}" if len(answer.machine.device_counts) > 1 else ""
    near_text = (
        "no other batch is"
        if len(near_batches) == 1
        else f"{min(near_batches):,} to {max(near_batches):,} are"
    )
    return (
        f"fastest to the same loss: batch {best.batch:,}{on_devices}: {low} to {high}, for "
        f"{best.examples_ratio:.2f}x the examples; {near_text} within {NEAR_FACTOR - 1:.0%} of "
        "its time"
    )


def _measurement_lines(answer):
    """Yields lines on the measurements from which the table is computed."""
    curve, step_time = answer.curve, answer.machine.step_time
    low, high = curve.interval
    yield (
        f"noise scale {curve.noise:,.0f} ({low:,.0f} to {high:,.0f}) from "
        f"{curve.source}: a batch that large takes twice the minimum steps and examples"
    )
    yield from curve.notes
    yield (
        f"at any batch {curve.least_steps:,.0f} steps and {curve.least_examples:,.0f} examples "
        "at least"
    )
    update_text = (
        f", {duration_text(step_time.update_seconds)} an update" if step_time.update_seconds else ""
    )
    network_text = ""
    if max(answer.machine.device_counts) > 1:
        network_seconds = (answer.machine.network_seconds or {}).items()
        network_texts = (f"{duration_text(added)} on {count}" for count, added in network_seconds)
        network_text = f", network {', '.join(network_texts) or 'not counted'}"
    yield (
        f"{duration_text(step_time.micro_batch_seconds)} a micro-batch + "
        f"{duration_text(step_time.example_seconds)} an example (worst residual "
        f"{step_time.residual:.0%}){update_text}{network_text}"
    )
    if (epoch := answer.machine.epoch) is not None:
        call_size = answer.machine.max_micro_batch
        evaluation_seconds = epoch.overhead_seconds(call_size) - epoch.start_seconds
        evaluation_text = (
            f", {duration_text(evaluation_seconds)} of it the evaluation"
            if evaluation_seconds
            else ""
        )
        yield (
            f"{duration_text(epoch.overhead_seconds(call_size))} an epoch besides"
            f"{evaluation_text}, shared out among its steps; "
            f"{duration_text(epoch.compile_seconds(call_size))} once to compile"
        )


def _table_lines(answer):
    """Returns the lines of the table: its header, and a line for each row of the answer."""
    has_price = answer.machine.price is not None
    header = [
        "batch", "= micro x accum x devices", "steps", "examples", "vs base", "a step", "time",
        "device-hours", *(["cost"] if has_price else []), "",
    ]  # fmt: skip
    cells = [header]
    for row in answer.rows:
        cells.append([
            f"{row.batch:,}", f"= {row.micro_batch:,} x {row.accumulation:,} x {row.devices:,}",
            f"{row.steps:,}", f"{row.examples:,}", f"{row.examples_ratio:.2f}x",
            duration_text(row.step_seconds), duration_text(3600 * row.hours),
            _number_text(row.device_hours),
            *([f"{row.cost:,.2f}"] if has_price else []), ", ".join(_row_labels(answer, row)),
        ])  # fmt: skip
    return table(cells, right_aligned=(0, *range(2, len(header) - 1)))


def _row_labels(answer, row):
    """Yields the labels of a row, such as "baseline" or "fastest", for the table's last column."""
    if row.batch == answer.baseline:
        yield "baseline"
    labelled_rows = {"fastest": answer.fastest, "cheapest": answer.cheapest}
    labelled_rows["largest by the deadline"] = answer.by_deadline
    yield from (label for label, labelled_row in labelled_rows.items() if labelled_row == row)


def _advice_lines(answer):
    """Yields lines that help to choose a batch, such as why the fastest batch is not larger."""
    for batch, reason in answer.left_out:
        yield f"left out {batch:,}: {reason}"
    yield f"why not larger: {answer.why_not_larger}"
    scales = " or ".join(f"{noise:,.0f}" for noise in answer.regret)
    losses = " or ".join(f"{loss:.1%}" for loss in answer.regret.values())
    yield f"if the noise scale is {scales}, it takes {losses} more time than the best batch"
    largest = answer.by_deadline
    if largest is not None and largest.hours_interval[1] > answer.deadline_hours:
        latest_time = duration_text(3600 * largest.hours_interval[1])
        yield f"{largest.batch:,} may miss the deadline: it takes up to {latest_time}"
    if answer.optimum is not None:
        yield f"with unlimited memory one device is fastest at batch {max(1, answer.optimum):,.0f}"
    if answer.deadline_hours is not None and answer.by_deadline is None:
        yield f"no batch ends within {answer.deadline_hours:g} hours"


def duration_text(seconds):
    """Returns a number of seconds as text, in ms, s, min or h."""
    for unit, size, limit in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7200)):
        if seconds < limit:
            return f"{_number_text(seconds / size)} {unit}"
    return f"{_number_text(seconds / 3600)} h"


def _number_text(number):
    """Formats a number below 100 with three significant digits, and a larger one as an integer."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"
