"""Door 3: killed at any moment, on a full disk, with a broken checkpoint, it ends the same."""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
import tf_keras
from official.core import task_factory, train_utils
from support.crashing import full_disk
from support.garden import (
    EXPERIMENT,
    build,
    checkpoint,
    environment,
    mirrored,
    one_device,
    run_command,
    tiny,
)

from tf_lamb.model_garden import checkpoints, checks, model_dirs, parsing, runner, tasks


def contents(folder):
    """File -> its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# A folder of checkpoints, of which something is broken.


@pytest.fixture
def three(tmp_path):
    """Checkpoints of steps 2, 4 and 6, each of which holds its step."""
    step = tf.Variable(0, dtype=tf.int64)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(global_step=step), str(tmp_path), max_to_keep=5
    )
    for number in (2, 4, 6):
        step.assign(number)
        manager.save(checkpoint_number=number)
    return tmp_path


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


NAMES, INDEX, DATA = "checkpoint", "ckpt-6.index", "ckpt-6.data-00000-of-00001"


@pytest.mark.parametrize(
    ("name", "damage", "step"),
    [
        (DATA, cut, 4),
        (DATA, flip, 4),
        (DATA, os.remove, 4),
        (INDEX, cut, 4),
        (INDEX, os.remove, 4),
        (NAMES, os.remove, 6),
        (NAMES, cut, 6),
        (NAMES, lambda path: path.write_bytes(b""), 6),
        (NAMES, lambda path: path.write_bytes(bytes(range(128, 256))), 6),
        (NAMES, lambda path: path.write_text("model_checkpoint_path: 'ckpt-8'"), 6),
    ],
    ids=["data cut", "data flipped", "no data", "index cut", "no index", "unnamed", "name cut",
         "name empty", "name no text", "name of none"],
)  # fmt: skip
def test_a_run_goes_on_from_the_last_checkpoint_that_is_whole(three, name, damage, step):
    damage(three / name)
    before = contents(three)
    checkpoints.settle(str(three))
    assert tasks.steps_done(str(three)) == step
    after = contents(three)
    assert {path for path in before if before[path] != after[path]} <= {three / NAMES}
    # TensorFlow takes it from there, and removes in time what is older.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(three), max_to_keep=1)
    assert [*map(os.path.basename, manager.checkpoints)] == [
        f"ckpt-{n}" for n in (2, 4, 6) if n <= step
    ]


def test_what_is_whole_is_left_alone(three):
    before = contents(three)
    checkpoints.settle(str(three))
    assert contents(three) == before


def test_a_folder_of_which_nothing_can_be_read_is_refused(three):
    for path in three.glob("ckpt-*.data*"):
        cut(path)
    before = contents(three)
    with pytest.raises(parsing.UserError, match="no checkpoint that can be read") as error:
        checkpoints.settle(str(three))
    assert str(three) in str(error.value) and "ckpt-6" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(three) == before


def test_a_folder_whose_checkpoint_is_gone_is_refused(three):
    for path in three.glob("ckpt-*"):
        path.unlink()
    with pytest.raises(parsing.UserError, match="names none that is there"):
        checkpoints.settle(str(three))


def test_killed_while_it_wrote_its_first_checkpoint_a_run_begins_anew(three):
    for path in three.iterdir():
        if path.name not in (INDEX, DATA):
            path.unlink()
    cut(three / INDEX)
    (three / "ckpt-8_temp").mkdir()
    (three / "ckpt-8_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    checkpoints.settle(str(three))
    assert tasks.steps_done(str(three)) == 0
    assert not (three / "ckpt-8_temp").exists()  # the size of a checkpoint for each kill


def test_a_folder_that_is_not_there_yet_is_none_of_its_business(tmp_path):
    checkpoints.settle(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


# What a run says of itself.


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "file"
    for text in ("old", "new"):
        with checkpoints.whole(str(path)) as beside:
            pathlib.Path(beside).write_text(text)
        assert path.read_text() == text
    with pytest.raises(KeyboardInterrupt), checkpoints.whole(str(path)) as beside:
        pathlib.Path(beside).write_text("ha")
        raise KeyboardInterrupt
    assert path.read_text() == "new"


def test_params_are_written_whole(records, tmp_path, monkeypatch):
    params = build(tiny(records))
    monkeypatch.setattr(train_utils, "serialize_config", None)
    monkeypatch.setattr("official.core.train_lib.OrbitExperimentRunner", None)
    runner.install()
    train_utils.serialize_config(params, str(tmp_path))
    old = (tmp_path / "params.yaml").read_bytes()
    assert model_dirs.read_params(str(tmp_path)) == params.as_dict()
    params.trainer.train_steps = 77
    with full_disk(100), pytest.raises(parsing.UserError, match="params.yaml cannot be written"):
        train_utils.serialize_config(params, str(tmp_path))
    assert (tmp_path / "params.yaml").read_bytes() == old


# Whole runs, in this process.


def settings_of(records, **trainer):
    trainer = {
        "train_steps": 12, "steps_per_loop": 2, "checkpoint_interval": 2, "max_to_keep": 3,
        "validation_interval": 12, "validation_steps": 1, **trainer,
    }  # fmt: skip
    settings = tiny(records, **trainer)
    settings["task"]["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
    return settings


def train(records, model_dir, strategy=None, asynchronous=True, change=None, **trainer):
    """What `tf_lamb.model_garden.train` does with a folder, without its start."""
    settings = settings_of(records, **trainer)
    params = build(settings)
    params.override(change or {})
    strategy, model_dir = strategy or one_device(), str(model_dir)
    checkpoints.settle(model_dir)
    with strategy.scope():
        tf_keras.utils.set_random_seed(1)
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    runner.Runner(
        strategy, task, "train", params, model_dir, save_summary=False,
        enable_async_checkpointing=asynchronous,
    ).run()  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    train(records, folder)
    return folder


def assert_same_bits(one, other):
    expected, got = checkpoint(one), checkpoint(other)
    assert expected.keys() == got.keys()
    different = [n for n in expected if expected[n].tobytes() != got[n].tobytes()]
    assert not different
    assert any(name.startswith("optimizer/_variables") for name in expected)


def test_with_a_truncated_checkpoint_it_ends_with_the_same_bits(records, unbroken, tmp_path):
    train(records, tmp_path, train_steps=8)
    cut(tmp_path / "ckpt-8.data-00000-of-00001")
    train(records, tmp_path)
    assert_same_bits(unbroken, tmp_path)


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_full_disk_costs_no_checkpoint(records, unbroken, tmp_path, asynchronous):
    train(records, tmp_path, train_steps=6)
    before = contents(tmp_path)
    with full_disk(), pytest.raises(parsing.UserError, match="no checkpoint can be saved") as error:
        train(records, tmp_path, asynchronous=asynchronous)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    assert before.items() <= contents(tmp_path).items()
    train(records, tmp_path, asynchronous=asynchronous)
    assert_same_bits(unbroken, tmp_path)


def of_another_model(model):
    return {"task": {"model": {"encoder": {"bert": model}}}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [(of_another_model({"num_layers": 2}), "it lacks 18 variables of it"),
     (of_another_model({"hidden_size": 16}), "(16, 8)")],
    ids=["deeper", "wider"],
)  # fmt: skip
def test_a_checkpoint_of_another_model_is_refused(records, unbroken, tmp_path, change, expected):
    folder = shutil.copytree(unbroken, tmp_path / "copy")
    before = contents(folder)
    with pytest.raises(parsing.UserError, match="not a checkpoint of this model") as error:
        train(records, folder, change=change, train_steps=20)
    assert expected in str(error.value) and "ckpt-12" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(folder) == before


def test_a_checkpoint_of_weights_alone_is_refused(records, tmp_path):
    tf.train.CheckpointManager(
        tf.train.Checkpoint(v=tf.Variable(1.0)), str(tmp_path), max_to_keep=1
    ).save()
    with pytest.raises(parsing.UserError, match="it lacks .*, .* for one"):
        train(records, tmp_path)


def test_half_a_note_on_the_best_checkpoint_is_refused(records, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "info.json").write_text('{"validation_loss": 1.')
    with pytest.raises(parsing.UserError, match="best/info.json cannot be read: .* Delete it"):
        train(records, tmp_path, best_checkpoint_export_subdir="best",
              best_checkpoint_eval_metric="validation_loss")  # fmt: skip


def test_what_may_change_does_not_make_it_another_model(records, unbroken, tmp_path):
    folder = shutil.copytree(unbroken, tmp_path / "copy")
    rate = {"type": "constant", "constant": {"learning_rate": 0.1}}
    change = {"trainer": {"optimizer_config": {"learning_rate": rate, "warmup": {"type": None}}}}
    train(records, folder, change=change, train_steps=14)
    assert tasks.steps_done(str(folder)) == 14


def test_replicas_resume_too(records, tmp_path):
    for steps in (2, 4):
        train(records, tmp_path, mirrored(2), train_steps=steps)
        assert tasks.steps_done(str(tmp_path)) == steps


def test_a_first_stage_that_cannot_be_read(records, unbroken, tmp_path):
    folder = shutil.copytree(unbroken, tmp_path / "copy")
    cut(folder / "ckpt-12.data-00000-of-00001")
    params = build(tiny(records))
    params.task.init_checkpoint = str(folder)
    with pytest.raises(parsing.UserError, match="cannot be read: .*another checkpoint") as error:
        checks.check(params, "train", str(tmp_path / "second"), EXPERIMENT)
    assert f"task.init_checkpoint={folder}" in str(error.value)
    assert "\n" not in str(error.value)


# Whole runs, as commands.


def command(records, model_dir, **runtime):
    """Flags of `tf_lamb.model_garden.train`, with a config beside the folder."""
    settings = settings_of(records)
    settings["runtime"] |= {"distribution_strategy": "off", **runtime}
    config = model_dir.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings))
    return [
        sys.executable, "-m", "tf_lamb.model_garden.train", f"--experiment={EXPERIMENT}",
        f"--config_file={config}", "--mode=train", f"--model_dir={model_dir}", "--seed=1",
    ]  # fmt: skip


def dying_at_byte(command, limit):
    code = (
        "import runpy, sys; from crashing import die_at_byte; "
        f"die_at_byte({limit}); sys.argv[:1] = []; "
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, *command[2:]]


def started(command, **env):
    path = os.pathsep.join([os.path.dirname(__file__), environment()["PYTHONPATH"]])
    return subprocess.Popen(
        command, env={**environment(), "PYTHONPATH": path, **env},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for_step(process, model_dir, step):
    """Returns as soon as the folder names a checkpoint of that step."""
    while process.poll() is None and tasks.steps_done(str(model_dir)) < step:
        time.sleep(0.01)
    assert process.poll() is None, "it was over before it could be killed"


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bits(records, tmp_path):
    """`benchmarks/kills.py` at a small size."""
    whole = run_command(command(records, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr[-2000:]

    folder = tmp_path / "killed"
    for byte in (2000, 20_000):  # of params.yaml, then of the first checkpoint
        dead = started(dying_at_byte(command(records, folder), byte))
        assert dead.wait(timeout=300) == -signal.SIGXFSZ
        assert tasks.steps_done(str(folder)) == 0
    assert (folder / "params.yaml").exists()
    moments = random.Random(1)
    for step in (2, 6):
        process = started(command(records, folder))
        wait_for_step(process, folder, step)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    ended = run_command(command(records, folder))
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert_same_bits(tmp_path / "whole", folder)


def two_workers(records, folder):
    """Both processes; the first is the chief."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(2)]
    hosts = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for held in sockets:
        held.close()
    line = command(records, folder, distribution_strategy="multi_worker_mirrored")
    tasks = [{"type": "worker", "index": i} for i in range(2)]
    return [
        started(line, TF_CONFIG=json.dumps({"cluster": {"worker": hosts}, "task": task}))
        for task in tasks
    ]


@pytest.mark.slow
def test_either_of_two_workers_may_be_killed(records, tmp_path):
    assert [w.wait(timeout=300) for w in two_workers(records, tmp_path / "whole")] == [0, 0]
    folder = tmp_path / "killed"
    for step, victim in ((2, 1), (6, 0)):
        workers = two_workers(records, folder)
        wait_for_step(workers[victim], folder, step)
        workers[victim].kill()
        try:
            assert workers[1 - victim].wait(timeout=120) != 0  # it cannot go on alone
        finally:
            workers[1 - victim].kill()
    assert 6 <= tasks.steps_done(str(folder)) < 12
    assert [w.wait(timeout=300) for w in two_workers(records, folder)] == [0, 0]
    assert_same_bits(tmp_path / "whole", folder)
