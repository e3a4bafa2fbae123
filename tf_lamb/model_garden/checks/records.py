"""The TFRecord files of a run, and what they hold: tokens of the vocabulary, labels with a class.

On a CPU TensorFlow breaks a step off at a token beyond the vocabulary; elsewhere it takes zeros. A
label beyond the classes is one of none everywhere, where labels are one-hot. Before training files
are read without TensorFlow's runtime: a multi-worker strategy must be the first to touch it.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from official.core import input_reader, task_factory
from official.modeling.hyperparams import base_config
from official.nlp.tasks import masked_lm, sentence_prediction
from official.vision.configs.image_classification import ImageClassificationTask

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.tasks.masked_lm import PretrainDataConfig

_OTHER_NAMES = {"input_ids": "input_word_ids", "input_word_ids": "input_ids"}
_FIRST = 100  # records of a file that are looked at before training
_read = tf.compat.v1.io.tf_record_iterator  # of a file


def patterns(data) -> Iterator:
    """Yields what names the files of a data config: one pattern, or one of each kind of data."""
    path = getattr(data, "input_path", None)
    return filter(None, path.as_dict().values() if isinstance(path, base_config.Config) else [path])


def count_examples(data) -> int | None:
    """The records in the TFRecord files of a data config; None where they are not on this machine.

    Their lengths alone are read.
    """
    try:
        files = [file for pattern in patterns(data) for file in input_reader.match_files(pattern)]
    except ValueError:  # nothing matches
        return None
    if getattr(data, "file_type", "tfrecord") != "tfrecord" or not all(map(os.path.isfile, files)):
        return None
    counts = [count for count in map(_count, files) if count is not None]
    return sum(counts) or None if len(counts) == len(files) else None


def _count(file: str) -> int | None:
    """The records in a file; None where it is compressed, or cut.

    A record is the length of its data in 8 bytes, their checksum in 4, the data, and its in 4.
    """
    size, at, count = os.path.getsize(file), 0, 0
    with open(file, "rb") as opened:
        while at < size:
            opened.seek(at)
            at += 8 + 4 + int.from_bytes(opened.read(8), "little") + 4
            count += 1
    return count if at == size else None


def check_files(part: str, files: list[str]) -> None:
    """Raises for the first of the files that cannot be read to its end; reads all of them."""
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


class Limit(NamedTuple):
    """Values of a feature are whole numbers from 0 on, and less than `size`."""

    feature: str  # its name in a record
    size: int
    setting: str  # what says the size
    length: str | None = None  # the setting of the data that says how many a record has


def limits(task, data) -> dict[str, Limit]:
    """The limits of the features of a batch, by their names, for the tasks that are known."""
    found = {name: Limit(*limit) for name, *limit in _limits(task, data)}
    return {name: limit for name, limit in found.items() if limit.size}


def _limits(task, data) -> Iterator[tuple]:
    if isinstance(task, masked_lm.MaskedLMConfig):
        v2 = getattr(data, "use_v2_feature_names", False)
        tokens, types = ("input_word_ids", "input_type_ids") if v2 else ("input_ids", "segment_ids")
        fixed = isinstance(data, PretrainDataConfig)
        yield from _of_encoder(task.model.encoder, tokens, types, "seq_length" if fixed else None)
        size = _size(task.model.encoder, "masked_lm_ids", "vocab_size")
        yield "masked_lm_ids", *size, "max_predictions_per_seq" if fixed else None
        for i, head in enumerate(task.model.cls_heads or ()):
            if head.name == "next_sentence" and getattr(data, "use_next_sentence_label", False):
                setting = f"task.model.cls_heads[{i}].num_classes"
                yield "next_sentence_labels", "next_sentence_labels", head.num_classes, setting
    elif isinstance(task, sentence_prediction.SentencePredictionConfig):
        if not task.hub_module_url:
            yield from _of_encoder(task.model.encoder, "input_ids", "segment_ids")
        count, label = task.model.num_classes, getattr(data, "label_field", None)
        if label and getattr(data, "label_type", None) == "int" and count > 1:
            yield label, label, count, "task.model.num_classes"
    elif isinstance(task, ImageClassificationTask) and not task.train_data.is_multilabel:
        feature = task.train_data.label_field_key
        yield "label", feature, task.model.num_classes, "task.model.num_classes"


def _of_encoder(encoder, tokens, types, length=None) -> Iterator[tuple]:
    yield "input_word_ids", *_size(encoder, tokens, "vocab_size"), length
    yield "input_type_ids", *_size(encoder, types, "type_vocab_size"), length


def _size(encoder, feature, field) -> tuple:
    size = getattr(encoder.get(), field, None)
    return feature, size, f"task.model.encoder.{encoder.type}.{field}"


def checked(dataset, within: dict[str, Limit]):
    """The data set, which ends with an error at a batch that has a value beyond its limit."""

    def check(*batch):
        held = [
            tf.debugging.Assert(
                tf.reduce_all((values >= 0) & (values < limit.size)),
                [f"{name} is not within {limit.setting}={limit.size}"],
            )
            for name, values, limit in _limited(batch, within)
        ]
        with tf.control_dependencies(held):
            same = tf.nest.map_structure(tf.identity, batch)
        return same if len(same) > 1 else same[0]

    return dataset.map(check)


def _limited(batch, within) -> Iterator[tuple]:
    """The features of a batch that are numbers of classes or tokens."""
    features = batch[0] if isinstance(batch[0], dict) else {"label": batch[-1]}
    for name, limit in within.items():
        # Labels that are mixed are no numbers of a class.
        if name in features and features[name].dtype.is_integer:
            yield name, features[name], limit


def _why_beyond(values, limit: Limit) -> str | None:
    beyond = next((value for value in values if not 0 <= value < limit.size), None)
    if beyond is None:
        return None
    return (
        f"its {limit.feature} is {beyond}, and has to be from 0 to {limit.size - 1}, because "
        f"{limit.setting} is {limit.size}: raise that"
    )


def check_first(task, part: str, file: str) -> None:
    """Raises for the first of some records at the beginning of a file that cannot be used."""
    data = getattr(task, part)
    within = limits(task, data)
    for number, record in enumerate(itertools.islice(_read(file), _FIRST), 1):
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # protobuf's own, which TensorFlow does not name
            raise _unusable(part, number, file, "it is no tf.train.Example") from error
        for limit in within.values():
            if limit.feature not in features:
                lack = f"it has no {limit.feature}"
                if _OTHER_NAMES.get(limit.feature, "") in features:
                    v2 = limit.feature == "input_ids"
                    lack += f". Write task.{part}.use_v2_feature_names={v2}"
                raise _unusable(part, number, file, lack)
            values = features[limit.feature].int64_list.value
            if limit.length and len(values) != getattr(data, limit.length):
                raise _unusable(
                    part, number, file, f"it has {len(values)} values of {limit.feature}, and task."
                    f"{part}.{limit.length} is {getattr(data, limit.length)}: write {len(values)}"
                )  # fmt: skip
            if why := _why_beyond(values, limit):
                raise _unusable(part, number, file, why)


@contextlib.contextmanager
def naming_records(params) -> Iterator[None]:
    """Makes an error of the data name the file and the record that it comes from.

    A run without an error pays nothing; after one, all files are read.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        print(f"A batch cannot be used: {reason(error)}. Looking for its record", flush=True)
        check_readable(params)
        raise


def check_readable(params) -> None:
    """Raises, after an error, for the file or the record of a run's data that cannot be used."""
    found = []
    for part in ("train_data", "validation_data"):
        data = getattr(params.task, part, None)
        for pattern in patterns(data):
            if pattern == "dummy":
                continue
            files = [f for f in input_reader.match_files(pattern) if not tf.io.gfile.isdir(f)]
            if getattr(data, "file_type", "tfrecord") == "tfrecord":
                check_files(part, files)
            found.append((part, files))
    for part, files in found:
        _check_all(params, part, files)


def _check_all(params, part: str, files: list[str]) -> None:
    """Reads all records as the task does, one by one; raises for the first that it cannot use."""
    data = getattr(params.task, part)
    one_by_one = data.replace(
        is_training=False, global_batch_size=1, drop_remainder=False, cache=False,
        enable_tf_data_service=False,
    )  # fmt: skip
    task, within = task_factory.get_task(params.task, logging_dir=None), limits(params.task, data)
    for file in files:
        number = 1
        try:
            for batch in task.build_inputs(one_by_one.replace(input_path=file)):
                batch = batch if isinstance(batch, tuple) else (batch,)
                for _, values, limit in _limited(batch, within):
                    if why := _why_beyond(values.numpy().ravel(), limit):
                        raise _unusable(part, number, file, why)
                number += 1
        except tf.errors.OpError as error:
            raise _unusable(part, number, file, reason(error)) from error
        except (LookupError, TypeError):  # no data of one file, one by one: their error is told
            return


def reason(error: tf.errors.OpError) -> str:
    """TensorFlow's reason, in one line without the names of its nodes."""
    first, *_ = re.sub(r"{{.*?}}", "", error.message).split("[[")
    return " ".join(first.split()).rstrip(".")[:300]


def _unusable(part, number, file, why) -> UserError:
    return UserError(
        f"task.{part}.input_path: record {number:,} of {file} cannot be used: {why}. Or write the "
        "file anew without it"
    )
