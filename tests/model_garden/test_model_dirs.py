"""Door 3: a folder that holds a run, with whom it goes on, and what is reported of it."""

import glob
import os
import time

import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import train_utils
from support.garden import EXPERIMENT, build, tiny

from tf_lamb.model_garden import report
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.errors import UserError
from tf_lamb.model_garden.folders import model_dirs


def _begun(params, model_dir):
    train_utils.serialize_config(params, str(model_dir))
    model_dirs.write_run(str(model_dir), EXPERIMENT, 1)
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(3, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(model_dir), max_to_keep=1).save()


def test_a_run_may_go_on_with_more_steps(records, tmp_path):
    settings = tiny(records)
    _begun(build(settings), tmp_path)
    settings["trainer"] |= {"train_steps": 50, "checkpoint_interval": 7}
    check_run(build(settings), "train", str(tmp_path), EXPERIMENT, 1)
    check_run(build(settings), "train", str(tmp_path), EXPERIMENT)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"task": {"model": {"encoder": {"bert": {"hidden_size": 16}}}}}, "hidden_size is 8"),
        ({"trainer": {"optimizer_config": {"optimizer": {"type": "adamw"}}}}, "'tf_lamb', yours"),
        ({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}}, "ema is 'not set'"),
        ({"runtime": {"mixed_precision_dtype": "float16"}}, "'not float16', yours 'float16'"),
    ],
)
def test_a_model_dir_of_another_run(records, tmp_path, change, expected):
    params = build(tiny(records))
    _begun(params, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    params.override(change)
    with pytest.raises(UserError, match="delete this one") as error:
        check_run(params, "train", str(tmp_path), EXPERIMENT)
    assert expected in str(error.value)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_model_dir_of_another_experiment_or_seed(records, tmp_path):
    params = build(tiny(records))
    _begun(params, tmp_path)
    with pytest.raises(UserError, match="holds the experiment lamb/bert_pretraining"):
        check_run(params, "train", str(tmp_path), "bert/pretraining")
    with pytest.raises(UserError, match="begun with --seed=1, not 2"):
        check_run(params, "train", str(tmp_path), EXPERIMENT, 2)
    os.remove(tmp_path / "params.yaml")
    with pytest.raises(UserError, match="a checkpoint but no params.yaml"):
        check_run(params, "train", str(tmp_path), EXPERIMENT)


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
    with pytest.raises(FileNotFoundError, match="no run that has saved a checkpoint"):
        report.report(str(tmp_path))
