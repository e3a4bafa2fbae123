"""A training on JAX by several processes, or by one: see `tests/keras/test_processes.py`.

What is here runs in processes of its own. A folder is one that all of them share.
"""

import functools
import os
import signal
from unittest import mock

import keras
import numpy as np

EPOCHS, BATCH, ROWS = 4, 16, 64

CASES = {
    "plain": {},
    "shared": {"shard_update": True, "use_ema": True, "ema_momentum": 0.5},
    "clipped": {"shard_update": True, "global_clipnorm": 0.1, "dtypes": {"slots": "bfloat16"}},
    "apart": {"shard_update": True, "gradient_accumulation_steps": 2},
    "adascale": {"shard_update": True, "gradient_accumulation_steps": 2},
    "adascale apart": {"gradient_accumulation_steps": 2},
}


def join(auto_shard_dataset=False):
    """Makes this process one of several, if its environment says so, and deals out batches."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        keras.distribution.initialize()
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(auto_shard_dataset=auto_shard_dataset)
    )
    return jax.process_index(), jax.process_count()


def network():
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((16,)), layers.Dense(32, activation="tanh", name="up"),
        layers.Dense(8, name="down"),
    ], name="model")  # fmt: skip
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model


def compiled(case, **changes):
    from tf_lamb.keras import LAMB, AdaScale, per_replica

    model = network()
    optimizer = LAMB(0.05, **{"weight_decay": 0.1, "epsilon": 0.1, **CASES[case], **changes})
    model.compile(AdaScale(optimizer, scale=2) if "adascale" in case else optimizer, "mse")
    return per_replica(model) if "apart" in case else model


def rows(process, count):
    """Of each batch the part of a process: the examples that one process gives its devices."""
    rng = np.random.default_rng(1)
    both = (rng.normal(size=(ROWS // BATCH, BATCH, n)).astype("float32") for n in (16, 8))
    parts = (np.split(array, count, axis=1)[process] for array in both)
    return [part.reshape(-1, part.shape[-1]) for part in parts]


def fit(model, data, batch_size, folder, *callbacks, epochs=EPOCHS):
    """Trains, from the backup in the folder on; returns the epochs that were trained."""
    from tf_lamb.keras import BackupAndRestore

    backup = BackupAndRestore(folder, delete_checkpoint=False)
    history = model.fit(
        *data, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
        callbacks=[backup, *callbacks],
    )  # fmt: skip
    return history.epoch


def state(model):
    """Of all variables, whole: what a process saves of them."""
    from tf_lamb.keras import processes

    variables = [*model.variables, *model.optimizer.variables]
    with processes.gathered_variables(variables):
        return [np.asarray(v, "float32").ravel().tolist() for v in variables]


def trained(cases, folder):
    """Case -> what one process sees of it."""
    process, count = join()
    data, found = rows(process, count), {}
    for case in cases:
        epochs = fit(model := compiled(case), data, BATCH // count, f"{folder}/{case}")
        found[case] = {"epochs": epochs, "state": state(model)}
        model.save_weights(f"{folder}/{case}_{process}.weights.h5")
    return found


def trained_on_a_dataset(folder):
    """Keras deals it out: all processes have the whole."""
    import tensorflow as tf

    join(auto_shard_dataset=True)
    data = tf.data.Dataset.from_tensor_slices(tuple(rows(0, 1))).batch(BATCH, drop_remainder=True)
    fit(model := compiled("plain"), [data], None, folder)
    return state(model)


def trained_in_parts(folder):
    """Each device of all processes has a part of each weight, and the whole batch."""
    join()
    mesh = keras.distribution.DeviceMesh((1, 8), ["batch", "model"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["model/up/kernel"] = (None, "model")
    layouts["model/down/kernel"] = ("model", None)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, auto_shard_dataset=False)
    )
    epochs = fit(model := compiled("plain"), rows(0, 1), BATCH, folder)
    return {"epochs": epochs, "state": state(model)}


def die_in_the_third_epoch(folder, victims):
    """Those kill themselves, with a backup of two epochs behind them."""
    import jax

    # The first misses another at its heartbeat: of ten seconds instead of a hundred.
    with mock.patch.object(
        jax.distributed, "initialize",
        functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=10),
    ):  # fmt: skip
        process, count = join()

    def begin(epoch, logs=None):
        model.is_last = epoch == 2 and process in victims

    def end(batch, logs=None):
        if model.is_last and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    model = compiled("apart")
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=end)
    fit(model, rows(process, count), BATCH // count, folder, callback)


def refusals(folder):
    """Case -> what `fit` says where this process differs from the others, and the steps taken."""
    process, count = join()
    data = rows(process, count)
    fewer = [array[: len(array) - BATCH * process] for array in data]
    size = BATCH // count

    def other_weights(model):
        """As by another seed: Keras has each process compile the initializer of a large one."""
        import jax

        (kernel, *_), value = model.trainable_variables, float(process)
        where = kernel.value.sharding
        make = jax.jit(lambda: jax.numpy.full(kernel.shape, value), out_shardings=where)
        kernel._value = make()

    fits = {
        "argument": lambda: fit(model, data, size, f"{folder}/a"),
        "weights": lambda: fit(model, data, size, f"{folder}/b"),
        "epochs": lambda: fit(model, data, size, f"{folder}/c", epochs=EPOCHS + process),
        "examples": lambda: fit(model, fewer, size, f"{folder}/d"),
        "batch": lambda: model.fit(*data, batch_size=size // (1 + process), verbose=0),
        "folder": lambda: fit(model, data, size, f"{folder}/{process}"),
    }
    fit(compiled("plain"), data, size, f"{folder}/0")  # which the second does not look into
    found = {}
    for case, begin in fits.items():
        model = compiled("plain", weight_decay=0.1 + 0.1 * process * (case == "argument"))
        if case == "weights":
            other_weights(model)
        try:
            begin()
        except ValueError as error:
            found[case] = [str(error), int(model.optimizer.iterations)]
    return found
