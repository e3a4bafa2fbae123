"""Draws what `update.py` logged: step time against parameters, first step against variables.

python benchmarks/draw_update.py benchmarks/logs/update.jsonl benchmarks/logs
"""

import collections
import json
import statistics
import sys

SHOWN = [
    "floor", "tf_lamb.tf_keras", "tf_lamb.keras", "Model Garden LAMB", "Model Garden LAMB, XLA",
    "Keras Lamb", "Keras Lamb, XLA", "optax lamb, jitted",
]  # fmt: skip


def read(path):
    """What was updated, by its name; and name of a contestant -> shapes -> quantity -> median."""
    sizes, seen = {}, collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path) as file:
        for entry in map(json.loads, file):
            if "name" not in entry:
                sizes[entry["shapes"]] = entry
            elif "step" in entry:
                seen[entry["name"]][entry["shapes"]].append(entry)
    medians = {
        name: {
            shapes: {key: statistics.median(run[key] for run in runs) for key in ("step", "first")}
            for shapes, runs in by_shapes.items()
        }
        for name, by_shapes in seen.items()
    }
    return sizes, medians


def draw(path, folder):
    """Two pictures."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes, medians = read(path)
    for quantity, against, title in (
        ("step", "parameters", "A step of the update"),
        ("first", "variables", "The first step, compiling included"),
    ):
        _, ax = plt.subplots(figsize=(8, 5))
        for name in SHOWN:
            if name == "floor" and quantity == "first":
                continue
            points = sorted(
                (sizes[shapes][against], seen[quantity])
                for shapes, seen in medians.get(name, {}).items()
            )
            style = {"linewidth": 2.5 if name.startswith("tf_lamb") else 1.2}
            if name == "floor":
                style["color"] = "black"
            ax.plot(*zip(*points, strict=True), marker="o", label=name, **style)
        ax.set(xscale="log", yscale="log", xlabel=against, ylabel="seconds", title=title)
        ax.grid(alpha=0.3)
        ax.legend()
        plt.savefig(f"{folder}/update_{quantity}.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    draw(*sys.argv[1:])
