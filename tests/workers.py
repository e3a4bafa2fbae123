"""One of two workers of `test_adascale.py`: prints what AdaScale saw, behind both doors."""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs

from test_adascale import DOORS, START, Feed, gradients  # noqa: E402


class Worker(Feed):
    """Feeds its own part of each step."""

    def __init__(self, door, make):
        self.replicas, self.strategy = 2, strategy
        with strategy.scope():
            new = tf.Variable if door == "tf_keras" else DOORS[door][0].Variable
            self.variables = [new(w, dtype="float32", name=k) for k, w in START.items()]
            self.optimizer = make()
            self.optimizer.build(self.variables)
        self.call = tf.function(self._call)


def train(door):
    ours = DOORS[door][1]
    worker = Worker(door, lambda: ours.AdaScale(ours.LAMB(0.1, weight_decay=0.1), 2.0,
                                                preconditioned=False))  # fmt: skip
    steps = []
    for parts in gradients(4, 2):
        optimizer = worker.step(parts)
        steps.append((optimizer.gain, optimizer.scale_invariant_steps))
    return {"steps": steps, "weights": [w.tolist() for w in worker.weights()]}


print(json.dumps({door: train(door) for door in DOORS}))
