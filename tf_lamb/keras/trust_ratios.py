"""The callback that shows trust ratios: its face, before Keras 3."""

import contextlib

import keras

from tf_lamb.api.callbacks import trust_ratios
from tf_lamb.core.checks.installed import needed
from tf_lamb.keras import callbacks


class TrustRatios(trust_ratios.TrustRatios, callbacks.BetweenBatches):
    __doc__ = trust_ratios.TrustRatios.__doc__

    def set_model(self, model):
        """As the face says; what wraps the optimizer does not save what is on show."""
        super().set_model(model)
        if keras.backend.backend() != "jax":  # where it is among the variables
            return
        wrapper = model.optimizer
        while wrapper is not self._watch.optimizer:
            _hide(self._watch.optimizer, wrapper)
            wrapper = wrapper.inner_optimizer

    def _check_directory(self):
        with needed(
            f"TrustRatios(directory={self._directory!r}), which writes TensorBoard's files,",
            "tensorflow", "leave the directory out and have the table alone, or ",
        ):  # fmt: skip
            from tf_lamb.tensorflow import summaries
        return summaries

    def _open_writer(self, optimizer):
        summaries = self._check_directory()
        if keras.backend.backend() == "tensorflow":
            return summaries.Writer(self._directory, optimizer._distribution_strategy)
        import tensorflow as tf

        # Else TensorFlow takes the memory of the GPU on which another backend trains.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
        return summaries.Writer(self._directory)


def _hide(optimizer, wrapper):
    """Has a wrapper of the optimizer, which lists its variables, not save what is on show."""

    def without(method):
        def wrapped(store):
            with optimizer.without_observed():
                method(store)

        return wrapped

    for name in ("save_own_variables", "load_own_variables"):
        if name not in vars(wrapper):
            setattr(wrapper, name, without(getattr(wrapper, name)))
