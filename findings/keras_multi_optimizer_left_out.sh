#!/usr/bin/env bash
# keras 3.15.1 with tensorflow 2.20.0, Python 3.11 to 3.13.
# Guess: tf.train.Checkpoint(optimizer=...) saves the slots of a MultiOptimizer, as of Adam.
# Behaviour: TensorFlow does not see the optimizers inside. Their momentum is neither saved nor
# restored, and restore(...).assert_existing_objects_matched() finds nothing to object.
# Output: {'Adam': True, 'MultiOptimizer': False}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 tensorflow==2.20.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" - <<'PYTHON'
import sys

import keras
import numpy as np
import tensorflow as tf


def adam():
    return keras.optimizers.Adam()


def multi():
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(adam(), {}))


def slots(optimizer):
    inside = getattr(optimizer, "optimizers", [optimizer])
    return [np.array(v) for each in inside for v in each.variables if "momentum" in v.path]


restored = {}
for make in (adam, multi):
    variable, optimizer = keras.Variable([1.0]), make()
    optimizer.build([variable])
    optimizer.apply([keras.ops.ones(1)])
    name = type(optimizer).__name__
    path = tf.train.Checkpoint(optimizer=optimizer).save(f"{name}/ckpt")
    fresh = make()
    fresh.build([variable])
    tf.train.Checkpoint(optimizer=fresh).restore(path).assert_existing_objects_matched()
    restored[name] = slots(fresh) == slots(optimizer) != []
print(restored)
sys.exit(restored != {"Adam": True, "MultiOptimizer": False})
PYTHON
