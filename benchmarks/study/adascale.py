"""AdaScale's claim, at a size that runs here: tuned at batch 32, as good at 8, 16 and 32 times it.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    python -m benchmarks.study.adascale --draw=benchmarks/logs/adascale.png
    # Of scikit-learn's digits:
    python -m benchmarks.study.adascale --data= --steps=1600 --log=digits.jsonl

Fashion-MNIST, a convolutional network of 27,000 parameters, momentum 0.9, a learning rate that
falls exponentially to a hundredth. It is tuned at batch 32 only, on one seed, by the accuracy on
8,800 training images that are held out. Then, with S micro-batches of 32 a step:

    base       S = 1
    adascale   the same learning rate, schedule and momentum, until it has spent the steps of base
    linear     1/S of the steps, S times the learning rate, reached in the first 5.5% of them
    searched   at least as many steps as adascale took, the best of five peaks on one seed, reached
               in the first 5.5% of the steps, a linear decay to 0
    examples   base, with as many examples

A run is a line of the log; a command that was interrupted goes on where it stopped. `--draw` makes
two pictures: of the accuracy, and as NAME_noise.png of gain and noise scale.
"""

import math
import os
import statistics

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared import drawing
from benchmarks.shared.pictures import FASHION_MNIST, images
from benchmarks.shared.pictures import convolutional as network
from benchmarks.shared.run_log import Log

BATCH, MOMENTUM, DECAY, WARMUP = 32, 0.9, 0.01, 0.055
SCALES = (8, 16, 32)
RATES = (0.01, 0.02, 0.04, 0.08)  # tried at the base batch
PEAKS = (0.064, 0.09, 0.128, 0.18, 0.256)  # tried at each larger batch
READINGS = 50  # of loss, gain and noise, in the time of a base run
UNIT = READINGS * max(SCALES)  # the steps of a base run are a multiple


def micro_batches(x, y, seed):
    """Without end, in a new order each epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(x))
        for i in range(0, len(x) - BATCH + 1, BATCH):
            yield x[order[i : i + BATCH]], y[order[i : i + BATCH]]


def optimizer(method, scale, rate, steps):
    """What the contestants are, as code; `steps` are those of the base batch."""
    import keras

    falls = keras.optimizers.schedules
    schedule = falls.ExponentialDecay(rate, steps, DECAY)
    warm = round(WARMUP * steps)  # Keras counts micro-batches where it reads a schedule
    if method == "linear":
        peak = falls.ExponentialDecay(rate * scale, steps, DECAY)
        schedule = tf_lamb.schedules.Warmup(warm, peak, start=rate, handover="drop")
    elif method == "searched":
        schedule = tf_lamb.schedules.Warmup(warm, falls.PolynomialDecay(rate, steps - warm, 0.0))
    parts = scale if scale > 1 else None
    inner = keras.optimizers.SGD(schedule, MOMENTUM, gradient_accumulation_steps=parts)
    return tf_lamb.AdaScale(inner, scale) if method == "adascale" else inner


def train(data, method, scale, seed, rate, steps):
    """One run, as a dict for the log."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = network(data[0][0].shape[1:])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(method, scale, rate, steps), loss, metrics=["accuracy"])
    reading, epochs, callbacks = steps // READINGS, READINGS, []
    if method == "adascale":
        epochs *= scale  # if no step were worth more than one of the base batch
        callbacks = [
            tf_lamb.StopAtBaseSteps(steps, every=scale),
            tf_lamb.NoiseScale(BATCH * scale, every=reading, verbose=False),
        ]
    seen = model.fit(
        micro_batches(*data[0], seed), steps_per_epoch=reading, epochs=epochs,
        callbacks=callbacks, shuffle=False, verbose=0,
    ).history  # fmt: skip
    spent = seen.setdefault("base_step", [reading * (i + 1) for i in range(READINGS)])
    every = max(1, len(spent) // READINGS)
    accuracy = {
        name: round(100 * model.evaluate(*part, batch_size=1000, verbose=0)[1], 2)
        for name, part in zip(("held_out", "test"), data[1:], strict=True)
    }
    seen["scale_invariant_step"] = spent  # as the log has called it from the first
    curves = {
        name: [float(f"{x:.4g}") if np.isfinite(x) else None for x in seen[name][::every]]
        for name in ("scale_invariant_step", "loss", "gain", "noise_scale") if name in seen
    }  # fmt: skip
    return {"steps": int(model.optimizer.iterations), "tau": spent[-1], **accuracy, **curves}


class Runs:
    """Runs by what they are of."""

    def __init__(self, args, bar):
        self.args, self.bar, self.data, self.log = args, bar, images(args.data), Log(args.log)

    def run(self, method, scale, seed, rate, steps=None):
        """A run, made now if it has to be."""
        steps = steps or self.args.steps
        what = {
            "data": "fashion_mnist" if self.args.data else "digits", "method": method,
            "scale": scale, "seed": seed, "learning_rate": rate, "base_steps": steps,
        }  # fmt: skip
        made = self.log.run(what, lambda: train(self.data, method, scale, seed, rate, steps))
        self.bar.update()
        return made


def compare(runs, seeds):
    """All runs of the comparison: (method, scale) -> those of all seeds."""
    rate = max(RATES, key=lambda rate: runs.run("base", 1, seeds[0], rate)["held_out"])
    contests = [("base", 1), *((method, s) for s in SCALES for method in ("adascale", "linear"))]
    results = {contest: [runs.run(*contest, seed, rate) for seed in seeds] for contest in contests}
    for s in SCALES:
        units = math.ceil(max(run["steps"] for run in results["adascale", s]) * s / UNIT)
        peak = max(
            PEAKS,
            key=lambda peak: runs.run("searched", s, seeds[0], peak, units * UNIT)["held_out"],
        )
        for contest, best in ((("searched", s), peak), (("examples", s), rate)):
            scale = s if contest[0] == "searched" else 1
            results[contest] = [
                runs.run(contest[0], scale, seed, best, units * UNIT) for seed in seeds
            ]
    return results


def table(results):
    """A line for each contestant: means, and the accuracy of every seed."""
    lines = [f"{'':10}{'S':>4}{'batch':>7}{'steps':>8}{'tau':>9}{'test, %':>9}    each seed"]
    for (method, scale), made in results.items():
        steps, tau, test = (statistics.mean(r[x] for r in made) for x in ("steps", "tau", "test"))
        row = f"{method:10}{scale:4}{BATCH * scale:7,}{steps:8,.0f}{tau:9,.1f}{test:9.2f}    "
        lines.append(row + "  ".join(f"{run['test']:.2f}" for run in made))
    return "\n".join(lines)


def draw(results, path):
    """Accuracy against S; gain and noise scale against the steps of the base batch."""
    plt, ticks, floor = drawing.pyplot(), (1, *SCALES), 85.0
    ways = {
        "examples": (
            "momentum at batch 32, as many examples as AdaScale",
            {"ls": ":", "mfc": "none"},
        ),
        "adascale": ("AdaScale, nothing searched", {}),
        "searched": ("momentum, rate searched, as many steps as AdaScale", {}),
        "linear": ("momentum, linear scaling, nothing searched", {"ls": "--", "marker": "X"}),
    }
    figure, ax = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for method, (label, more) in ways.items():
        style = (
            drawing.style("adascale" if method == "adascale" else "momentum") | {"mec": None} | more
        )
        runs = [results["base" if s == 1 else method, s] for s in ticks]
        tests = np.array([[run["test"] for run in each] for each in runs])
        means = np.where(tests.min(1) > floor, tests.mean(1), np.nan)
        at = np.array(ticks) * 1.03 ** (list(ways).index(method) - 1.5)
        ax.plot(at, means, **style | {"marker": ""})
        ax.plot(at, np.maximum(tests, floor), **style | {"ls": ""})
        ax.plot([], [], label=label, **style)
    ax.axhline(floor, color="0.6", lw=0.8)
    ax.annotate(
        "below 85%", (ticks[-1], floor), (0, 5), textcoords="offset points", ha="right", fontsize=8
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{BATCH * s:,}" for s in ticks])
    ax.set(xlabel="batch", ylabel="test accuracy, %")
    figure.legend(loc="outside lower center", fontsize=8, ncols=2)
    figure.savefig(path)

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    titles = {"gain": "gain of a step", "noise_scale": "noise scale, examples"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for scale, ls in zip(SCALES, ("-", "--", ":"), strict=True):
            for run in results["adascale", scale]:
                ax.plot(run["scale_invariant_step"], run[name], "k", ls=ls, lw=1)
            ax.lines[-1].set_label(f"S = {scale}")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set(title=title, xlabel="steps of the base batch")
    axes[0].legend()
    figure.savefig("_noise".join(os.path.splitext(path)))


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args = flags.FLAGS
    total = len(RATES) + args.seeds * (1 + 4 * len(SCALES)) + len(PEAKS) * len(SCALES)
    with tqdm.tqdm(total=total, desc="runs", disable=None) as bar:
        results = compare(Runs(args, bar), range(1, args.seeds + 1))
    print(table(results))
    if args.draw:
        draw(results, args.draw)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/adascale.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_string("data", FASHION_MNIST, "The folder of Fashion-MNIST, or empty: digits.")
    flags.DEFINE_integer("steps", 4800, "Of the base batch.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    flags.register_validator("steps", lambda steps: steps % UNIT == 0, f"no multiple of {UNIT}")
    app.run(main)
