"""Data that cannot be read is one sentence each."""

import re

import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import task_factory
from support import garden
from support.garden import EXPERIMENT, build, one_device, tiny, tiny_resnet

from tf_lamb.model_garden.checks.data import naming_records
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import merged
from tf_lamb.model_garden.running.runner import Trainer


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
         "use_v2_feature_names=True if"),
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


BATCHES = {"is_training": False, "global_batch_size": garden.EXAMPLES + 1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (BATCHES, "has not one batch of global_batch_size=65"),
        (BATCHES | {"global_batch_size": garden.EXAMPLES}, None),
        (BATCHES | {"drop_remainder": False}, None),
        ({"is_training": True}, "is_training is True: .* with trainer.validation_steps=-1 never"),
    ],
)
def test_an_evaluation_without_a_batch_or_an_end_is_refused(records, tmp_path, change, expected):
    settings = merged(tiny(records), {"task": {"validation_data": change}})
    if expected is None:
        check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)
        return
    for mode in ("train_and_eval", "eval"):
        assert re.search(f"task.validation_data.*{expected}", refusal(settings, tmp_path, mode))


def test_a_file_that_is_cut_is_named_when_it_is_met(records, examples, tmp_path):
    """It is known only when it is read to its end."""
    whole, cut = (written(tmp_path / f"{name}.tfrecord", examples) for name in "ab")
    with open(cut, "r+b") as file:
        file.truncate(file.seek(0, 2) // 2 + 100)
    settings = tiny(records)
    settings["task"]["train_data"]["input_path"] = str(tmp_path / "*.tfrecord")
    with pytest.raises(UserError) as error, naming_records(build(settings)):
        for _ in tf.data.TFRecordDataset([whole, cut]):
            pass
    said = f"task.train_data.input_path: {cut} cannot be read after 32 records"
    assert said in str(error.value) and "\n" not in str(error.value)


# Records that are whole, and bad.


def changed(record, **values):
    """An example with other values of a feature, or without it."""
    example = tf.train.Example.FromString(record)
    for name, value in values.items():
        feature = example.features.feature[name.replace("__", "/")]
        if value is None:
            del example.features.feature[name.replace("__", "/")]
        elif isinstance(value, bytes):
            feature.bytes_list.value[:] = [value]
        else:
            feature.int64_list.value[0] = value
    return example.SerializeToString()


BEYOND = "is {}, and has to be from 0 to {}, because task.model.{} is {}: raise that. Or write the"
BAD = {
    # A kind of data, what makes a record of it bad, what is said before training, and after.
    "token": ("text", {"input_word_ids": 50},
              "its input_word_ids " + BEYOND.format(50, 49, "encoder.bert.vocab_size", 50)),
    "masked token": ("text", {"masked_lm_ids": -1},
                     "its masked_lm_ids " + BEYOND.format(-1, 49, "encoder.bert.vocab_size", 50)),
    "next sentence": ("text", {"next_sentence_labels": 2}, "its next_sentence_labels "
                      + BEYOND.format(2, 1, "cls_heads[0].num_classes", 2)),
    "no token": ("text", {"input_word_ids": None}, "input_word_ids"),
    "no Example": ("text", b"just words", "Example|is required but could not be found"),
    "label": ("pictures", {"image__class__label": 10},
              "its image/class/label " + BEYOND.format(10, 9, "num_classes", 10)),
    "JPEG": ("pictures", {"image__encoded": b"\xff\xd8\xffno picture"}, "JPEG|jpeg"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(records, pictures):
    """What makes an experiment of a file, and the records of one, by the kind of data."""
    read = lambda path: [r.numpy() for r in tf.data.TFRecordDataset(path)]  # noqa: E731
    return {
        "text": (lambda path: build(tiny(path)), read(records)),
        "pictures": (tiny_resnet, read(pictures)),
    }


def with_a_bad_one(folder, sources, name, number):
    """The experiment and the path of its file, whose record of that number is bad."""
    kind, change, _ = BAD[name]
    params_of, good = sources[kind]
    many = [good[i % len(good)] for i in range(128)]
    many[number - 1] = change if isinstance(change, bytes) else changed(good[0], **change)
    path = written(folder / "many.tfrecord", many)
    return params_of(path), path


def assert_names(error, name, number, path):
    said = str(error.value)
    assert f"task.train_data.input_path: record {number} of {path} cannot be used: " in said
    assert any(words in said for words in BAD[name][2].split("|")) and "\n" not in said


@pytest.mark.parametrize("name", [name for name in BAD if name != "JPEG"])
def test_a_bad_record_is_named_before_training(sources, tmp_path, name):
    number = 1 if name == "no Example" else 7
    params, path = with_a_bad_one(tmp_path, sources, name, number)
    with pytest.raises(UserError) as error:
        check_run(params, "train", str(tmp_path / "model"))
    assert_names(error, name, number, path)


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
    assert_names(error, name, 125, path)
