"""An analysis whose rate is a branch of the graph, and whose model others load without ours.

They load it for its layers (`compile=False`), and compile it with an optimizer of Keras.
"""

import functools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, compiled_whole, every_frontend

pytestmark = pytest.mark.usefixtures("quickly_compiled")

rng = np.random.default_rng(0)
EVENTS = rng.normal(size=(32, 5)).astype("float32")
CLASSES = np.eye(3, dtype="float32")[rng.integers(0, 3, 32)]
RATES = [0.03, 0.06, 0.09, 0.09, 0.07, 0.05, 0.03, 0.01]  # of each step: warmup, decay, the end
END = 0.01  # of every step beyond


@functools.cache
def schedule_class(frontend):
    host, _ = FRONTENDS[frontend]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        cond = tf.cond
    else:
        cond = keras.ops.cond

    @host.saving.register_keras_serializable("analysis")
    class WarmupThenDecay(host.optimizers.schedules.LearningRateSchedule):
        """Each branch is a function, as `tf.cond` takes it."""

        def __call__(self, step):
            step = keras.ops.cast(step, "float32")
            return cond(
                step < 3.0,
                lambda: 0.03 * (step + 1.0),
                lambda: cond(
                    step < 7.0, lambda: 0.09 - 0.02 * (step - 3.0), lambda: END + 0 * step
                ),
            )

        def get_config(self):
            return {}

    return WarmupThenDecay


def compiled(frontend, optimizer):
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = host.Sequential(
        [host.layers.Input((5,)), host.layers.Dense(8, activation="relu"),
         host.layers.Dense(3, activation="softmax")]
    )  # fmt: skip
    model.compile(optimizer, host.losses.CategoricalFocalCrossentropy())
    return model


def fit(model, epochs, **arguments):
    model.fit(EVENTS, CLASSES, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **arguments)
    return model


def setting(host, rates):
    """A callback that sets the rate of each step."""
    left = iter(rates)

    class SetsTheRate(host.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = next(left)

    return SetsTheRate()


@every_frontend
def test_a_branch_in_the_compiled_step_gives_each_step_its_rate(frontend):
    """Three epochs of four steps: four of them are beyond the last step of the schedule."""
    host, ours = FRONTENDS[frontend]
    branched = fit(compiled(frontend, ours.LAMB(schedule_class(frontend)())), 3)
    assigned = compiled(frontend, ours.LAMB(1.0))
    fit(assigned, 3, callbacks=[setting(host, [*RATES, END, END, END, END])])
    assert float(array(branched.optimizer.learning_rate)) == pytest.approx(END)
    for a, b in zip(branched.get_weights(), assigned.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@every_frontend
@pytest.mark.parametrize(
    "jit_compile",
    [
        pytest.param(True, marks=compiled_whole, id="whole step by XLA"),
        pytest.param(False, id="update by XLA"),
    ],
)
def test_a_branch_is_one_whoever_compiles_the_step(frontend, jit_compile):
    host, ours = FRONTENDS[frontend]
    losses = []
    for how in ({"jit_compile": jit_compile}, {"run_eagerly": True}):
        model = compiled(frontend, ours.LAMB(schedule_class(frontend)()))
        model.compile(model.optimizer, model.loss, **how)
        losses.append(fit(model, 2).evaluate(EVENTS, CLASSES, verbose=0))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@every_frontend
def test_the_own_schedule_is_in_the_file(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    model = fit(compiled(frontend, ours.LAMB(schedule_class(frontend)())), 3)
    model.save(tmp_path / "events.keras")
    names = {"WarmupThenDecay": schedule_class(frontend)}
    loaded = host.models.load_model(tmp_path / "events.keras", custom_objects=names)
    assert int(array(loaded.optimizer.iterations)) == 12
    assert float(array(loaded.optimizer.learning_rate)) == pytest.approx(END)


# Of someone who has Keras alone. It says what it saw, as JSON.
ELSEWHERE = """
import json, sys
import numpy as np
import {host} as host

events, classes, paths = np.load(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3:]
seen = []
for path in paths:
    model = host.models.load_model(path, compile=False)
    before = model.predict(events, verbose=0).tolist()
    model.compile(host.optimizers.{optimizer}(1e-2), host.losses.CategoricalFocalCrossentropy())
    losses = model.fit(events, classes, epochs=5, verbose=0).history["loss"]
    seen.append([before, losses[0], losses[-1]])
print(json.dumps([seen, "tf_lamb" in sys.modules]))
"""


@every_frontend
def test_a_model_saved_with_ours_is_loaded_and_tuned_without_it(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    model = fit(compiled(frontend, ours.LAMB(schedule_class(frontend)())), 1)
    paths = [tmp_path / f"events{form}" for form in (".keras", ".h5")]
    for path in paths:
        model.save(path)
    np.save(tmp_path / "events.npy", EVENTS), np.save(tmp_path / "classes.npy", CLASSES)
    has_lamb = hasattr(host.optimizers, "Lamb")
    code = ELSEWHERE.format(host=frontend, optimizer="Lamb" if has_lamb else "Adam")
    files = [tmp_path / "events.npy", tmp_path / "classes.npy", *paths]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, cwd=tmp_path,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    seen, is_imported = json.loads(done.stdout.splitlines()[-1])
    assert not is_imported
    for outputs, first, last in seen:
        np.testing.assert_allclose(outputs, model.predict(EVENTS, verbose=0), rtol=1e-5, atol=1e-6)
        assert last < first
