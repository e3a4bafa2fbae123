"""Data that cannot be read, and intervals that cannot be kept, are one sentence each."""

import pathlib
import re

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import task_factory
from support import garden
from support.garden import EXPERIMENT, build, one_device, restore_after, tiny, tiny_resnet

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.checks.records import check_readable, checked, limits, naming_records
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import merged
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.running.trainer import Trainer


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"use_v2_feature_names": False}, "it has no input_ids. Write task.train_data."
         "use_v2_feature_names=True. Or write"),
        ({"seq_length": 32}, "it has 16 values of input_word_ids, and task.train_data.seq_length is"
         " 32: write 16"),
        ({"max_predictions_per_seq": 5}, "it has 4 values of masked_lm_ids, and task.train_data."
         "max_predictions_per_seq is 5: write 4"),
    ],
)  # fmt: skip
def test_records_of_another_shape_are_refused_before_training(records, tmp_path, data, expected):
    settings = tiny(records)
    settings["task"]["model"]["encoder"]["bert"]["max_position_embeddings"] = 32
    settings["task"]["train_data"] |= data
    assert f"record 1 of {records} cannot be used: {expected}" in refusal(settings, tmp_path)


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


# Records that are whole, and bad.


def changed(record, **values):
    """An example with other values of a feature, or without it."""
    example = tf.train.Example.FromString(record)
    for name, value in values.items():
        feature = example.features.feature[name.replace("__", "/")]
        if value is None:
            feature.Clear()
        elif isinstance(value, bytes):
            feature.bytes_list.value[:] = [value]
        else:
            feature.int64_list.value[0] = value
    for name in [n for n, f in example.features.feature.items() if not f.WhichOneof("kind")]:
        del example.features.feature[name]
    return example.SerializeToString()


def of_pictures(pictures):
    return tiny_resnet(pictures)


def of_sentences(path):
    data = {"input_path": path, "global_batch_size": 8, "seq_length": garden.LENGTH, "seed": 1}
    encoder = tiny("")["task"]["model"]["encoder"]
    task = {"model": {"num_classes": 2, "encoder": encoder}, "train_data": data,
            "validation_data": data}  # fmt: skip
    trainer = {
        "train_steps": 2, "optimizer_config": {"warmup": {"type": None}, "learning_rate": {
            "type": "constant"}, "optimizer": {"type": "sgd"}},
    }  # fmt: skip
    runtime = {"distribution_strategy": "one_device"}
    settings = {"runtime": runtime, "task": task, "trainer": trainer}
    return build(settings, "bert/sentence_prediction")


BEYOND = "is {}, and has to be from 0 to {}, because task.model.{} is {}: raise that. Or write the"
BAD = {
    # A kind of data, what makes a record of it bad, what is said before training, and after.
    "token": ("text", {"input_word_ids": 50},
              "its input_word_ids " + BEYOND.format(50, 49, "encoder.bert.vocab_size", 50)),
    "masked token": ("text", {"masked_lm_ids": -1},
                     "its masked_lm_ids " + BEYOND.format(-1, 49, "encoder.bert.vocab_size", 50)),
    "type": ("text", {"input_type_ids": 2}, "its input_type_ids is 2, and has to be from 0 to 1"),
    "next sentence": ("text", {"next_sentence_labels": 2}, "its next_sentence_labels "
                      + BEYOND.format(2, 1, "cls_heads[0].num_classes", 2)),
    "no token": ("text", {"input_word_ids": None}, "input_word_ids"),
    "no Example": ("text", b"just words", "Example|is required but could not be found"),
    "label": ("pictures", {"image__class__label": 10},
              "its image/class/label " + BEYOND.format(10, 9, "num_classes", 10)),
    "no label": ("pictures", {"image__class__label": None}, "image/class/label"),
    "JPEG": ("pictures", {"image__encoded": b"\xff\xd8\xffno picture"}, "JPEG|jpeg"),
    "sentence's label": ("sentences", {"label_ids": 2},
                         "its label_ids " + BEYOND.format(2, 1, "num_classes", 2)),
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(records, pictures, tmp_path_factory):
    """What makes an experiment of a file, and the records of one, by the kind of data."""
    sentences = garden.write_sentences(tmp_path_factory.mktemp("sentences"))
    read = lambda path: [r.numpy() for r in tf.data.TFRecordDataset(path)]  # noqa: E731
    return {
        "text": (lambda path: build(tiny(path)), read(records)),
        "pictures": (of_pictures, read(pictures)),
        "sentences": (of_sentences, read(sentences)),
    }


def with_a_bad_one(folder, sources, name, number):
    """The experiment and the path of its file, whose record of that number is bad."""
    kind, change, _ = BAD[name]
    params_of, good = sources[kind]
    many = [good[i % len(good)] for i in range(128)]
    bad = change if isinstance(change, bytes) else changed(good[0], **change)
    many[number - 1] = bad
    path = written(folder / "many.tfrecord", many)
    return params_of(path), path


@pytest.mark.parametrize("name", [name for name in BAD if name != "JPEG"])
def test_a_bad_record_is_named_before_training(sources, tmp_path, name):
    number = 1 if name == "no Example" else 7
    params, path = with_a_bad_one(tmp_path, sources, name, number)
    with pytest.raises(UserError) as error:
        check_run(params, "train", str(tmp_path / "model"))
    said = str(error.value)
    assert "\n" not in said and not (tmp_path / "model").exists()
    assert f"task.train_data.input_path: record {number} of {path} cannot be used: " in said
    assert any(words in said for words in BAD[name][2].split("|"))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_named_when_it_is_met(sources, tmp_path, name):
    """One behind those that are looked at before: no step is made of it."""
    params, path = with_a_bad_one(tmp_path, sources, name, 125)
    params.task.train_data.override({"shuffle_buffer_size": 1})
    check_run(params, "train", str(tmp_path / "model"))
    task = task_factory.get_task(params.task, logging_dir=None)
    # The input of a trainer, which is all that meets a record.
    trainer = object.__new__(Trainer)
    trainer._micro_batches, trainer._config, trainer._strategy = 1, params, one_device()
    with pytest.raises(UserError) as error, naming_records(params):
        data = trainer.distribute_dataset(task.build_inputs, params.task.train_data)
        for _ in zip(range(17), data, strict=False):
            pass
    said = str(error.value)
    assert f"task.train_data.input_path: record 125 of {path} cannot be used: " in said
    assert any(words in said for words in BAD[name][2].split("|")) and "\n" not in said


def test_good_records_are_those_of_before(sources, tmp_path):
    params_of, good = sources["text"]
    params = params_of(written(tmp_path / "good.tfrecord", good))
    params.task.train_data.override({"shuffle_buffer_size": 1})
    data, task = params.task.train_data, task_factory.get_task(params.task, logging_dir=None)
    within = limits(params.task, data)
    assert within.keys() == {
        "input_word_ids", "input_type_ids", "masked_lm_ids", "next_sentence_labels",
    }  # fmt: skip
    plain, held = task.build_inputs(data), checked(task.build_inputs(data), within)
    assert plain.element_spec == held.element_spec
    for one, other, _ in zip(plain, held, range(3), strict=False):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    check_readable(params)


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
