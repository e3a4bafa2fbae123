#!/usr/bin/env bash
# keras 3.15.1 and orbax-checkpoint 0.12.8 with jax 0.10.2, Python 3.11 to 3.13.
# Guess: load_model of a folder of OrbaxCheckpoint gives the trained weights, or an error.
# Behaviour: so it does for a functional model. For a Sequential model it gives a model whose
# weights are not the trained ones, without an error, and without a warning that is not there for
# the functional model, too.
# Output: {'functional': True, 'sequential': False} warnings alike: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 jax==0.10.2 orbax-checkpoint==0.12.8
cd "$folder"
KERAS_BACKEND=jax "$folder/venv/bin/python" - <<'PYTHON'
import pathlib
import sys
import warnings

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def sequential():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def functional():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


same, told = {}, {}
for make in (functional, sequential):
    model = make()
    model.compile("adam", "mse")
    where = str(pathlib.Path(make.__name__).absolute())
    callback = keras.callbacks.OrbaxCheckpoint(where, save_freq=1)
    model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[callback])
    trained = model.get_weights()
    keras.backend.clear_session()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = keras.models.load_model(where)
    same[make.__name__] = all(map(np.allclose, trained, loaded.get_weights()))
    told[make.__name__] = {str(each.message) for each in caught}
alike = told["sequential"] <= told["functional"]
print(same, "warnings alike:", alike)
sys.exit((same, alike) != ({"functional": True, "sequential": False}, True))
PYTHON
