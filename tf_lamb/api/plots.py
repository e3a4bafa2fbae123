"""Plots of recipes, and of a training over its steps; curves are a dict, name -> step -> value."""

import base64
import html
import io
import itertools
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from tf_lamb.api.optimizers.observation import distance
from tf_lamb.core import messages, schedules
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe, batch


def given_or_new(what: str, axes=None, rows: int = 1, shown: bool = True) -> Sequence[Any]:
    """The axes to draw in, one below the other: those that are given, or those of a new figure.

    It is one of pyplot, which notebooks show, if it is to be `shown`. `what` is drawn, for the
    error where matplotlib is not installed.
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


def in_notebook(answer: Any) -> str:
    """HTML of what an answer prints, and of its plot where matplotlib is installed."""
    text = f'<pre style="white-space: pre; overflow-x: auto">{html.escape(str(answer))}</pre>'
    try:
        (ax,) = given_or_new("an answer", shown=False)
    except ModuleNotFoundError:
        return text
    answer.plot(ax=ax)
    ax.figure.savefig(png := io.BytesIO(), format="png")
    coded = base64.b64encode(png.getvalue()).decode()
    return f'{text}<img alt="plot" src="data:image/png;base64,{coded}">'


def label_axes(ax, ylabel: str, xlabel: str = "optimizer steps") -> None:
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


Curves = dict[str, dict[int, float]]


def ready(what, is_there, axes, rows=1):
    """The axes to draw in; raises `ValueError` where there is nothing to draw."""
    if not is_there:
        raise ValueError(
            "There is nothing to draw yet: plot() is for after fit, once a reading is a number."
        )
    return given_or_new(what, axes, rows)


def lines(ax, ylabel: str, curves: Curves) -> None:
    """Curves by their names."""
    for label, curve in curves.items():
        # Of one point, as of the only evaluation, there is no line.
        ax.plot(list(curve), list(curve.values()), "-" if len(curve) > 30 else ".-", label=label)
    label_axes(ax, ylabel)
    legend(ax)


def has_points(curves: Curves) -> bool:
    """Whether there is anything to draw."""
    return any(math.isfinite(value) for curve in curves.values() for value in curve.values())


def noise_scale(curve: dict[int, float], batch_size: int, axes=None):
    """Draws the noise scale over the steps, and the batch as a line."""
    label = "noise scale"
    if unknown := sum(not math.isfinite(value) for value in curve.values()):
        label += f" (undefined in {unknown} of {len(curve)} readings)"
    curves = {label: curve}
    (ax,) = ready("the noise scale", has_points(curves), axes)
    ax.axhline(batch_size, color="black", ls="--", lw=1, label=f"batch size: {batch_size:,}")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:,.12g}")
    lines(ax, "noise scale, examples", curves)
    return ax


def trust_ratios(curves: Curves, axes=None, most: int = 3):
    """Median and range over all layers, and those that end the farthest from the median."""
    (ax,) = ready("trust ratios", has_points(curves), axes)
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = {layer: [curve.get(step, math.nan) for step in steps] for layer, curve in curves.items()}
    seen = [[r for r in column if 0 < r < math.inf] for column in zip(*rows.values(), strict=True)]
    medians, lows, highs = (
        [of(column) if column else math.nan for column in seen]
        for of in (statistics.median, min, max)
    )
    ax.fill_between(steps, lows, highs, color="0.88", label=f"all {len(rows)} layers")
    ax.plot(steps, medians, color="black", label="their median")
    far = sorted(rows, key=lambda layer: -distance(rows[layer][-1], medians[-1]))[:most]
    for layer, label in zip(far, _short(far, rows), strict=True):
        ax.plot(steps, rows[layer], lw=1, label=label)
    ax.set_yscale("log", nonpositive="mask")
    label_axes(ax, "trust ratio")
    legend(ax)
    return ax


def _short(names, among, most: int = 48) -> list[str]:
    """Names without the folders that all have in common."""
    same = len(os.path.commonprefix([name.split("/")[:-1] for name in among]))
    cut = ("/".join(name.split("/")[same:]) for name in names)
    return [name if len(name) <= most else f"...{name[3 - most :]}" for name in cut]


_OVER = {"steps": "optimizer steps", "examples": "examples"}
_ENDS = {"steps": "train_steps", "examples": "examples_seen"}
_POINTS = 513  # of a piece of the line, from one joint to the next


def recipes(first: Recipe | StagedRecipe, *others: Any, over: str = "steps", ax: Any = None) -> Any:
    """Draws the learning rate of recipes; see `Recipe.plot`."""
    if over not in _OVER:
        known = ", ".join(map(repr, _OVER))
        raise ValueError(f"over must be one of {known}, not {over!r}.")
    for other in others:
        if not isinstance(other, Recipe | StagedRecipe):
            raise TypeError(
                f"plot draws other recipes beside this one, and {other!r} is none. To draw in "
                "axes of yours: plot(ax=axes); to save: plot().figure.savefig('recipe.png')."
            )
    (ax,) = given_or_new("a recipe", ax)
    drawn: list[Any] = [first, *others]
    titles = list(dict.fromkeys(recipe.title for recipe in drawn))
    for recipe in drawn:
        prefix = f"{recipe.title}, " if len(titles) > 1 else ""
        ax.plot(*_line(recipe, over), label=prefix + batch(recipe))
    ax.set_title(titles[0] if len(titles) == 1 else "Learning rates")
    label = _OVER[over]
    ends = [getattr(recipe, _ENDS[over]) for recipe in drawn]
    if max(ends) > 20 * min(ends):
        ax.set(xscale="log", xlim=(1, None))
        label += ", logarithmic: straight warmup and decay look bent"
    label_axes(ax, "learning rate", label)
    legend(ax)
    return ax


def _joints(recipe):
    """The steps between which the rate is smooth: first, last, and where warmup or a rate ends."""
    joints, begin = {0}, 0
    for stage in recipe.stages:
        inner = (begin + step for step in (stage.warmup_steps, *stage.boundaries))
        end = begin + stage.train_steps
        joints.update(step for step in inner if step < end)
        joints.add(begin := end)
    return sorted(joints)


def _line(recipe, over):
    """x and y of the line. Each piece ends one float before its joint: a jump has both ends."""
    import numpy as np

    pieces = itertools.pairwise(_joints(recipe))
    part = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, _POINTS))  # dense at joints: a root is steep
    steps = np.concatenate([np.minimum(a + (b - a) * part, np.nextafter(b, a)) for a, b in pieces])
    rates = recipe.schedule(schedules).value(np, steps)
    if over == "steps":
        return steps, rates
    # Stages have batches of their own.
    ends = np.cumsum([0, *(stage.train_steps for stage in recipe.stages)])
    examples = np.cumsum([0, *(stage.examples_seen for stage in recipe.stages)])
    return np.interp(steps, ends, examples), rates


def rates(found, ax=None):
    """Held-out losses over the learning rate, a line an optimizer and a rung."""
    (ax,) = ready("rates", found.trials, ax)
    curves: dict[tuple[str, int], list] = {}
    for trial in sorted(found.trials, key=lambda each: each.rate):
        curves.setdefault((trial.optimizer, trial.steps), []).append(trial)
    for (name, steps), trials in curves.items():
        ax.plot(
            [trial.rate for trial in trials], [trial.loss for trial in trials], ".-",
            label=f"{name}, {steps:,} steps",
        )  # fmt: skip
    ax.axvspan(*found.interval, color="0.9")
    if found.rate is not None:
        ax.axvline(found.rate, color="black", ls="--", label=f"found: {found.rate:.3g}")
    ax.set_xscale("log")
    ax.set(xlabel="learning rate of the real run", ylabel="held-out loss")
    ax.grid(alpha=0.3)
    legend(ax)
    return ax


def batches(answer, ax=None):
    """Draws hours over the batch, a line for each number of devices, with the likely ones."""
    (ax,) = given_or_new("batches", ax)
    for devices in answer.machine.devices:
        rows = [row for row in answer.rows if row.devices == devices]
        at = [row.batch for row in rows]
        lows, highs = ([row.between[end] for row in rows] for end in (0, 1))
        ax.fill_between(at, lows, highs, alpha=0.2)
        ax.plot(at, [row.hours for row in rows], ".-", label=f"devices: {devices:,}")
    named = {"fastest": (answer.fastest, "o"), "cheapest": (answer.cheapest, "s")}
    if answer.by_deadline is not None:
        named["largest by the deadline"] = (answer.by_deadline, "D")
    for label, (row, marker) in named.items():
        ax.plot(row.batch, row.hours, marker, ms=9, color="black", mfc="none", ls="", label=label)
    if answer.deadline is not None:
        ax.axhline(answer.deadline, color="black", ls="--", lw=1, label="deadline")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(xlabel="batch", ylabel="hours")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.3g}")
    ax.grid(alpha=0.3)
    legend(ax)
    return ax
