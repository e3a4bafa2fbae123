"""Draws the trust ratio of every layer of a small network, from a real run with TrustRatios.

    python -m benchmarks.study.trust_ratios --draw=benchmarks/logs/trust_ratios.png

A convolutional network learns scikit-learn's handwritten digits with LAMB and with LARS; what each
TrustRatios has read is a line of the log, and drawn by its `plot()`.
"""

import keras
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import tf_lamb.keras
from benchmarks.shared.run_log import Log
from tf_lamb.api import plots

BATCH, EPOCHS, EXCLUDED = 256, 60, ["bias", "gamma", "beta"]
STEPS = 6 * EPOCHS  # 1,437 examples


def falling(rate):
    return keras.optimizers.schedules.CosineDecay(rate, STEPS)


OPTIMIZERS = {
    "LAMB": lambda: tf_lamb.keras.LAMB(
        falling(0.01), weight_decay=0.01, exclude_from_weight_decay=EXCLUDED
    ),
    "LARS": lambda: tf_lamb.keras.LARS(
        falling(0.05), weight_decay=1e-4, trust_coefficient=0.1, exclude_from_weight_decay=EXCLUDED
    ),
}


def network():
    layers = [keras.layers.Input((8, 8, 1))]
    for i, filters in enumerate((16, 32, 32, 64)):
        layers += [
            keras.layers.Conv2D(
                filters, 3, padding="same", strides=1 + i % 2, use_bias=False, name=f"conv_{i}"
            ),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    layers += [
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(10, name="classes"),
    ]
    return keras.Sequential(layers)


def train(optimizer):
    """The line of a run: the accuracy on data kept back, and all ratios; prints the table."""
    digits = load_digits()
    x, y = digits.images[..., None] / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    kept, rest = order[:360], order[360:]
    keras.utils.set_random_seed(1)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    watch = tf_lamb.keras.TrustRatios(every=5)
    model.fit(x[rest], y[rest], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[watch])
    curves = {
        name: {step: float(f"{ratio:.4g}") for step, ratio in curve.items()}
        for name, curve in watch.history.curves().items()
    }
    return {"accuracy": model.evaluate(x[kept], y[kept], verbose=0)[1], "trust_ratios": curves}


def main(_):
    """Makes the runs that are missing, and draws one below the other."""
    log = Log(flags.FLAGS.log)
    figure, axes = plt.subplots(len(OPTIMIZERS), figsize=(7, 8.5), layout="constrained")
    for axis, (name, make) in zip(axes, OPTIMIZERS.items(), strict=True):
        run = log.run({"optimizer": name}, lambda make=make: train(make()))
        curves = {  # JSON has made texts of the steps
            layer: {int(step): ratio for step, ratio in curve.items()}
            for layer, curve in run["trust_ratios"].items()
        }
        plots.trust_ratios(curves, axis)
        axis.set_title(f"{name}: {run['accuracy']:.1%} of unseen digits")
    figure.savefig(flags.FLAGS.draw, dpi=110)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/trust_ratios.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", "trust_ratios.png", "The picture to write.")
    app.run(main)
