"""Workers that see other data than their neighbours: DmSGD against DecentLaM.

    python -m benchmarks.study.decentralized --draw=benchmarks/logs/decentralized.png

scikit-learn's handwritten digits are sorted by label and dealt to eight workers, so that each has
two or three of the ten; 360 digits are held back. A network with one hidden layer learns them at
momentum 0.9 and a constant rate. `full` is all-reduced momentum, to which the order of the data is
all one; DecentLaM does not go with `one_peer_exponential` at this momentum. Every run of every rate
and seed is a line of the log; a command that was interrupted goes on where it stopped.
"""

import itertools
import json
import os
import platform
import statistics

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

from tf_lamb_extras.decentralized import Decentralized

WORKERS, SHARE, EPOCHS, MOMENTUM = 8, 16, 60, 0.9
RATES, SEEDS = (0.01, 0.03, 0.1), (0, 1, 2)
CONTESTANTS = (
    ("dmsgd", "full"), ("dmsgd", "ring"), ("decentlam", "ring"),
    ("dmsgd", "symmetric_exponential"), ("decentlam", "symmetric_exponential"),
    ("dmsgd", "one_peer_exponential"),
)  # fmt: skip


def digits():
    """What is learned, sorted by label, and what is held back."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    kept, rest = order[:360], order[360:]
    rest = rest[np.argsort(y[rest], kind="stable")]
    return (x[rest], y[rest]), (x[kept], y[kept])


class Dealt(keras.utils.PyDataset):
    """Batches of which the i-th part is drawn from the i-th part of the data, in a new order."""

    def __init__(self, x, y, seed):
        super().__init__()
        self._length = len(x) // WORKERS
        self._x, self._y = x, y
        self._random = np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        parts = range(0, WORKERS * self._length, self._length)
        self._order = np.stack([p + self._random.permutation(self._length) for p in parts])

    def __len__(self):
        return self._length // SHARE

    def __getitem__(self, i):
        chosen = self._order[:, i * SHARE : (i + 1) * SHARE].ravel()
        return self._x[chosen], self._y[chosen]


def train(method, topology, rate, seed):
    """One run as a line of the log."""
    learned, kept = digits()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([
        keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10),
    ])  # fmt: skip
    model.compile(
        keras.optimizers.SGD(rate, momentum=MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
    )  # fmt: skip
    workers = Decentralized(model, method, topology)
    logs = workers.fit(Dealt(*learned, seed), epochs=EPOCHS, validation_data=kept, verbose=0)
    return {
        "method": method, "topology": topology, "rate": rate, "seed": seed,
        "accuracy": [round(100 * a, 2) for a in logs.history["val_accuracy"]],
        "loss": [float(f"{v:.5g}") for v in logs.history["val_loss"]],
        "consensus_distance": [float(f"{d:.4g}") for d in logs.history["consensus_distance"]],
    }  # fmt: skip


def environment():
    versions = {m.__name__: m.__version__ for m in (keras, jax, np)}
    return {"machine": platform.machine(), "cores": os.cpu_count(), "devices": WORKERS, **versions}


def read(path):
    with open(path) as file:
        return [line for line in map(json.loads, file) if "method" in line]


def of(runs, method, topology, rate):
    """Those of one contestant at one rate."""
    wanted = (method, topology, rate)
    return [r for r in runs if (r["method"], r["topology"], r["rate"]) == wanted]


def table(runs):
    """Prints what the last epoch ends with: accuracy, loss and consensus distance of the seeds."""
    for contestant, rate in itertools.product(CONTESTANTS, RATES):
        accuracy, loss, distance = (
            [run[name][-1] for run in of(runs, *contestant, rate)]
            for name in ("accuracy", "loss", "consensus_distance")
        )
        cells = [
            f"{statistics.mean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f}",
            f"{statistics.mean(loss):.3f}",
            f"{statistics.mean(distance):.2g}",
        ]
        print(*contestant, rate, *cells, sep=" | ")


def draw(runs, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(RATES), figsize=(12, 6.5), sharex=True, sharey="row")
    colours = {
        "full": "grey", "ring": "tab:red", "symmetric_exponential": "tab:blue",
        "one_peer_exponential": "tab:green",
    }  # fmt: skip
    for (row, name), (column, rate) in itertools.product(
        enumerate(("accuracy", "consensus_distance")), enumerate(RATES)
    ):
        axis = axes[row][column]
        for method, topology in CONTESTANTS:
            curves = [run[name] for run in of(runs, method, topology, rate)]
            if name == "consensus_distance" and topology == "full":
                continue
            label = "all-reduced momentum" if topology == "full" else f"{method}, {topology}"
            style = "-" if method == "decentlam" or topology == "full" else "--"
            axis.plot(np.mean(curves, axis=0), style, color=colours[topology], label=label)
        axis.grid(alpha=0.3, which="both")
        axis.set(yscale="log" if row else "linear", title="" if row else f"learning rate {rate}")
    axes[0][0].set_ylabel("accuracy of the averaged model, %")
    axes[1][0].set_ylabel("consensus distance")
    for axis in axes[1]:
        axis.set_xlabel("epoch")
    axes[0][0].set_ylim(80, 100)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(_):
    """All runs that the log lacks, the table and the picture."""
    log = flags.FLAGS.log
    if not os.path.exists(log):
        with open(log, "w") as file:
            print(json.dumps(environment()), file=file)
    done = {(r["method"], r["topology"], r["rate"], r["seed"]) for r in read(log)}
    for (method, topology), rate, seed in itertools.product(CONTESTANTS, RATES, SEEDS):
        if (method, topology, rate, seed) not in done:
            line = train(method, topology, rate, seed)
            with open(log, "a") as file:
                print(json.dumps(line), file=file, flush=True)
    table(read(log))
    if flags.FLAGS.draw:
        draw(read(log), flags.FLAGS.draw)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/decentralized.jsonl", "Raw results.")
    flags.DEFINE_string("draw", "", "The picture to write.")
    app.run(main)
