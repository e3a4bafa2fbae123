"""Pictures of a training over its steps: what callbacks have seen, or TensorBoard's scalars.

A curve is a dict, step -> value; curves are a dict of them by name.
"""

import math
import os
import statistics

from tf_lamb.api.optimizers.observation import distance
from tf_lamb.core import gaussian_process
from tf_lamb.core.recipes import axes as pictures

Curves = dict[str, dict[int, float]]


def _ready(what, is_there, axes, rows=1):
    """The axes to draw in; raises `ValueError` where there is nothing to draw."""
    if not is_there:
        raise ValueError(
            "There is nothing to draw yet: plot() is for after fit, once a reading is a number."
        )
    return pictures.given_or_new(what, axes, rows)


def lines(ax, ylabel: str, curves: Curves) -> None:
    """Curves by their names."""
    for label, curve in curves.items():
        # Of one point, as of the only evaluation, there is no line.
        ax.plot(list(curve), list(curve.values()), "-" if len(curve) > 30 else ".-", label=label)
    pictures.name(ax, ylabel)
    pictures.legend(ax)


def has_points(curves: Curves) -> bool:
    """Whether there is anything to draw."""
    return any(math.isfinite(value) for curve in curves.values() for value in curve.values())


def noise_scale(curves: Curves, batch_size: int, axes=None):
    """Noise scales, of all variables and of groups of them, and the batch beside them."""
    (ax,) = _ready("the noise scale", has_points(curves), axes)
    named = {}
    for tag, curve in curves.items():
        label = "noise scale" + tag.removeprefix("noise_scale").replace("/", " of ")
        if unknown := sum(not math.isfinite(value) for value in curve.values()):
            label += f" (undefined in {unknown} of {len(curve)} readings)"
        named[label] = curve
    ax.axhline(batch_size, color="black", ls="--", lw=1, label=f"batch size: {batch_size:,}")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:,.12g}")
    lines(ax, "noise scale, examples", named)
    return ax


def trust_ratios(curves: Curves, axes=None, most: int = 3):
    """Median and range over all layers, and those that end the farthest from the median."""
    (ax,) = _ready("trust ratios", has_points(curves), axes)
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
    pictures.name(ax, "trust ratio")
    pictures.legend(ax)
    return ax


def _short(names, among, most: int = 48) -> list[str]:
    """Names without the folders that all have in common."""
    same = len(os.path.commonprefix([name.split("/")[:-1] for name in among]))
    cut = ("/".join(name.split("/")[same:]) for name in names)
    return [name if len(name) <= most else f"...{name[3 - most :]}" for name in cut]


def warmup(found, axes=None):
    """Loss, posterior and switch of an `AutoWarmup`, above the learning rate of the training."""
    above, below = _ready("a warmup", found is not None and found.points, axes, rows=2)
    import numpy as np

    steps, losses = np.array(found.points).T
    seen = steps[-1] + 1
    grid, mean, deviation = gaussian_process.curve(steps / seen, losses)
    above.plot(steps, losses, ".", ms=3, color="0.6", label="loss")
    above.plot(grid * seen, mean, label="posterior, 2 deviations")
    above.fill_between(grid * seen, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
    pictures.name(above, "loss of a step")

    every = np.unique(np.r_[0 : found.settings.total_steps : 1000j, found.begin])
    below.plot(every, [found.rate(step) for step in every], label="learning rate")
    below.set(yscale="log")
    below.set_ylim(bottom=found.settings.min_learning_rate)
    pictures.name(below, "learning rate")
    what = "switch" if found.found else "longest warmup"
    for ax in (above, below):
        ax.axvline(found.begin, color="black", ls=":", lw=1, label=f"{what}: {found.begin:,.0f}")
        pictures.legend(ax)
    return above, below
