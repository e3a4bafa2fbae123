"""The page on a loop of one's own: each script runs as it stands, and ends where `fit` does."""

import os
import subprocess
import sys

import keras
import pytest
from support.pages import ROOT, blocks

TENSORFLOW, JAX = (text for _, text in blocks(ROOT / "docs" / "start" / "custom_loop.md", "python"))
BUILD = "optimizer.build(model.trainable_variables)\n"
# What a reader finds who trains the same model with the same batches by `fit`.
BY_FIT = """
fitted = keras.models.clone_model(model)
fitted.set_weights(first)
fitted.compile(type(optimizer).from_config(optimizer.get_config()), loss_of)
fitted.fit(x, y, batch_size=64, epochs=epochs, shuffle=False, verbose=0)

assert int(optimizer.iterations) == int(fitted.optimizer.iterations) == updates == 80
for looped, expected in zip(model.get_weights(), fitted.get_weights(), strict=True):
    np.testing.assert_allclose(looped, expected, rtol=1e-3, atol=1e-4)
assert np.abs(first[0] - model.get_weights()[0]).max() > 0.01
assert np.mean(np.argmax(model.predict(x, verbose=0), 1) == y) > 0.9
"""


def checked(script):
    """The script, which remembers the weights of its beginning, and the comparison behind it."""
    assert script.count(BUILD) == 1
    return script.replace(BUILD, f"{BUILD}first = model.get_weights()\n") + BY_FIT


@pytest.mark.filterwarnings("error::UserWarning")
def test_the_loop_of_tensorflow_ends_where_fit_does():
    keras.utils.set_random_seed(0)
    exec(checked(TENSORFLOW), {})


def test_with_tf_keras_the_loop_changes_as_the_page_says():
    script = checked(TENSORFLOW)
    for before, after in (
        ("import keras\n", "import tf_keras as keras\n"), ("tf_lamb.LAMB", "tf_lamb.tf_keras.LAMB")
    ):  # fmt: skip
        assert script.count(before) == 1
        script = script.replace(before, after)
    keras.utils.set_random_seed(0)
    exec(script, {})


@pytest.mark.slow
def test_the_loop_of_jax_ends_where_fit_does(tmp_path):
    """In a process of its own, which has another backend."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", checked(JAX)], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("epoch ") == 10
