"""Kills the run of `make train` in the middle, resumes it, and compares it with one that was not.

    make train && python benchmarks/resume.py | tee benchmarks/logs/resume.log

Every variable of the last checkpoint is compared bit for bit: weights, slots, steps.
"""

import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

UNBROKEN, KILLED = ".build/bert_small", ".build/bert_small_killed"
COMMAND = [
    sys.executable, "-m", "tf_lamb.model_garden.train", "--experiment=lamb/bert_pretraining",
    "--config_file=model_garden_configs/bert_small_cpu.yaml", "--mode=train_and_eval",
    f"--model_dir={KILLED}", "--seed=1",
]  # fmt: skip


def kill_after_checkpoint(step):
    """Starts the run and kills it a while after the checkpoint of that step."""
    process = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(pathlib.Path(KILLED).glob(f"ckpt-{step}.index")):
        if process.poll() is not None:
            raise RuntimeError(f"The run ended by itself with {process.returncode}.")
        time.sleep(0.2)
    time.sleep(5)  # some steps further on
    process.send_signal(signal.SIGKILL)
    process.wait()
    print(f"SIGKILL after ckpt-{step}; exit status {process.returncode}", flush=True)


def variables(folder):
    checkpoint = tf.train.latest_checkpoint(folder)
    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    skip = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")  # how often it was saved, and how
    return checkpoint, {
        name: tf.train.load_variable(checkpoint, name)
        for name in names
        if not name.startswith(skip)
    }


def main():
    shutil.rmtree(KILLED, ignore_errors=True)
    print(f"TensorFlow {tf.__version__}, Python {platform.python_version()}, {platform.machine()}")
    for step in (150, 350):  # of those that the first run saves
        kill_after_checkpoint(step)
    subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (one, expected), (other, got) = variables(UNBROKEN), variables(KILLED)
    assert expected.keys() == got.keys()
    different = [
        n for n in expected if np.asarray(expected[n]).tobytes() != np.asarray(got[n]).tobytes()
    ]
    print(f"{one} against {other}: {len(expected)} variables, {len(different)} differ")
    print(*different, sep="\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
