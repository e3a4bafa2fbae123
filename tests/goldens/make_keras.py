"""Goldens of keras.optimizers.Lamb and Muon 3.15.1, on TensorFlow."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import contextlib

import keras
import load
import numpy as np
import problem
import tensorflow as tf

RATE = {"learning_rate": problem.LEARNING_RATE["lamb"]}
DECAY = {"weight_decay": problem.WEIGHT_DECAY}
SLOTS = ("momentum", "velocity")
CLASSES = {"lamb": keras.optimizers.Lamb, "muon": keras.optimizers.Muon}
# Without a trust ratio a step is as long as the rate: a tenth of the rest moves weights enough.
# Its epsilon stands beside the raw second moment, so that only next to none is everyone's.
MUON = {"learning_rate": 2e-3, "epsilon": 1e-12}
NO_DECAY = {"weight_decay": 0.0, "adam_weight_decay": 0.0}

# Rule, arguments, and the names given to the method `exclude_from_weight_decay`.
CASES = {
    "lamb_plain": ("lamb", RATE, []),
    "lamb_decay": ("lamb", RATE | DECAY, []),
    "lamb_decay_excluded": ("lamb", RATE | DECAY, problem.EXCLUDED),
    "lamb_schedule": ("lamb", {"learning_rate": "schedule"} | DECAY, []),
    "muon_plain": ("muon", MUON | NO_DECAY, []),
    "muon_decay_excluded": (
        "muon",
        MUON | DECAY | {"adam_weight_decay": 0.01, "nesterov": False, "exclude_layers": ["dense"]}
        | {"exclude_embeddings": False},
        problem.EXCLUDED,
    ),
    "muon_epsilon": ("muon", MUON | NO_DECAY | {"epsilon": 1e-7}, []),
    "muon_ratio": (
        "muon", MUON | {"weight_decay": 0.1, "adam_weight_decay": 0.1, "adam_lr_ratio": 0.5}, [],
    ),
}  # fmt: skip


def build(rule, arguments, excluded):
    arguments = dict(arguments)
    if arguments["learning_rate"] == "schedule":
        rates = problem.SCHEDULE["lamb"]
        arguments["learning_rate"] = keras.optimizers.schedules.PiecewiseConstantDecay(
            list(range(len(rates) - 1)), rates
        )
    # Else its name, and the paths of its variables, would count the optimizers made before it.
    keras.utils.clear_session()
    optimizer = CLASSES[rule](**arguments)
    if excluded:
        optimizer.exclude_from_weight_decay(var_names=excluded)
    return optimizer


def variable(path, value):
    """A variable of that path, as layers make them: one name scope a part."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


def run(rule, arguments, excluded, variables, gradients_of):
    """Ten steps, as one entry of `load.cases`, with "state" besides.

    `gradients_of` takes the step, from 0. A slot that a variable has not, as a matrix of Muon has
    no velocity, is 0.
    """
    optimizer = build(rule, arguments, excluded)
    record, state = load.Record(), {}
    for step in range(problem.STEPS):
        optimizer.apply(gradients_of(step), variables)
        by_path = {v.path: keras.ops.convert_to_numpy(v) for v in optimizer.variables}
        if step + 1 == problem.SAVED_AFTER:
            state = by_path
        for v in variables:
            record.keep(v.path, keras.ops.convert_to_numpy(v))
            for slot in SLOTS:
                name = f"{optimizer.name}/{v.path.replace('/', '_')}_{slot}"
                record.keep(v.path, by_path.get(name, np.zeros(v.shape, np.float32)), slot)
    decayed = []
    if optimizer.weight_decay is not None:
        # Asked as the TensorFlow backend asks: of the tf.Variable inside, whose name is its path.
        # Muon asks of the Keras variable, whose name is the last part of that alone.
        asked = [v if rule == "muon" else v.value for v in variables]
        decayed = [
            v.path for v, own in zip(variables, asked, strict=True)
            if optimizer._use_weight_decay(own)
        ]  # fmt: skip
    adapted = [v.path for v in variables if rule != "muon" or not optimizer._should_use_adamw(v)]
    return {
        "rule": rule, "arguments": arguments, "excluded_names": excluded, "decayed": decayed,
        "adapted": adapted, "config": keras.optimizers.serialize(optimizer), **record.arrays(),
        "state": state,
    }  # fmt: skip


def run_case(rule, arguments, excluded):
    variables = [variable(path, array) for path, array in problem.START.items()]
    assert [v.path for v in variables] == list(problem.START), [v.path for v in variables]

    def gradients_of(step):
        return [tf.constant(problem.GRADIENTS[path][step]) for path in problem.START]

    case = run(rule, arguments, excluded, variables, gradients_of)
    del case["state"]
    return case


def run_model(rule, arguments, *, sparse=False):
    """Trains the tiny model; as one entry of `load.models`.

    With `sparse` the embedding's gradient is handed over as the tape returns it, an IndexedSlices
    whose rows repeat. Keras 3 squares the rows before it sums them, so its second moment is another
    one than that of the dense gradient.
    """
    model = problem.build_model(keras)
    variables = model.trainable_variables
    assert [v.path for v in variables] == list(problem.MODEL_START), [v.path for v in variables]
    dense = {path: [] for path in problem.MODEL_START}

    def gradients_of(step):
        ids, targets = problem.BATCHES[step]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
        gradients = tape.gradient(loss, [v.value for v in variables])
        summed = [tf.convert_to_tensor(gradient) for gradient in gradients]
        for path, gradient in zip(dense, summed, strict=True):
            dense[path].append(gradient.numpy())
        return gradients if sparse else summed

    case = run(rule, arguments, [], variables, gradients_of)
    stacked = {path: np.stack(values) for path, values in dense.items()}
    return case | {"gradients": stacked, "files": {}}


if __name__ == "__main__":
    load.write(
        "keras",
        cases={name: run_case(*case) for name, case in CASES.items()},
        models={
            "lamb_model": run_model("lamb", RATE),
            "lamb_model_decay": run_model("lamb", RATE | DECAY),
            "lamb_model_sparse": run_model("lamb", RATE, sparse=True),
            "muon_model": run_model("muon", MUON | {"exclude_layers": ["head"]}),
        },
        distributions=["keras", "tensorflow", "numpy"],
    )
