#!/usr/bin/env bash
# keras 3.15.1 with tensorflow-cpu 2.20.0, Python 3.11 to 3.13.
# Guess: tf.train.Checkpoint restores a model's weights to the layers that they were saved from,
# also where the restoring script has frozen one, and then restores its optimizer.
# Behaviour: an optimizer's checkpoint has edges to the trained weights by position, and a shorter
# way to them than the model's. So with the first layer frozen, the second gets the weights of the
# first, and the third those of the second, without an error.
# Output: without the optimizer: a < a, b < b, c < c; with it: a < none, b < a, c < b
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 tensorflow-cpu==2.20.0
cd "$folder"
KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import keras
import numpy as np
import tensorflow as tf


def model_and_optimizer(frozen):
    layers = [keras.layers.Dense(2, use_bias=False, name=name) for name in "abc"]
    layers[0].trainable = not frozen
    model, optimizer = keras.Sequential([keras.Input((2,)), *layers]), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


saved, optimizer = model_and_optimizer(frozen=False)
path = tf.train.Checkpoint(model=saved, optimizer=optimizer).save("checkpoint")
names = {layer.kernel.numpy().tobytes(): layer.name for layer in saved.layers}


def restored(**others):
    tf.train.Checkpoint(model=model, **others).restore(path).expect_partial()
    origins = [names.get(layer.kernel.numpy().tobytes(), "none") for layer in model.layers]
    return ", ".join(f"{layer.name} < {origin}" for layer, origin in zip(model.layers, origins))


model, optimizer = model_and_optimizer(frozen=True)
alone = restored()
model, optimizer = model_and_optimizer(frozen=True)
both = restored(optimizer=optimizer)
print(f"without the optimizer: {alone}; with it: {both}")
sys.exit((alone, both) != ("a < a, b < b, c < c", "a < none, b < a, c < b"))
PYTHON
