"""Which settings have to move with the batch? Flights, tuned at batch 64, at 8 and 32 times it.

    python -m benchmarks.study.transfer

As many examples at every batch: one pass, a warmup over the first 5% of it, a linear decay to 0.
Rate and weight decay are tuned at the smallest batch on one seed, from a grid; nothing is tuned at
a larger one. With k for the ratio of the batches:

    kept        everything as it was
    linear      the rate times k
    sqrt        the rate times sqrt(k)
    all         sqrt, weight decay times sqrt(k), beta_2 to the k-th power but .95 at least, epsilon
                over sqrt(k)
    no decay    all, but weight decay as it was; likewise `no beta_2` and `no epsilon`
    legw        sqrt, with a warmup of as many steps as at the smallest batch, where that is half of
                training or less
    searched    sqrt, the best of half, once, twice and four times its rate, on one seed

What counts is the loss on held-out flights at the end; a run above .54, about what the share of
late flights alone gives, is lost. A run is a line of the log; a command that
was interrupted goes on where it stopped.
"""

import dataclasses
import functools
import math
import statistics

from absl import app, flags

import tf_lamb
from benchmarks.shared import flights as data_of
from benchmarks.shared import jax_loop
from benchmarks.shared.run_log import Log

BASE, RATIOS, WARMUP = 64, (8, 32), 0.05
DECAYS = (0.0, 0.01, 0.1)
# Where the grids begin.
RATES = {
    "lamb": 0.005, "adamw": 0.002, "muon": 0.004, "lans": 0.005, "adamp": 0.002, "lars": 1.0,
}  # fmt: skip
LEAST_BETA_2, LOST = 0.95, 0.54
jax_loop.PART = 10**6  # the network is small: a batch is one call


@dataclasses.dataclass(frozen=True)
class Settings:
    """What may move with the batch."""

    rate: float
    weight_decay: float
    beta_2: float = 0.999
    epsilon: float = 1e-6
    warmup: float = WARMUP  # of the steps

    def at(self, k, arm):
        """These at k times the batch; None where the arm has no answer."""
        root = math.sqrt(k)
        moved = {
            "kept": {}, "linear": {"rate": self.rate * k}, "sqrt": {"rate": self.rate * root},
        }  # fmt: skip
        if arm in moved:
            return dataclasses.replace(self, **moved[arm])
        if arm == "legw":
            share = self.warmup * k
            return None if share > 0.5 else dataclasses.replace(
                self, rate=self.rate * root, warmup=share
            )  # fmt: skip
        every = {
            "rate": self.rate * root,
            "weight_decay": self.weight_decay * root,
            "beta_2": max(self.beta_2**k, LEAST_BETA_2),
            "epsilon": self.epsilon / root,
        }
        every.pop({"no decay": "weight_decay"}.get(arm, arm.removeprefix("no ")), None)
        return dataclasses.replace(self, **every)


ARMS = ("kept", "linear", "sqrt", "all", "no decay", "no beta_2", "no epsilon", "legw")
OF_LARS = ("kept", "linear", "sqrt", "legw")  # it has neither beta_2 nor, of its update, an epsilon


def optimizer(name, settings):
    """At a rate that the loop replaces."""
    import keras

    ours = {
        "lamb": tf_lamb.LAMB, "lans": tf_lamb.LANS, "adamp": tf_lamb.AdamP, "muon": tf_lamb.Muon,
    }  # fmt: skip
    given = {"weight_decay": settings.weight_decay}
    if name == "lars":
        return tf_lamb.LARS(1.0, **given, exclude_from_weight_decay="norm_and_bias")
    given |= {"beta_2": settings.beta_2, "epsilon": settings.epsilon}
    if name in ours:
        return ours[name](1.0, **given, exclude_from_weight_decay="norm_and_bias")
    adamw = keras.optimizers.AdamW(1.0, **given)
    adamw.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return adamw


class Runs:
    """Runs by what they are of."""

    def __init__(self, args, bar):
        self.log, self.bar, self.path, self.examples = Log(args.log), bar, args.data, args.examples

    @functools.cached_property
    def data(self):
        return data_of.read(self.path)

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def loop(self, name, settings):
        """The program of these settings, whatever the rate and the warmup."""
        (train, _), known = self.data
        network = functools.partial(data_of.network, known)
        return jax_loop.Loop(network, optimizer(name, settings), *map(tuple_or_array, train),
                         loss=data_of.is_late)  # fmt: skip

    def train(self, name, batch, settings, seed):
        """The held-out loss at the end."""
        program = self.loop(name, dataclasses.replace(settings, rate=1.0, warmup=0.0))
        x, y = self.data[0][1]
        state, steps = program.start(seed), self.examples // batch
        warm = max(1, round(settings.warmup * steps))
        drawn = jax_loop.batches(len(self.data[0][0][1]), batch, seed)
        for step in range(steps):
            rate = min((step + 1) / warm, (steps - step) / max(1, steps - warm))
            state, _ = program.advance(state, settings.rate * rate, next(drawn))
        loss = float(data_of.is_late(y, program.tell(state[0], tuple_or_array(x), 8192)))
        return {"loss": loss if math.isfinite(loss) else None}

    def loss(self, name, batch, settings, seed):
        what = {"optimizer": name, "batch": batch, "examples": self.examples, "seed": seed,
                **dataclasses.asdict(settings)}  # fmt: skip
        made = self.log.run(what, lambda: self.train(name, batch, settings, seed))["loss"]
        self.bar.update()
        return math.inf if made is None else made


def tuple_or_array(x):
    """As the loop takes the inputs of a model that has several."""
    return list(x) if isinstance(x, tuple) else x


def tuned(runs, name):
    """Rate and weight decay of the smallest batch, from a grid on one seed."""
    best = {}
    for decay in DECAYS:

        def score(rate, decay=decay):
            return runs.loss(name, BASE, Settings(rate, decay), 1)

        rate = jax_loop.preferred(score, [RATES[name] * 2.0**i for i in (0, 1, -1)])
        best[score(rate)] = Settings(rate, decay)
    return best[min(best)]


def compare(runs, names, seeds):
    """(optimizer, ratio, arm) -> the losses of the seeds."""
    found = {}
    for name in names:
        base = tuned(runs, name)
        found[name, 1, "tuned"] = [runs.loss(name, BASE, base, seed) for seed in seeds]
        for k in RATIOS:
            arms = {arm: base.at(k, arm) for arm in (OF_LARS if name == "lars" else ARMS)}
            around = [dataclasses.replace(arms["sqrt"], rate=arms["sqrt"].rate * f)
                      for f in (0.5, 1, 2, 4)]  # fmt: skip
            arms["searched"] = min(around, key=lambda s, k=k: runs.loss(name, BASE * k, s, 1))
            for arm, settings in arms.items():
                if settings:
                    found[name, k, arm] = [runs.loss(name, BASE * k, settings, s) for s in seeds]
    return found


def table(found):
    """A line an arm: the loss above the tuned baseline's, in thousandths; mean and s.d."""
    names = list(dict.fromkeys(name for name, *_ in found))
    lines = [f"{'k':>4} {'arm':12}" + "".join(f"{name:>16}" for name in names)]
    for k, arm in dict.fromkeys((k, arm) for _, k, arm in found):
        cells = []
        for name in names:
            losses = found.get((name, k, arm), [])
            base = statistics.mean(found[name, 1, "tuned"]) if k > 1 else 0.0
            gone = [1000 * (loss - base) for loss in losses if loss < LOST]
            lost = len(losses) - len(gone)
            text = (
                f"{statistics.mean(gone):.1f} +- {statistics.stdev(gone):.1f}" if not lost else ""
            )
            cells.append(text or f"{lost} lost" * bool(lost) or "-")
        lines.append(f"{k:4} {arm:12}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args = flags.FLAGS
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        found = compare(Runs(args, bar), args.optimizers, range(1, args.seeds + 1))
    print(table(found))


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/transfer.jsonl", "Where every run is a line.")
    flags.DEFINE_string("data", data_of.FLIGHTS, "The file of the flights.")
    flags.DEFINE_list("optimizers", list(RATES), "Which.")
    flags.DEFINE_integer("examples", 300000, "Of a run.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    app.run(main)
