"""Goldens of TensorFlow Addons 0.23 LAMB, which imports only beside TensorFlow 2.15 and older."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import legacy_keras
import load
import problem
import tensorflow as tf
import tensorflow_addons as tfa

RATE = {"learning_rate": problem.LEARNING_RATE["lamb"]}
DECAY = {"weight_decay": problem.WEIGHT_DECAY, "exclude_from_weight_decay": problem.EXCLUDED}
LAMB = "lamb", tfa.optimizers.LAMB

CASES = {
    "lamb_plain": (*LAMB, RATE),
    "lamb_decay": (*LAMB, RATE | DECAY),
    "lamb_adaptation": (*LAMB, RATE | DECAY | {"exclude_from_layer_adaptation": ["conv"]}),
    # The peer takes an empty list for none given: the decay's list holds.
    "lamb_empty_adaptation": (*LAMB, RATE | DECAY | {"exclude_from_layer_adaptation": []}),
    "lamb_schedule": (*LAMB, {"learning_rate": "schedule"} | DECAY),
    "lamb_betas": (*LAMB, RATE | DECAY | {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}),
}


if __name__ == "__main__":
    model = legacy_keras.run_model(
        tf.keras, *LAMB, RATE | DECAY, checkpoint="tfa_checkpoint", hdf5="tfa_model.h5"
    )
    load.write(
        "tensorflow_addons",
        cases=legacy_keras.run_cases(tf.keras, CASES),
        models={"lamb_model": model},
        distributions=["tensorflow", "keras", "tensorflow-addons", "h5py", "numpy"],
    )
