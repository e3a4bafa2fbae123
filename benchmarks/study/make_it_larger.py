"""The story of docs/measured_larger.md: from an Adam that is tuned at batch 256 to larger batches.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    KERAS_BACKEND=jax python -m benchmarks.study.make_it_larger

Fashion-MNIST and the network of adascale.py, twelve epochs, a warmup over the first twentieth and
a linear decay to 0; plain `fit`. Adam's rate is tuned at 256 on one seed, from a grid. `find_batch`
says what a larger batch costs; `find_rate` searches Adam's and Muon's rate at 2,048, for as many
epochs, and these runs are made. Nothing else is tuned. Every run and every search is a line of the
log; a command that was interrupted goes on where it stopped.
"""

import math
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from absl import app, flags

import tf_lamb.keras as ours
from benchmarks.shared.jax_loop import preferred
from benchmarks.shared.pictures import FASHION_MNIST, images
from benchmarks.shared.run_log import Log
from tf_lamb.keras import schedules

BASE, LARGE, EPOCHS, WARMUP = 256, 2048, 12, 0.05
RATE = 0.002  # where the grid of the base begins
ARMS = {"Adam": keras.optimizers.Adam, "Muon": ours.Muon}


def compiled(shape, optimizer, seed):
    from benchmarks.study.adascale import network

    keras.utils.set_random_seed(seed)
    model = network(shape)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def schedule(rate, steps):
    """A warmup and a linear decay."""
    warm = max(1, round(WARMUP * steps))
    decay = keras.optimizers.schedules.PolynomialDecay(rate, steps - warm, 0.0)
    return schedules.Warmup(warm, decay)


class Runs:
    """Runs and searches by what they are of."""

    def __init__(self, args):
        self.log, self.data = Log(args.log), images(args.data)
        self.shape = self.data[0][0].shape[1:]

    def train(self, name, batch, rate, seed, epochs=EPOCHS):
        """Loss on the held-out pictures and accuracy on the test's, in percent, and seconds."""

        def make():
            (x, y), held_out, tested = self.data
            steps = epochs * math.ceil(len(y) / batch)
            model = compiled(self.shape, ARMS[name](schedule(rate, steps)), seed)
            begin = time.time()
            model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
            seconds = time.time() - begin
            loss = model.evaluate(*held_out, batch_size=1000, verbose=0)[0]
            accuracy = model.evaluate(*tested, batch_size=1000, verbose=0)[1]
            return {"steps": steps, "loss": round(loss, 4) if math.isfinite(loss) else None,
                    "accuracy": round(100 * accuracy, 2), "seconds": round(seconds, 1)}  # fmt: skip

        what = {"optimizer": name, "batch": batch, "rate": rate, "seed": seed, "epochs": epochs}
        return self.log.run(what, make)

    def loss(self, *of):
        loss = self.train(*of)["loss"]
        return math.inf if loss is None else loss

    def search(self, batch, base_rate, name, epochs):
        """What `find_rate` says."""

        def make():
            model = compiled(self.shape, keras.optimizers.Adam(base_rate), 1)
            begin = time.time()
            is_base = {"baseline_batch_size": BASE} if name == "Adam" else {}
            found = ours.find_rate(
                model, tuple(self.data[0]), batch, [name], epochs=epochs, **is_base,
                validation_data=tuple(self.data[1]), verbose=False, budget=0.6,
            )  # fmt: skip
            return {"found": found.rate, "why": found.why, "cost": round(found.cost, 2),
                    "took": round(time.time() - begin, 1),
                    "print": str(found).splitlines()}  # fmt: skip

        return self.log.run({"find_rate": name, "batch": batch, "for": epochs}, make)

    def batch(self, base_rate):
        """What `find_batch` says."""

        def make():
            model = compiled(self.shape, keras.optimizers.Adam(base_rate), 1)
            begin = time.time()
            found = ours.find_batch(
                model, tuple(self.data[0]), baseline_batch_size=BASE, baseline_epochs=EPOCHS,
                large_batch_size=1024,
                validation_data=tuple(self.data[1]), verbose=False,
            )  # fmt: skip
            return {"took": round(time.time() - begin, 1),
                    "print": str(found).splitlines()}  # fmt: skip

        return self.log.run({"find_batch": BASE}, make)


def main(_):
    """Makes what is missing, and prints."""
    args = flags.FLAGS
    runs, seeds = Runs(args), range(1, args.seeds + 1)
    rate = preferred(lambda each: runs.loss("Adam", BASE, each, 1), [RATE, 2 * RATE, RATE / 2])
    print(f"{'':24}{'batch':>7}{'epochs':>8}{'rate':>10}{'steps':>7}{'loss':>17}{'test, %':>15}")

    def row(label, name, batch, at, epochs=EPOCHS):
        made = [runs.train(name, batch, at, seed, epochs) for seed in seeds]
        losses, scores = ([line[key] or math.inf for line in made] for key in ("loss", "accuracy"))
        print(
            f"{label:24}{batch:>7,}{epochs:>8}{at:>10.3g}{made[0]['steps']:>7,}"
            f"{statistics.mean(losses):>9.4f} +-{statistics.stdev(losses):.4f}"
            f"{statistics.mean(scores):>9.2f} +-{statistics.stdev(scores):.2f}", flush=True,
        )  # fmt: skip

    row("tuned", "Adam", BASE, rate)
    print(*runs.batch(rate)["print"], sep="\n")
    row("nothing changed", "Adam", LARGE, rate)
    row("rate x sqrt(k)", "Adam", LARGE, rate * math.sqrt(LARGE / BASE))
    for name in ARMS:
        found = runs.search(LARGE, rate, name, EPOCHS)["found"]
        row(f"{name} by find_rate", name, LARGE, float(f"{found:.3g}"))


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/larger.jsonl", "Where every run is a line.")
    flags.DEFINE_string("data", FASHION_MNIST, "A folder of pictures.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    app.run(main)
