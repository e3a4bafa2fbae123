"""Finders for tf_keras."""

import tf_keras

from tf_lamb.api.find.batch import find_batch
from tf_lamb.api.find.rate import make_find_rate
from tf_lamb.tf_keras import family, schedules

find_rate = make_find_rate(tf_keras, family, schedules)

__all__ = ["find_batch", "find_rate"]
