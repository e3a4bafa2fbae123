"""The TFRecord files of a run: which there are, how many examples, whether they can be read.

Without TensorFlow's runtime: a multi-worker strategy must be the first to touch it.
"""

import math
import os
from collections.abc import Iterator

import tensorflow as tf
from official.core import input_reader
from official.modeling.hyperparams import base_config

from tf_lamb.model_garden.common.errors import UserError


def patterns(data) -> Iterator:
    """Yields what names the files of a data config: one pattern, or one of each kind of data."""
    path = getattr(data, "input_path", None)
    return filter(None, path.as_dict().values() if isinstance(path, base_config.Config) else [path])


def count_examples(data, max_bytes: float = math.inf) -> int | None:
    """The records in the TFRecord files of a data config; None where they are not on this machine.

    Only their lengths are read, of files that have `max_bytes` together; None of larger ones.
    """
    try:
        files = [file for pattern in patterns(data) for file in input_reader.match_files(pattern)]
    except ValueError:  # nothing matches
        return None
    if getattr(data, "file_type", "tfrecord") != "tfrecord" or not all(map(os.path.isfile, files)):
        return None
    if sum(map(os.path.getsize, files)) > max_bytes:
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


def read(file: str):
    """The records in a TFRecord file, one by one."""
    return tf.compat.v1.io.tf_record_iterator(file)


def check_readable(part: str, files: list[str]) -> None:
    """Raises for the first of the files that cannot be read to its end; reads all of them."""
    for file in files:
        count = 0
        try:
            for _ in read(file):
                count += 1
        except tf.errors.OpError as error:
            raise UserError(
                f"task.{part}.input_path: {file} cannot be read after {count:,} records "
                f"({error.message}). It is cut, compressed or no TFRecord: write it anew"
            ) from error
