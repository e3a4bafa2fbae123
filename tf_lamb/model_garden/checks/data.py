"""The data of a run: its TFRecord files, and the records in them.

On a CPU TensorFlow breaks a step off at a token beyond the vocabulary; elsewhere it takes zeros. A
label beyond the classes is one of none everywhere, where labels are one-hot. Before training files
are read without TensorFlow's runtime: a multi-worker strategy must be the first to touch it.
"""

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from official.core import config_definitions, input_reader, task_factory
from official.modeling.hyperparams import base_config
from official.nlp.tasks import masked_lm, sentence_prediction
from official.vision.configs.image_classification import ImageClassificationTask

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.folders import model_dirs
from tf_lamb.model_garden.tasks import PretrainDataConfig, check_order

_READ_RECORDS = (
    masked_lm.MaskedLMConfig, sentence_prediction.SentencePredictionConfig,
    ImageClassificationTask,
)  # fmt: skip
_FIRST = 100  # records of a file that are looked at before training
_read = tf.compat.v1.io.tf_record_iterator  # of a file


def check_data(params, training: bool, evaluating: bool) -> None:
    """Raises for the first thing that is wrong with the files and sizes that a run names."""
    for part, used in (("train_data", training), ("validation_data", evaluating)):
        data = getattr(params.task, part, None)
        if not used or not isinstance(data, config_definitions.DataConfig):
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


def _check_files(params, part: str, pattern) -> None:
    """Looks at the files, and at the first records and for one batch where a task reads them."""
    given = f"task.{part}.input_path={pattern!r}"
    with named(given):
        files = input_reader.match_files(pattern)
    for file in files:
        if not tf.io.gfile.exists(file):
            raise UserError(f"{given}: there is no file {file}{_sample(params, part, file)}")
        if not tf.io.gfile.isdir(file) and tf.io.gfile.stat(file).length == 0:
            raise UserError(f"{given}: {file} is empty")
    _check_facts(params.task, files[0])
    data = getattr(params.task, part)
    reads = isinstance(params.task, _READ_RECORDS)
    reads = reads and getattr(data, "file_type", None) == "tfrecord"
    if not reads or any(map(tf.io.gfile.isdir, files)):
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
    """The command that writes a small data set of that name, if it is one that it writes."""
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
    """Holds what `sample_data` or `sample_pictures` wrote beside its records against the model.

    Of records the first are looked at alone, where the rarest tokens and classes may not be.
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
    """The error for validation data of which no batch is evaluated."""
    batch, drops = data.global_batch_size, getattr(data, "drop_remainder", False)
    way_out = ", or task.validation_data.drop_remainder=false" if drops else ""
    return (
        f"task.validation_data has not one batch of global_batch_size={batch:,}: there is nothing "
        "to evaluate. Write task.validation_data.global_batch_size=N, of no more examples than "
        f"there are{way_out}"
    )


def patterns(data) -> Iterator:
    """Yields what names the files of a data config: one pattern, or one of each kind of data."""
    path = getattr(data, "input_path", None)
    return filter(None, path.as_dict().values() if isinstance(path, base_config.Config) else [path])


def count_examples(data) -> int | None:
    """The records in a data config's TFRecord files, by their lengths; None without the files."""
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


def _check_whole(part: str, files: list[str]) -> None:
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


# -- records --------------------------------------------------------------------------------------


class Limit(NamedTuple):
    """Values of a feature are whole numbers from 0 on, and less than `size`."""

    feature: str  # its name in a record
    size: int
    setting: str  # what says the size
    length: str | None = None  # the setting of the data that says how many a record has

    def why_beyond(self, values) -> str | None:
        """Why one of the values cannot be; None where all can."""
        beyond = next((value for value in values if not 0 <= value < self.size), None)
        if beyond is None:
            return None
        return (
            f"its {self.feature} is {beyond}, and has to be from 0 to {self.size - 1}, because "
            f"{self.setting} is {self.size}: raise that"
        )


def limits(task, data) -> dict[str, Limit]:
    """The limits of the features of a batch, by their names, for the tasks that are known."""
    found = {name: Limit(*limit) for name, *limit in _limits(task, data)}
    return {name: limit for name, limit in found.items() if limit.size}


def _limits(task, data) -> Iterator[tuple]:
    if isinstance(task, masked_lm.MaskedLMConfig):
        v2 = getattr(data, "use_v2_feature_names", False)
        tokens, types = ("input_word_ids", "input_type_ids") if v2 else ("input_ids", "segment_ids")
        fixed, encoder = isinstance(data, PretrainDataConfig), task.model.encoder
        length, masked = ("seq_length", "max_predictions_per_seq") if fixed else (None, None)
        yield from _of_encoder(encoder, tokens, types, length)
        yield "masked_lm_ids", *_size(encoder, "masked_lm_ids", "vocab_size"), masked
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
                [f"{limit.feature} is not within {limit.setting}={limit.size}"],
            )
            for values, limit in _limited(batch, within)
        ]
        with tf.control_dependencies(held):
            same = tf.nest.map_structure(tf.identity, batch)
        return same if len(same) > 1 else same[0]

    return dataset.map(check)


def _limited(batch, within) -> Iterator[tuple]:
    """The features of a batch that are numbers of classes or tokens, and their limits."""
    features = batch[0] if isinstance(batch[0], dict) else {"label": batch[-1]}
    for name, limit in within.items():
        # Labels that are mixed are no numbers of a class.
        if name in features and features[name].dtype.is_integer:
            yield features[name], limit


def _check_first(task, part: str, file: str) -> None:
    """Raises for the first of some records at the beginning of a file that cannot be used."""
    data = getattr(task, part)
    within = limits(task, data).values()
    for number, record in enumerate(itertools.islice(_read(file), _FIRST), 1):
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # protobuf's own, which TensorFlow does not name
            raise _unusable(part, number, file, "it is no tf.train.Example") from error
        for limit in within:
            if limit.feature not in features:
                lack = f"it has no {limit.feature}"
                if hasattr(data, "use_v2_feature_names"):
                    other = not data.use_v2_feature_names
                    lack += (
                        f". Write task.{part}.use_v2_feature_names={other} if it has other names"
                    )
                raise _unusable(part, number, file, lack)
            values = features[limit.feature].int64_list.value
            if limit.length and len(values) != (asked := getattr(data, limit.length)):
                raise _unusable(
                    part, number, file, f"it has {len(values)} values of {limit.feature}, and task."
                    f"{part}.{limit.length} is {asked}: write {len(values)}"
                )  # fmt: skip
            if why := limit.why_beyond(values):
                raise _unusable(part, number, file, why)


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
                _check_whole(part, files)
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
                for values, limit in _limited(batch, within):
                    if why := limit.why_beyond(values.numpy().ravel()):
                        raise _unusable(part, number, file, why)
                number += 1
        except tf.errors.OpError as error:
            raise _unusable(part, number, file, reason(error)) from error
        except (LookupError, TypeError):  # no data of one file, one by one: their error is told
            return


@contextlib.contextmanager
def naming_records(params) -> Iterator[None]:
    """Makes an error of the data name its file and record, for which all files are then read."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        print(f"A batch cannot be used: {reason(error)}. Looking for its record", flush=True)
        check_readable(params)
        raise


def reason(error: tf.errors.OpError) -> str:
    """TensorFlow's reason, in one line without the names of its nodes."""
    first, *_ = re.sub(r"{{.*?}}", "", error.message).split("[[")
    return " ".join(first.split()).rstrip(".")[:300]


def _unusable(part, number, file, why) -> UserError:
    return UserError(
        f"task.{part}.input_path: record {number:,} of {file} cannot be used: {why}. Or write the "
        "file anew without it"
    )
