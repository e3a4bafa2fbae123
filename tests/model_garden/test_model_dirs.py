"""A folder that holds a run, with whom it goes on, and what is reported of it."""

import errno
import glob
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import train_utils
from support.garden import EXPERIMENT, ROOT, build, one_device, optimizer, tiny, trainer_of

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments.schedule_configs import jump
from tf_lamb.model_garden.folders import model_dirs, report


def _begun(params, model_dir):
    train_utils.serialize_config(params, str(model_dir))
    model_dirs.write_run(str(model_dir), EXPERIMENT, 1)
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(3, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(model_dir), max_to_keep=1).save()


@pytest.mark.parametrize(("done", "steps", "rates"), [(20, 40, (0.0, 0.005)), (10, 20, None)])
def test_a_rate_that_jumps_where_a_run_goes_on_is_told(records, done, steps, rates):
    settings = tiny(records, train_steps=20, optimizer_config={"warmup": {"type": None}})
    before = build(settings).as_dict()
    decay = {"tf_lamb_polynomial": {"initial_learning_rate": 0.01, "steps": steps}}
    settings["trainer"]["optimizer_config"]["learning_rate"] = decay
    settings["trainer"]["train_steps"] = 2 * steps
    config = build(settings).trainer.optimizer_config
    said = jump(before, config, done)
    if rates is None:
        assert said is None
        return
    assert said == (
        "The learning rate jumps from {:.3g} to {:.3g} at step 20, because learning_rate.tf_lamb_"
        "polynomial.steps was 20 and is 40".format(*rates)
    )
    assert jump(before, config, 0) is None  # nothing has been trained
    warmed = config.replace(warmup={"type": "linear", "linear": {"warmup_steps": 10}})
    assert "warmup.type was None and is linear" in jump(before, warmed, done)


def test_patterns_keep_their_order(records, tmp_path):
    """The first that matches counts, in a YAML and in a run from the params.yaml of another."""
    settings = tiny(records)
    treatments = {"kernel": {"rate": 0.25}, ".": {"rate": 2.0}}
    settings["trainer"]["optimizer_config"] |= optimizer(treatments=treatments)
    params = build(settings)
    model_dirs.write_params(params, str(tmp_path))
    for each in (params, build(model_dirs.read_params(str(tmp_path)))):
        own = each.trainer.optimizer_config.optimizer.get()
        assert [*own.treatments.as_dict().items()] == [*treatments.items()]


def _ours(**fields):
    return {"trainer": {"optimizer_config": optimizer(**fields)}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"task": {"model": {"encoder": {"bert": {"hidden_size": 16}}}}}, "hidden_size is 8"),
        ({"task": {"train_data": {"global_batch_size": 16}}}, "global_batch_size is 8, yours 16"),
        ({"trainer": {"optimizer_config": {"optimizer": {"type": "adamw"}}}}, "'tf_lamb', yours"),
        ({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}}, "ema is 'not set'"),
        ({"runtime": {"mixed_precision_dtype": "float16"}}, "'not float16', yours 'float16'"),
        (_ours(dtypes={"slots": "bfloat16"}), "dtypes.slots is 'float32', yours 'bfloat16'"),
        (_ours(measure_noise={"enabled": True}, gradient_accumulation_steps=2),
         "tf_lamb.measure_noise.enabled is False, yours True"),
        (_ours(adascale={"scale": 2, "base_steps": 20}, gradient_accumulation_steps=2),
         "tf_lamb.adascale.scale is 'not set', yours 'set'"),
    ],
)  # fmt: skip
def test_a_model_dir_of_another_run(records, tmp_path, change, expected):
    params = build(tiny(records))
    _begun(params, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    params.override(change)
    with pytest.raises(UserError, match="delete this one") as error:
        check_run(params, "train", str(tmp_path), EXPERIMENT)
    assert expected in str(error.value)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (("bert/pretraining",), "holds the experiment lamb/bert_pretraining"),
        ((EXPERIMENT, 2), "begun with --seed=1, not 2"),
    ],
    ids=["experiment", "seed"],
)
def test_a_model_dir_of_another_experiment_or_seed(records, tmp_path, begins, words):
    params = build(tiny(records))
    _begun(params, tmp_path)
    with pytest.raises(UserError, match=words):
        check_run(params, "train", str(tmp_path), *begins)


def test_a_model_dir_without_params(records, tmp_path):
    params = build(tiny(records))
    _begun(params, tmp_path)
    os.remove(tmp_path / "params.yaml")
    with pytest.raises(UserError, match="a checkpoint but no params.yaml"):
        check_run(params, "train", str(tmp_path), EXPERIMENT)


# Two runs in one folder.

HOLDS = """
import sys
from tf_lamb.model_garden.folders import model_dirs
model_dirs.lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_run_in_a_folder_is_refused_while_the_first_lives(tmp_path):
    folder = tmp_path / "model"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match="another run trains in it") as error:
            model_dirs.lock(str(folder))
        (line,) = str(error.value).splitlines()
        assert f"--model_dir={folder}" in line and f"process {first.pid} on" in line
    finally:
        first.kill()  # and nothing is left of its lock
        first.communicate()
    model_dirs.lock(str(folder))
    model_dirs.lock(str(folder))  # the same run, once more


def test_a_file_system_without_locks_stops_no_run(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(model_dirs.fcntl, "flock", refuse)
    model_dirs.lock(str(tmp_path / "model"))
    model_dirs.lock(str(tmp_path / "model"))
    (file,) = (tmp_path / "model").iterdir()
    assert file.read_text() == ""


def test_the_report_reads_a_run_that_was_killed(tmp_path):
    for values in ({1: 9.0, 2: 8.0}, {2: 7.0, 3: 6.0}):
        time.sleep(1.1)  # the name of an event file holds the second
        with tf.summary.create_file_writer(str(tmp_path)).as_default():
            for step, value in values.items():
                tf.summary.scalar("training_loss", value, step=step)
    first = sorted(glob.glob(str(tmp_path / "events*")))[0]
    with open(first, "ab") as file:
        file.write(b"\x10\x00\x00")  # half a record
    assert report.read_scalars(str(tmp_path)) == {"training_loss": {1: 9.0, 2: 7.0, 3: 6.0}}
    with pytest.raises(FileNotFoundError, match="it has no checkpoint"):
        report.report(str(tmp_path))


def test_a_checkpoint_whose_data_are_cut_has_no_steps_of_adascale(tmp_path):
    state = {"fraction": tf.Variable(0.5), "step": tf.Variable(3.0)}
    optimizer = tf.train.Checkpoint(**state)
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "ckpt"))
    assert model_dirs._steps_of_adascale(str(tmp_path)) == 3.5
    for data in tmp_path.glob("*.data-*"):
        data.write_bytes(b"")
    assert path and model_dirs._steps_of_adascale(str(tmp_path)) == 0.0


def test_a_layer_that_is_frozen_later_moves_no_state(records, tmp_path):
    """A run knows its layers by place; that of positions is trained no longer."""
    first, second = (trainer_of(build(tiny(records)), one_device()) for _ in range(2))
    slots = {}
    for trainer, frozen in ((first, False), (second, True)):
        layer = next(m for m in trainer.model.submodules if m.name.endswith("position_embedding"))
        layer.trainable = not frozen
        trainer.optimizer.build(trainer.model.trainable_variables)
        names = [v.name for v in trainer.model.trainable_variables]
        slots[frozen] = {n: trainer.optimizer.state_of(i)["m"] for i, n in enumerate(names)}
    for i, slot in enumerate(slots[False].values()):
        slot.assign(tf.fill(slot.shape, i + 1.0))
    path = first.checkpoint.save(str(tmp_path / "ckpt"))
    second.checkpoint.restore(path)
    assert len(slots[True]) == len(slots[False]) - 1
    for name, slot in slots[True].items():
        assert tf.reduce_all(slot == tf.reduce_max(slots[False][name])), name
