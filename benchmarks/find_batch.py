"""Seconds of a step as `find_batch` predicts them at micro-batches that it did not time.

    KERAS_BACKEND=jax python benchmarks/find_batch.py
    KERAS_BACKEND=tensorflow python benchmarks/find_batch.py

The networks of flights.py and adascale.py with Adam. find_batch times micro-batches that are four
times apart; here those between them are timed, too, each for itself, right after. A network on a
backend is a line of the log, which is not made again.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import adascale
import flights as delays
import keras
from absl import app, flags
from pictures import FASHION_MNIST, images
from run_log import Log

import tf_lamb
from tf_lamb.api.find import seconds
from tf_lamb.api.find.data import Examples
from tf_lamb.api.find.trials import Trials
from tf_lamb.core.goodput import time

BATCH, MOST = 64, 4096
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
    """The model of the seconds, and seconds beside those that it predicts."""
    model, (train, held_out, *_) = make()
    found = tf_lamb.find_batch(
        model, train, baseline_batch_size=BATCH, baseline_epochs=10, noise_scale=1000, most=MOST,
        validation_data=held_out, verbose=False,
    )  # fmt: skip
    fit, rows = found.answer.machine.time, []
    with Trials(model, Examples(train, held_out), BATCH) as trials:
        trials.choose("adam", lambda: keras.optimizers.Adam())
        size = BATCH // 2
        while size <= MOST:
            (seen,) = seconds.step_seconds(trials, size, size)[0].values()
            predicted = time.step_time(fit, 1, 1, size, 0)
            rows.append({"micro_batch": size, "seconds": seen, "predicted": predicted})
            size *= seconds.GROWTH
    return {
        "alpha_c": fit.alpha_c, "beta_c": fit.beta_c, "update": fit.update,
        "residual": fit.residual, "timed": found.timed, "between": rows,
    }  # fmt: skip


def main(_):
    log = Log(flags.FLAGS.log)
    for network, make in (("flights", of_flights), ("pictures", of_pictures)):
        what = {"network": network, "backend": keras.backend.backend()}
        line = log.run(what, lambda make=make: timed(make))
        print(network, what["backend"], f"fit's worst residual {line['residual']:.1%}")
        for row in line["between"]:
            error = row["predicted"] / row["seconds"] - 1
            print(f"  {row['micro_batch']:6,} {1e3 * row['seconds']:8.2f} ms {error:+.1%}")


if __name__ == "__main__":
    app.run(main)
