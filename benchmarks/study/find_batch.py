"""Seconds of a step as `find_batch` predicts them at micro-batches that it did not time.

    KERAS_BACKEND=jax python -m benchmarks.study.find_batch
    KERAS_BACKEND=tensorflow python -m benchmarks.study.find_batch

The networks of flights.py and adascale.py with Adam. find_batch times micro-batches that are four
times apart. Here those between them take their turns, too, so that what else the machine does
meets all alike. Three rounds; a round of a network on a backend is a line of the log, which is not
made again.
"""

import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
from absl import app, flags

from benchmarks.shared import flights as delays
from benchmarks.shared.pictures import FASHION_MNIST, images
from benchmarks.shared.run_log import Log
from benchmarks.study import adascale
from tf_lamb.find.data import Examples
from tf_lamb.find.feeds import make_feed
from tf_lamb.find.goodput import costs
from tf_lamb.find.timing import first_estimate, time_in_turn
from tf_lamb.find.trials import Trials

SMALLEST = 16
flags.DEFINE_string("fashion", FASHION_MNIST, "Folder of Fashion-MNIST.")
flags.DEFINE_string("flights", delays.FLIGHTS, "Archive of flights.")
flags.DEFINE_string("log", "benchmarks/logs/find_batch.jsonl", "Raw results.")


def of_flights():
    data, known = delays.read(flags.FLAGS.flights)
    model = delays.network(known)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return model, data


def of_pictures():
    data = images(flags.FLAGS.fashion)
    model = adascale.network(data[0][0].shape[1:])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, data


def timed(make):
    """Seconds at all sizes, and those that the model of the others' predicts."""
    model, (train, held_out, *_) = make()
    sizes = [SMALLEST * 2**i for i in range(9)]
    read = Examples(train, held_out)
    with Trials(model, read, SMALLEST) as trials:
        trials.use_optimizer("adam", lambda: keras.optimizers.Adam())
        feed = make_feed(read.source, read.examples, keras)
        seen = time_in_turn(
            trials, feed, {size: first_estimate(trials, feed, size) for size in sizes}
        ).step_seconds
    fit = costs.fit_step_time(sizes[::2], [seen[size] for size in sizes[::2]])
    return {
        "residual": fit.residual,
        "between": [
            {"micro_batch": size, "seconds": seen[size],
             "predicted": fit.step_seconds(size)}
            for size in sizes[1::2]
        ],
    }  # fmt: skip


def main(_):
    log = Log(flags.FLAGS.log)
    cases = itertools.product(range(3), {"flights": of_flights, "pictures": of_pictures}.items())
    for again, (network, make) in cases:
        what = {"network": network, "backend": keras.backend.backend(), "round": again + 1}
        line = log.run(what, lambda make=make: timed(make))
        print(network, what["backend"], f"fit's worst residual {line['residual']:.1%}")
        for row in line["between"]:
            error = row["predicted"] / row["seconds"] - 1
            print(f"  {row['micro_batch']:6,} {1e3 * row['seconds']:8.2f} ms {error:+.1%}")


if __name__ == "__main__":
    app.run(main)
