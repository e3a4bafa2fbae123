"""A fit with a backup in either frontend, alone or in a process that dies."""

import importlib
import os
import signal

import numpy as np
from support.crashing import die_at_byte
from support.frontends import uncompiled

EPOCHS, STEPS = 4, 5


def new_model(frontend, optimizer="LAMB", units=16, **more):
    host, ours = importlib.import_module(frontend), importlib.import_module(f"tf_lamb.{frontend}")
    host.utils.set_random_seed(1)
    layers = [host.layers.InputLayer((4,)), host.layers.Dense(units), host.layers.Dense(1)]
    model = host.Sequential(layers)
    model.compile(getattr(ours, optimizer)(0.01, weight_decay=0.1, **more), "mse")
    return model


def fit(frontend, model, folder, callbacks=(), stock=False, **more):
    """Trains; returns the epochs that it began."""
    host, ours = importlib.import_module(frontend), importlib.import_module(f"tf_lamb.{frontend}")
    random = np.random.default_rng(1)
    x, y = random.normal(size=(4 * STEPS, 4)), random.normal(size=(4 * STEPS, 1))
    backup = (host.callbacks if stock else ours).BackupAndRestore(str(folder), **more)
    history = model.fit(
        x.astype("float32"), y.astype("float32"), batch_size=4, epochs=EPOCHS, shuffle=False,
        verbose=0, callbacks=[backup, *callbacks],
    )  # fmt: skip
    return history.epoch


def state(model):
    """The weights, and the optimizer's variables."""
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    return [np.asarray(v) for v in (*model.weights, *variables)]


def killing(frontend, model, when, number):
    """A callback that ends this process as a kill does, in or after the third epoch."""
    host = importlib.import_module(frontend)

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    class Killing(host.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if when == "batch" and self.batches == number:
                die()

        def on_epoch_begin(self, epoch, logs=None):
            if when == "byte" and epoch == 2:
                die_at_byte(number)
            if when == "written" and epoch == 2:
                write = model.save_weights
                model.save_weights = lambda *args, **kwargs: die(write(*args, **kwargs))

    return Killing()


def die_in_fit(frontend, folder, stock, when, number):
    """What `test_backup.py` runs in a process of its own; nothing is compiled, as there."""
    model = new_model(frontend)
    with uncompiled():
        fit(frontend, model, folder, [killing(frontend, model, when, number)], stock=stock)


def end_in_file(frontend, folder, file):
    """Writes which epochs a fit begins, and what it ends with."""
    model = new_model(frontend)
    with uncompiled():
        epochs = fit(frontend, model, folder)
    np.savez(file, epochs, *state(model))
