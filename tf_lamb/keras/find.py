"""Finders for Keras 3."""

import keras

from tf_lamb.api.find.batch import find_batch
from tf_lamb.api.find.rate import make_find_rate
from tf_lamb.keras import family, schedules

find_rate = make_find_rate(keras, family, schedules)

__all__ = ["find_batch", "find_rate"]
