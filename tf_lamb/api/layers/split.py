"""The face of split batch normalization; each door adds its host's `BatchNormalization`."""

import contextlib
import contextvars
from contextlib import AbstractContextManager

from tf_lamb.api.layers.ghost import SET, InParts
from tf_lamb.core import batch_norm as normalization


class Flag:
    """Down at first, in each thread: a replica is one.

    DOUBLED = Flag("doubled")
    with DOUBLED.up():
        assert DOUBLED
    """

    def __init__(self, name: str):
        self._is_up = contextvars.ContextVar(name, default=False)

    def __bool__(self):
        return self._is_up.get()

    @contextlib.contextmanager
    def up(self):
        """Holds it up."""
        token = self._is_up.set(True)
        try:
            yield
        finally:
            self._is_up.reset(token)


_BY_AUXILIARY = Flag("auxiliary_statistics")


class SplitBatchNormalization(InParts):
    """Batch normalization with two sets of weights and statistics, a half of the batch for each.

    In training, the first half of a batch, say clean images, is normalized by the main set, and
    the second, say adversarial ones, by the auxiliary set. Evaluation is by the main set. Inside
    `with tf_lamb.auxiliary_statistics():` a whole batch is normalized by the auxiliary set, and no
    running average moves. A half whose statistics are not finite leaves its averages as they are.

    Args:
        kwargs: The arguments of `BatchNormalization`; `synchronized` must be False.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range; when a step is
            traced, for an odd batch or a mask.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> layer = tf_lamb.SplitBatchNormalization(momentum=0.9)
    >>> x = np.array([[1.0], [3.0], [-2.0], [6.0]], "float32")
    >>> [round(float(y), 3) for y in np.ravel(layer(x, training=True))]
    [-1.0, 1.0, -1.0, 1.0]
    >>> both = layer.moving_variance, layer.auxiliary_moving_variance
    >>> [round(float(variance[0]), 4) for variance in both]
    [1.0, 2.5]

    References:
        - Xie et al., Adversarial Examples Improve Image Recognition,
          https://arxiv.org/abs/1911.09665
    """

    def build(self, input_shape):
        """The host's weights, and the auxiliary ones."""
        super().build(input_shape)
        self._add_auxiliary()

    def call(self, inputs, training=None, mask=None):
        """The host's call, but in training, or by the auxiliary set where that was asked for."""
        if self._trains(training):
            return self._train(inputs, mask)
        if not _BY_AUXILIARY:
            return super().call(inputs, training=False, mask=mask)
        x, how = self._wide(inputs), self._how()
        weights = self._weights(x, "auxiliary_")
        y = normalization.normalized(self._xp, x, weights, how["axis"], how["epsilon"])
        return self._xp.cast(y, self.compute_dtype)

    def _normalize(self, x, batch):
        auxiliary = self._weights(x, "auxiliary_")
        if _BY_AUXILIARY:
            return normalization.train(self._xp, x, auxiliary, **self._how())[0]
        if batch is not None:
            normalization.check_half(self.name, batch)
        y, of_main, of_auxiliary = normalization.split(
            self._xp, x, self._weights(x), auxiliary, **self._how()
        )
        self._take(of_main)
        self._take(of_auxiliary, "auxiliary_")
        return y

    def _add_auxiliary(self):
        for name in SET:
            if (main := getattr(self, name, None)) is not None:
                setattr(self, f"auxiliary_{name}", self._add_like(main, f"auxiliary_{name}"))


def auxiliary_statistics() -> AbstractContextManager[None]:
    """`SplitBatchNormalization` normalizes whole batches by its auxiliary set; no average moves.

    It holds for what is called, or traced, inside.
    """
    return _BY_AUXILIARY.up()
