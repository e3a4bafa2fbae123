"""Draws what `update.py` logged: step time against parameters, first step against variables.

python -m benchmarks.performance.draw_update benchmarks/logs/update.jsonl benchmarks/logs
"""

import collections
import json
import statistics
import sys

from benchmarks.shared import drawing

SHOWN = {  # color, marker, dashes
    "floor": ("black", "", ":"),
    "tf_lamb.tf_keras": ("#D55E00", "D", "-"), "tf_lamb.keras": ("#E69F00", "o", "-"),
    "Model Garden LAMB": ("#0072B2", "s", "-"), "Model Garden LAMB, XLA": ("#0072B2", "s", "--"),
    "Keras Lamb": ("#009E73", "^", "-"), "Keras Lamb, XLA": ("#009E73", "^", "--"),
    "optax lamb, jitted": ("#CC79A7", "P", "-"),
}  # fmt: skip


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
    plt = drawing.pyplot()
    sizes, medians = read(path)
    for quantity, against, title in (
        ("step", "parameters", "A step of the update"),
        ("first", "variables", "The first step, compiling included"),
    ):
        figure, ax = plt.subplots(figsize=(8.5, 4.5), layout="constrained")
        for name, (color, marker, dashes) in SHOWN.items():
            if name == "floor" and quantity == "first":
                continue
            points = sorted(
                (sizes[shapes][against], seen[quantity])
                for shapes, seen in medians.get(name, {}).items()
            )
            style = {"color": color, "marker": marker, "ls": dashes}
            ax.plot(*zip(*points, strict=True), label=name, **style)
        ax.set(xscale="log", yscale="log", xlabel=against, ylabel="seconds", title=title)
        figure.legend(loc="outside right upper", fontsize=8)
        figure.savefig(f"{folder}/update_{quantity}.png")


if __name__ == "__main__":
    draw(*sys.argv[1:])
