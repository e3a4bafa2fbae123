"""Tables of text."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table, two blanks between its columns.

    Args:
        rows: Cells, the head first.
        right: The columns of numbers, which end where the column ends.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
