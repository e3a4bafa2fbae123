"""The face of Measured: an optimizer, with an eye on the noise of its gradients."""

from tf_lamb.api.noise.measuring import Measuring
from tf_lamb.core import checks


class Measured(Measuring):
    """Steps as the inner optimizer does, and measures the noise of the gradients meanwhile.

    Replicas, or the micro-batches of an accumulated step, are n independent samples g_i of the
    gradient, with the mean g:

        sigma^2 = (mean of |g_i|^2 - |g|^2) / (n - 1)        of the gradient of the whole batch
        mu^2    = (n |g|^2 - mean of |g_i|^2) / (n - 1)      of the true gradient

    Both are averaged over steps, and training is not touched, but for one thing: an optimizer of
    Keras 3 that clips does so after the replicas are summed, not before. `NoiseScale` says what the
    averages mean for the batch; `noise_of(batch_size)` gives the numbers.

    Args:
        inner: An optimizer of this Keras; not yet wrapped for mixed precision.
        previous_gradient: Whether to take the gradient of the step before as a second sample where
            a step has one part only. That is biased, for the weights have moved meanwhile, and
            takes 4 bytes a parameter. Defaults to False.
        groups: List of regexes, searched in the variables' paths; each makes a group that is
            counted apart, from the first that matches. Defaults to None.
        smoothing: theta of the averages, which reach back over 1/(1 - theta) steps.
            Defaults to 0.99 (GPT-NeoX).
        name: Name of the optimizer. Defaults to "measured".

    Raises:
        ValueError, TypeError: at construction, for an optimizer that cannot be wrapped or an
            argument out of its range; when it is built, where a step has only one part.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.Measured(tf_lamb.LAMB(gradient_accumulation_steps=4))
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - McCandlish et al., An Empirical Model of Large-Batch Training,
          https://arxiv.org/abs/1812.06162
    """

    def __init__(
        self,
        inner,
        *,
        previous_gradient=False,
        groups=None,
        smoothing=0.99,
        name="measured",
    ):
        self._wrap(inner, checks.text("name", name))
        self._take(previous_gradient=previous_gradient, groups=groups, smoothing=smoothing)

    def _arguments(self):
        """The constructor's arguments but the inner optimizer."""
        return {
            "previous_gradient": self._previous_gradient,
            "groups": list(self._groups) or None,
            "smoothing": self._smoothing,
            "name": self.name,
        }
