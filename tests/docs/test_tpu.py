"""The page on TPUs: its script runs on two CPU devices, and its JAX model on eight."""

import os
import re
import subprocess
import sys

import pytest
from support.pages import ROOT, blocks

SCRIPT, JAX_MODEL = (text for _, text in blocks(ROOT / "docs" / "start" / "tpu.md", "python"))
OF_THE_TPU = re.compile(r"^resolver = .+?^strategy = .+?\n", re.DOTALL | re.MULTILINE)
# Reduced to one device: the CPU's collectives may wait for one another on a busy machine.
MIRRORED = """
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(
    ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
)
"""
LEGACY = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"'
BACKUP = 'tf_lamb.BackupAndRestore("backup")'
KILL = """tf.keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: epoch == 2 and os._exit(9)
)"""


def replaced(script, before, after):
    assert script.count(before) == 1, before
    return script.replace(before, after)


def run(script, folder, **environment):
    """(exit status, output) of a script in a process."""
    process = subprocess.run(
        [sys.executable, "-u", "-c", script], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip
    return process.returncode, process.stdout, process.stderr[-3000:]


def losses(output):
    """Epoch -> its loss, of what `fit` printed."""
    epochs = re.split(r"^Epoch (\d)/5$", output, flags=re.MULTILINE)
    pairs = zip(epochs[1::2], epochs[2::2], strict=True)
    return {int(epoch): re.findall(r"loss: ([\d.e-]+)", text) for epoch, text in pairs}


@pytest.mark.parametrize("keras", ["tf_keras", pytest.param("keras", marks=pytest.mark.slow)])
def test_the_script_resumes_after_a_kill(keras, tmp_path):
    """It is killed as its third epoch begins; the second run trains the last three of five."""
    (of_the_tpu,) = OF_THE_TPU.findall(SCRIPT)
    assert of_the_tpu.count("\n") == 4 and "TPUStrategy(resolver)" in of_the_tpu
    script = replaced(SCRIPT, of_the_tpu, MIRRORED)
    if keras == "keras":
        script = replaced(script, LEGACY, "")
    script += f'\nassert isinstance(model, __import__("{keras}").Model)'

    status, output, error = run(replaced(script, BACKUP, f"{BACKUP}, {KILL}"), tmp_path)
    assert status == 9, error
    before = losses(output)
    assert list(before) == [1, 2] or list(before) == [1, 2, 3] and not before[3]

    status, output, error = run(script, tmp_path)
    assert status == 0, error
    assert "LAMB at batch 512\n" in output  # 256 on each of two
    assert output.splitlines()[-1] == "320 updates at batch 512"  # 64 an epoch, all five
    after = losses(output)
    assert list(after) == [3, 4, 5]
    assert float(after[3][-1]) < float(before[2][-1])


def test_the_model_on_jax_is_on_all_devices(tmp_path):
    script = f"""{JAX_MODEL}
import numpy as np
model.fit(np.ones((16, 64)), np.ones((16, 8)), batch_size=16, verbose=0)
print(len(model.trainable_variables[0].value.sharding.device_set))
"""
    eight = "--xla_force_host_platform_device_count=8"
    status, output, error = run(script, tmp_path, KERAS_BACKEND="jax", XLA_FLAGS=eight)
    assert (status, output.strip()) == (0, "8"), error
