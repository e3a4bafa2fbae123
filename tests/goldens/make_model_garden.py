"""Goldens of Model Garden 2.20 LAMB and LARS, on tf_keras."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import legacy_keras
import load
import problem
import tf_keras
from official.modeling.optimization import lamb, lars

LAMB, LARS = ("lamb", lamb.LAMB), ("lars", lars.LARS)
RATE = {rule: {"learning_rate": rate} for rule, rate in problem.LEARNING_RATE.items()}
SCHEDULE = {"learning_rate": "schedule"}
DECAY = {"weight_decay_rate": problem.WEIGHT_DECAY, "exclude_from_weight_decay": problem.EXCLUDED}
TRUST = {"eeta": problem.TRUST_COEFFICIENT}
EVERY_LARS = SCHEDULE | DECAY | TRUST
NESTEROV, POPULAR = {"nesterov": True}, {"classic_momentum": False}

CASES = {
    "lamb_plain": (*LAMB, RATE["lamb"]),
    "lamb_decay": (*LAMB, RATE["lamb"] | DECAY),
    "lamb_adaptation": (*LAMB, RATE["lamb"] | DECAY | {"exclude_from_layer_adaptation": ["conv"]}),
    "lamb_schedule": (*LAMB, SCHEDULE | DECAY),
    # A schedule in all but the first: only then do the two momenta differ.
    "lars_plain": (*LARS, RATE["lars"] | TRUST),
    "lars_classic": (*LARS, EVERY_LARS),
    "lars_classic_nesterov": (*LARS, EVERY_LARS | NESTEROV),
    "lars_popular": (*LARS, EVERY_LARS | POPULAR),
    "lars_popular_nesterov": (*LARS, EVERY_LARS | POPULAR | NESTEROV),
    "lars_adaptation": (*LARS, EVERY_LARS | {"exclude_from_layer_adaptation": ["conv"]}),
}


if __name__ == "__main__":
    load.write(
        "model_garden",
        cases=legacy_keras.run_cases(tf_keras, CASES),
        models={
            "lamb_model": legacy_keras.run_model(
                tf_keras, *LAMB, RATE["lamb"] | DECAY, checkpoint="model_garden_lamb_checkpoint"
            ),
            "lars_model": legacy_keras.run_model(
                tf_keras,
                *LARS,
                RATE["lars"] | DECAY | TRUST,
                checkpoint="model_garden_lars_checkpoint",
            ),
        },
        distributions=["tensorflow", "tf-keras", "tf-models-official", "numpy"],
    )
