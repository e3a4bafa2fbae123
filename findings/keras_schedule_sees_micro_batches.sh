#!/usr/bin/env bash
# keras 3.15.1 and optax 0.2.8 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: with four micro-batches an update, a schedule is asked at the updates 0, 1, 2 in both.
# Behaviour: optax.MultiSteps counts updates; Keras counts micro-batches for the schedule, and
# updates for `iterations`. A decay made for the updates of a run ends in Keras after a quarter.
# Output: optax 0 1 2
#         keras 3 7 11, iterations 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 jax==0.10.2 optax==0.2.8
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp
import keras
import optax


# The rate is 1 + the step that the schedule is given, and a gradient of 1 moves a weight by it.
class Step(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1.0 + keras.ops.cast(step, "float32")

    def get_config(self):
        return {}


weight, seen = keras.Variable([0.0]), []
optimizer = keras.optimizers.SGD(Step(), gradient_accumulation_steps=4)
for _ in range(12):
    before = float(weight.value[0])
    optimizer.apply([jnp.ones(1)], [weight])
    if float(weight.value[0]) != before:
        seen.append(round(before - float(weight.value[0]) - 1))
iterations = int(optimizer.iterations)

multi = optax.MultiSteps(optax.sgd(lambda step: 1.0 + step), 4)
state, theirs = multi.init(jnp.zeros(1)), []
for _ in range(12):
    update, state = multi.update(jnp.ones(1), state)
    if float(update[0]):
        theirs.append(round(-float(update[0]) - 1))
print("optax", *theirs)
print("keras", *seen, f"iterations {iterations}")
sys.exit((theirs, seen, iterations) != ([0, 1, 2], [3, 7, 11], 3))
PYTHON
