#!/usr/bin/env bash
# keras 3.15.1 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: a loss scale that has grown too far is halved until steps are finite again.
# Behaviour: while gradients are zero every step is finite, and the scale doubles, to infinity
# after 113 doublings from 2^15 (226,000 steps at the default of 2,000 a doubling; here 1). Half of
# infinity is infinity: from then on every step with a gradient is skipped, without an error.
# Output: scale inf, the weight moved by 0.0 in 1,000 steps with a gradient of 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import math
import sys

import keras
import numpy as np

# The loss is x times the weight: its gradient is 0 where x is 0, and 1 where x is 1.
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
inner = keras.optimizers.SGD(0.1)
optimizer = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=1)
model.compile(optimizer, loss=lambda y, prediction: keras.ops.mean(prediction))
start = float(model.get_weights()[0][0, 0])


def fit(x, steps):
    x = np.full((steps, 1), x, "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    return float(model.get_weights()[0][0, 0]) - start


zeros, ones = fit(0.0, 130), fit(1.0, 1000)
scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
print(f"scale {scale}, the weight moved by {ones} in 1,000 steps with a gradient of 1")
sys.exit(not (math.isinf(scale) and zeros == ones == 0.0))
PYTHON
