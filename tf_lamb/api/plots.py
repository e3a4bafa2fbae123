"""Draws the learning rates of recipes, noise scales, trust ratios, and the answers of searches.

The searches are `find_rate` and `find_batch`. Curves are dicts: name in the legend -> step ->
value. Plots need matplotlib.
"""

import base64
import html
import io
import itertools
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from tf_lamb.api.optimizers.observation import log_distance
from tf_lamb.core import messages, schedules
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe, batch_label


def make_axes(subject: str, axes=None, rows: int = 1, is_pyplot: bool = True) -> Sequence[Any]:
    """Returns the axes to draw in, one below the other: the user's, or those of a new figure.

    Args:
        subject: What is drawn, such as "a recipe", for the error.
        axes: The matplotlib `Axes` (several if `rows` > 1), or None for a new figure.
        rows: The number of axes. Defaults to 1.
        is_pyplot: Whether pyplot makes a new figure, so that notebooks show it. Defaults to True.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    messages.require_installed(f"A picture of {subject}", "matplotlib", install="matplotlib")
    if axes is not None:
        return axes if rows > 1 else [axes]
    from matplotlib import figure

    figure_class: Any = figure.Figure
    if is_pyplot:
        import matplotlib.pyplot as plt

        figure_class = plt.figure
    new_figure = figure_class(figsize=(6.4, 4.8 if rows == 1 else 2.8 * rows), layout="constrained")
    return new_figure.subplots(rows, sharex=True, squeeze=False)[:, 0]


def notebook_html(answer: Any) -> str:
    """Returns the HTML that a notebook shows for a recipe or for the answer of a search.

    It contains the text, and the plot if matplotlib is installed.
    """
    text = f'<pre style="white-space: pre; overflow-x: auto">{html.escape(str(answer))}</pre>'
    try:
        (ax,) = make_axes("an answer", is_pyplot=False)
    except ModuleNotFoundError:
        return text
    answer.plot(ax=ax)
    ax.figure.savefig(png := io.BytesIO(), format="png")
    encoded = base64.b64encode(png.getvalue()).decode()
    return f'{text}<img alt="plot" src="data:image/png;base64,{encoded}">'


def label_axes(ax, ylabel: str, xlabel: str = "optimizer steps") -> None:
    """Labels both axes, and writes thousands on the x axis as 1k, 2k.

    Args:
        ax: The `Axes`.
        ylabel: The label of the y axis.
        xlabel: The label of the x axis. It is left out if the axis shows no numbers, because it
            shares them with axes below. Defaults to "optimizer steps".
    """
    from matplotlib.ticker import EngFormatter

    has_numbers = ax.xaxis.get_tick_params().get("labelbottom", True)
    ax.set(xlabel=xlabel if has_numbers else "", ylabel=ylabel)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.grid(alpha=0.3)


def legend(ax) -> None:
    """Draws a legend below the x axis and its label, in as many columns as fit.

    On a figure without a layout engine, matplotlib places it inside the axes.
    """
    labels = ax.get_legend_handles_labels()[1]
    inches = ax.get_position().width * ax.figure.get_figwidth()
    # An inch has room for 13 characters of a 10-point font. The line sample beside a label takes as
    # much room as about 7 characters.
    most_columns = int(13 * inches) // (7 + max(map(len, labels)))
    columns = min(max(most_columns, 1), len(labels))
    placement = {
        "loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": columns,
        "borderaxespad": 3.6 if ax.get_xlabel() else 0.8,
    }  # fmt: skip
    # A figure without a layout engine makes no room for a legend below the axes and would cut it
    # off, so matplotlib places the legend inside the axes.
    ax.legend(**placement if ax.figure.get_layout_engine() else {})


Curves = dict[str, dict[int, float]]  # name -> step -> value


def axes_for_data(subject, has_data, axes, rows=1):
    """Returns the axes to draw in, as `make_axes` does; raises if there is nothing to draw.

    Args:
        subject: What is drawn, such as "trust ratios", for the error.
        has_data: Whether there is something to draw.
        axes: The matplotlib `Axes`, or None for a new figure.
        rows: The number of axes. Defaults to 1.

    Raises:
        ValueError: if there is nothing to draw.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    if not has_data:
        raise ValueError(
            "There is nothing to draw yet: plot() is for after fit, once a reading is a number."
        )
    return make_axes(subject, axes, rows)


def draw_curves(ax, ylabel: str, curves: Curves) -> None:
    """Draws curves, with a label on each axis and a legend.

    Args:
        ax: The `Axes`.
        ylabel: The label of the y axis.
        curves: Name in the legend -> step -> value.
    """
    for label, curve in curves.items():
        # A single point, such as one evaluation, makes no line: curves of few points get markers.
        ax.plot(list(curve), list(curve.values()), "-" if len(curve) > 30 else ".-", label=label)
    label_axes(ax, ylabel)
    legend(ax)


def has_points(curves: Curves) -> bool:
    """Returns whether the curves have any finite value."""
    return any(math.isfinite(value) for curve in curves.values() for value in curve.values())


def noise_scale(curve: dict[int, float], batch_size: int, axes=None):
    """Draws the noise scale over the steps, and the batch size as a horizontal line.

    Args:
        curve: Step -> noise scale, in examples.
        batch_size: The number of examples in an update.
        axes: The matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The `Axes`.

    Raises:
        ValueError: if no noise scale is finite.
    """
    label = "noise scale"
    if undefined_count := sum(not math.isfinite(value) for value in curve.values()):
        label += f" (undefined in {undefined_count} of {len(curve)} readings)"
    curves = {label: curve}
    (ax,) = axes_for_data("the noise scale", has_points(curves), axes)
    ax.axhline(batch_size, color="black", ls="--", lw=1, label=f"batch size: {batch_size:,}")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:,.12g}")
    draw_curves(ax, "noise scale, examples", curves)
    return ax


def trust_ratios(curves: Curves, axes=None, max_layers: int = 3):
    """Draws the median and the range of all layers' trust ratios, and the ratios of some layers.

    These are the layers whose last ratio is farthest from the median.

    Args:
        curves: Name of a layer -> step -> trust ratio.
        axes: The matplotlib `Axes`. Defaults to None: those of a new figure.
        max_layers: The number of layers that are drawn by themselves. Defaults to 3.

    Returns:
        The `Axes`.

    Raises:
        ValueError: if no ratio is finite.
    """
    (ax,) = axes_for_data("trust ratios", has_points(curves), axes)
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = {layer: [curve.get(step, math.nan) for step in steps] for layer, curve in curves.items()}
    columns = [
        [ratio for ratio in column if 0 < ratio < math.inf]
        for column in zip(*rows.values(), strict=True)
    ]
    medians, minima, maxima = (
        [statistic(column) if column else math.nan for column in columns]
        for statistic in (statistics.median, min, max)
    )
    ax.fill_between(steps, minima, maxima, color="0.88", label=f"all {len(rows)} layers")
    ax.plot(steps, medians, color="black", label="their median")
    farthest = sorted(rows, key=lambda layer: -log_distance(rows[layer][-1], medians[-1]))[
        :max_layers
    ]
    for layer, label in zip(farthest, _short_names(farthest, rows), strict=True):
        ax.plot(steps, rows[layer], lw=1, label=label)
    ax.set_yscale("log", nonpositive="mask")
    label_axes(ax, "trust ratio")
    legend(ax)
    return ax


def _short_names(names, all_names, max_length: int = 48) -> list[str]:
    """Returns the names of layers for a legend.

    Args:
        names: The names to shorten.
        all_names: The names of all layers. The path parts with which all of them begin are removed
            from `names`.
        max_length: The most characters of a name; the beginning of a longer one is cut off.
            Defaults to 48.
    """
    common = len(os.path.commonprefix([name.split("/")[:-1] for name in all_names]))
    short_names = ("/".join(name.split("/")[common:]) for name in names)
    return [
        name if len(name) <= max_length else f"...{name[3 - max_length :]}" for name in short_names
    ]


# By the argument `over`: the label of the x axis, and the attribute of a recipe where it ends.
_X_LABELS = {"steps": "optimizer steps", "examples": "examples"}
_END_ATTRIBUTES = {"steps": "train_steps", "examples": "examples_seen"}
_POINTS_PER_PIECE = 513  # points of the line between two neighbouring steps of `_breakpoints`


def recipes(first: Recipe | StagedRecipe, *others: Any, over: str = "steps", ax: Any = None) -> Any:
    """Draws the learning rate of recipes; see `Recipe.plot`.

    Args:
        first: A recipe.
        others: Recipes to draw beside it.
        over: The x axis: "steps" or "examples". Defaults to "steps".
        ax: The matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The `Axes`.

    Raises:
        ValueError: for another `over`.
        TypeError: if one of the others is no recipe.
    """
    if over not in _X_LABELS:
        options = ", ".join(map(repr, _X_LABELS))
        raise ValueError(f"over must be one of {options}, not {over!r}.")
    for other in others:
        if not isinstance(other, Recipe | StagedRecipe):
            raise TypeError(
                f"plot draws other recipes beside this one, and {other!r} is none. To draw in "
                "axes of yours: plot(ax=axes); to save: plot().figure.savefig('recipe.png')."
            )
    (ax,) = make_axes("a recipe", ax)
    all_recipes: list[Any] = [first, *others]
    titles = list(dict.fromkeys(recipe.title for recipe in all_recipes))
    for recipe in all_recipes:
        prefix = f"{recipe.title}, " if len(titles) > 1 else ""
        ax.plot(*_curve_points(recipe, over), label=prefix + batch_label(recipe))
    ax.set_title(titles[0] if len(titles) == 1 else "Learning rates")
    label = _X_LABELS[over]
    ends = [getattr(recipe, _END_ATTRIBUTES[over]) for recipe in all_recipes]
    if max(ends) > 20 * min(ends):
        ax.set(xscale="log", xlim=(1, None))
        label += ", logarithmic: straight warmup and decay look bent"
    label_axes(ax, "learning rate", label)
    legend(ax)
    return ax


def _breakpoints(recipe):
    """Returns the steps at which the learning rate may jump or bend, in order.

    They are the first and the last step, the ends of warmups and stages, and the steps at which a
    stepwise rate changes.
    """
    breakpoints, begin = {0}, 0
    for stage in recipe.stages:
        steps = (begin + step for step in (stage.warmup_steps, *stage.boundaries))
        end = begin + stage.train_steps
        breakpoints.update(step for step in steps if step < end)
        breakpoints.add(begin := end)
    return sorted(breakpoints)


def _curve_points(recipe, over):
    """Computes points on the curve of a recipe's learning rate.

    Between two breakpoints, the points end at the largest float below the second breakpoint. So a
    jump of the rate at a breakpoint has a point on either side.

    Args:
        recipe: The recipe.
        over: The x axis: "steps" or "examples".

    Returns:
        An array of the x values, and an array of the learning rates.
    """
    import numpy as np

    pieces = itertools.pairwise(_breakpoints(recipe))
    # The points are dense near breakpoints, where a rate such as a root of the step is steep.
    fractions = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, _POINTS_PER_PIECE))
    steps = np.concatenate(
        [
            np.minimum(begin + (end - begin) * fractions, np.nextafter(end, begin))
            for begin, end in pieces
        ]
    )
    rates = recipe.schedule(schedules).value(np, steps)
    if over == "steps":
        return steps, rates
    # Stages differ in batch size, so the examples are not proportional to the steps.
    stage_ends = np.cumsum([0, *(stage.train_steps for stage in recipe.stages)])
    examples = np.cumsum([0, *(stage.examples_seen for stage in recipe.stages)])
    return np.interp(steps, stage_ends, examples), rates


def rates(answer, ax=None):
    """Draws held-out losses over the learning rate, a line for each optimizer and number of steps.

    Args:
        answer: The answer of `find_rate`.
        ax: The matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The `Axes`.

    Raises:
        ValueError: if there are no trials.
    """
    (ax,) = axes_for_data("rates", answer.trials, ax)
    curves: dict[tuple[str, int], list] = {}
    for trial in sorted(answer.trials, key=lambda candidate: candidate.rate):
        curves.setdefault((trial.optimizer, trial.steps), []).append(trial)
    for (name, steps), trials in curves.items():
        ax.plot(
            [trial.rate for trial in trials], [trial.loss for trial in trials], ".-",
            label=f"{name}, {steps:,} steps",
        )  # fmt: skip
    ax.axvspan(*answer.interval, color="0.9")
    if answer.rate is not None:
        ax.axvline(answer.rate, color="black", ls="--", label=f"found: {answer.rate:.3g}")
    ax.set_xscale("log")
    ax.set(xlabel="learning rate of the real run", ylabel="held-out loss")
    ax.grid(alpha=0.3)
    legend(ax)
    return ax


def batches(answer, ax=None):
    """Draws the hours of training over the batch size, a curve for each number of devices.

    A band around each curve shows the interval of likely hours.

    Args:
        answer: The answer of `find_batch`.
        ax: The matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The `Axes`.
    """
    (ax,) = make_axes("batches", ax)
    for devices in answer.machine.device_counts:
        rows = [row for row in answer.rows if row.devices == devices]
        sizes = [row.batch for row in rows]
        low_hours, high_hours = ([row.hours_interval[end] for row in rows] for end in (0, 1))
        ax.fill_between(sizes, low_hours, high_hours, alpha=0.2)
        ax.plot(sizes, [row.hours for row in rows], ".-", label=f"devices: {devices:,}")
    marked_rows = {"fastest": (answer.fastest, "o"), "cheapest": (answer.cheapest, "s")}
    if answer.by_deadline is not None:
        marked_rows["largest by the deadline"] = (answer.by_deadline, "D")
    for label, (row, marker) in marked_rows.items():
        ax.plot(row.batch, row.hours, marker, ms=9, color="black", mfc="none", ls="", label=label)
    if answer.deadline_hours is not None:
        ax.axhline(answer.deadline_hours, color="black", ls="--", lw=1, label="deadline")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(xlabel="batch", ylabel="hours")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.3g}")
    ax.grid(alpha=0.3)
    legend(ax)
    return ax
