"""What becomes of layers that start at or near zero under LAMB: a checkerboard, four blocks.

    KERAS_BACKEND=jax python -m benchmarks.study.near_zero

Each block is normalization and two layers of 64, gelu between them, beside the path that goes on; a
linear path alone tells none of the 16 fields from another. It starts closed:

    LayerScale   a vector of 1e-6 behind it, without a name, as in Keras's ConvNeXt
    ReZero       a scalar of 0 behind it
    last layers  the second layer's kernel is 0

400 steps of 512 of 4,096 examples, weight decay 0.01. A run is a line of the log: its accuracy on
4,096 other examples. `patterns` are the exclusions that many scripts have, ["bias", "gamma",
"beta"]; `left out` is "norm_and_bias", and the last layers by their names.
"""

import statistics

import keras
import numpy as np
from absl import app, flags

import tf_lamb.keras
from benchmarks.shared.run_log import Log

LAYERS, WIDTH, BLOCKS, FIELDS = keras.layers, 64, 4, 4
KINDS = ("LayerScale", "ReZero", "last layers")


def lamb(rate, patterns):
    def make(kind):
        given = {"exclude_from_weight_decay": ["bias", "gamma", "beta"]}
        if not patterns:
            given = {"exclude_from_weight_decay": "norm_and_bias"}
            if kind == "last layers":
                given["exclude_from_layer_adaptation"] = ["norm_and_bias", "^last"]
        return tf_lamb.keras.LAMB(rate, weight_decay=0.01, **given)

    return make


CONTESTANTS = {
    "AdamW 0.001": lambda kind: keras.optimizers.AdamW(1e-3, weight_decay=0.01),
    "LAMB 0.01, patterns": lamb(1e-2, True),
    "LAMB 0.01, left out": lamb(1e-2, False),
    "LAMB 0.03, patterns": lamb(3e-2, True),
    "LAMB 0.03, left out": lamb(3e-2, False),
}


class Gate(LAYERS.Layer):
    """Multiplies by a weight that has no name."""

    def __init__(self, start, axes):
        super().__init__()
        self.start, self.axes = start, axes

    def build(self, shape):
        initializer = keras.initializers.Constant(self.start)
        self.weight = self.add_weight(shape=shape[-1:] * self.axes, initializer=initializer)

    def call(self, inputs):
        return inputs * self.weight


def network(kind):
    inputs = keras.Input((2,))
    x = LAYERS.Dense(WIDTH)(inputs)
    start = "zeros" if kind == "last layers" else "glorot_uniform"
    for number in range(BLOCKS):
        y = LAYERS.Dense(WIDTH, "gelu")(LAYERS.LayerNormalization()(x))
        y = LAYERS.Dense(WIDTH, kernel_initializer=start, name=f"last_{number}")(y)
        if kind != "last layers":
            y = (Gate(1e-6, 1) if kind == "LayerScale" else Gate(0.0, 0))(y)
        x = LAYERS.Add()([x, y])
    return keras.Model(inputs, LAYERS.Dense(1)(x))


def examples(seed, count=4096):
    x = np.random.default_rng(seed).uniform(0, FIELDS, (count, 2))
    y = np.floor(x).sum(axis=1, keepdims=True) % 2
    return (2 * x / FIELDS - 1).astype("float32"), y.astype("float32")


def trained(kind, name, seed):
    keras.utils.set_random_seed(seed)
    model = network(kind)
    model.compile(
        CONTESTANTS[name](kind), keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )  # fmt: skip
    model.fit(*examples(1), batch_size=512, epochs=50, verbose=0)
    _, accuracy = model.evaluate(*examples(2), batch_size=4096, verbose=0)
    return {"accuracy": round(float(accuracy), 4)}


def main(_):
    log, seeds = Log(flags.FLAGS.log), range(flags.FLAGS.seeds)
    for seed in seeds:
        for kind in KINDS:
            for name in CONTESTANTS:
                what = {"start": kind, "optimizer": name, "seed": seed}
                print(log.run(what, lambda k=kind, n=name, s=seed: trained(k, n, s)), flush=True)
    for name in CONTESTANTS:
        runs = [line for line in log.lines if line.get("optimizer") == name]
        of = ([run["accuracy"] for run in runs if run["start"] == kind] for kind in KINDS)
        print(f"{name:22}", *(f"{statistics.mean(each):11.3f}" for each in of))


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/near_zero.jsonl", "Where runs are noted.")
    flags.DEFINE_integer("seeds", 2, "Of each.")
    app.run(main)
