"""A batch that grows where the rate would fall: the final loss of the recipe, in fewer updates?

    python -m benchmarks.study.growing --task=flights --draw=benchmarks/logs/growing.png

Tasks and networks are those of steps_to_target.py. The recipe of a batch: a warmup over the first
5% of the examples, a linear decay to 0, no weight decay. Its rate is tuned at the smallest batch,
on one seed, from a grid; at a larger one it is times the square root of the ratio. Beside it, of as
many examples and from the same seeds,

    16 times    `recipes.growing` up to 16 times the batch; likewise the other ratios
    no decay    the rate of the recipe after its warmup, to show what the decay is worth

What counts is the loss on held-out examples at the end. Two arms are the same where the 90%
interval of their relative difference, paired by seed, lies within 0.5% (two one-sided tests at 5%).
A run is a line of the log; a command that was interrupted goes on where it stopped.
"""

import dataclasses
import functools
import math
import statistics
from types import SimpleNamespace

import numpy as np
from absl import app, flags

from benchmarks.shared import drawing, jax_loop
from benchmarks.shared.run_log import Log
from benchmarks.study import steps_to_target
from tf_lamb.core import recipes, schedules

WARMUP, MARGIN, NO_DECAY = 0.05, 0.005, "no decay"
# task -> batches of recipes, ratios of the largest batch, examples of a run
PLANS = {
    "flights": ((64, 256, 1024), (4, 16, 64), 300000),
    "pictures": ((64,), (4, 16), 150000),
    "text": ((16,), (4, 16), 100000),
}  # fmt: skip
NAMES = {"lamb": "LAMB", "lans": "LANS", "muon": "Muon", "adamw": "AdamW"}
T_90 = {4: 2.132, 3: 2.353, 2: 2.920, 1: 6.314}  # of Student's t, by degrees of freedom


class Runs:
    """Runs by what they are of."""

    def __init__(self, task, log, bar):
        args = SimpleNamespace(
            task=task, log=log, data=None, batches=[], target=None, limit=None,
            rivals=list(NAMES), seeds=1,
        )  # fmt: skip
        self.task, self.log, self.bar = steps_to_target.Runs(args, bar), Log(log), bar
        self.examples = PLANS[task][2]

    def recipe(self, batch, rate, arm):
        """What an arm trains by."""
        given = {"warmup_epochs": WARMUP, "examples": self.examples, "epochs": 1}
        base = recipes.transfer(batch, batch, rate, **given)
        if arm == NO_DECAY:
            return dataclasses.replace(base, decay="constant")
        return recipes.growing(base, arm * batch) if arm > 1 else base

    def is_reached(self, batch, arm):
        """Whether a batch becomes as large as it may: at the end few updates are left."""
        return arm == NO_DECAY or self.recipe(batch, 1.0, arm).stages[-1].batch_size == arm * batch

    def train(self, rival, recipe, seed):
        """The held-out loss at the end."""
        program, (x, y) = self.task.loop(rival), self.task.data[1]
        state = program.start(seed)
        drawn = jax_loop.batches(len(self.task.data[0][1]), 1, seed)
        order = np.fromiter((next(drawn)[0] for _ in range(recipe.examples_seen)), "int32")
        rate, begin, step = schedules_of(recipe), 0, 0
        for stage in recipe.stages:
            for _ in range(stage.train_steps):
                batch = order[begin : begin + stage.batch_size]
                state, _ = program.advance(state, rate[step], batch)
                begin, step = begin + stage.batch_size, step + 1
        loss = float(self.task.task.loss(y, program.tell(state[0], x)))
        return {"loss": loss if math.isfinite(loss) else None}

    def loss(self, rival, batch, rate, arm, seed):
        """The loss of a run, and its updates."""
        recipe = self.recipe(batch, rate, arm)
        what = {"task": self.task.name, "optimizer": rival, "batch": batch, "rate": rate,
                "arm": arm, "updates": recipe.train_steps, "seed": seed}  # fmt: skip
        made = self.log.run(what, lambda: self.train(rival, recipe, seed))["loss"]
        self.bar.update()
        return (math.inf if made is None else made), recipe.train_steps


def schedules_of(recipe):
    """The rate of every step."""
    return recipe.schedule(schedules).value(np, np.arange(recipe.train_steps))


@functools.cache
def tuned(runs, rival, batch):
    """The rate of the smallest batch, from a grid on one seed."""
    middle = runs.task.rates[rival]
    return jax_loop.preferred(lambda rate: runs.loss(rival, batch, rate, 1, 1)[0],
                          [middle * 2.0**i for i in (0, 1, -1)])  # fmt: skip


def compare(runs, rivals, seeds):
    """(optimizer, batch, arm) -> updates and the losses of the seeds."""
    batches, ratios, _ = PLANS[runs.task.name]
    found = {}
    for rival in rivals:
        for batch in batches:
            rate = tuned(runs, rival, batches[0]) * math.sqrt(batch / batches[0])
            for arm in (1, *ratios, NO_DECAY):
                if not runs.is_reached(batch, arm):
                    continue
                made = [runs.loss(rival, batch, rate, arm, seed) for seed in seeds]
                found[rival, batch, arm] = made[0][1], [loss for loss, _ in made]
    return found


def interval(base, losses):
    """The relative difference to the recipe, paired by seed: its mean and half of the 90%."""
    each = [loss / own - 1 for loss, own in zip(losses, base, strict=True)]
    if not all(map(math.isfinite, each)):
        return math.inf, math.inf
    half = T_90[len(each) - 1] * statistics.stdev(each) / math.sqrt(len(each))
    return statistics.mean(each), half


def rows(found):
    """A row an arm: batch, largest, share of updates saved, loss, difference, its half interval."""
    for (rival, batch, arm), (updates, losses) in found.items():
        whole, base = found[rival, batch, 1]
        saved = 1 - updates / whole
        yield (rival, batch, arm, saved, statistics.mean(losses), *interval(base, losses))


def table(found):
    """A line a row, in per cent."""
    lines = [f"{'':8}{'batch':>7}{'up to':>9}{'fewer':>8}{'loss':>9}{'difference':>18}"]
    for rival, batch, arm, saved, loss, mean, half in rows(found):
        most = arm if arm == NO_DECAY else f"{batch * arm:,}"
        same = "same" if abs(mean) + half <= MARGIN else ""
        told = f"{mean:+8.2%} +- {half:.2%} {same}" if arm != 1 else ""
        lines.append(f"{NAMES[rival]:8}{batch:>7,}{most:>9}{saved:>8.1%}{loss:>9.4f} {told}")
    return "\n".join(lines)


def draw(found, path):
    """The difference to the recipe over the largest batch, a line a first batch."""
    pyplot = drawing.pyplot()
    rivals = list(dict.fromkeys(rival for rival, *_ in found))
    figure, axes = pyplot.subplots(1, len(rivals), sharey=True, figsize=(2.6 * len(rivals), 3.2))
    of = [row for row in rows(found) if row[2] not in (1, NO_DECAY)]
    for axis, rival in zip(np.atleast_1d(axes), rivals, strict=True):
        axis.axhspan(-100 * MARGIN, 100 * MARGIN, color="0.9", lw=0)
        axis.axhline(0, color="0.6", lw=0.8)
        for batch in dict.fromkeys(row[1] for row in of):
            x, y, half = zip(
                *((batch * arm, 100 * mean, 100 * half)
                  for name, first, arm, _, _, mean, half in of if (name, first) == (rival, batch)),
                strict=True,
            )  # fmt: skip
            axis.errorbar(x, y, half, marker="o", ms=4, capsize=2, label=f"from {batch:,}")
        axis.set(title=NAMES[rival], xscale="log", xlabel="largest batch")
        axis.set_xscale("log", base=2)
    np.atleast_1d(axes)[0].set_ylabel("held-out loss against the recipe, %")
    np.atleast_1d(axes)[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(_):
    """Makes what is missing, prints, draws."""
    import tqdm

    args = flags.FLAGS
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        runs = Runs(args.task, args.log, bar)
        found = compare(runs, args.rivals, range(1, args.seeds + 1))
    print(table(found))
    if args.draw:
        draw(found, args.draw)


if __name__ == "__main__":
    flags.DEFINE_enum("task", "flights", list(PLANS), "What is learned.")
    flags.DEFINE_list("rivals", list(NAMES), "Which optimizers.")
    flags.DEFINE_string("log", "benchmarks/logs/growing.jsonl", "Where every run is a line.")
    flags.DEFINE_integer("seeds", 5, "Of each arm.")
    flags.DEFINE_string("draw", None, "The picture, or none.")
    app.run(main)
