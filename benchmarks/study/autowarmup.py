"""AutoWarmup as it comes, beside a grid of nine tuned schedules, at three batch sizes.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    python -m benchmarks.study.autowarmup --draw=benchmarks/logs/autowarmup.png
    # Of scikit-learn's digits:
    python -m benchmarks.study.autowarmup --data= --batches=64 --log=digits.jsonl
    for network in shallow deep; do
      python -m benchmarks.study.autowarmup --data= --network=$network --batches=512 --seeds=6
    done

Fashion-MNIST, two hidden layers with batch normalization, this package's LAMB with decay 0.01,
equally many epochs for all. The contestants:

    grid         linear warmup over 5% of the steps to a peak, cosine decay to 0; nine peaks from
                 1e-4 to 1, a factor of 3.16 apart
    autowarmup   AutoWarmup() without an argument: it searches the range 1e-5 to 1
    unwatched    for networks without normalization, the same as its authors have it: nobody looks
                 whether the decay loses what the warmup gained

Each is judged by its accuracy on the 10,000 test images, which no contestant is tuned on but the
grid: its best is taken with them in sight. A run is a line of the log; a command that was
interrupted goes on where it stopped. `--draw` makes a picture of all, and NAME_BATCH.png of what
each AutoWarmup saw.
"""

import contextlib
import functools
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared import drawing
from benchmarks.shared.pictures import FASHION_MNIST, images, perceptron
from benchmarks.shared.run_log import Log
from tf_lamb_extras.automatic_warmup import AutoWarmup
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState

PEAKS = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 1))
WARMUP, DECAY = 0.05, 0.01
EXCLUDED = ["bias", "gamma", "beta"]


def network(shape, kind):
    """Two hidden layers, each normalized; or two or six convolutions, without normalization."""
    from keras import Input, Sequential, layers

    if kind != "normalized":
        convolutions = [layers.Conv2D(n, 3, activation="relu") for n in (16, 32)]
        top = [layers.GlobalAveragePooling2D()]
        if kind == "deep":
            convolutions += [
                layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)
            ]
            top = [layers.Flatten(), layers.Dense(64, activation="relu")]
        return Sequential([Input(shape), *convolutions, *top, layers.Dense(10)])
    return perceptron(shape)


@contextlib.contextmanager
def watched(is_watched):
    """Inside, whether AutoWarmup looks at the losses of the decay."""
    watch = AutoWUState._watch
    if not is_watched:
        AutoWUState._watch = lambda self, step: False
    yield
    AutoWUState._watch = watch


def train(data, batch, epochs, peak, seed, kind="normalized", picture=None):
    """One run: the peak's, or where it is None AutoWarmup's, of which there may be a picture."""
    import keras

    from tf_lamb.keras import schedules

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y = data[0]
    steps = epochs * (len(x) // batch)
    x, y = x[: len(x) // batch * batch], y[: len(y) // batch * batch]
    rate, callbacks = 1e-3, [AutoWarmup()]
    if peak:
        warm = max(1, round(WARMUP * steps))
        fall = keras.optimizers.schedules.CosineDecay(peak, steps - warm)
        rate = schedules.Warmup(warm, fall)
        callbacks = []
    model = network(x.shape[1:], kind)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf_lamb.LAMB(rate, weight_decay=DECAY, exclude_from_weight_decay=EXCLUDED)
    model.compile(optimizer, loss, metrics=["accuracy"])
    begun = time.perf_counter()
    model.fit(x, y, batch_size=batch, epochs=epochs, callbacks=callbacks, verbose=0)
    seconds = time.perf_counter() - begun
    test = 100 * model.evaluate(*data[2], batch_size=1000, verbose=0)[1]
    line = {"steps": steps, "test": round(test, 2), "seconds": round(seconds, 1)}
    if not peak:
        warmup = callbacks[0].warmup
        line |= {"found": warmup.found, "switch": warmup.begin, "switch_to": warmup.peak}
        line |= {"cuts": warmup.cuts} if warmup.cuts else {}
        if picture:
            callbacks[0].plot()[0].figure.savefig(picture, dpi=110)
    return line


def main(_):
    """Makes the runs that are missing, and prints."""
    import matplotlib
    import tqdm

    matplotlib.use("Agg")
    args = flags.FLAGS
    data, log = images(args.data), Log(args.log)
    name, kind = "fashion_mnist" if args.data else "digits", args.network
    name += f", {kind} network" * (kind != "normalized")
    ways = [(None, args.seeds, True), *((peak, 1, True) for peak in PEAKS)]
    if kind != "normalized":
        ways.insert(1, (None, args.seeds, False))
    contests = [
        (batch, peak, seed, is_watched)
        for batch in map(int, args.batches)
        for peak, seeds, is_watched in ways
        for seed in range(1, seeds + 1)
    ]
    runs = []
    for batch, peak, seed, is_watched in tqdm.tqdm(contests, desc="runs", disable=None):
        what = {
            "data": name, "batch": batch, "epochs": args.epochs,
            "peak": peak and float(f"{peak:.4g}"), "seed": seed,
        }  # fmt: skip
        if kind != "normalized":
            what["watched"] = is_watched
        picture = f"_{batch}".join(os.path.splitext(args.draw)) if args.draw and seed == 1 else None
        make = functools.partial(train, data, batch, args.epochs, what["peak"], seed, kind, picture)
        with watched(is_watched):
            runs.append(log.run(what, make))
    for batch in map(int, args.batches):
        print(table([run for run in runs if run["batch"] == batch]))
    if args.draw:
        draw(runs, args.draw)


def table(runs):
    """The grid's accuracies, and AutoWarmup's beside the best of them."""
    grid = {run["peak"]: run["test"] for run in runs if run["peak"]}
    best = max(grid, key=grid.get)
    lines = [f"batch {runs[0]['batch']:,}, {runs[0]['steps']:,} steps"]
    lines += ["  peak " + "".join(f"{peak:>9.3g}" for peak in grid)]
    lines += ["  test " + "".join(f"{test:>9.2f}" for test in grid.values())]
    for run in runs:
        if not run["peak"]:
            end = f"switch at {run['switch'] / run['steps']:.0%} to {run['switch_to']:.3g}"
            found = end if run["found"] else "no switch"
            name = "autowarmup" if run.get("watched", True) else "unwatched"
            found += "".join(f", cut at {at} to {peak:.3g}" for at, peak in run.get("cuts", ()))
            lines.append(
                f"  {name}, seed {run['seed']}: {run['test']:.2f}, {found}; "
                f"{run['test'] - grid[best]:+.2f} of the best, {best:.3g}"
            )
    return "\n".join(lines)


def draw(runs, path):
    """Accuracy over the peak, a panel a batch; AutoWarmup's where it went back to."""
    plt, floor = drawing.pyplot(), 86.0
    batches = list(dict.fromkeys(run["batch"] for run in runs))
    figure, axes = plt.subplots(1, len(batches), figsize=(10, 3.8), sharey=True, squeeze=False,
                                layout="constrained")  # fmt: skip
    for ax, batch in zip(axes.flat, batches, strict=True):
        mine = [run for run in runs if run["batch"] == batch]
        grid = np.array([(run["peak"], run["test"]) for run in mine if run["peak"]])
        found = np.array([(run["switch_to"], run["test"]) for run in mine if not run["peak"]])
        here = grid[:, 1] >= floor
        ax.plot(*grid[here].T, **drawing.style("lamb"), label="linear warmup to a peak, one seed")
        ax.plot(grid[~here, 0], np.full(sum(~here), floor), **drawing.lost("lamb"),
                label=f"likewise, below {floor:.0f}%")  # fmt: skip
        ax.plot(*found.T, **drawing.style("autowarmup") | {"ls": "", "ms": 9}, label="AutoWarmup")
        ax.set(xscale="log", xlabel="peak of the learning rate", title=f"batch {batch:,}")
    axes[0, 0].set_ylabel("test accuracy, %")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/autowarmup.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_string("data", FASHION_MNIST, "The folder of Fashion-MNIST, or empty: digits.")
    kinds = ["normalized", "shallow", "deep"]
    flags.DEFINE_enum("network", "normalized", kinds, "Which; two are without normalization.")
    flags.DEFINE_list("batches", ["256", "2048", "8192"], "Batch sizes.")
    flags.DEFINE_integer("epochs", 60, "Of every run.")
    flags.DEFINE_integer("seeds", 3, "Of AutoWarmup.")
    app.run(main)
