"""Draws the trust ratio of every layer of a small network, from a real run with TrustRatios.

    python benchmarks/trust_ratios.py --draw=benchmarks/logs/trust_ratios.png

A convolutional network learns scikit-learn's handwritten digits with LAMB and with LARS; the
figure is drawn from the scalars that TrustRatios wrote for TensorBoard.
"""

import os
import tempfile

import keras
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import tf_lamb.keras
from tf_lamb.model_garden.report import read_scalars

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


def train(optimizer, folder):
    """Returns the accuracy on data kept back; prints the table."""
    digits = load_digits()
    x, y = digits.images[..., None] / 16.0, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    kept, rest = order[:360], order[360:]
    keras.utils.set_random_seed(1)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    watch = tf_lamb.keras.TrustRatios(directory=folder, every=5)
    model.fit(x[rest], y[rest], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[watch])
    return model.evaluate(x[kept], y[kept], verbose=0)[1]


def main(_):
    """Both optimizers, a picture, and each one's table on the console."""
    figure, axes = plt.subplots(1, len(OPTIMIZERS), figsize=(11, 4.2), sharex=True)
    for axis, (name, make) in zip(axes, OPTIMIZERS.items(), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            accuracy = train(make(), folder)
            scalars = read_scalars(folder)
        for tag, points in scalars.items():
            kind, _, path = tag.partition("/")
            if kind == "trust_ratio":
                label = os.path.dirname(path).partition("/")[2] or path
                axis.plot(list(points), list(points.values()), label=label)
        axis.set(
            yscale="log",
            xlabel="step",
            ylabel="trust ratio",
            title=f"{name}: {accuracy:.1%} of unseen digits",
        )
        axis.grid(alpha=0.3, which="both")
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    figure.savefig(flags.FLAGS.draw, dpi=120)


if __name__ == "__main__":
    flags.DEFINE_string("draw", "trust_ratios.png", "The picture to write.")
    app.run(main)
