#!/usr/bin/env bash
# keras 3.15.1 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: Muon orthogonalizes the kernels of attention, and leaves every bias to Adam.
# Behaviour: it goes by the number of axes alone. The kernels of MultiHeadAttention have three, and
# get Adam; its biases of query, key and value have two (heads, head size), and are orthogonalized.
# Output: Newton-Schulz: key/bias query/bias value/bias
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import sys

import keras

layer = keras.layers.MultiHeadAttention(2, 4)
layer.build((1, 3, 8), (1, 3, 8))
muon = keras.optimizers.Muon()
muon.build(layer.trainable_variables)
# What Adam steps has a second moment.
adams = [v.path for v in muon.variables if "velocity" in v.path]
matrices = sorted(
    "/".join(v.path.split("/")[-2:])
    for v in layer.trainable_variables
    if not any(v.path.replace("/", "_") in path for path in adams)
)
print("Newton-Schulz:", *matrices)
sys.exit(matrices != ["key/bias", "query/bias", "value/bias"])
PYTHON
