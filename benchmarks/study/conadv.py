"""Concurrent adversarial training at a large batch, beside the same training without it.

    python -m benchmarks.study.conadv --draw=benchmarks/logs/conadv.png
    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    python -m benchmarks.study.conadv --data=.build/debian/usr/share/datasets/fashion-mnist \\
        --examples=8192 --batch=1024 --epochs=25 --log=fashion.jsonl    # hours on two cores

scikit-learn's digits, 1,024 of them at batch 256, a small convolutional network with batch
normalization, LARS with the same warmup, peak and cosine decay for all. The contestants:

    plain         nothing else
    sequential    ConcurrentAdversarial(tau=0): the attack waits for the update before
    concurrent    tau=1, the default: it reads the parameters of a step before

All see the same images in the same order, for equally many epochs. What is compared is the accuracy
on 400 clean test images (of Fashion-MNIST, 10,000), and on the same after an attack of one step on
the trained model.
Then the seconds of a step, of all three in turn. A run is a line of the log; a command that was
interrupted goes on where it stopped.
"""

import functools
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared.pictures import images
from benchmarks.shared.run_log import Log
from tf_lamb_extras.adversarial import ConcurrentAdversarial

METHODS = {"plain": None, "sequential": 0, "concurrent": 1}
PEAK, DECAY, WARMUP = 4.0, 1e-4, 0.1
EPSILON = 9 / 255  # of the range of the input


def network(shape):
    """Three convolutions, each normalized, and a dense layer."""
    from keras import Input, Sequential, layers

    blocks = [Input(shape)]
    for channels in (16, 32, 64):
        blocks += [
            layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9), layers.ReLU(),
        ]  # fmt: skip
    return Sequential([*blocks, layers.GlobalAveragePooling2D(), layers.Dense(10)])


def training(method, data, batch, steps, seed):
    """A compiled model."""
    import keras

    from tf_lamb.keras import schedules

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x = data[0][0]
    model = network(x.shape[1:])
    if (tau := METHODS[method]) is not None:
        range_ = (float(x.min()), float(x.max()))
        model = ConcurrentAdversarial(model, input_range=range_, tau=tau, seed=seed)
    warm = round(WARMUP * steps)
    fall = keras.optimizers.schedules.CosineDecay(PEAK, steps - warm)
    rate = schedules.Warmup(warm, fall)
    undecayed = ["bias", "gamma", "beta"]
    optimizer = tf_lamb.keras.LARS(rate, weight_decay=DECAY, exclude_from_weight_decay=undecayed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def attacked(model, x, y):
    """The images after one step of the sign of the gradient, each within the range."""
    import jax
    import keras

    plain = getattr(model, "model", model)
    state = [[v.value for v in plain.trainable_variables],
             [v.value for v in plain.non_trainable_variables]]  # fmt: skip

    def loss(x, y):
        logits = plain.stateless_call(*state, x, training=False)[0]
        return keras.ops.mean(
            keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        )

    gradient = jax.jit(jax.grad(loss))
    low, high = x.min(), x.max()
    parts = zip(np.split(x, 10), np.split(y, 10), strict=True)
    sign = np.concatenate([np.sign(gradient(*part)) for part in parts])
    return np.clip(x + EPSILON * (high - low) * sign, low, high)


def train(data, method, seed, examples, batch, epochs):
    """One run, as a dict for the log."""
    x, y = (each[:examples] for each in data[0])
    model = training(method, data, batch, epochs * examples // batch, seed)
    seen = model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0).history
    x, y = data[2]
    clean = model.evaluate(x, y, batch_size=1000, verbose=0)[1]
    robust = model.evaluate(attacked(model, x, y), y, batch_size=1000, verbose=0)[1]
    return {
        "test": round(100 * clean, 2), "attacked": round(100 * robust, 2),
        "train": [round(100 * each, 2) for each in seen["accuracy"]],
    }  # fmt: skip


def seconds(data, batch, rounds=15):
    """Of a step of each, in turn, medians; the first of each compiles and does not count."""
    batch = [np.array(each[:batch]) for each in data[0]]
    models = {method: training(method, data, len(batch[0]), 100, 1) for method in METHODS}
    taken = {method: [] for method in METHODS}
    for _ in range(rounds + 1):
        for method, model in models.items():
            begun = time.perf_counter()
            model.train_on_batch(*batch)
            taken[method].append(time.perf_counter() - begun)
    return {method: statistics.median(each[1:]) for method, each in taken.items()}


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args = flags.FLAGS
    data, log, runs = images(args.data), Log(args.log), []
    contests = [(seed, method) for seed in range(1, args.seeds + 1) for method in METHODS]
    for seed, method in tqdm.tqdm(contests, desc="runs", disable=None):
        sizes = {"examples": args.examples, "batch": args.batch, "epochs": args.epochs}
        name = "fashion_mnist" if args.data else "digits"
        what = {"data": name, "method": method, "seed": seed, **sizes}
        make = functools.partial(train, data, method, seed, **sizes)
        runs.append(log.run(what, make))
    if not any("step_seconds" in line for line in log.lines):
        log.note({"step_seconds": seconds(data, args.batch)})
    timed = next(line["step_seconds"] for line in log.lines if "step_seconds" in line)
    print(table(runs, timed))
    if args.draw:
        draw(runs, args.draw)


def of(runs, method, name):
    """What every seed of a method has of that name."""
    return [run[name] for run in runs if run["method"] == method]


def table(runs, timed):
    """A line for each method: means, every seed, and what a step takes."""
    lines = [f"{'':12}{'clean, %':>9}{'attacked':>10}{'a step':>9}    each seed, clean"]
    for method in METHODS:
        clean, robust = (of(runs, method, name) for name in ("test", "attacked"))
        lines.append(
            f"{method:12}{statistics.mean(clean):9.2f}{statistics.mean(robust):10.2f}"
            f"{timed[method] / timed['plain']:8.2f}x    " + "  ".join(f"{x:.2f}" for x in clean)
        )
    return "\n".join(lines)


def draw(runs, path):
    """Clean and attacked accuracy, a dot a seed and a line at the mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2, figsize=(9, 4))
    titles = {"test": "clean test images", "attacked": "the same after an attack"}
    labels = ["plain" if tau is None else f"tau={tau}" for tau in METHODS.values()]
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for i, method in enumerate(METHODS):
            values = of(runs, method, name)
            ax.hlines(statistics.mean(values), i - 0.3, i + 0.3, color=f"C{i}", lw=3)
            ax.plot([i] * len(values), values, "ko", ms=4)
        ax.set_xticks(range(len(METHODS)), labels)
        ax.margins(0.15)
        ax.set(title=title, ylabel="accuracy, %")
    plt.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/conadv.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_string("data", "", "The folder of Fashion-MNIST, or empty: digits.")
    flags.DEFINE_integer("examples", 1024, "Training images.")
    flags.DEFINE_integer("batch", 256, "Batch size.")
    flags.DEFINE_integer("epochs", 80, "Of every run.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    app.run(main)
