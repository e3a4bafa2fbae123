"""Holds what a registered study saw of larger batches, by the number of updates of a run.

In the study (docs/updates_left.md) three small networks were trained at batch 16. Then they were
trained on as many examples at batches that are 8 to 1,024 times as large, with the settings of
`transfer`. A larger batch makes fewer updates (steps of the optimizer) of the same examples: these
are the updates that are "left".
"""

# Updates left -> optimizer -> the least and the greatest excess of its runs. The excess is
# (score at the larger batch / score at batch 16) - 1, in percent. The score is the loss on test
# data, or the share of errors. A row is a number of updates that runs of all three networks had. A
# test compares these numbers with the study's log.
EXCESS_PERCENT: dict[int, dict[str, tuple[float, float]]] = {
    16: {"AdamW": (12.1, 197.6), "LAMB": (8.5, 155.1)},
    128: {"AdamW": (0.9, 22.8), "LAMB": (0.6, 27.9)},
    512: {"AdamW": (-0.1, 2.1), "LAMB": (-0.2, 4.3)},
    1_024: {"AdamW": (0.3, 3.4), "LAMB": (0.0, 2.1)},
    2_048: {"AdamW": (-0.1, 0.3), "LAMB": (-0.1, 1.4)},
    4_096: {"AdamW": (0.0, 0.6), "LAMB": (-0.3, 2.0)},
    16_384: {"AdamW": (-0.8, 0.0), "LAMB": (-0.1, 1.6)},
}
# With fewer updates left, `transfer` warns.
FEW_UPDATES = 512
# The number of updates that `largest_batch` leaves by default.
ENOUGH_UPDATES = 2_048
# The greatest excess, in percent, of all runs that had `ENOUGH_UPDATES` or more updates left.
LOST_PERCENT = max(
    greatest
    for updates, percent_of in EXCESS_PERCENT.items()
    for _, greatest in percent_of.values()
    if updates >= ENOUGH_UPDATES
)
# The smallest ratio of a larger batch to batch 16 in the study, so that of smaller ratios the study
# says nothing.
LEAST_RATIO = 8


def updates_text(updates: int) -> str:
    """Formats a number of updates, such as `1 update` or `1,024 updates`."""
    return f"{updates:,} update" + "s" * (updates != 1)


def seen_lines(optimizer: str | None, updates: int) -> list[str]:
    """Says how runs of the study ended that had about as many updates left.

    Args:
        optimizer: The name of the optimizer. Without a name, and for an optimizer that was not in
            the study, the lines are of all its optimizers together.
        updates: The updates that are left.

    Returns:
        A line for the nearest number of updates in the study that is not above `updates`, and one
        for the nearest that is not below it; only one line where these are the same, or where the
        study has only one of them.

    Example:
        >>> print(*seen_lines("AdamW", 1_500), sep="\\n")
        1,024 updates left: +0.3 to +3.4% (AdamW)
        2,048 updates left: -0.1 to +0.3% (AdamW)
    """
    below = [row for row in EXCESS_PERCENT if row <= updates][-1:]
    above = [row for row in EXCESS_PERCENT if row >= updates][:1]
    return [_seen_line(optimizer, row) for row in dict.fromkeys(below + above)]


def _seen_line(optimizer, row) -> str:
    """Returns the line of one number of updates in the study."""
    percent_of = EXCESS_PERCENT[row]
    if optimizer in percent_of:
        percent_of = {optimizer: percent_of[optimizer]}
    least = min(low for low, _ in percent_of.values())
    most = max(high for _, high in percent_of.values())
    return f"{updates_text(row)} left: {least:+.1f} to {most:+.1f}% ({', '.join(percent_of)})"
