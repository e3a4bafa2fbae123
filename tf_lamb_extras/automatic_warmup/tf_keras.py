"""Defines the callback `AutoWarmup` for tf_keras."""

from tf_lamb.tf_keras.callbacks import KerasCallback
from tf_lamb_extras.automatic_warmup import callback


class AutoWarmup(callback.AutoWarmup, KerasCallback):
    __doc__ = callback.AutoWarmup.__doc__  # `help` does not read that of a base class
