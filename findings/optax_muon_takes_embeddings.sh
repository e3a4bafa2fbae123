#!/usr/bin/env bash
# optax 0.2.8 and keras 3.15.1 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: Muon is for hidden matrices: an embedding gets Adam in both packages.
# Behaviour: Keras excludes what has "embedding" in its path. optax.contrib.muon orthogonalizes
# every array of two axes. With one token in the batch Adam moves all of its row alike; the
# orthogonalized row goes along its gradient. (Rows of other tokens move in neither.)
# Output: the row's step over its largest: optax 0.33 -0.67 1.0, keras 1.0 -1.0 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile optax==0.2.8 keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp
import keras
import numpy as np
import optax.contrib

gradient = np.zeros((5, 3), "float32")
gradient[1] = [0.1, -0.2, 0.3]  # one token in the batch

table = {"embedding": jnp.ones((5, 3))}
muon = optax.contrib.muon(0.1)
update, _ = muon.update({"embedding": jnp.array(gradient)}, muon.init(table), table)

layer = keras.layers.Embedding(5, 3)
layer.build()
before = layer.embeddings.numpy()
optimizer = keras.optimizers.Muon(0.1, weight_decay=0.0, adam_weight_decay=0.0)
optimizer.apply([keras.ops.convert_to_tensor(gradient)], layer.trainable_variables)


def shape(step):
    row = -np.array(step)[1]
    return [round(float(each), 2) for each in row / np.abs(row).max()]


theirs, of_keras = shape(update["embedding"]), shape(layer.embeddings.numpy() - before)
print("the row's step over its largest: optax", *theirs, "keras", *of_keras)
sys.exit((theirs, of_keras) != ([0.33, -0.67, 1.0], [1.0, -1.0, 1.0]))
PYTHON
