"""The report of a run, of a folder whose files are written here; nothing is trained."""

import json
import sys
import types

import pytest

pytest.importorskip("official")

import matplotlib.image
import numpy as np
import tensorflow as tf
import yaml

from tf_lamb.model_garden import report as command_line
from tf_lamb.model_garden.folders import report


def scalars(folder, points):
    """An event file with tag -> step -> value."""
    with tf.summary.create_file_writer(str(folder)).as_default():
        for tag, curve in points.items():
            for step, value in curve.items():
                tf.summary.scalar(tag, value, step=step)


@pytest.fixture
def model_dir(tmp_path):
    """A run of 30 of 40 steps."""
    lamb = {"type": "tf_lamb", "tf_lamb": {"gradient_accumulation_steps": 4}}
    params = {
        "task": {
            "train_data": {"global_batch_size": 64},
            "validation_data": {"input_path": str(tmp_path / "data" / "validation")},
        },
        "trainer": {"train_steps": 40, "optimizer_config": {"optimizer": lamb}},
    }
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (tmp_path / "data").mkdir()
    facts = {"validation_commonest_masked_token": "the", "validation_commonest_masked_share": 0.05}
    (tmp_path / "data" / "data.json").write_text(json.dumps(facts))
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(30, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1).save(30)
    return folder


def curves(folder):
    """What every run writes."""
    loss, rate = {10: 9.0, 20: 8.0, 30: 7.0}, {10: 0.1, 20: 0.2, 30: 0.1}
    scalars(folder / "train", {"training_loss": loss, "learning_rate": rate})
    validation = {"validation_loss": {30: 7.5}, "masked_lm_accuracy": {30: 0.25}}
    scalars(folder / "validation", validation)


def assert_panels(path, count):
    """As many as the picture is high, each with something blue: the first curve."""
    image = matplotlib.image.imread(path)[..., :3]
    assert abs(len(image) - 308 * count) <= 1
    for panel in np.array_split(image, count):
        assert (np.abs(panel * 255 - [31, 119, 180]) < 2).all(-1).sum() > 50


def table(folder, picture):
    return [
        "steps               30 of 40",
        "global batch        64 (16 x 4 accumulated)",
        "training loss       9.000 (to step 10) -> 7.000 (30)",
        "validation loss     7.500 (step 30)",
        "masked-LM accuracy  25.0% on validation (step 30); always answering 'the', the commonest "
        "masked token, gives 5.0%",
        f"checkpoints         {folder} (latest: ckpt-30)",
        f"picture             {picture}",
        f"TensorBoard         tensorboard --logdir={folder}",
    ]


def test_the_table_and_the_picture_beside_it(model_dir):
    curves(model_dir)
    path = model_dir / "report.png"
    assert report.report(str(model_dir)).splitlines() == table(model_dir, path)
    assert_panels(path, 2)


def test_what_was_observed_is_in_the_picture(model_dir):
    curves(model_dir)
    noise = {"noise_scale": {10: 9.0, 20: 90.0, 30: 900.0}}
    scalars(model_dir / "train", noise)
    ratios = {10: 1.0, 20: 3.0, 30: 9.0}
    scalars(
        model_dir / "trust_ratios",
        {"trust_ratio/net/kernel": ratios, "weight_norm/net/kernel": ratios},
    )
    report.report(str(model_dir))
    assert_panels(model_dir / "report.png", 4)


def test_a_damaged_checkpoint_is_left_out(model_dir):
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(35, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(model_dir), max_to_keep=2).save(35)
    (model_dir / "ckpt-35.index").write_bytes(b"")  # a run would go on from the one before
    (model_dir / "checkpoint").write_text("")
    assert report.report(str(model_dir)).startswith("steps               30 of 40\n")


def test_of_a_run_of_another_program_the_batch_is_left_out(model_dir):
    (model_dir / "params.yaml").write_text("trainer: {train_steps: 40}")
    assert "global batch" not in report.report(str(model_dir))


@pytest.mark.parametrize("text", ["trainer: 3", "epochs: 3"])
def test_a_folder_of_something_else_is_refused(model_dir, text):
    (model_dir / "params.yaml").write_text(text)
    with pytest.raises(FileNotFoundError, match="has no params.yaml with trainer"):
        report.report(str(model_dir))


def test_without_matplotlib_the_table_is_there_and_says_so(model_dir, monkeypatch):
    curves(model_dir)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    why = "A picture of a run needs matplotlib, which this environment lacks: pip install "
    said = report.report(str(model_dir)).splitlines()
    assert said == table(model_dir, f"none: {why}matplotlib.")
    assert not (model_dir / "report.png").exists()


def command(monkeypatch, folder):
    flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(model_dir=str(folder)))
    monkeypatch.setattr(command_line, "flags", flags)
    command_line._run(None)


def test_the_command_prints_it_or_one_line(model_dir, tmp_path, monkeypatch, capsys):
    command(monkeypatch, model_dir)
    assert capsys.readouterr().out.startswith("steps               30 of 40\n")
    with pytest.raises(SystemExit, match=r"^tf_lamb\.model_garden\.report: --model_dir=.* no run"):
        command(monkeypatch, tmp_path / "other")
