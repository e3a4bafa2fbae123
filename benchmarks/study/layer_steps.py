"""Draws how far each layer of a small network moves in a step, with Adam and with LAMB.

    python -m benchmarks.study.layer_steps --draw=benchmarks/logs/layer_steps.png

The convolutional network of `trust_ratios.py` learns scikit-learn's handwritten digits for 40 steps
at a constant rate. A line of the log has for each kernel the median over the steps of
|w after - w before| / |w before|, in percent.
"""

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import tf_lamb.keras
from benchmarks.shared import drawing
from benchmarks.shared.run_log import Log, commit
from benchmarks.study.trust_ratios import BATCH, network

STEPS = 40
OPTIMIZERS = {
    "Adam, rate 0.001": ("adamw", lambda: keras.optimizers.Adam(1e-3)),
    "LAMB, rate 0.01": ("lamb", lambda: tf_lamb.keras.LAMB(1e-2)),
}


def moved(make):
    """Trains, and returns of each kernel the median share of its length that a step moves it."""
    digits = load_digits()
    x, y = digits.images[..., None] / 16.0, digits.target
    keras.utils.set_random_seed(1)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=make(), loss=loss)
    kernels = {v.path.split("/")[-2]: v for v in model.trainable_variables if v.name == "kernel"}
    shares = {name: [] for name in kernels}
    draws = np.random.default_rng(0)
    for _ in range(STEPS):
        before = {name: v.numpy() for name, v in kernels.items()}
        rows = draws.choice(len(x), BATCH, replace=False)
        model.train_on_batch(x[rows], y[rows])
        for name, v in kernels.items():
            step = np.linalg.norm(v.numpy() - before[name]) / np.linalg.norm(before[name])
            shares[name].append(100 * step)
    return {name: float(f"{np.median(share):.4g}") for name, share in shares.items()}


def main(_):
    log = Log(flags.FLAGS.log)
    pyplot = drawing.pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(7, 2.4), sharex=True, sharey=True)
    for axis, (title, (style, make)) in zip(axes, OPTIMIZERS.items(), strict=True):
        run = log.run(
            {"optimizer": title},
            lambda make=make: {"percent": moved(make), "commit": commit()},
        )
        names, shares = zip(*run["percent"].items(), strict=True)
        axis.barh(names, shares, color=drawing.style(style)["color"])
        axis.set(title=title, xlabel="a step, in % of the layer's length")
    axes[0].invert_yaxis()  # the first layer on top; both panels share the axis
    figure.tight_layout()
    figure.savefig(flags.FLAGS.draw, dpi=110)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/layer_steps.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", "layer_steps.png", "The picture to write.")
    app.run(main)
