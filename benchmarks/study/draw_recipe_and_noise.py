"""Draws a recipe and a noise scale as their `plot()` does; nothing is trained.

    python -m benchmarks.study.draw_recipe_and_noise

The noise scale is that of a run in the log of adascale.py.
"""

import json
import os

import matplotlib

matplotlib.use("Agg")
from absl import app, flags

import tf_lamb
from tf_lamb.api.callbacks.noise import NoiseScale


def recipe():
    """The two recipes of the page on batches."""
    legw = [
        tf_lamb.recipes.scale(batch, 256, 2e-3, 1.0, examples=60000, epochs=40, rule="legw")
        for batch in (2048, 256)
    ]
    return legw[0].plot(legw[1])


def noise_scale():
    """A run of adascale.py at eight times the batch, read every twelve updates and at its end."""
    with open(os.path.join(flags.FLAGS.logs, "adascale.jsonl")) as file:
        runs = [json.loads(line) for line in file]
    what = {"method": "adascale", "scale": 8, "seed": 1}
    run = next(run for run in runs if what.items() <= run.items())
    seen = run["noise_scale"]
    watch = NoiseScale(batch_size=256)
    steps = [min(12 * (i + 1), run["steps"]) for i in range(len(seen))]
    watch.history = {"step": steps, "noise_scale": seen}
    return watch.plot()


def main(_):
    """Each to a file of its name."""
    for draw in (recipe, noise_scale):
        path = os.path.join(flags.FLAGS.logs, f"{draw.__name__}.png")
        draw().figure.savefig(path, dpi=110)


if __name__ == "__main__":
    flags.DEFINE_string("logs", "benchmarks/logs", "Where the logs are, and the pictures go.")
    app.run(main)
