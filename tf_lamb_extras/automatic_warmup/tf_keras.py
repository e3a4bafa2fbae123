"""Defines the callback `AutoWarmup` for tf_keras."""

from tf_lamb.tf_keras.callbacks import KerasCallback
from tf_lamb_extras.automatic_warmup import callback


class AutoWarmup(callback.AutoWarmup, KerasCallback): ...
