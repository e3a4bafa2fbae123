"""Killed at any moment, on a full disk, with a broken checkpoint, it ends the same."""

import os
import random
import re
import shutil
import signal
import time
import types

import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
import tf_keras
from official.core import train_utils
from official.modeling.optimization import lamb
from support import clusters, commands, garden, garden_runs
from support.crashing import full_disk
from support.frontends import uncompiled
from support.garden import EXPERIMENT, assert_same_bits, build, tiny

import tf_lamb.tf_keras
from tf_lamb.model_garden import train as train_command
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs, report
from tf_lamb.model_garden.running import runner


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
        (DATA, cut, 4), (DATA, flip, 4), (DATA, os.remove, 4), (INDEX, cut, 4),
        (INDEX, os.remove, 4), (NAMES, os.remove, 6), (NAMES, cut, 6),
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
    checkpoints.repair(str(three))
    assert checkpoints.steps_done(str(three)) == step
    after = contents(three)
    assert {path for path in before if before[path] != after[path]} <= {three / NAMES}
    # TensorFlow takes it from there, and removes in time what is older.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(three), max_to_keep=1)
    assert [*map(os.path.basename, manager.checkpoints)] == [
        f"ckpt-{n}" for n in (2, 4, 6) if n <= step
    ]


def test_a_folder_of_which_nothing_can_be_read_is_refused(three):
    for path in three.glob("ckpt-*.data*"):
        cut(path)
    before = contents(three)
    with pytest.raises(UserError, match="no checkpoint that can be read") as error:
        checkpoints.repair(str(three))
    assert str(three) in str(error.value) and "ckpt-6" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(three) == before


def test_killed_while_it_wrote_its_first_checkpoint_a_run_begins_anew(three):
    for path in three.iterdir():
        if path.name not in (INDEX, DATA):
            path.unlink()
    cut(three / INDEX)
    (three / "ckpt-8_temp").mkdir()
    (three / "ckpt-8_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    checkpoints.repair(str(three))
    assert checkpoints.steps_done(str(three)) == 0
    assert not (three / "ckpt-8_temp").exists()  # the size of a checkpoint for each kill


# What a run says of itself.


def test_params_are_written_whole(records, tmp_path, monkeypatch):
    params = build(tiny(records))
    monkeypatch.setattr(train_utils, "serialize_config", None)
    monkeypatch.setattr("official.core.train_lib.OrbitExperimentRunner", None)
    runner.install()
    train_utils.serialize_config(params, str(tmp_path))
    old = (tmp_path / "params.yaml").read_bytes()
    assert model_dirs.read_params(str(tmp_path)) == params.as_dict()
    params.trainer.train_steps = 77
    with full_disk(100), pytest.raises(UserError, match="params.yaml cannot be written"):
        train_utils.serialize_config(params, str(tmp_path))
    assert [*tmp_path.iterdir()] == [tmp_path / "params.yaml"]  # and no temporary file
    assert (tmp_path / "params.yaml").read_bytes() == old


# Whole runs, in this process.

STEPS = 8


def settings_of(records, train_steps=STEPS, **trainer):
    trainer = {
        "train_steps": train_steps, "steps_per_loop": 2, "checkpoint_interval": 2, "max_to_keep": 3,
        "validation_interval": STEPS, "validation_steps": 1, **trainer,
    }  # fmt: skip
    settings = tiny(records, **trainer)
    settings["task"]["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
    return settings


def train(records, folder, change=None, **trainer):
    params = build(settings_of(records, **trainer))
    params.override(change or {})
    more = {"save_summary": False, "enable_async_checkpointing": True}
    garden.run(params, folder, "train", **more)


@pytest.fixture(scope="module")
def unbroken(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    with uncompiled():
        train(records, folder)
    return folder


@pytest.fixture(scope="module")
def four_steps(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("four_steps")
    with uncompiled():
        train(records, folder, train_steps=4)
    return folder


@pytest.fixture
def begun(four_steps, tmp_path):
    """A run that left off after 4 of its steps."""
    return shutil.copytree(four_steps, tmp_path / "begun")


def test_with_a_truncated_checkpoint_it_ends_with_the_same_bits(records, unbroken, begun, eager):
    cut(begun / "ckpt-4.data-00000-of-00001")
    train(records, begun)
    assert_same_bits(unbroken, begun)


def test_a_full_disk_costs_no_checkpoint(records, unbroken, begun, eager):
    """Two fail: TensorFlow says of a checkpoint that another thread saves when the next is due."""
    before = contents(begun)
    with full_disk(), pytest.raises(UserError, match="no checkpoint can be saved") as error:
        train(records, begun)
    assert str(begun) in str(error.value) and "\n" not in str(error.value)
    assert before.items() <= contents(begun).items()
    train(records, begun)
    assert_same_bits(unbroken, begun)


def of_another_model(model):
    return {"task": {"model": {"encoder": {"bert": model}}}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (of_another_model({"num_layers": 2}), "it lacks 18 variables of it"),
        (of_another_model({"hidden_size": 16}), "(16, 8)"),
        ({"task": {"model": {"cls_heads": []}}}, "4 variables more, model/classification_heads"),
    ],
    ids=["deeper", "wider", "headless"],
)
def test_a_checkpoint_of_another_model_is_refused(records, begun, change, expected):
    before = contents(begun)
    with pytest.raises(UserError, match="not a checkpoint of this model") as error:
        train(records, begun, change=change)
    assert expected in str(error.value) and "ckpt-4" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(begun) == before


def test_a_checkpoint_of_another_optimizer_is_refused_with_the_way_out(tmp_path):
    """A main program of one's own does not compare the settings before."""
    model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
    step = tf.Variable(0, dtype=tf.int64)

    def saved(optimizer):
        return tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=step)

    theirs, ours = lamb.LAMB(0.1), tf_lamb.tf_keras.LAMB(0.1)
    theirs.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    ours.build(model.trainable_variables)
    path = saved(theirs).save(str(tmp_path / "ckpt"))
    manager = checkpoints.Manager(
        saved(ours), str(tmp_path), max_to_keep=1, step_counter=step, model_dir=str(tmp_path)
    )
    with pytest.raises(UserError, match="has this model's weights, but the state of another") as e:
        manager.restore(path)
    assert f"write task.init_checkpoint={path} and choose another --model_dir" in str(e.value)


# What a command makes of the folder, up to where Model Garden takes over.


@pytest.fixture
def begin(records, monkeypatch):
    """Calls `train.run` with a mode and a folder; returns what Model Garden's main is given."""

    def run(mode, folder, **changes):
        params = build(settings_of(records, **changes))
        args = types.SimpleNamespace(
            mode=mode, model_dir=str(folder), experiment=EXPERIMENT, seed=None
        )
        given = []
        monkeypatch.setattr(train_command, "flags", types.SimpleNamespace(FLAGS=args))
        main = lambda _: given.append((args.model_dir, runner.Runner.evaluated))  # noqa: E731
        monkeypatch.setattr("official.nlp.train.main", main)
        garden.restore_after(monkeypatch)
        monkeypatch.setattr(report, "report", lambda folder: f"report of {folder}")
        with Console() as console:
            train_command.run(console, params)
        return given

    return run


def test_who_follows_a_run_is_told_how_long_it_waits(begin, three, records, capsys):
    model_dirs.write_params(build(settings_of(records)), str(three))
    assert begin("continuous_eval", three, continuous_eval_timeout=1800)
    said = f"Waiting for each checkpoint in {three}, 1,800 seconds at the most (trainer.continuous_"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("leftover", [None, NAMES, INDEX], ids=["new", "names none", "half"])
def test_an_evaluation_without_a_checkpoint_is_refused(begin, tmp_path, leftover):
    folder = tmp_path / "new"
    if leftover:
        folder.mkdir()
        (folder / leftover).write_bytes(b"")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="no checkpoint (to evaluate|that can be read)") as error:
        begin("eval", folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)
    assert contents(tmp_path) == before and folder.exists() == bool(leftover)


@pytest.mark.parametrize(
    ("name", "damage", "step"), [(DATA, cut, 4), (INDEX, cut, 4), (NAMES, os.remove, 6)]
)
def test_an_evaluation_takes_the_last_checkpoint_that_is_whole(begin, three, name, damage, step):
    """It writes nothing of it down: a training may be at work there."""
    damage(three / name)
    (three / "ckpt-8_temp").mkdir()
    before = contents(three)
    assert begin("eval", three) == [(str(three), str(three / f"ckpt-{step}"))]
    assert contents(three).keys() - before.keys() == {three / "eval.log"}
    assert before.items() <= contents(three).items() and (three / "ckpt-8_temp").exists()


def test_a_folder_that_cannot_be_written_is_evaluated_and_not_trained(
    begin, three, monkeypatch, capsys
):
    assert checkpoints.is_writable(str(three)) and not checkpoints.is_writable("/proc/self")
    monkeypatch.setattr(checkpoints, "is_writable", lambda folder: False)
    before = contents(three)
    ((folder, checkpoint),) = begin("eval", three)
    assert checkpoint == str(three / "ckpt-6") and os.listdir(folder) == ["eval.log"]
    assert f"{three} cannot be written: all that this evaluation writes goes to {folder}" in (
        capsys.readouterr().out
    )
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="cannot be written. Choose another one"):
        begin("train", three.parent / "new")
    assert contents(three) == before


def test_a_finished_run_prints_one_line(begin, begun, records, capsys):
    model_dirs.write_params(build(settings_of(records, train_steps=4)), str(begun))
    with pytest.raises(UserError, match="taken 4 steps, more than trainer.train_steps=2"):
        begin("train", begun, train_steps=2)
    before = contents(begun)
    assert begin("train", begun, train_steps=4) == []
    said = capsys.readouterr().out
    assert "Training is over at step 4: a larger trainer.train_steps goes on\nreport of" in said
    new = {path.name for path in contents(begun).keys() - before.keys()}
    assert new == {"train.log", "tf_lamb_run.lock"}
    for evaluated, taken_over in ((2, True), (4, False)):  # its last evaluation is due, or made
        model_dirs.write_evaluated(str(begun), evaluated)
        assert bool(begin("train_and_eval", begun, train_steps=4)) == taken_over


# Whole runs, as commands.


def command(records, model_dir, **runtime):
    """`tf_lamb.model_garden.train` and its flags, with a config beside the folder."""
    settings = settings_of(records, train_steps=12)
    settings["runtime"] |= {"distribution_strategy": "off", **runtime}
    config = model_dir.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings))
    return "tf_lamb.model_garden.train", [
        f"--experiment={EXPERIMENT}", f"--config_file={config}", "--mode=train",
        f"--model_dir={model_dir}", "--seed=1",
    ]  # fmt: skip


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bits(records, tmp_path):
    """`benchmarks/fuzz/kills.py` at a small size."""
    code, said = commands.run(*command(records, tmp_path / "whole"))
    assert code == 0, said[-2000:]
    assert "steps               12 of 12" in said
    log = (tmp_path / "whole" / "train.log").read_text()
    assert "saved checkpoint to" in log and "saved checkpoint to" not in said
    assert len(said.splitlines()) <= 20 and "step 12/12, 00:00 left, loss " in said

    folder = tmp_path / "killed"
    module, flags = command(records, folder)
    # Of what AutoGraph writes of the model, which is built before params.yaml is written; then of
    # the first checkpoint.
    for byte in (2000, 30_000):
        dead = commands.started(module, [*flags, "--verbosity=-2"], byte)  # the log is short
        dead.join(300)
        assert dead.exitcode == -signal.SIGXFSZ
        assert checkpoints.steps_done(str(folder)) == 0
    assert (folder / "params.yaml").exists()
    moments = random.Random(1)
    said = tmp_path / "said"
    for step, number, code in ((2, signal.SIGKILL, -signal.SIGKILL), (6, signal.SIGINT, 130)):
        process = commands.started(*command(records, folder), output=said)
        commands.wait_for_step(process, folder, step)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(process.pid, number)
        process.join()
        assert process.exitcode == code
    killed_at = checkpoints.steps_done(str(folder))
    last = said.read_text().splitlines()[-1]
    assert re.fullmatch(
        rf"Stopped at step \d+\. The same command goes on from {folder}/ckpt-\d+", last
    )
    code, said = commands.run(module, flags[:-1])  # it knows its seed
    assert code == 0, said[-2000:]
    assert f"Going on from ckpt-{killed_at}" in said
    assert_same_bits(tmp_path / "whole", folder)


def two_workers(records, folder):
    """Both processes; the first is the chief."""
    line = command(records, folder, distribution_strategy="multi_worker_mirrored")
    return [commands.started(*line, **own) for own in clusters.workers(2)]


def ended(process):
    process.join(300)
    return process.exitcode


@pytest.mark.slow
def test_either_of_two_workers_may_be_killed(records, tmp_path):
    assert [*map(ended, two_workers(records, tmp_path / "whole"))] == [0, 0]
    folder = tmp_path / "killed"
    for step, victim in ((2, 1), (6, 0)):
        workers = two_workers(records, folder)
        commands.wait_for_step(workers[victim], folder, step)
        workers[victim].kill()
        try:
            assert ended(workers[1 - victim]) not in (0, None)  # it cannot go on alone
        finally:
            workers[1 - victim].kill()
    assert 6 <= checkpoints.steps_done(str(folder)) < 12
    assert [*map(ended, two_workers(records, folder))] == [0, 0]
    assert_same_bits(tmp_path / "whole", folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return garden_runs.write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_a_drawn_run_is_as_promised(seed, data, tmp_path):
    """`benchmarks/fuzz/garden_fuzz.py` draws more."""
    garden_runs.check(garden_runs.draw(seed, data), tmp_path)
