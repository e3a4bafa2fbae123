"""Goldens of keras.optimizers.Lamb 3.15.1, on TensorFlow.

Environment: the project's own (`make test` makes it), or

    python3.11 -m venv .build/goldens/keras
    .build/goldens/keras/bin/pip install keras==3.15.1 tensorflow==2.20.0

Run:

    .venv/bin/python tests/goldens/make_keras.py [FOLDER]
"""

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

# Arguments, and the names given to the method `exclude_from_weight_decay`.
CASES = {
    "lamb_plain": (RATE, []),
    "lamb_decay": (RATE | DECAY, []),
    "lamb_decay_excluded": (RATE | DECAY, problem.EXCLUDED),
    "lamb_schedule": ({"learning_rate": "schedule"} | DECAY, []),
}


def build(arguments, excluded):
    arguments = dict(arguments)
    if arguments["learning_rate"] == "schedule":
        rates = problem.SCHEDULE["lamb"]
        arguments["learning_rate"] = keras.optimizers.schedules.PiecewiseConstantDecay(
            list(range(len(rates) - 1)), rates
        )
    # Else its name, and the paths of its variables, would count the optimizers made before it.
    keras.utils.clear_session()
    optimizer = keras.optimizers.Lamb(**arguments)
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


def run(arguments, excluded, variables, gradients_of):
    """Ten steps.

    Args:
        arguments: Of the optimizer; a learning rate may be "schedule".
        excluded: Names for the method `exclude_from_weight_decay`.
        variables: The variables, in order.
        gradients_of: Step (from 0) -> their gradients.

    Returns:
        As one entry of `load.cases`, with "state" besides.
    """
    optimizer = build(arguments, excluded)
    weights = {v.path: [] for v in variables}
    slots = {slot: {v.path: [] for v in variables} for slot in SLOTS}
    state = {}
    for step in range(problem.STEPS):
        optimizer.apply(gradients_of(step), variables)
        by_path = {v.path: keras.ops.convert_to_numpy(v) for v in optimizer.variables}
        if step + 1 == problem.SAVED_AFTER:
            state = by_path
        for v in variables:
            weights[v.path].append(keras.ops.convert_to_numpy(v))
            for slot in SLOTS:
                slots[slot][v.path].append(
                    by_path[f"{optimizer.name}/{v.path.replace('/', '_')}_{slot}"]
                )
    decayed = []
    if optimizer.weight_decay is not None:
        # Asked as the TensorFlow backend asks: of the tf.Variable inside, whose name is its own.
        decayed = [v.path for v in variables if optimizer._use_weight_decay(v.value)]
    return {
        "rule": "lamb",
        "arguments": arguments,
        "excluded_names": excluded,
        "decayed": decayed,
        "adapted": list(weights),
        "config": keras.optimizers.serialize(optimizer),
        "weights": {path: np.stack(values) for path, values in weights.items()},
        "slots": {
            slot: {path: np.stack(values) for path, values in table.items()}
            for slot, table in slots.items()
        },
        "state": state,
    }


def run_case(arguments, excluded):
    variables = [variable(path, array) for path, array in problem.START.items()]
    assert [v.path for v in variables] == list(problem.START), [v.path for v in variables]
    case = run(
        arguments,
        excluded,
        variables,
        lambda step: [tf.constant(problem.GRADIENTS[path][step]) for path in problem.START],
    )
    del case["state"]
    return case


def run_model(arguments, *, sparse=False):
    """Trains the tiny model.

    Args:
        arguments: Of the optimizer.
        sparse: Hand over the embedding's gradient as the tape returns it, an IndexedSlices whose
            rows repeat. Keras 3 squares the rows before it sums them, so its second moment is
            another one than that of the dense gradient.

    Returns:
        As one entry of `load.models`.
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

    case = run(arguments, [], variables, gradients_of)
    stacked = {path: np.stack(values) for path, values in dense.items()}
    return case | {"gradients": stacked, "files": {}}


def main():
    load.write(
        "keras",
        load.output_folder(),
        cases={name: run_case(*case) for name, case in CASES.items()},
        models={
            "lamb_model": run_model(RATE),
            "lamb_model_decay": run_model(RATE | DECAY),
            "lamb_model_sparse": run_model(RATE, sparse=True),
        },
        distributions=["keras", "tensorflow", "numpy"],
    )


if __name__ == "__main__":
    main()
