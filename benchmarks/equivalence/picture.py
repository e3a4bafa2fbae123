"""The arms of a workload over the ratio of batches: what they lose, and the updates they save."""

import math

from benchmarks.equivalence.protocol import FROZEN
from benchmarks.shared import drawing

OF_RULES = {  # the line and the mark of a rule; the colour is the optimizer's
    "unchanged": (":", "o"), "transfer": ("-", "o"), "legw": ("-.", "<"), "growing": (":", "*"),
    "find_rate": ("--", "v"), "autowarmup": ("--", "X"), "adascale": ("-", "s"), "tuned": ("-", ""),
}  # fmt: skip
LOSS = (
    "test score, worse than at the base batch, in margins",
    lambda row: row["worse"] / row["margin"],
)
SAVING = "times fewer updates to the loss of the base", lambda row: row["saved"][0] or math.inf


def draw(name: str, rows: list[dict], path: str):
    """Writes the picture: losses in margins on the left, updates saved on the right."""
    plt, ratios = drawing.pyplot(), FROZEN["ratios"]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4))
    for axes, (title, value) in zip(panels, (LOSS, SAVING), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ratios, ratios)
        axes.set_xlabel("times the base batch")
        axes.set_title(title, fontsize=10)
        for arm in dict.fromkeys(row["arm"] for row in rows):
            rule, _, spec = arm.partition(" ")
            came = [row for row in rows if row["arm"] == arm and row["ends"] == row["ratio"]]
            points = [(row["ratio"], value(row)) for row in came]
            shown = [(k, y) for k, y in points if math.isfinite(y)]
            dashes, marker = OF_RULES[rule]
            own = {"ls": dashes, "marker": marker, "ms": 8 if marker == "*" else 6}
            pale = {"alpha": 0.35, "lw": 3} if rule == "tuned" else {}
            axes.plot([k for k, _ in shown], [y for _, y in shown], label=arm,
                      **drawing.style(spec) | own | pale)  # fmt: skip
    panels[0].set_yscale("symlog", linthresh=2)
    panels[0].set_yticks([0, 1, 2, 5, 10, 20], [0, 1, 2, 5, 10, 20])
    panels[0].axhline(1, color="black", lw=1, label="the margin")
    panels[1].set_yscale("log", base=2)
    panels[1].set_yticks([1, *ratios], [1, *ratios])
    panels[1].plot(ratios, ratios, color="#999999", lw=1)
    panels[1].annotate(
        "k times fewer", (ratios[1], ratios[1]), (-75, 0), textcoords="offset points"
    )
    figure.suptitle(name)
    labels = panels[0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside right center", fontsize=8)
    figure.subplots_adjust(right=0.82)
    figure.savefig(path)
