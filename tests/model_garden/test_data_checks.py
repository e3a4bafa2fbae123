"""Data that cannot be read, and what would break off later, are one sentence each."""

import json
import os
import re

import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import task_factory
from support import garden
from support.frontends import uncompiled
from support.garden import EXPERIMENT, build, one_device, tiny, tiny_resnet

from tf_lamb.model_garden.checks.data import naming_records, reason
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import merged
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import runner
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
    "change",
    [{"global_batch_size": garden.EXAMPLES}, {"drop_remainder": False}],
    ids=["all examples", "a smaller batch"],
)
def test_an_evaluation_of_one_batch_is_taken(records, tmp_path, change):
    settings = merged(tiny(records), {"task": {"validation_data": BATCHES | change}})
    check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)


@pytest.mark.parametrize("mode", ["train_and_eval", "eval"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (BATCHES, "has not one batch of global_batch_size=65"),
        ({"is_training": True}, "is_training is True: .* with trainer.validation_steps=-1 never"),
    ],
    ids=["no batch", "no end"],
)
def test_an_evaluation_without_a_batch_or_an_end_is_refused(
    records, tmp_path, change, expected, mode
):
    settings = merged(tiny(records), {"task": {"validation_data": change}})
    assert re.search(f"task.validation_data.*{expected}", refusal(settings, tmp_path, mode))


def test_validation_data_of_which_no_batch_comes_are_named(records, tmp_path, monkeypatch):
    """Where their files cannot be counted before, as in a bucket."""
    settings = merged(tiny(records, train_steps=1), {"task": {"validation_data": BATCHES}})
    with uncompiled():
        garden.run(build(tiny(records, train_steps=1)), tmp_path, "train")
        monkeypatch.setattr(runner.Runner, "evaluated", str(tmp_path / "ckpt-1"))
        with pytest.raises(UserError, match="has not one batch of global_batch_size=65") as error:
            garden.run(build(settings), tmp_path, "eval")
    assert "drop_remainder=false" in str(error.value)


BEST = {"best_checkpoint_export_subdir": "best"}
HEAD = tiny("")["task"]["model"]["cls_heads"][0]


@pytest.mark.parametrize(
    ("task", "trainer", "expected"),
    [
        ({"train_data": {"is_training": False}}, {}, "task.train_data.is_training is False: .* "
         "breaks off. Write task.train_data.is_training=true"),
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
    settings = merged(tiny(records, **trainer), {"task": task})
    assert re.search(expected, refusal(settings, tmp_path))


@pytest.mark.parametrize(("task", "trainer"), [
    ({"validation_data": {"is_training": True}}, {"validation_steps": 2}),
    ({"model": {"cls_heads": [HEAD | {"name": "other"}, HEAD]}}, {}),
    ({part: {"use_next_sentence_label": False} for part in ("train_data", "validation_data")}
     | {"model": {"cls_heads": []}}, {}),
    ({}, BEST | {"best_checkpoint_eval_metric": "validation_loss"}),
])  # fmt: skip
def test_what_does_not_break_off_is_none_of_it(records, tmp_path, task, trainer):
    settings = merged(tiny(records, **trainer), {"task": task})
    check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)


def test_a_result_that_is_known_only_after_an_evaluation_is_missed_at_the_first(tmp_path):
    best = checkpoints.Best(str(tmp_path), "acuracy", "higher")
    words = "trainer.best_checkpoint_eval_metric='acuracy' is not known. Did you mean accuracy?"
    with pytest.raises(UserError, match=re.escape(words)):
        best.maybe_export_checkpoint(tf.train.Checkpoint(), {"accuracy": 0.5}, 1)
    assert not list(tmp_path.iterdir())


def test_half_a_note_on_the_best_checkpoint_is_refused(records, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "info.json").write_text('{"validation_loss": 1.')
    params = build(tiny(records, **BEST, best_checkpoint_eval_metric="validation_loss"))
    with pytest.raises(UserError, match="best/info.json cannot be read: .* Delete it"):
        garden.run(params, tmp_path, "train")


@pytest.mark.parametrize(
    ("loop", "intervals", "expected"),
    [
        (4, {"summary_interval": 10}, "summary_interval=10 is no multiple of .*=4. .*_per_loop=2,"),
        (4, {"checkpoint_interval": 6}, "checkpoint_interval=6 is no .*steps_per_loop=2,"),
        (0, {}, "steps_per_loop is 0"),
        (4, {"checkpoint_interval": None}, "checkpoint_interval is None. Set it to 1 or more"),
        (4, {"checkpoint_interval": 6, "validation_interval": 3}, None),  # which ends loops
        (4, {"checkpoint_interval": 30}, None),  # the last alone
        (4, {"checkpoint_interval": 8, "validation_interval": 6}, None),
    ],
)
def test_intervals_that_loops_do_not_meet(records, tmp_path, loop, intervals, expected):
    settings = tiny(records, steps_per_loop=loop, **{"summary_interval": 20, **intervals})
    if expected is None:
        check_run(build(settings), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)
    else:
        assert re.search(f"trainer.{expected}", refusal(settings, tmp_path))


@pytest.mark.parametrize(
    ("facts", "kind", "expected"),
    [
        ({"vocab_size": 51}, "text", "the model's vocab_size is 50, but .* holds 51 tokens. Write "
         "task.model.encoder.bert.vocab_size=51"),
        ({"num_classes": 11}, "pictures", "task.model.num_classes is 10, but .* has 11. Write "
         "task.model.num_classes=11"),
        ({"vocab_size": 50, "num_classes": 10}, "text", None),
    ],
)  # fmt: skip
def test_data_that_are_said_to_hold_more_are_refused(sources, tmp_path, facts, kind, expected):
    """By the data.json beside them: the first records may lack the rarest."""
    params_of, good = sources[kind]
    params = params_of(written(tmp_path / "some.tfrecord", good))
    (tmp_path / "data.json").write_text(json.dumps(facts))
    if expected is None:
        check_run(params, "train", str(tmp_path / "model"))
        return
    with pytest.raises(UserError, match=expected):
        check_run(params, "train", str(tmp_path / "model"))


def test_a_missing_file_is_named_with_the_command_that_writes_a_small_one(records, tmp_path):
    settings = tiny(records)
    settings["task"]["train_data"]["input_path"] = "a b/train.tfrecord"
    assert refusal(settings, tmp_path).endswith(
        "there is no file a b/train.tfrecord. A small one is written by python -m tf_lamb."
        "model_garden.sample_data --output_dir='a b' --seq_length=16 --max_predictions_per_seq=4"
    )


def test_a_folder_without_a_run_is_not_followed(records, tmp_path):
    params, folder = build(tiny(records)), tmp_path / "model"
    assert f"{folder} holds no run to follow" in refusal(tiny(records), tmp_path, "continuous_eval")
    model_dirs.write_params(params, str(folder))  # which a training writes at its start
    check_run(params, "continuous_eval", str(folder))


def of_encoder(records, **encoder):
    return build(merged(tiny(records), {"task": {"model": {"encoder": {"bert": encoder}}}}))


@pytest.fixture
def run(records, tmp_path):
    """The folder of a run, with a params.yaml beside its checkpoint."""
    folder = str(tmp_path / "run")
    model_dirs.write_params(of_encoder(records), folder)
    tf.train.Checkpoint(v=tf.Variable(1)).save(f"{folder}/ckpt")
    return folder


@pytest.fixture
def another(records):
    """Another model than the run's."""
    return of_encoder(records, num_layers=2, hidden_activation="relu")


def test_an_evaluation_may_have_another_dropout(records, run):
    check_run(of_encoder(records, dropout_rate=0.5), "eval", run)


@pytest.mark.parametrize("mode", ["eval", "continuous_eval"])
def test_an_evaluation_of_another_model_than_the_run_has_is_refused(run, another, mode):
    """Before anything is built, as the params.yaml says."""
    with pytest.raises(UserError, match="num_layers is 1, yours 2") as error:
        check_run(another, mode, run)
    assert f"--config_file={run}/params.yaml" in str(error.value)


def test_an_evaluation_of_the_checkpoint_of_another_model_is_refused(run, another, tmp_path):
    another.override({"task": {"init_checkpoint": run}})
    words = f"task.init_checkpoint={run} holds another.*num_layers is 1, yours 2"
    with pytest.raises(UserError, match=words):
        check_run(another, "eval", str(tmp_path / "new"))


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
        elif isinstance(value, float):
            feature.float_list.value[0] = value
        elif isinstance(value, list):
            kind = "float_list" if isinstance(value[0], float) else "int64_list"
            getattr(feature, kind).value[:] = value
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
    "sentence's token": ("sentences", {"input_ids": 50},
                         "its input_ids " + BEYOND.format(50, 49, "encoder.bert.vocab_size", 50)),
    "sentence's label": ("sentences", {"label_ids": 2},
                         "its label_ids " + BEYOND.format(2, 1, "num_classes", 2)),
    "masked position": ("text", {"masked_lm_positions": 16}, "its masked_lm_positions is 16, and "
                        "has to be from 0 to 15, because seq_length is 16: correct that value. Or"),
    "negative position": ("text", {"masked_lm_positions": -1},
                          "its masked_lm_positions is -1, and has to be from 0 to 15"),
    "mask": ("text", {"input_mask": 7}, "its input_mask is 7, and has to be from 0 to 1, because"),
    "weight": ("text", {"masked_lm_weights": float("nan")},
               "its masked_lm_weights is nan, and has to be a finite number"),
    "negative weight": ("text", {"masked_lm_weights": -1.0}, "its masked_lm_weights is -1.0"),
    "segment": ("text", {"input_type_ids": 16},
                "its input_type_ids " + BEYOND.format(16, 1, "encoder.bert.type_vocab_size", 2)),
    "sentence's mask": ("sentences", {"input_mask": -1}, "its input_mask is -1"),
    "no picture": ("pictures", {"image__encoded": None}, "it has no image/encoded|Input is empty"),
    "two labels": ("pictures", {"image__class__label": [1, 2]},
                   "it has 2 values of image/class/label, and 1 is read|image/class/label"),
    "whole weights": ("text", {"masked_lm_weights": [1, 1, 1, 1]},
                      "its masked_lm_weights is a int64_list, and a float_list|masked_lm_weights"),
    "JPEG": ("pictures", {"image__encoded": b"\xff\xd8\xffno picture"}, "JPEG|jpeg"),
}  # fmt: skip


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


@pytest.fixture(scope="module")
def sources(records, pictures, tmp_path_factory):
    """What makes an experiment of a file, and the records of one, by the kind of data."""
    sentences = garden.write_sentences(tmp_path_factory.mktemp("sentences"))
    read = lambda path: [r.numpy() for r in tf.data.TFRecordDataset(path)]  # noqa: E731
    return {
        "text": (lambda path: build(tiny(path)), read(records)),
        "pictures": (tiny_resnet, read(pictures)),
        "sentences": (of_sentences, read(sentences)),
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


# What TensorFlow says around a reason: the place in its graph, the transformation, the nodes.
AROUND = (
    "Graph execution error:\n\nDetected at node Assert_2/Assert defined at (most recent call last):"
    "\n<stack traces unavailable>\n{why}\n\t [[{{{{node Assert_2/Assert}}}}]]\n\t "
    "[[IteratorGetNext]] [Op:__inference_loop_fn_6951]",
    "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
    '  File "/some/where/train.py", line 12, in main\n\n  File "/x/y.py", line 3, in <lambda>\n\n'
    "Error in user-defined function passed to MapDataset:18 transformation with iterator: "
    "Iterator::Root::ParallelMapV2: {why}\n\t [[{{{{node a/b}}}}]]",
    "{{{{function_node __wrapped__IteratorGetNext_output_types_8_device_/job:localhost}}}} {why} "
    "[[{{{{node IteratorGetNext}}}}]] [Op:IteratorGetNext] name:",
    "{why}",
)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    "why", ["Invalid JPEG data", "not did hold: [[1 2] [3 4]] [x (Cast:0) = ]"]
)
def test_of_an_error_the_reason_is_shown_whole(around, why):
    said = around.format(why=why)
    assert reason(tf.errors.InvalidArgumentError(None, None, said)) == why
    assert reason(ValueError("y" * 400)) == "y" * 300 + " ..."


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_a_folder_in_the_place_of_files_is_refused(records, examples, tmp_path, pattern):
    (tmp_path / "data" / "old").mkdir(parents=True)
    written(tmp_path / "data" / "some.tfrecord", examples)
    settings = tiny(records)
    settings["task"]["train_data"]["input_path"] = f"{tmp_path}/data{pattern}"
    folder = tmp_path / "data" / ("old" if pattern else "")
    way_out = f"task.train_data.input_path={os.path.join(folder, '*')}"
    said = refusal(settings, tmp_path)
    assert f"{str(folder).rstrip('/')} is a folder. Name the files in it, as by {way_out}" in said
