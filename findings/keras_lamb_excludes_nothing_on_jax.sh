#!/usr/bin/env bash
# keras 3.15.1 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: exclude_from_weight_decay(var_names=["layer_norm"]) spares the layer of that name.
# Behaviour: on JAX a variable's name is its last part, "gamma", so nothing matches: the layer
# decays, without a warning. Muon of the same version searches the path, and spares it.
# Output: Lamb spares gamma: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import keras

layer = keras.layers.LayerNormalization(name="layer_norm")
layer.build((None, 4))
optimizer = keras.optimizers.Lamb(0.1, weight_decay=0.5)
with warnings.catch_warnings(record=True) as caught:
    optimizer.exclude_from_weight_decay(var_names=["layer_norm"])
    zeros = [keras.ops.zeros(v.shape) for v in layer.trainable_variables]
    optimizer.apply(zeros, layer.trainable_variables)
spared = bool((layer.gamma.numpy() == 1).all())
print(layer.gamma.path, "Lamb spares gamma:", spared, "warnings:", len(caught))
sys.exit(spared or bool(caught))
PYTHON
