"""Defines the callback `AutoWarmup` for Keras 3."""

from tf_lamb.keras.callbacks import KerasCallback
from tf_lamb_extras.automatic_warmup import callback


class AutoWarmup(callback.AutoWarmup, KerasCallback): ...
