"""The data of a run: its TFRecord files, and the records in them.

On a CPU TensorFlow breaks a step off at a token beyond the vocabulary; elsewhere it takes zeros. A
label beyond the classes is one of none everywhere, where labels are one-hot. A masked position
beyond the sequence is one of the next example in the batch, and no error anywhere. Before training
files are read without TensorFlow's runtime: a multi-worker strategy must be the first to touch it.
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
    is_records = getattr(getattr(params.task, part), "file_type", None) == "tfrecord"
    for file in files:
        if is_records and tf.io.gfile.isdir(file):
            way_out = f"task.{part}.input_path={os.path.join(file, '*')}"
            raise UserError(f"{given}: {file} is a folder. Name the files in it, as by {way_out}")
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
    """What the values of one feature have to be: at least `least`, and less than `size`."""

    feature: str | None  # its name in a record; None where records hold what it is computed of
    least: float
    size: float
    because: str  # what says so, and the way out
    number: int | None = None  # of the values in a record, where it is fixed
    setting: str | None = None  # of the data, which says that number; None where it is always 1
    kind: str = "int64_list"  # of the values in a record

    def why_beyond(self, values) -> str | None:
        """Why one of the values cannot be; None where all can. NaN is within no bounds."""
        if self.kind == "bytes_list":  # nothing is counted with them
            return None
        beyond = next((value for value in values if not self.least <= value < self.size), None)
        if beyond is None:
            return None
        last = f"from {self.least} to {self.size - 1}"
        bounds = last if self.kind == "int64_list" else "a finite number"
        return f"its {self.feature} is {beyond}, and has to be {bounds}, because {self.because}"


_CORRECT = "correct that value"
_LOWEST = -3.0e38  # of float32, roughly: any finite number


def limits(task, data) -> dict[str, Limit]:
    """The limits of the features of a batch, by their names, for the tasks that are known."""
    return {name: limit for name, limit in _limits(task, data) if limit.size}


def _limits(task, data) -> Iterator[tuple[str, Limit]]:
    if isinstance(task, masked_lm.MaskedLMConfig):
        yield from _of_pretraining(task, data)
    elif isinstance(task, sentence_prediction.SentencePredictionConfig):
        yield from _of_sentences(task, data)
    elif isinstance(task, ImageClassificationTask):
        picture = "image/encoded"
        yield picture, Limit(picture, 0, math.inf, "", 1, kind="bytes_list")
        # Of several labels a batch has none that is a number: the records alone are looked at.
        count = None if task.train_data.is_multilabel else 1
        because = f"task.model.num_classes is {task.model.num_classes}: raise that"
        feature = task.train_data.label_field_key
        yield "label", Limit(feature, 0, task.model.num_classes, because, count)


def _of_pretraining(task, data) -> Iterator[tuple[str, Limit]]:
    encoder, length, masked = task.model.encoder, "seq_length", "max_predictions_per_seq"
    # Other data configs read text, or cut what they read: their records are of another kind.
    is_fixed = isinstance(data, pretrain_dataloader.BertPretrainDataConfig)
    v2 = getattr(data, "use_v2_feature_names", False)
    tokens, types = ("input_word_ids", "input_type_ids") if v2 else ("input_ids", "segment_ids")
    found = dict(_of_encoder(encoder, data, tokens, types))
    found["masked_lm_ids"] = _of_field(encoder, data, "masked_lm_ids", "vocab_size", masked)
    for i, head in enumerate(task.model.cls_heads or ()):
        if head.name == "next_sentence" and getattr(data, "use_next_sentence_label", False):
            because = f"task.model.cls_heads[{i}].num_classes is {head.num_classes}: raise that"
            label = Limit("next_sentence_labels", 0, head.num_classes, because, 1)
            found["next_sentence_labels"] = label
    if is_fixed:
        because = f"{length} is {data.seq_length}: {_CORRECT}"
        count = data.max_predictions_per_seq
        found["masked_lm_positions"] = Limit(
            "masked_lm_positions", 0, data.seq_length, because, count, masked
        )
        found["masked_lm_weights"] = Limit(
            "masked_lm_weights", 0.0, math.inf, f"it weighs the loss, and is not negative: "
            f"{_CORRECT}", count, masked, "float_list",
        )  # fmt: skip
        if data.use_position_id:
            field = "max_position_embeddings"
            found["position_ids"] = _of_field(encoder, data, "position_ids", field, length)
    for name, limit in found.items():
        yield name, limit if is_fixed else limit._replace(feature=None)


def _of_sentences(task, data) -> Iterator[tuple[str, Limit]]:
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
    """The limits of what an encoder sees: tokens, their segments, and which of them are there."""
    yield "input_word_ids", _of_field(encoder, data, tokens, "vocab_size", "seq_length")
    yield "input_type_ids", _of_field(encoder, data, types, "type_vocab_size", "seq_length")
    because, length = f"1 is for a token and 0 for padding: {_CORRECT}", data.get("seq_length")
    yield "input_mask", Limit("input_mask", 0, 2, because, length, "seq_length")


def _of_field(encoder, data, feature, field, length) -> Limit:
    """The limit that a setting of the encoder is; of size 0 where this encoder has none."""
    size = getattr(encoder.get(), field, None) or 0
    because = f"task.model.encoder.{encoder.type}.{field} is {size}: raise that"
    return Limit(feature, 0, size, because, data.get(length), length)


def checked(dataset, within: dict[str, Limit]):
    """The data set, which ends with an error at a batch that has a value beyond its limit."""

    def check(*batch):
        held = [
            tf.debugging.Assert(
                tf.reduce_all((values >= limit.least) & (values < limit.size)),
                [f"{limit.feature} is beyond its limits, because {limit.because}"],
            )
            for values, limit in _limited(batch, within)
        ]
        with tf.control_dependencies(held):
            same = tf.nest.map_structure(tf.identity, batch)
        return same if len(same) > 1 else same[0]

    return dataset.map(check)


def _limited(batch, within) -> Iterator[tuple]:
    """The features of a batch that have a limit, and their limits."""
    features = batch[0] if isinstance(batch[0], dict) else {"label": batch[-1]}
    for name, limit in within.items():
        # Labels that are mixed are no numbers of a class.
        kind = (
            "int64_list" if name in features and features[name].dtype.is_integer else "float_list"
        )
        if name in features and kind == limit.kind:
            yield features[name], limit._replace(feature=limit.feature or name)


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
            if limit.feature and (why := _why_not(limit, features, data, part)):
                raise _unusable(part, number, file, why)


def _why_not(limit: Limit, features, data, part: str) -> str | None:
    """Why a record's features cannot be used, for one that has a limit; None where they can."""
    if limit.feature not in features:
        if limit.number is None:
            return None
        lack = f"it has no {limit.feature}"
        if hasattr(data, "use_v2_feature_names"):
            other = not data.use_v2_feature_names
            lack += f". Write task.{part}.use_v2_feature_names={other} if it has other names"
        return lack
    feature = features[limit.feature]
    kind = feature.WhichOneof("kind") or limit.kind  # which nothing at all may be
    if kind != limit.kind:
        return f"its {limit.feature} is a {kind}, and a {limit.kind} is read: {_CORRECT}"
    values = getattr(feature, limit.kind).value
    if limit.number is not None and len(values) != limit.number:
        says = f"task.{part}.{limit.setting} is {limit.number}: write {len(values)}"
        says = says if limit.setting else f"{limit.number} is read: {_CORRECT}"
        return f"it has {len(values)} values of {limit.feature}, and {says}"
    return limit.why_beyond(values)


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


_MOST = 300  # characters of a reason


def reason(error: Exception) -> str:
    """TensorFlow's reason, in one line, without the places in its graph that stand around it."""
    text, *_ = re.split(r"\[\[\s*{{node", getattr(error, "message", None) or str(error))
    text = " ".join(re.sub(r"{{.*?}}", "", text).split())
    for before in (
        r'^.*(<stack traces unavailable>|File "[^"]*", line \d+, in \S+) ',
        r"^Error in user-defined function .*? with iterator: \S+: ",
    ):
        text = re.sub(before, "", text)
    text = text.rstrip(".")
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


def _unusable(part, number, file, why) -> UserError:
    return UserError(
        f"task.{part}.input_path: record {number:,} of {file} cannot be used: {why}. Or write the "
        "file anew without it"
    )
