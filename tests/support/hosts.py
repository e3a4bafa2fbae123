"""A training on JAX by several processes, or by one: see `tests/keras/test_processes.py`.

What is here runs in processes of its own. A folder is one that all of them share.
"""

import os
import signal

import keras
import numpy as np

EPOCHS, BATCH, ROWS = 4, 16, 64

CASES = {
    "plain": {},
    "shared": {"shard_update": True, "use_ema": True, "ema_momentum": 0.5},
    "clipped": {"shard_update": True, "global_clipnorm": 0.1, "slot_dtype": "bfloat16"},
    "apart": {"shard_update": True, "gradient_accumulation_steps": 2},
    "adascale": {"shard_update": True, "gradient_accumulation_steps": 2},
}


def join(**options):
    """Makes this process one of several, if its environment says so, and deals out batches."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        keras.distribution.initialize()
    spread = keras.distribution.DataParallel(auto_shard_dataset=False, **options)
    keras.distribution.set_distribution(spread)
    return jax.process_index(), jax.process_count()


def network(seed=0):
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((16,)), layers.Dense(32, activation="tanh", name="up"),
        layers.Dense(8, name="down"),
    ], name="model")  # fmt: skip
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def compiled(case, model=None, **changes):
    from tf_lamb.keras import LAMB, AdaScale, per_replica

    optimizer = LAMB(0.05, **{"weight_decay": 0.1, "epsilon": 0.1, **CASES[case], **changes})
    model = model or network()
    model.compile(AdaScale(optimizer, scale=2) if case == "adascale" else optimizer, "mse")
    return per_replica(model) if case == "apart" else model


def rows(process, count):
    """Of each batch the part of a process: the examples that one process gives its devices."""
    rng = np.random.default_rng(1)
    both = (rng.normal(size=(ROWS, n)).astype("float32") for n in (16, 8))
    return [np.split(a.reshape(-1, BATCH, a.shape[1]), count, axis=1)[process].reshape(-1, a.shape[1])
            for a in both]  # fmt: skip


def fit(model, process, count, folder, *callbacks):
    """Trains, from the backup in the folder on; returns the epochs that were trained."""
    from tf_lamb.keras import BackupAndRestore

    backup = BackupAndRestore(folder, delete_checkpoint=False)
    history = model.fit(
        *rows(process, count), batch_size=BATCH // count, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=[backup, *callbacks],
    )  # fmt: skip
    return history.epoch


def state(model):
    """Of all variables, whole: what a process saves of them."""
    from tf_lamb.keras import processes

    variables = [*model.variables, *model.optimizer.variables]
    with processes.whole(variables):
        return [np.asarray(v, "float32").ravel().tolist() for v in variables]


def trained(cases, folder):
    """Case -> what one process sees of it."""
    process, count = join()
    found = {}
    for case in cases:
        epochs = fit(model := compiled(case), process, count, f"{folder}/{case}")
        found[case] = {"epochs": epochs, "state": state(model)}
    return found


def die_in_the_third_epoch(case, folder, victims):
    """Until the processes that are to die have killed themselves."""
    process, count = join()

    def die(batch, logs=None):
        if model.stop_here and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(epoch, logs=None):
        model.stop_here = epoch == 2 and process in victims

    model = compiled(case)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=die, on_epoch_begin=begin)
    fit(model, process, count, folder, callback)
