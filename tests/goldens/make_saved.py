"""What each frontend saved, on TensorFlow and on JAX: read back for ever, and on the other backend.

    python tests/goldens/make_saved.py
    KERAS_BACKEND=jax python tests/goldens/make_saved.py

Writes `tests/goldens/saved/`: of each frontend a model and optimizer in every form that it saves,
and the values that stood in them. Run it at the commit whose files are to be read, and at no later
one. Arguments that went before the first release are taken out of the configs in these files, or
have the names of today. `measured` keeps `previous_gradient` of False, which is still read; it
was made at c153f48, and has the name of today in the values. `adascale` was made when its groups
went, which its arrays were of.
"""

import pathlib

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import unwrapped

FOLDER = pathlib.Path(__file__).parent / "saved"
HOSTS = {"keras": (keras, tf_lamb.keras), "tf_keras": (tf_keras, tf_lamb.tf_keras)}
if keras.backend.backend() == "jax":
    HOSTS = {"jax": (keras, tf_lamb.keras)}


def optimizers(ours):
    """By name; together they hold every kind of variable and of schedule that can be saved."""
    s = ours.schedules
    warm = s.Warmup(2, s._Polynomial(0.1, 10, power=2.0))
    return {
        "lamb": ours.LAMB(
            warm, weight_decay=0.01, exclude_from_weight_decay="norm_and_bias", use_ema=True,
            gradient_accumulation_steps=2, treatments={"first/kernel": {"slices": [-1, 2]}},
        ),
        "lamb_half": ours.LAMB(0.1, dtypes={"slots": "bfloat16", "masters": "float32"}),
        "lars": ours.LARS(s._Cosine(0.1, 10), exclude_from_layer_adaptation=["bias"]),
        "adascale": ours.AdaScale(ours.SGDP(0.1, gradient_accumulation_steps=2), scale=2),
        "measured": ours.MeasureNoise(
            ours.AdamP(s._Exponential(0.1, 4, 0.5), gradient_accumulation_steps=2)
        ),
    }  # fmt: skip


def built(host, ours, name):
    """A compiled model of three weights and of batch normalization, not trained."""
    host.utils.set_random_seed(1)
    host.backend.clear_session()
    half = name == "lamb_half"
    layers = [
        host.Input((3,)), host.layers.Dense(4, activation="tanh", name="first"),
        ours.GhostBatchNormalization(2, name="ghost"), host.layers.Dense(2, name="last"),
    ]  # fmt: skip
    host.mixed_precision.set_global_policy("float16" if half else "float32")
    if half:
        layers = [host.Input((3,)), host.layers.Dense(4, name="first")]
    model = host.Sequential(layers, name="model")
    host.mixed_precision.set_global_policy("float32")
    model.compile(optimizer=optimizers(ours)[name], loss=host.losses.MeanSquaredError())
    return model


def values(model):
    """Every number that a model and its optimizer hold: of weights by position, else by name."""
    held = {f"weight {i}": weight for i, weight in enumerate(model.weights)}
    for each in {model.optimizer, inner(model.optimizer)}:
        held |= {
            f"{type(each).__name__} {k}": v for k, v in each._named_state().variables().items()
        }
    return {name: np.asarray(v, "float64") for name, v in held.items()}


def inner(optimizer):
    """What a wrapper wraps, or the optimizer itself."""
    return unwrapped(optimizer, Layerwise)


def main():
    FOLDER.mkdir(exist_ok=True)
    random = np.random.default_rng(1)
    x, y = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    for room, (host, ours) in HOSTS.items():
        for name in optimizers(ours):
            model = built(host, ours, name)
            targets = np.concatenate([y, y], 1) if name == "lamb_half" else y
            model.fit(x, targets, batch_size=2, shuffle=False, verbose=0)
            path = FOLDER / f"{room}_{name}"
            model.save(path.with_suffix(".keras"))
            model.save(path.with_suffix(".h5"))
            if room != "jax":
                tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
            np.savez_compressed(path.with_suffix(".npz"), **values(model))


if __name__ == "__main__":
    main()
