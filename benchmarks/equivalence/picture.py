"""The arms of a workload over the ratio of batches: what they lose, and the updates they save."""

import math

from benchmarks import look
from benchmarks.equivalence.protocol import FROZEN

OF_RULES = {
    "unchanged": ":", "transfer": "-", "legw": "-.", "growing": (0, (1, 1)), "find_rate": "--",
    "autowarmup": (0, (5, 1, 1, 1)), "adascale": "-", "tuned": "-",
}  # fmt: skip


def draw(name: str, rows: list[dict], path: str):
    """Writes the picture: losses in margins on the left, updates saved on the right."""
    plt = look.pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2))
    for axes, value, title in zip(
        panels,
        (lambda row: row["worse"] / row["margin"], lambda row: row["saved"][0]),
        ("test score, worse than at the base batch, in margins", "times fewer updates to the loss"),
        strict=True,
    ):
        axes.set_xscale("log", base=2)
        axes.set_xticks(FROZEN["ratios"], FROZEN["ratios"])
        axes.set_xlabel("times the base batch")
        axes.set_title(title, fontsize=10)
        for arm in dict.fromkeys(row["arm"] for row in rows):
            rule, _, spec = arm.partition(" ")
            if rule == "tuned":
                continue
            points = [(row["ratio"], value(row)) for row in rows if row["arm"] == arm]
            shown = [(k, y) for k, y in points if math.isfinite(y) and y != 0]
            if shown:
                axes.plot(*zip(*shown, strict=True), **look.style(spec) | {"ls": OF_RULES[rule]},
                          label=arm)  # fmt: skip
    panels[0].set_yscale("symlog", linthresh=2)
    panels[0].axhline(1, color="black", lw=1)
    panels[0].annotate("the margin", (FROZEN["ratios"][0], 1), (0, 3), textcoords="offset points")
    panels[1].set_yscale("log", base=2)
    panels[1].plot(FROZEN["ratios"], FROZEN["ratios"], color="#999999", lw=1, label="k")
    figure.suptitle(name)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.subplots_adjust(right=0.8)
    figure.savefig(path)
