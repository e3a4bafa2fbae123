"""Checks the data of a run: its TFRecord files, and the records in them.

TensorFlow itself overlooks many wrong values in records. A token beyond the vocabulary is an error
on a CPU, but on other devices its embedding is zeros. Where labels are one-hot, a label beyond the
classes counts as no class, on every device. A masked position beyond the sequence points into the
next example of the batch, on every device.

The checks before training read files without TensorFlow's runtime, because a multi-worker strategy
must be the first to initialize it.
"""

import contextlib
import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from official.core import config_definitions, input_reader, task_factory
from official.modeling.hyperparams import base_config
from official.nlp.data import pretrain_dataloader, sentence_prediction_dataloader
from official.nlp.tasks import masked_lm, sentence_prediction
from official.vision.configs.image_classification import ImageClassificationTask

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.folders import model_dirs
from tf_lamb.model_garden.tasks import check_order

# The configs of the tasks for which records are checked before training.
_READ_RECORDS = (
    masked_lm.MaskedLMConfig, sentence_prediction.SentencePredictionConfig,
    ImageClassificationTask,
)  # fmt: skip
_FIRST = 100  # how many records of a file are read before training
_read = tf.compat.v1.io.tf_record_iterator  # yields the records of a file


def check_data(params, training: bool, evaluating: bool) -> None:
    """Checks the data of a run: settings, files and first records, up to the first error.

    Args:
        params: the experiment's `ExperimentConfig`.
        training: whether the run trains.
        evaluating: whether the run evaluates.

    Raises:
        UserError: if the data cannot be used.
    """
    for part, is_used in (("train_data", training), ("validation_data", evaluating)):
        data = getattr(params.task, part, None)
        if not is_used or not isinstance(data, config_definitions.DataConfig):
            continue
        is_text = isinstance(params.task, masked_lm.MaskedLMConfig)
        if is_text and not data.input_path and not data.tfds_name:
            raise UserError(f"task.{part}.input_path is empty. Name the TFRecord files to read")
        if part == "train_data":
            check_order(data)
        _check_passes(params, part, data)
        _check_positions(params.task, part, data)
        for pattern in patterns(data):
            if pattern != "dummy":
                _check_files(params, part, pattern)


def _check_passes(params, part: str, data) -> None:
    """Raises `UserError` if training would run out of data, or an evaluation would never end."""
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


def _check_positions(task, part: str, data) -> None:
    """Raises `UserError` if examples have more tokens than the model has position embeddings."""
    if (encoder := getattr(getattr(task, "model", None), "encoder", None)) is None:
        return
    positions = getattr(encoder.get(), "max_position_embeddings", None)
    if positions is not None and positions < (getattr(data, "seq_length", None) or 0):
        raise UserError(
            f"task.{part}.seq_length is {data.seq_length}, but the model has {positions} "
            f"positions. Write task.model.encoder.{encoder.type}.max_position_embeddings="
            f"{data.seq_length}, in an earlier stage, too"
        )


def _check_files(params, part: str, pattern) -> None:
    """Checks that the files of a pattern exist and are not empty; raises `UserError`.

    For the tasks in `_READ_RECORDS`, such as BERT pretraining, also checks the first records of the
    first file. If the validation data drop their last, smaller batch, also checks that there is a
    full batch.
    """
    setting = f"task.{part}.input_path={pattern!r}"
    with named(setting):
        files = input_reader.match_files(pattern)
    is_tfrecord = getattr(getattr(params.task, part), "file_type", None) == "tfrecord"
    for file in files:
        if is_tfrecord and tf.io.gfile.isdir(file):
            new_setting = f"task.{part}.input_path={os.path.join(file, '*')}"
            raise UserError(
                f"{setting}: {file} is a folder. Name the files in it, as by {new_setting}"
            )
        if not tf.io.gfile.exists(file):
            raise UserError(f"{setting}: there is no file {file}{_sample(params, part, file)}")
        if not tf.io.gfile.isdir(file) and tf.io.gfile.stat(file).length == 0:
            raise UserError(f"{setting}: {file} is empty")
    _check_facts(params.task, files[0])
    data = getattr(params.task, part)
    reads_records = isinstance(params.task, _READ_RECORDS)
    reads_records = reads_records and getattr(data, "file_type", None) == "tfrecord"
    if not reads_records or any(map(tf.io.gfile.isdir, files)):
        return
    try:
        _check_first(params.task, part, files[0])
    except tf.errors.OpError:
        _check_whole(part, files)
    if part == "train_data" or data.is_training or not data.drop_remainder:
        return
    count = count_examples(data)
    if count is not None and count < data.global_batch_size:
        raise UserError(no_batch(data))


def _sample(params, part: str, file: str) -> str:
    """Returns a hint for an error: how the command `sample_data` writes a missing file.

    Returns "" if that command does not write a file of this name.
    """
    folder, name = os.path.split(file)
    names = "train.tfrecord", "validation.tfrecord"
    if not isinstance(params.task, masked_lm.MaskedLMConfig) or name not in names:
        return ""
    data = getattr(params.task, part)
    return (
        f". A small one is written by python -m tf_lamb.model_garden.sample_data --output_dir="
        f"{shlex.quote(folder)} --seq_length={data.seq_length} --max_predictions_per_seq="
        f"{data.max_predictions_per_seq}"
    )


def _check_facts(task, file: str) -> None:
    """Raises `UserError` if the model has fewer classes or tokens than a file, by its data.json.

    `sample_data` and `sample_pictures` write data.json into the folder of the data. It is used
    because the check of records reads only the first records of a file, in which the rarest tokens
    and classes may be missing.
    """
    facts, model = model_dirs.read_facts(file), getattr(task, "model", None)
    classes = getattr(model, "num_classes", None)
    if classes is not None and classes < facts.get("num_classes", 0):
        raise UserError(
            f"task.model.num_classes is {classes}, but {file} has {facts['num_classes']}. "
            f"Write task.model.num_classes={facts['num_classes']}"
        )
    if (encoder := getattr(model, "encoder", None)) is None:
        return
    size = getattr(encoder.get(), "vocab_size", None)
    if size is not None and size < facts.get("vocab_size", 0):
        raise UserError(
            f"the model's vocab_size is {size}, but {file} holds {facts['vocab_size']} tokens. "
            f"Write task.model.encoder.{encoder.type}.vocab_size={facts['vocab_size']}"
        )


def no_batch(data) -> str:
    """Returns the text of the error for validation data with no batch to evaluate."""
    batch_size, drops_remainder = data.global_batch_size, getattr(data, "drop_remainder", False)
    alternative = ", or task.validation_data.drop_remainder=false" if drops_remainder else ""
    return (
        f"task.validation_data has not one batch of global_batch_size={batch_size:,}: there is "
        "nothing to evaluate. Write task.validation_data.global_batch_size=N, of no more examples "
        f"than there are{alternative}"
    )


def patterns(data) -> Iterator:
    """Yields the file patterns of a data config.

    It has one, or several if `input_path` is itself a config.
    """
    path = getattr(data, "input_path", None)
    return filter(None, path.as_dict().values() if isinstance(path, base_config.Config) else [path])


def count_examples(data) -> int | None:
    """Counts the records in a data config's TFRecord files, by reading their lengths only.

    Returns:
        The number of records; None if there are none, if the files are not on this machine or not
        TFRecords, or if one is compressed or truncated.
    """
    try:
        files = [file for pattern in patterns(data) for file in input_reader.match_files(pattern)]
    except ValueError:  # a pattern matches no file
        return None
    if getattr(data, "file_type", "tfrecord") != "tfrecord" or not all(map(os.path.isfile, files)):
        return None
    counts = [count for count in map(_count, files) if count is not None]
    return sum(counts) or None if len(counts) == len(files) else None


def _count(file: str) -> int | None:
    """Returns the number of records in a TFRecord file; None if it is compressed or truncated.

    The format of a record is: 8 bytes with the length of the data, 4 bytes with the checksum of the
    length, the data, and 4 bytes with the checksum of the data.
    """
    size, offset, count = os.path.getsize(file), 0, 0
    with open(file, "rb") as stream:
        while offset < size:
            stream.seek(offset)
            offset += 8 + 4 + int.from_bytes(stream.read(8), "little") + 4
            count += 1
    return count if offset == size else None


def _check_whole(part: str, files: list[str]) -> None:
    """Reads all files, and raises `UserError` for the first that cannot be read to its end."""
    for file in files:
        count = 0
        try:
            for _ in _read(file):
                count += 1
        except tf.errors.OpError as error:
            raise UserError(
                f"task.{part}.input_path: {file} cannot be read after {count:,} records "
                f"({error.message}). It is cut, compressed or no TFRecord: write it anew"
            ) from error


# -- records --------------------------------------------------------------------------------------


class Limit(NamedTuple):
    """Holds the bounds of the values of one feature: least <= value < size.

    Attributes:
        feature: the feature's name in a record; None if the feature is not in the records, but is
            computed from them.
        least: the smallest value that is allowed.
        size: the upper bound, which is the smallest value that is not allowed.
        because: the end of the error message, after the word "because": the reason for the bounds,
            and what the user should change.
        number: the number of values in a record; None if it is not fixed.
        setting: the setting of the data that gives `number`; None if no setting does.
        kind: the field of `tf.train.Feature` that holds the values.
    """

    feature: str | None
    least: float
    size: float
    because: str
    number: int | None = None
    setting: str | None = None
    kind: str = "int64_list"

    def why_beyond(self, values) -> str | None:
        """Returns why one of the values is out of bounds; None if all are within them.

        NaN counts as out of bounds.
        """
        if self.kind == "bytes_list":  # bytes have no bounds
            return None
        invalid = next((value for value in values if not self.least <= value < self.size), None)
        if invalid is None:
            return None
        integer_bounds = f"from {self.least} to {self.size - 1}"
        bounds = integer_bounds if self.kind == "int64_list" else "a finite number"
        return f"its {self.feature} is {invalid}, and has to be {bounds}, because {self.because}"


# What an error suggests if the data, and not the settings, are wrong.
_CORRECT = "correct that value"
_LOWEST = -3.0e38  # roughly the lowest finite float32


def limits(task, data) -> dict[str, Limit]:
    """Returns the bounds of the features of a batch, as feature -> `Limit`.

    Args:
        task: the settings of the task. Tasks that are not in `_READ_RECORDS` have no limits.
        data: the data config.
    """
    return {name: limit for name, limit in _limits(task, data) if limit.size}


def _limits(task, data) -> Iterator[tuple[str, Limit]]:
    """Yields the name and the limit of each feature of a task.

    A limit with `size` 0 stands for no limit.
    """
    if isinstance(task, masked_lm.MaskedLMConfig):
        yield from _of_pretraining(task, data)
    elif isinstance(task, sentence_prediction.SentencePredictionConfig):
        yield from _of_sentences(task, data)
    elif isinstance(task, ImageClassificationTask):
        image = "image/encoded"
        yield image, Limit(image, 0, math.inf, "", 1, kind="bytes_list")
        # If examples have several labels, a record has no fixed number of them. In a batch they are
        # then multi-hot vectors, and not class numbers, so only the records are checked.
        count = None if task.train_data.is_multilabel else 1
        because = f"task.model.num_classes is {task.model.num_classes}: raise that"
        feature = task.train_data.label_field_key
        yield "label", Limit(feature, 0, task.model.num_classes, because, count)


def _of_pretraining(task, data) -> Iterator[tuple[str, Limit]]:
    """Yields, for each feature of masked-LM pretraining, its name and its `Limit`.

    A `Limit` holds the bounds of the values of a feature, such as the size of the vocabulary.
    """
    encoder, length, predictions = task.model.encoder, "seq_length", "max_predictions_per_seq"
    # Only `BertPretrainDataConfig` reads features of a fixed length from the records. Other data
    # configs compute the features from text, or shorten them. Then the batches are checked, but not
    # the records and not the positions of masked tokens.
    is_fixed = isinstance(data, pretrain_dataloader.BertPretrainDataConfig)
    has_v2_names = getattr(data, "use_v2_feature_names", False)
    tokens, types = (
        ("input_word_ids", "input_type_ids") if has_v2_names else ("input_ids", "segment_ids")
    )
    feature_limits = dict(_of_encoder(encoder, data, tokens, types))
    feature_limits["masked_lm_ids"] = _of_field(
        encoder, data, "masked_lm_ids", "vocab_size", predictions
    )
    for index, head in enumerate(task.model.cls_heads or ()):
        if head.name == "next_sentence" and getattr(data, "use_next_sentence_label", False):
            because = f"task.model.cls_heads[{index}].num_classes is {head.num_classes}: raise that"
            label = Limit("next_sentence_labels", 0, head.num_classes, because, 1)
            feature_limits["next_sentence_labels"] = label
    if is_fixed:
        because = f"{length} is {data.seq_length}: {_CORRECT}"
        count = data.max_predictions_per_seq
        feature_limits["masked_lm_positions"] = Limit(
            "masked_lm_positions", 0, data.seq_length, because, count, predictions
        )
        feature_limits["masked_lm_weights"] = Limit(
            "masked_lm_weights", 0.0, math.inf, f"it weighs the loss, and is not negative: "
            f"{_CORRECT}", count, predictions, "float_list",
        )  # fmt: skip
        if data.use_position_id:
            field = "max_position_embeddings"
            feature_limits["position_ids"] = _of_field(encoder, data, "position_ids", field, length)
    for name, limit in feature_limits.items():
        yield name, limit if is_fixed else limit._replace(feature=None)


def _of_sentences(task, data) -> Iterator[tuple[str, Limit]]:
    """Yields, for each feature of sentence prediction, its name and its `Limit`.

    A `Limit` holds the bounds of the values of a feature, such as the size of the vocabulary.
    """
    is_fixed = isinstance(data, sentence_prediction_dataloader.SentencePredictionDataConfig)
    if not task.hub_module_url:
        for name, limit in _of_encoder(task.model.encoder, data, "input_ids", "segment_ids"):
            yield name, limit if is_fixed else limit._replace(feature=None)
    classes, label = task.model.num_classes, getattr(data, "label_field", None)
    if not label:
        return
    if getattr(data, "label_type", None) == "float":
        because = f"a loss is computed with it: {_CORRECT}"
        yield label, Limit(label, _LOWEST, math.inf, because, 1, kind="float_list")
    elif classes > 1:
        because = f"task.model.num_classes is {classes}: raise that"
        yield label, Limit(label, 0, classes, because, 1)


def _of_encoder(encoder, data, tokens, types) -> Iterator[tuple[str, Limit]]:
    """Yields, for each of the three inputs of an encoder, its name and its `Limit`.

    The inputs are the tokens, the segments (types), and the padding mask. A `Limit` holds the
    bounds of the values of an input.
    """
    yield "input_word_ids", _of_field(encoder, data, tokens, "vocab_size", "seq_length")
    yield "input_type_ids", _of_field(encoder, data, types, "type_vocab_size", "seq_length")
    because, length = f"1 is for a token and 0 for padding: {_CORRECT}", data.get("seq_length")
    yield "input_mask", Limit("input_mask", 0, 2, because, length, "seq_length")


def _of_field(encoder, data, feature, field, length) -> Limit:
    """Returns the limit of a feature whose values must be below a setting of the encoder.

    The limit has `size` 0, which stands for no limit, if this encoder lacks the setting.

    Args:
        encoder: the config of the encoder: its type, and the settings of that type.
        data: the data config.
        feature: the feature's name in a record.
        field: the setting of the encoder, such as "vocab_size".
        length: the setting of `data` that gives the number of values in a record.
    """
    size = getattr(encoder.get(), field, None) or 0
    because = f"task.model.encoder.{encoder.type}.{field} is {size}: raise that"
    return Limit(feature, 0, size, because, data.get(length), length)


def with_bounds_check(dataset, within: dict[str, Limit]):
    """Returns a data set that ends with an error at a batch with a value out of bounds.

    Args:
        dataset: a `tf.data.Dataset` of batches.
        within: the bounds of its features, as feature -> `Limit`.
    """

    def check(*batch):
        assertions = [
            tf.debugging.Assert(
                tf.reduce_all((values >= limit.least) & (values < limit.size)),
                [f"{limit.feature} is beyond its limits, because {limit.because}"],
            )
            for values, limit in _bounded_values(batch, within)
        ]
        with tf.control_dependencies(assertions):
            checked_batch = tf.nest.map_structure(tf.identity, batch)
        return checked_batch if len(checked_batch) > 1 else checked_batch[0]

    return dataset.map(check)


def _bounded_values(batch, within) -> Iterator[tuple]:
    """Yields, for each feature of a batch whose values are bounded, its values and its `Limit`.

    A `Limit` holds the bounds. `within` is a dict from names of features to their `Limit`s.
    """
    features = batch[0] if isinstance(batch[0], dict) else {"label": batch[-1]}
    for name, limit in within.items():
        # After mixup or cutmix, labels are floats, and not class numbers. They have no limit.
        kind = (
            "int64_list" if name in features and features[name].dtype.is_integer else "float_list"
        )
        if name in features and kind == limit.kind:
            yield features[name], limit._replace(feature=limit.feature or name)


def _check_first(task, part: str, file: str) -> None:
    """Reads the first records of a file, and raises `UserError` if one of them cannot be used."""
    data = getattr(task, part)
    record_limits = limits(task, data).values()
    for number, record in enumerate(itertools.islice(_read(file), _FIRST), 1):
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # protobuf's error class is not exported by TensorFlow
            raise _unusable(part, number, file, "it is no tf.train.Example") from error
        for limit in record_limits:
            if limit.feature and (problem := _why_not(limit, features, data, part)):
                raise _unusable(part, number, file, problem)


def _why_not(limit: Limit, features, data, part: str) -> str | None:
    """Returns why a record cannot be used because of one feature, as text for an error.

    It is None if the record has the feature, and its kind, its length and its values are as `limit`
    says. It is also None if the record lacks a feature that has no fixed number of values.
    """
    if limit.feature not in features:
        if limit.number is None:
            return None
        message = f"it has no {limit.feature}"
        if hasattr(data, "use_v2_feature_names"):
            flag = not data.use_v2_feature_names
            message += f". Write task.{part}.use_v2_feature_names={flag} if it has other names"
        return message
    feature = features[limit.feature]
    kind = feature.WhichOneof("kind") or limit.kind  # an empty feature has no kind
    if kind != limit.kind:
        return f"its {limit.feature} is a {kind}, and a {limit.kind} is read: {_CORRECT}"
    values = getattr(feature, limit.kind).value
    if limit.number is not None and len(values) != limit.number:
        hint = f"task.{part}.{limit.setting} is {limit.number}: write {len(values)}"
        hint = hint if limit.setting else f"{limit.number} is read: {_CORRECT}"
        return f"it has {len(values)} values of {limit.feature}, and {hint}"
    return limit.why_beyond(values)


def check_readable(params) -> None:
    """Reads all data of a run, to find the file or record that caused an error.

    Raises:
        UserError: for the first file or record that cannot be used.
    """
    files_of_parts = []
    for part in ("train_data", "validation_data"):
        data = getattr(params.task, part, None)
        for pattern in patterns(data):
            if pattern == "dummy":
                continue
            files = [
                file for file in input_reader.match_files(pattern) if not tf.io.gfile.isdir(file)
            ]
            if getattr(data, "file_type", "tfrecord") == "tfrecord":
                _check_whole(part, files)
            files_of_parts.append((part, files))
    for part, files in files_of_parts:
        _check_all(params, part, files)


def _check_all(params, part: str, files: list[str]) -> None:
    """Reads all records one by one, as the task does; raises `UserError` for an unusable one.

    Does nothing more if this task cannot read single records.
    """
    data = getattr(params.task, part)
    single_data = data.replace(
        is_training=False, global_batch_size=1, drop_remainder=False, cache=False,
        enable_tf_data_service=False,
    )  # fmt: skip
    task, bounds = task_factory.get_task(params.task, logging_dir=None), limits(params.task, data)
    for file in files:
        number = 1
        try:
            for batch in task.build_inputs(single_data.replace(input_path=file)):
                batch = batch if isinstance(batch, tuple) else (batch,)
                for values, limit in _bounded_values(batch, bounds):
                    if problem := limit.why_beyond(values.numpy().ravel()):
                        raise _unusable(part, number, file, problem)
                number += 1
        except tf.errors.OpError as error:
            raise _unusable(part, number, file, reason(error)) from error
        except (LookupError, TypeError):
            # This task cannot read its data record by record. Nothing is raised here, because the
            # caller then raises TensorFlow's error.
            return


@contextlib.contextmanager
def naming_records(params) -> Iterator[None]:
    """Replaces TensorFlow's error about a batch by one that names the file and the record.

    To find the record, all files are read after such an error in the `with` block.

    Args:
        params: the experiment's `ExperimentConfig`.

    Raises:
        UserError: in place of TensorFlow's error, if a file or a record is found that cannot be
            used. Otherwise TensorFlow's error is raised.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        print(f"A batch cannot be used: {reason(error)}. Looking for its record", flush=True)
        check_readable(params)
        raise


_MOST = 300  # characters of a reason that are shown


def reason(error: Exception) -> str:
    """Returns the message of an error of TensorFlow in one line, cut to `_MOST` characters.

    Removes the names of graph nodes and the stack traces around the message.
    """
    text, *_ = re.split(r"\[\[\s*{{node", getattr(error, "message", None) or str(error))
    text = " ".join(re.sub(r"{{.*?}}", "", text).split())
    for pattern in (
        r'^.*(<stack traces unavailable>|File "[^"]*", line \d+, in \S+) ',
        r"^Error in user-defined function .*? with iterator: \S+: ",
    ):
        text = re.sub(pattern, "", text)
    text = text.rstrip(".")
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


def _unusable(part, number, file, why) -> UserError:
    """Makes the error for a record that cannot be used; `number` counts records from 1."""
    return UserError(
        f"task.{part}.input_path: record {number:,} of {file} cannot be used: {why}. Or write the "
        "file anew without it"
    )
