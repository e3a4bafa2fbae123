"""The callbacks of this door: the face of each, before Keras 3."""

import contextlib

import keras

from tf_lamb.api import callbacks
from tf_lamb.core.messages import needed


class BetweenBatches(keras.callbacks.Callback):
    """Tells how many steps lie between two calls."""

    def _batches_a_call(self):
        return self.model.steps_per_execution


class _Observing:
    """Stands before a callback that has the optimizer observe its trust ratios."""

    def _find(self, model):
        """See base class; what wraps the optimizer does not save what it shows."""
        optimizer, wrapper = super()._find(model), model.optimizer
        while wrapper is not optimizer and keras.backend.backend() == "jax":  # among the variables
            _hide(optimizer, wrapper)
            wrapper = wrapper.inner_optimizer
        return optimizer


class AutoWarmup(callbacks.AutoWarmup, BetweenBatches):
    __doc__ = callbacks.AutoWarmup.__doc__


class DivergenceReport(_Observing, callbacks.DivergenceReport, BetweenBatches):
    __doc__ = callbacks.DivergenceReport.__doc__


class NoiseScale(callbacks.NoiseScale, BetweenBatches):
    __doc__ = callbacks.NoiseScale.__doc__


class StopAtScaleInvariantStep(callbacks.StopAtScaleInvariantStep, BetweenBatches):
    __doc__ = callbacks.StopAtScaleInvariantStep.__doc__


class TrustRatios(_Observing, callbacks.TrustRatios, BetweenBatches):
    __doc__ = callbacks.TrustRatios.__doc__

    def _check_directory(self):
        with needed(
            f"TrustRatios(directory={self._directory!r}), which writes TensorBoard's files,",
            "tensorflow", "leave the directory out and have the table alone, or ",
        ):  # fmt: skip
            from tf_lamb.tensorflow import summaries
        super()._check_directory()
        return summaries.Writer

    def _writer(self, directory, optimizer):
        if keras.backend.backend() != "tensorflow":
            import tensorflow as tf

            # Else TensorFlow takes the memory of the GPU on which another backend trains.
            with contextlib.suppress(RuntimeError):
                tf.config.set_visible_devices([], "GPU")
        return self._check_directory()(directory, optimizer)


def _hide(optimizer, wrapper):
    """Has a wrapper of the optimizer, which lists its variables, not save what is on show."""

    def without(method):
        def wrapped(store):
            with optimizer.without_shown():
                method(store)

        return wrapped

    for name in ("save_own_variables", "load_own_variables"):
        if name not in vars(wrapper):
            setattr(wrapper, name, without(getattr(wrapper, name)))
