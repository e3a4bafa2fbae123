"""Checks of a run's data before it is read, one sentence each."""

import tensorflow as tf
from official.core import config_definitions, input_reader
from official.nlp.tasks import masked_lm, sentence_prediction
from official.vision.configs.image_classification import ImageClassificationTask

from tf_lamb.model_garden.checks import records
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.tasks.masked_lm import check_order

_READ_RECORDS = (
    masked_lm.MaskedLMConfig, sentence_prediction.SentencePredictionConfig,
    ImageClassificationTask,
)  # fmt: skip


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
        _check_positions(params.task, part, data)
        for pattern in records.patterns(data):
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
    """Looks at the files, and at the first records and for one batch where a task reads them."""
    given = f"task.{part}.input_path={pattern!r}"
    with named(given):
        files = input_reader.match_files(pattern)
    for file in files:
        if not tf.io.gfile.exists(file):
            raise UserError(f"{given}: there is no file {file}")
        if not tf.io.gfile.isdir(file) and tf.io.gfile.stat(file).length == 0:
            raise UserError(f"{given}: {file} is empty")
    data = getattr(params.task, part)
    reads = isinstance(params.task, _READ_RECORDS)
    reads = reads and getattr(data, "file_type", None) == "tfrecord"
    if not reads or any(map(tf.io.gfile.isdir, files)):
        return
    try:
        records.check_first(params.task, part, files[0])
    except tf.errors.OpError:
        records.check_files(part, files)
    if part == "validation_data" and not data.is_training and data.drop_remainder:
        count = records.count_examples(data)
        if count is not None and count < data.global_batch_size:
            raise UserError(no_batch(data))


def _check_positions(task, part: str, data) -> None:
    """Raises where examples are longer than the model can see."""
    if (encoder := getattr(getattr(task, "model", None), "encoder", None)) is None:
        return
    positions = getattr(encoder.get(), "max_position_embeddings", None)
    if positions is not None and positions < (getattr(data, "seq_length", None) or 0):
        raise UserError(
            f"task.{part}.seq_length is {data.seq_length}, but the model has {positions} "
            f"positions. Write task.model.encoder.{encoder.type}.max_position_embeddings="
            f"{data.seq_length}, in an earlier stage, too"
        )
