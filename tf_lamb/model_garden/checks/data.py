"""What can be known to be wrong with a run's data before it is read, one sentence each."""

import os
import shlex

import tensorflow as tf
from official.core import config_definitions, input_reader
from official.modeling.hyperparams import base_config
from official.nlp.tasks import masked_lm

from tf_lamb.model_garden.folders import model_dirs
from tf_lamb.model_garden.samples.text import FILES
from tf_lamb.model_garden.tasks.masked_lm import why_no_order


def why_no_data(params, training: bool, evaluating: bool) -> str | None:
    """The first thing that is wrong with the files and sizes that a run names, or None."""
    for part, used in (("train_data", training), ("validation_data", evaluating)):
        data = getattr(params.task, part, None)
        if not used or not isinstance(data, config_definitions.DataConfig):
            continue
        path = data.input_path
        if not path and not data.tfds_name and isinstance(params.task, masked_lm.MaskedLMConfig):
            return f"task.{part}.input_path is empty. Name the TFRecord files to read"
        if part == "train_data" and (reason := why_no_order(data)):
            return reason
        patterns = path.as_dict().values() if isinstance(path, base_config.Config) else [path]
        for pattern in patterns:
            if pattern and pattern != "dummy" and (reason := _why_no_files(params, part, pattern)):
                return reason
    return None


def no_batch(data) -> str:
    """What to say of validation data of which no batch is evaluated."""
    batch, drops = data.global_batch_size, getattr(data, "drop_remainder", False)
    way_out = ", or task.validation_data.drop_remainder=false" if drops else ""
    return (
        f"task.validation_data has not one batch of global_batch_size={batch:,}: there is nothing "
        f"to evaluate. Write task.validation_data.global_batch_size=N, of no more examples than "
        f"there are{way_out}"
    )


def _why_no_files(params, part: str, pattern) -> str | None:
    given = f"task.{part}.input_path={pattern!r}"
    try:
        files = input_reader.match_files(pattern)
    except ValueError as error:
        return f"{given}: {error}"
    for file in files:
        if not tf.io.gfile.exists(file):
            return f"{given}: there is no file {file}{_sample(params, part, file)}"
        if not tf.io.gfile.isdir(file) and tf.io.gfile.stat(file).length == 0:
            return f"{given}: {file} is empty"
    return _why_not_those(params, part, files[0])


def _sample(params, part: str, file: str) -> str:
    """The command that writes a small data set of that name, if it is one that it writes."""
    folder, name = os.path.split(file)
    if not isinstance(params.task, masked_lm.MaskedLMConfig) or name not in FILES:
        return ""
    data = getattr(params.task, part)
    return (
        f". A small one is written by python -m tf_lamb.model_garden.sample_data --output_dir="
        f"{shlex.quote(folder)} --seq_length={data.seq_length} --max_predictions_per_seq="
        f"{data.max_predictions_per_seq}"
    )


def _why_not_those(params, part: str, file: str) -> str | None:
    """Holds what `sample_data` wrote down beside its records against the config."""
    facts, data = model_dirs.read_facts(file), getattr(params.task, part)
    for key in ("seq_length", "max_predictions_per_seq"):
        if key in facts and getattr(data, key, None) not in (None, facts[key]):
            return (
                f"task.{part}.{key} is {getattr(data, key)}, but {file} was written with "
                f"{facts[key]}. Write task.{part}.{key}={facts[key]}"
            )
    model = getattr(params.task, "model", None)
    classes = getattr(model, "num_classes", None)
    if classes is not None and classes < facts.get("num_classes", 0):
        return (
            f"task.model.num_classes is {classes}, but {file} has {facts['num_classes']}. "
            f"Write task.model.num_classes={facts['num_classes']}"
        )
    if (encoder := getattr(model, "encoder", None)) is None:
        return None
    chosen, setting = encoder.get(), f"Write task.model.encoder.{encoder.type}."
    positions = getattr(chosen, "max_position_embeddings", None)
    if positions is not None and positions < (getattr(data, "seq_length", None) or 0):
        return (
            f"task.{part}.seq_length is {data.seq_length}, but the model has {positions} "
            f"positions. {setting}max_position_embeddings={data.seq_length}, in an earlier stage, "
            "too"
        )
    size = getattr(chosen, "vocab_size", None)
    if size is not None and size < facts.get("vocab_size", 0):
        return (
            f"the model's vocab_size is {size}, but {file} holds {facts['vocab_size']} tokens. "
            f"{setting}vocab_size={facts['vocab_size']}"
        )
    return None
