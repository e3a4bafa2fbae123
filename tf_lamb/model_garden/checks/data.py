"""Checks of a run's data before it is read, one sentence each."""

import itertools
import os
import shlex

import tensorflow as tf
from official.core import config_definitions, input_reader
from official.nlp.tasks import masked_lm, sentence_prediction
from official.vision.configs.image_classification import ImageClassificationTask

from tf_lamb.model_garden.checks import records, tfrecords
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.folders import model_dirs, samples
from tf_lamb.model_garden.tasks.masked_lm import check_order

_MOST_READ = 2**30  # bytes that are looked through for one batch


def check_data(params, training: bool, evaluating: bool) -> None:
    """Raises for the first thing that is wrong with the files and sizes that a run names."""
    for part, used in (("train_data", training), ("validation_data", evaluating)):
        data = getattr(params.task, part, None)
        if not used or not isinstance(data, config_definitions.DataConfig):
            continue
        is_text = isinstance(params.task, masked_lm.MaskedLMConfig)
        if is_text and not data.input_path and not data.tfds_name:
            raise UserError(f"task.{part}.input_path is empty. Name the TFRecord files to read")
        _check_passes(params, part, data)
        if part == "train_data":
            check_order(data)
        for pattern in tfrecords.patterns(data):
            if pattern != "dummy":
                _check_files(params, part, pattern)


def _check_passes(params, part: str, data) -> None:
    """Raises where training would end with the data, or an evaluation never."""
    if part == "train_data" and data.is_training is False:
        raise UserError(
            "task.train_data.is_training is False: its examples come once, in one order, and then "
            "training breaks off. Write task.train_data.is_training=true"
        )
    if part == "validation_data" and data.is_training and params.trainer.validation_steps < 0:
        raise UserError(
            "task.validation_data.is_training is True: its examples come again and again, and an "
            f"evaluation with trainer.validation_steps={params.trainer.validation_steps} never "
            "ends. Write task.validation_data.is_training=false"
        )


def no_batch(data) -> str:
    """The error for validation data of which no batch is evaluated."""
    batch, drops = data.global_batch_size, getattr(data, "drop_remainder", False)
    way_out = ", or task.validation_data.drop_remainder=false" if drops else ""
    return (
        f"task.validation_data has not one batch of global_batch_size={batch:,}: there is nothing "
        f"to evaluate. Write task.validation_data.global_batch_size=N, of no more examples than "
        f"there are{way_out}"
    )


def _check_files(params, part: str, pattern) -> None:
    given = f"task.{part}.input_path={pattern!r}"
    with named(given):
        files = input_reader.match_files(pattern)
    for file in files:
        if not tf.io.gfile.exists(file):
            raise UserError(f"{given}: there is no file {file}{_sample(params, part, file)}")
        if not tf.io.gfile.isdir(file) and tf.io.gfile.stat(file).length == 0:
            raise UserError(f"{given}: {file} is empty")
    _check_facts(params, part, files[0])
    _check_records(params, part, files)


def _check_records(params, part: str, files: list[str]) -> None:
    """Looks at the first records, and for one batch, of the tasks that are known to read them."""
    data = getattr(params.task, part)
    is_text = isinstance(params.task, masked_lm.MaskedLMConfig)
    kinds = ImageClassificationTask, sentence_prediction.SentencePredictionConfig
    reads_records = is_text or isinstance(params.task, kinds)
    known = reads_records and getattr(data, "file_type", None) == "tfrecord"
    if not known or any(map(tf.io.gfile.isdir, files)):
        return
    try:
        if is_text:
            _check_names(data, part, files[0])
        records.check_first(params.task, part, files[0], tfrecords.read(files[0]))
        if part == "validation_data" and _lacks_a_batch(data, files):
            raise UserError(no_batch(data))
    except tf.errors.OpError:
        tfrecords.check_readable(part, files)


def _check_names(data, part: str, file: str) -> None:
    first = next(iter(tfrecords.read(file)), b"")
    try:
        names = tf.train.Example.FromString(first).features.feature
    except Exception as error:  # protobuf's own, which TensorFlow does not name
        raise UserError(
            f"task.{part}.input_path: the records of {file} are not of tf.train.Example"
        ) from error
    used, other = "input_ids", "input_word_ids"
    if data.use_v2_feature_names:
        used, other = other, used
    if used not in names and other in names:
        raise UserError(
            f"task.{part}.use_v2_feature_names is {data.use_v2_feature_names}, but {file} has "
            f"{other} and no {used}. Write task.{part}.use_v2_feature_names="
            f"{not data.use_v2_feature_names}"
        )


def _lacks_a_batch(data, files: list[str]) -> bool:
    if data.is_training or not data.drop_remainder:
        return False
    if sum(tf.io.gfile.stat(file).length for file in files) > _MOST_READ:
        return False  # then the first evaluation says so
    examples = itertools.chain.from_iterable(map(tfrecords.read, files))
    return sum(1 for _ in itertools.islice(examples, data.global_batch_size)) < (
        data.global_batch_size
    )


def _sample(params, part: str, file: str) -> str:
    """The command that writes a small data set of that name, if it is one that it writes."""
    folder, name = os.path.split(file)
    if not isinstance(params.task, masked_lm.MaskedLMConfig) or name not in samples.OF_TEXT:
        return ""
    data = getattr(params.task, part)
    return (
        f". A small one is written by python -m tf_lamb.model_garden.sample_data --output_dir="
        f"{shlex.quote(folder)} --seq_length={data.seq_length} --max_predictions_per_seq="
        f"{data.max_predictions_per_seq}"
    )


def _check_facts(params, part: str, file: str) -> None:
    """Holds what `sample_data` wrote down beside its records against the config."""
    facts, data = model_dirs.read_facts(file), getattr(params.task, part)
    for key in ("seq_length", "max_predictions_per_seq"):
        if key in facts and getattr(data, key, None) not in (None, facts[key]):
            raise UserError(
                f"task.{part}.{key} is {getattr(data, key)}, but {file} was written with "
                f"{facts[key]}. Write task.{part}.{key}={facts[key]}"
            )
    model = getattr(params.task, "model", None)
    classes = getattr(model, "num_classes", None)
    if classes is not None and classes < facts.get("num_classes", 0):
        raise UserError(
            f"task.model.num_classes is {classes}, but {file} has {facts['num_classes']}. "
            f"Write task.model.num_classes={facts['num_classes']}"
        )
    if (encoder := getattr(model, "encoder", None)) is None:
        return
    chosen, setting = encoder.get(), f"Write task.model.encoder.{encoder.type}."
    positions = getattr(chosen, "max_position_embeddings", None)
    if positions is not None and positions < (getattr(data, "seq_length", None) or 0):
        raise UserError(
            f"task.{part}.seq_length is {data.seq_length}, but the model has {positions} "
            f"positions. {setting}max_position_embeddings={data.seq_length}, in an earlier stage, "
            "too"
        )
    size = getattr(chosen, "vocab_size", None)
    if size is not None and size < facts.get("vocab_size", 0):
        raise UserError(
            f"the model's vocab_size is {size}, but {file} holds {facts['vocab_size']} tokens. "
            f"{setting}vocab_size={facts['vocab_size']}"
        )
