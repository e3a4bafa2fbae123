"""Runs optimizers of the legacy Keras interface: TensorFlow Addons and Model Garden share it."""

import shutil

import load
import numpy as np
import problem
import tensorflow as tf


def run_cases(keras, table):
    """As `load.cases`, of a table of case name -> (rule, optimizer class, arguments)."""
    results = {}
    for name, (rule, optimizer_class, arguments) in table.items():
        optimizer = _build(keras, rule, optimizer_class, arguments)
        variables = {p: tf.Variable(array, name=p) for p, array in problem.START.items()}
        record = load.Record()
        for step in range(problem.STEPS):
            gradients = [tf.constant(problem.GRADIENTS[path][step]) for path in variables]
            optimizer.apply_gradients(zip(gradients, variables.values(), strict=True))
            _keep(record, optimizer, variables)
        results[name] = _describe(keras, rule, optimizer, arguments, variables) | record.arrays()
    return results


def run_model(keras, rule, optimizer_class, arguments, *, checkpoint, hdf5=None):
    """Trains the tiny model, and saves it half-way; as one entry of `load.models`.

    The checkpoint's folder, which is emptied first, and the HDF5 file are in `output_folder`.
    """
    folder, record = load.output_folder(), load.Record()
    optimizer = _build(keras, rule, optimizer_class, arguments)
    model = problem.build_model(keras)
    model.compile(optimizer=optimizer, loss="mse")
    variables = {v.name.split(":")[0]: v for v in model.trainable_variables}
    assert list(variables) == list(problem.MODEL_START), list(variables)
    gradients = {path: [] for path in variables}
    files = {"checkpoint": f"{checkpoint}/ckpt-1"} | ({"hdf5": hdf5} if hdf5 else {})
    for step, (ids, targets) in enumerate(problem.BATCHES):
        if step == problem.SAVED_AFTER:
            shutil.rmtree(folder / checkpoint, ignore_errors=True)
            saver = tf.train.Checkpoint(model=model, optimizer=optimizer)
            saver.save(str(folder / checkpoint / "ckpt"))
            if hdf5:
                model.save(folder / hdf5, save_format="h5")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
        sparse = tape.gradient(loss, list(variables.values()))
        dense = [tf.convert_to_tensor(g) for g in sparse]
        # Model Garden's LARS refuses the embedding's sparse gradient.
        step_gradients = dense if rule == "lars" else sparse
        optimizer.apply_gradients(zip(step_gradients, variables.values(), strict=True))
        _keep(record, optimizer, variables)
        for path, gradient in zip(variables, dense, strict=True):
            gradients[path].append(gradient.numpy())
    description = _describe(keras, rule, optimizer, arguments, variables)
    stacked = {path: np.stack(values) for path, values in gradients.items()}
    return description | record.arrays() | {"gradients": stacked, "files": files}


def _build(keras, rule, optimizer_class, arguments):
    arguments = dict(arguments)
    if arguments["learning_rate"] == "schedule":
        rates, of = problem.SCHEDULE[rule], keras.optimizers.schedules
        arguments["learning_rate"] = of.PiecewiseConstantDecay([*range(len(rates) - 1)], rates)
    return optimizer_class(**arguments)


def _describe(keras, rule, optimizer, arguments, variables):
    # The peer decides by name, each with helpers of its own.
    decays = getattr(optimizer, "_do_use_weight_decay", None) or optimizer._use_weight_decay
    adapts = optimizer._do_layer_adaptation

    def chosen(decide):
        # Addons asks for the variable, Model Garden for its name.
        try:
            return [path for path, v in variables.items() if decide(v)]
        except TypeError:
            return [path for path, v in variables.items() if decide(v.name)]

    return {
        "rule": rule,
        "arguments": arguments,
        "decayed": chosen(decays),
        "adapted": chosen(adapts),
        "config": keras.optimizers.serialize(optimizer),
    }


def _keep(record, optimizer, variables):
    for path, variable in variables.items():
        record.keep(path, variable.numpy())
        for slot in optimizer.get_slot_names():
            record.keep(path, optimizer.get_slot(variable, slot).numpy(), slot)
