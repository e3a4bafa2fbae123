"""The seconds that `find_batch` promises for a training, beside those that `fit` takes.

    KERAS_BACKEND=tensorflow python -m benchmarks.study.fit_seconds
    KERAS_BACKEND=jax python -m benchmarks.study.fit_seconds

Eight jobs, four on each backend: arrays, tf.data with little and with much work for an example, a
generator, a PyDataset; with 3 and with 300 steps an epoch at the baseline's batch of 64. A job is
trained at 64 and at a larger batch, by a model that is built anew, with the data as a user would
write them for that batch; then it is searched; then it is trained again. What is compared is the
mean of both trainings, with compilation and evaluation, and `FoundBatch.fit_seconds`. The larger
batch is trained for as many epochs as it needs by a noise scale of 500, so that a saving may be
none. A job is a line of the log, which is not made again.
"""

import math
import os
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_lamb
from benchmarks.shared.run_log import Log

BASE, WIDTH, NOISE, HELD_OUT = 64, 16, 500, 512
# Steps of an epoch at BASE -> the larger batch, and epochs at BASE.
LENGTHS = {3: (128, 60), 300: (1024, 3)}
JOBS = {  # of each backend: the data, and steps of an epoch
    "tensorflow": [("arrays", 3), ("light", 300), ("heavy", 300), ("generator", 300)],
    "jax": [("arrays", 300), ("heavy", 3), ("pydataset", 300), ("generator", 3)],
}
WORK = 4000  # random numbers that are drawn for an example, where it is heavy
flags.DEFINE_string("log", "benchmarks/logs/fit_seconds.jsonl", "Raw results.")
flags.DEFINE_integer("rounds", 1, "How often each job is made.")


def arrays(examples):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, WIDTH)).astype("float32")
    return x, (x[:, :1] + 0.5 * rng.normal(size=(examples, 1)) > 0).astype("float32")


def augmented(x, y):
    return x + 0.0 * tf.reduce_mean(tf.random.stateless_normal((WORK,), (1, 2))), y


def worked_on(x):
    """The same, after work in NumPy for each example."""
    rng = np.random.default_rng(0)
    return x + np.float32(0.0) * sum(rng.normal(size=WORK).mean() for _ in x).astype("float32")


class Passes:
    """Batches of a pass, again and again, as a generator makes them."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __iter__(self):
        x, y = self.data
        for i in range(0, len(x), self.size):
            yield worked_on(x[i : i + self.size]), y[i : i + self.size]

    def endless(self):
        while True:
            yield from self


class Indexed(keras.utils.PyDataset):
    def __init__(self, data, size):
        super().__init__()
        self.data, self.size = data, size

    def __len__(self):
        return math.ceil(len(self.data[0]) / self.size)

    def __getitem__(self, i):
        x, y = (each[i * self.size : (i + 1) * self.size] for each in self.data)
        return worked_on(x), y


def batched(kind, data, size):
    """The data of a kind, as somebody writes them for a batch."""
    if kind == "arrays":
        return data
    if kind == "generator":
        return Passes(data, size)
    if kind == "pydataset":
        return Indexed(data, size)
    read = tf.data.Dataset.from_tensor_slices(data).shuffle(1024, seed=0)
    if kind == "heavy":
        read = read.map(augmented, num_parallel_calls=2)
    return read.batch(size).prefetch(2)


def model_of():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((WIDTH,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(1, "sigmoid")
    ])  # fmt: skip
    model.compile(tf_lamb.LAMB(1e-2), "binary_crossentropy")
    return model


def trained(kind, data, size, epochs):
    """The seconds of `fit`, with its compilation."""
    model, read = model_of(), batched(kind, data, size)
    how = {"validation_data": arrays(HELD_OUT), "verbose": 0}
    begin = time.perf_counter()
    if kind == "arrays":
        model.fit(*read, batch_size=size, epochs=epochs, **how)
    elif kind == "generator":
        steps = math.ceil(len(data[0]) / size)
        model.fit(read.endless(), steps_per_epoch=steps, epochs=epochs, **how)
    else:
        model.fit(read, epochs=epochs, **how)
    return time.perf_counter() - begin


def job(kind, steps):
    """The seconds of both batches, real and promised, and what the search says."""
    (large, epochs), data = LENGTHS[steps], arrays(steps * BASE)
    scale = (1 + NOISE / large) / (1 + NOISE / BASE) * large / BASE  # of the examples
    of_batch = {BASE: epochs, large: math.ceil(scale * epochs)}

    def once():
        return {size: trained(kind, data, size, count) for size, count in of_batch.items()}

    real = [once()]
    begin = time.perf_counter()
    found = tf_lamb.keras.find_batch(
        model_of(), batched(kind, data, BASE), baseline_batch_size=BASE, baseline_epochs=epochs,
        noise_scale=NOISE, examples=len(data[0]), validation_data=arrays(HELD_OUT), verbose=False,
    )  # fmt: skip
    searched = time.perf_counter() - begin
    real.append(once())
    return {
        "searched": searched, "took": found.took, "print": str(found).splitlines(),
        "batches": [
            {"batch": size, "epochs": count, "real": [each[size] for each in real],
             "promised": found.fit_seconds(size, count)}
            for size, count in of_batch.items()
        ],
    }  # fmt: skip


def main(_):
    log, backend = Log(flags.FLAGS.log), keras.backend.backend()
    for again in range(flags.FLAGS.rounds):
        for kind, steps in JOBS[backend]:
            what = {"job": kind, "steps": steps, "backend": backend, "round": again + 1}
            line = log.run(what, lambda kind=kind, steps=steps: job(kind, steps))
            print(kind, f"{steps} steps an epoch, {backend}", f"searched {line['searched']:.0f} s")
            for each in line["batches"]:
                real = sum(each["real"]) / len(each["real"])
                print(
                    f"  {each['batch']:6,} real {real:7.2f} s, promised {each['promised']:7.2f} s, "
                    f"{each['promised'] / real:.2f}", flush=True,
                )  # fmt: skip


if __name__ == "__main__":
    app.run(main)
