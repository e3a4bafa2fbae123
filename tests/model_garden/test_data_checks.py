"""Data that cannot be read, and intervals that cannot be kept, are one sentence each."""

import pathlib
import re

import pytest

pytest.importorskip("official")

import tensorflow as tf
from support import garden
from support.garden import EXPERIMENT, build, restore_after, tiny

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks.data import check_readable
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.errors import UserError
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.folders.yamls import merged


def refusal(settings, tmp_path, mode="train_and_eval"):
    with pytest.raises(UserError) as error:
        check_run(build(settings), mode, str(tmp_path / "model"), EXPERIMENT)
    assert "\n" not in str(error.value) and not (tmp_path / "model").exists()
    return str(error.value)


def written(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture
def examples(records):
    return [r.numpy() for r in tf.data.TFRecordDataset(records)]


@pytest.mark.parametrize("part", ["train_data", "validation_data"])
def test_a_compressed_file_is_named_before_training(records, examples, tmp_path, part):
    path = written(tmp_path / "some.tfrecord.gz", examples, "GZIP")
    settings = tiny(records)
    settings["task"][part]["input_path"] = path
    said = refusal(settings, tmp_path)
    assert f"task.{part}.input_path: {path} cannot be read after 0 records" in said


def test_unknown_names_of_features_are_refused_before_training(records, examples, tmp_path):
    settings = tiny(records)
    settings["task"]["train_data"]["use_v2_feature_names"] = False
    said = refusal(settings, tmp_path)
    assert f"{records} has input_word_ids and no input_ids. Write task.train_data.use_v2_" in said
    assert "use_v2_feature_names=True" in said
    settings = tiny(records)
    settings["task"]["train_data"]["input_path"] = written(tmp_path / "text", [b"just words"])
    assert "are not of tf.train.Example" in refusal(settings, tmp_path)


def test_validation_data_without_a_batch_are_refused_before_training(records, tmp_path):
    settings = tiny(records)
    data = settings["task"]["validation_data"]
    data |= {"is_training": False, "global_batch_size": garden.EXAMPLES + 1}
    assert "has not one batch of global_batch_size=65" in refusal(settings, tmp_path)
    assert "has not one batch" in refusal(settings, tmp_path, "eval")
    for change in ({"global_batch_size": garden.EXAMPLES}, {"drop_remainder": False}):
        params = build(settings)
        params.task.validation_data.override(change)
        check_run(params, "train_and_eval", str(tmp_path / "model"), EXPERIMENT)


BEST = {"best_checkpoint_export_subdir": "best"}
HEAD = tiny("")["task"]["model"]["cls_heads"][0]


@pytest.mark.parametrize(
    ("task", "trainer", "expected"),
    [
        ({"train_data": {"is_training": False}}, {}, "task.train_data.is_training is False: .* "
         "breaks off. Write task.train_data.is_training=true"),
        ({"validation_data": {"is_training": True}}, {}, "task.validation_data.is_training is True"
         ": .* with trainer.validation_steps=-1 never ends. Write"),
        ({"model": {"cls_heads": [HEAD | {"name": "other"}]}}, {}, "cls_heads has no head named "
         "next_sentence, which .* need, but 'other'. Name one so, or write task.train_data.use_next"
         "_sentence_label=false,task.validation_data.use_next_sentence_label=false"),
        ({"model": {"cls_heads": []}}, {}, "has no head named next_sentence, .*, but none"),
        ({"train_data": {"use_next_sentence_label": False}}, {}, "task.train_data.use_next_sentence"
         "_label is False, and task.validation_data.use_next_sentence_label is True. Write the"),
        ({}, BEST | {"best_checkpoint_eval_metric": "masked_lm_acuracy"}, "trainer.best_checkpoint_"
         "eval_metric='masked_lm_acuracy' is not known. Did you mean masked_lm_accuracy?"),
        ({}, BEST | {"best_checkpoint_eval_metric": "lm_example_loss",
                     "best_checkpoint_metric_comp": "hihger"}, "metric_comp='hihger' is not known. "
         "Did you mean higher?"),
    ],
)  # fmt: skip
def test_what_would_break_off_later_is_refused_before(records, tmp_path, task, trainer, expected):
    settings = tiny(records, **trainer)
    settings["task"] = merged(settings["task"], task)
    assert re.search(expected, refusal(settings, tmp_path))


@pytest.mark.parametrize(("task", "trainer"), [
    ({"validation_data": {"is_training": True}}, {"validation_steps": 2}),
    ({"model": {"cls_heads": [HEAD | {"name": "other"}, HEAD]}}, {}),
    ({part: {"use_next_sentence_label": False} for part in ("train_data", "validation_data")}
     | {"model": {"cls_heads": []}}, {}),
    ({}, BEST | {"best_checkpoint_eval_metric": "validation_loss"}),
])  # fmt: skip
def test_what_does_not_break_off_is_none_of_it(records, tmp_path, task, trainer):
    settings = tiny(records, **trainer)
    settings["task"] = merged(settings["task"], task)
    check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)


def test_a_result_that_is_known_only_after_an_evaluation_is_missed_at_the_first(tmp_path):
    best = checkpoints.Best(str(tmp_path), "acuracy", "higher")
    words = "trainer.best_checkpoint_eval_metric='acuracy' is not known. Did you mean accuracy?"
    with pytest.raises(UserError, match=re.escape(words)):
        best.maybe_export_checkpoint(tf.train.Checkpoint(), {"accuracy": 0.5}, 1)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_cut_is_named_when_it_is_met(records, examples, tmp_path, monkeypatch):
    """It is known only when it is read to its end."""
    whole, cut = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"
    for path in (whole, cut):
        written(path, examples)
    data = cut.read_bytes()
    cut.write_bytes(data[: len(data) // 2 + 100])
    settings = tiny(records)
    settings["task"]["train_data"]["input_path"] = str(tmp_path / "*.tfrecord")
    params = build(settings)
    check_readable(build(tiny(records)))

    def main(_):
        for _ in tf.data.TFRecordDataset([str(whole), str(cut)]):
            pass

    class Args:
        mode, model_dir, experiment, seed = "train", str(tmp_path / "model"), EXPERIMENT, None

    monkeypatch.setattr(train.flags, "FLAGS", Args)
    monkeypatch.setattr("official.nlp.train.main", main)
    restore_after(monkeypatch)
    with train.Console() as console, pytest.raises(UserError) as error:
        train.run(console, params)
    said = str(error.value)
    assert (
        f"task.train_data.input_path: {cut} cannot be read after 32 records" in said
        and "\n" not in said
    )
    assert not checkpoints.is_begun(str(pathlib.Path(Args.model_dir)))


@pytest.mark.parametrize(
    ("loop", "intervals", "expected"),
    [
        (4, {"summary_interval": 10}, "summary_interval=10 is no multiple of .*=4. .*_per_loop=2,"),
        (4, {"checkpoint_interval": 6}, "checkpoint_interval=6 is no .*steps_per_loop=2,"),
        (0, {}, "steps_per_loop is 0"),
        (4, {"checkpoint_interval": 6, "validation_interval": 3}, None),  # which ends loops
        (4, {"checkpoint_interval": 30}, None),  # the last alone
        (4, {"checkpoint_interval": 8, "validation_interval": 6}, None),
    ],
)
def test_intervals_that_loops_do_not_meet(records, tmp_path, loop, intervals, expected):
    given = {"steps_per_loop": loop, "summary_interval": 20, **intervals}
    settings = tiny(records, **given)
    if expected is None:
        check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)
    else:
        with pytest.raises(UserError, match=f"trainer.{expected}"):
            check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)
