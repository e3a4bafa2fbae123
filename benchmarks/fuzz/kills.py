"""Kills the small BERT's run 50 times at random moments, and compares what is left in the end.

    python -m tf_lamb.model_garden.sample_data --output_dir=.build/data
    python -m benchmarks.fuzz.kills | tee benchmarks/logs/kills.log

One run goes through unbroken. The other is sent SIGKILL again and again, and started again at once
with the same command:

*   some time after its start, in which it may import, build, restore, train or save;
*   when it begins to write a checkpoint, or a little later;
*   when it begins to write what it says of itself: params.yaml and tf_lamb_run.json.

Every variable of the two last checkpoints is compared bit for bit: weights, slots, steps.
"""

import contextlib
import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf
from tqdm import tqdm

UNBROKEN, KILLED = pathlib.Path(".build/kills/unbroken"), pathlib.Path(".build/kills/killed")
KINDS = ["any moment"] * 20 + ["checkpoint"] * 24 + ["settings"] * 6
SEED, STEPS, EVERY = 1, 300, 5
# Shorter than in the config, and saved so often that most kills leave some progress behind.
OVERRIDE = (
    f"trainer.train_steps={STEPS},trainer.steps_per_loop={EVERY},"
    f"trainer.checkpoint_interval={EVERY},trainer.summary_interval=50,"
    "trainer.validation_interval=100"
)
# What Orbit's log says last, in the words of a user.
PHASES = {
    "restoring or initializing": "restoring",
    "train | step": "training",
    "saved checkpoint": "training",
    "eval | step": "evaluating",
    "Saving gin": "ending",
}


def command(folder):
    return [
        sys.executable, "-m", "tf_lamb.model_garden.train", "--experiment=lamb/bert_pretraining",
        "--config_file=model_garden_configs/bert_small_cpu.yaml", "--mode=train_and_eval",
        f"--params_override={OVERRIDE}", f"--model_dir={folder}", f"--seed={SEED}",
    ]  # fmt: skip


def start(folder, log):
    with open(log, "wb") as file:
        return subprocess.Popen(command(folder), stdout=file, stderr=file)


def contents(folder):
    """File -> when it was changed; what is gone by the time it is looked at is left out."""
    found = {}
    for entry in os.scandir(folder) if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError):
            found[entry.name] = entry.stat().st_mtime_ns
    return found


def run_unbroken(log):
    """Returns the seconds to its first checkpoint."""
    began, first = time.monotonic(), None
    process = start(UNBROKEN, log)
    with tqdm(total=STEPS, desc="unbroken run", unit="step") as bar:
        while process.poll() is None:
            time.sleep(0.1)
            if done := step_of(UNBROKEN):
                first = first or time.monotonic() - began
                bar.update(done - bar.n)
    if process.returncode:
        sys.exit(f"The unbroken run failed: {log.read_text()[-2000:]}")
    return first, time.monotonic() - began


def step_of(folder):
    checkpoint = tf.train.latest_checkpoint(folder)
    return int(checkpoint.rpartition("-")[2]) if checkpoint else 0


def wait_for(kind, process, moments, first_checkpoint):
    """Returns at the moment at which to kill, or when the process has ended by itself.

    It answers with the seconds from a start to the first checkpoint as they are now, for a machine
    with other work has its slow hours.
    """
    began = time.monotonic()
    if kind == "any moment":
        moment = moments.uniform(0, 1.25 * first_checkpoint)
        while process.poll() is None and time.monotonic() - began < moment:
            time.sleep(0.01)
        return first_checkpoint
    names = ("ckpt-", "checkpoint.tmp") if kind == "checkpoint" else ("params", "tf_lamb_run")
    writes, before, seen = moments.randint(1, 5), contents(KILLED), None
    while process.poll() is None:
        now = contents(KILLED)
        if any(n.startswith(names) and now[n] != before.get(n) for n in now):
            seen = seen or time.monotonic() - began
            writes -= 1
            if kind == "settings" or not writes:
                break
            time.sleep(0.3)  # over the rest of this one
            now = contents(KILLED)
        before = now
        time.sleep(0.0005)
    time.sleep(moments.choice((0, moments.uniform(0, 0.03))))
    return seen if kind == "checkpoint" else first_checkpoint


def phase(log, before):
    """What the process was doing, by its log and what it left unfinished."""
    state = tf.train.get_checkpoint_state(KILLED)
    finished = [*(state.all_model_checkpoint_paths if state else [])]
    finished = {os.path.basename(path) for path in finished}
    now = contents(KILLED)
    unfinished = sorted(
        name
        for name in now
        if now[name] != before.get(name)
        and (name.startswith("checkpoint.tmp") or (
            name.startswith("ckpt-") and name.partition(".")[0] not in finished))
    )  # fmt: skip
    if unfinished:
        return f"writing {', '.join(unfinished)}"
    text = log.read_text(errors="replace") if log.exists() else ""
    last = max((text.rfind(said), meaning) for said, meaning in PHASES.items())
    return last[1] if last[0] >= 0 else "importing or building"


def kill(number, kind, moments, first_checkpoint, log):
    """Starts the run, or goes on with it, and kills it; returns when a checkpoint is due."""
    told = KILLED / "train.log"
    told.unlink(missing_ok=True)
    done, before = step_of(KILLED), contents(KILLED)
    began, process = time.monotonic(), start(KILLED, log)
    first_checkpoint = wait_for(kind, process, moments, first_checkpoint)
    seconds = time.monotonic() - began
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        sys.exit(f"It ended by itself with {process.returncode}: {log.read_text()[-2000:]}")
    print(
        f"{number:2}  {kind:<10}  {seconds:6.2f} s  from step {done:3} to {step_of(KILLED):3}  "
        f"{phase(told, before)}",
        flush=True,
    )
    return first_checkpoint


def variables(folder):
    checkpoint = tf.train.latest_checkpoint(folder)
    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    skip = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")  # how often it was saved, and how
    return checkpoint, {
        name: tf.train.load_variable(checkpoint, name)
        for name in names
        if not name.startswith(skip)
    }


def compare():
    """Prints which variables differ, and returns them."""
    (one, expected), (other, got) = variables(UNBROKEN), variables(KILLED)
    assert expected.keys() == got.keys()
    different = [
        n for n in expected if np.asarray(expected[n]).tobytes() != np.asarray(got[n]).tobytes()
    ]
    print(f"{one} against {other}: {len(expected)} variables, {len(different)} differ")
    print(*different, sep="\n")
    return different


def main():
    for folder in (UNBROKEN, KILLED):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"TensorFlow {tf.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print(f"bert_small_cpu.yaml with {OVERRIDE}", flush=True)
    log = KILLED.parent / "run.log"
    first, seconds = run_unbroken(log)
    print(f"unbroken: {seconds:.0f} s, the first checkpoint after {first:.1f} s", flush=True)

    moments, kinds = random.Random(SEED), list(KINDS)
    moments.shuffle(kinds)
    print(" #  aimed at    after       checkpoint               while")
    for number, kind in enumerate(tqdm(kinds, desc="kills", unit="kill"), 1):
        first = kill(number, kind, moments, first, log)
    if start(KILLED, log).wait():
        sys.exit(f"After {len(kinds)} kills it did not resume: {log.read_text()[-2000:]}")
    print(f"{len(kinds)} kills, {len(kinds)} resumes; the last went on to step {step_of(KILLED)}")
    sys.exit(bool(compare()))


if __name__ == "__main__":
    main()
