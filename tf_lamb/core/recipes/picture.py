"""The learning rate of recipes: for an optimizer, and in a picture."""

import importlib
import itertools
from typing import Any

from tf_lamb.core import schedules
from tf_lamb.core.recipes import axes

_OVER = {"steps": "optimizer steps", "examples": "examples"}
_ENDS = {"steps": "train_steps", "examples": "examples_seen"}
_POINTS = 513  # of a piece of the line, from one joint to the next


class Drawable:
    """What has a learning rate: a recipe, or stages of them."""

    def schedule(self: Any, schedules: Any = None) -> Any:
        """The learning rate, step by step, as any optimizer of Keras takes it.

            keras.optimizers.SGD(recipe.schedule(), momentum=0.9, nesterov=True)

        Args:
            schedules: The module whose schedules to use. Defaults to None: `tf_lamb.schedules`,
                those of Keras 3, or of tf_keras where `TF_USE_LEGACY_KERAS` is set;
                `tf_lamb.keras.schedules` and `tf_lamb.tf_keras.schedules` say it outright.

        Example:
            >>> from tf_lamb.core import recipes, schedules
            >>> recipes.linear_scaling(8192).schedule(schedules).steps
            782
        """
        from tf_lamb.core.recipes.optimizer import schedule

        if schedules is None:  # the package itself knows which Keras is meant
            schedules = importlib.import_module("tf_lamb").schedules
        return schedule(self, schedules)

    def plot(self, *others: "Drawable", over: str = "steps", ax: Any = None) -> Any:
        """Draws the learning rate, and that of other recipes in the same picture.

        The values are those of the schedule that an optimizer is given; where it jumps, the line
        is vertical. The axes are linear, so that what is straight is drawn so; only where one
        recipe has more than 20 times the steps (or examples) of another, whose line would be a
        stroke at the left edge, is that axis logarithmic, as its label says.

        Args:
            *others: Recipes to compare with, say for other batch sizes.
            over: What to draw it over, "steps" of the optimizer or "examples" seen.
            ax: The matplotlib `Axes` to draw in. Defaults to None: those of a new figure.

        Returns:
            The `Axes`, with a line and an entry in the legend for each recipe. To show or to save
            it is the caller's.

        Raises:
            ValueError: where `over` is neither of them.
            TypeError: for anything but recipes in `others`.
            ModuleNotFoundError: where matplotlib is not installed.

        Example:
            >>> from tf_lamb.core.recipes import untuned_lamb_bert
            >>> small, large = untuned_lamb_bert(512), untuned_lamb_bert(32768)
            >>> ax = large.plot(small)
            >>> [line.get_label() for line in ax.lines]
            ['batch 32,768', 'batch 512']
        """
        if over not in _OVER:
            known = ", ".join(map(repr, _OVER))
            raise ValueError(f"over must be one of {known}, not {over!r}.")
        for other in others:
            if not isinstance(other, Drawable):
                raise TypeError(
                    f"plot draws other recipes beside this one, and {other!r} is none. To draw in "
                    "axes of yours: plot(ax=axes); to save: plot().figure.savefig('recipe.png')."
                )
        (ax,) = axes.given_or_new("a recipe", ax)
        recipes: list[Any] = [self, *others]
        titles = list(dict.fromkeys(recipe.title for recipe in recipes))
        for recipe in recipes:
            prefix = f"{recipe.title}, " if len(titles) > 1 else ""
            ax.plot(*_line(recipe, over), label=prefix + batch(recipe))
        ax.set_title(titles[0] if len(titles) == 1 else "Learning rates")
        label = _OVER[over]
        ends = [getattr(recipe, _ENDS[over]) for recipe in recipes]
        if max(ends) > 20 * min(ends):
            ax.set(xscale="log", xlim=(1, None))
            label += ", logarithmic: straight warmup and decay look bent"
        axes.name(ax, "learning rate", label)
        axes.legend(ax)
        return ax


def batch(recipe) -> str:
    """The batch of a recipe, or of each stage, in words."""
    sizes = dict.fromkeys(stage.batch_size for stage in recipe.stages)
    return "batch " + ", then ".join(f"{size:,}" for size in sizes)


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
