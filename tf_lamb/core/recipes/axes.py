"""What all pictures of this package share: whose axes, what they are called, where a legend is."""

from collections.abc import Sequence
from typing import Any

from tf_lamb.core import messages


def given_or_new(what: str, axes=None, rows: int = 1, shown: bool = True) -> Sequence[Any]:
    """The axes to draw in, one below the other: those that are given, or those of a new figure.

    Args:
        what: is drawn, for whom matplotlib is not installed.
        axes: An `Axes`, or where there are several rows, as many of them; None for a new figure.
        rows: How many there are.
        shown: Whether the new figure is one of pyplot, which notebooks show, or only for a file.
    """
    messages.require_installed(f"A picture of {what}", "matplotlib", extra="pictures")
    if axes is not None:
        return axes if rows > 1 else [axes]
    from matplotlib import figure

    make: Any = figure.Figure
    if shown:
        import matplotlib.pyplot as plt

        make = plt.figure
    new = make(figsize=(6.4, 4.8 if rows == 1 else 2.8 * rows), layout="constrained")
    return new.subplots(rows, sharex=True, squeeze=False)[:, 0]


def name(ax, ylabel: str, xlabel: str = "optimizer steps") -> None:
    """Names both axes, that of steps where its numbers are; thousands are 1k, 2k."""
    from matplotlib.ticker import EngFormatter

    has_numbers = ax.xaxis.get_tick_params().get("labelbottom", True)
    ax.set(xlabel=xlabel if has_numbers else "", ylabel=ylabel)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.grid(alpha=0.3)


def legend(ax) -> None:
    """Below the axes and their label, in as many columns as fit."""
    labels = ax.get_legend_handles_labels()[1]
    inches = ax.get_position().width * ax.figure.get_figwidth()
    fitting = int(13 * inches) // (7 + max(map(len, labels)))  # characters of 10 points, and lines
    columns = min(max(fitting, 1), len(labels))
    below = {
        "loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": columns,
        "borderaxespad": 3.6 if ax.get_xlabel() else 0.8,
    }  # fmt: skip
    # Where a layout makes room for it; elsewhere it would be cut off.
    ax.legend(**below if ax.figure.get_layout_engine() else {})
