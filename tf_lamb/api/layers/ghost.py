"""The face of ghost batch normalization; each door adds its host's `BatchNormalization`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_lamb.core import batch_norm as normalization
from tf_lamb.core import checks

SET = ("gamma", "beta", "moving_mean", "moving_variance")


class InParts:
    """The host's layer in all but how a batch is normalized in training.

    It has the host's weights under the host's names, so that an existing layer can become one.
    """

    if TYPE_CHECKING:  # the host's and the door's
        _xp: Any
        name: str
        axis: Any
        momentum: float
        epsilon: float
        compute_dtype: str
        _trains: Callable  # whether this call does
        _wide: Callable  # the inputs, at least float32
        _assign: Callable  # a variable its new value
        _add_like: Callable  # a variable like another, by name
        _named: Callable  # a scope that names operations
        _normalize: Callable  # the face's: a batch in training

        def call(self, inputs, training, mask): ...
        def build(self, input_shape): ...
        def get_config(self) -> dict[str, Any]: ...

    def __init__(self, **kwargs: Any):
        self._check(**kwargs)
        super().__init__(**kwargs)

    @classmethod
    def _check(cls, axis=-1, synchronized=False, renorm=False, **others):
        normalization.check_host(cls.__name__, axis=axis, synchronized=synchronized, renorm=renorm)

    def _train(self, inputs, mask):
        """The outputs of a batch in training."""
        if mask is not None:
            raise ValueError(
                f"{self.name}: {type(self).__name__} takes no mask, because its parts would be of "
                "unequal size. Normalize before the layer that masks, or after pooling."
            )
        x = self._wide(inputs)
        return self._xp.cast(self._normalize(x, x.shape[0]), self.compute_dtype)

    def _how(self):
        axis = self.axis if isinstance(self.axis, int) else self.axis[0]
        return {"axis": axis, "momentum": self.momentum, "epsilon": self.epsilon}

    def _weights(self, x, prefix=""):
        values = (getattr(self, prefix + name, None) for name in SET)
        return normalization.Weights(
            *(None if v is None else self._xp.cast(v, x.dtype) for v in values)
        )

    def _take(self, averages, prefix=""):
        for name, value in zip(("moving_mean", "moving_variance"), averages, strict=True):
            self._assign(getattr(self, prefix + name), value)


class GhostBatchNormalization(InParts):
    """Batch normalization by groups of a fixed size, so that a larger batch changes no statistics.

    Of each group k of `group_size` consecutive examples:

        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta
        moving <- momentum moving + (1 - momentum) statistic_k        group after group

    Evaluation is that of `BatchNormalization`, whose weights it has, under the same names. Groups
    are formed within a replica. Statistics are float32 whatever the precision, and the variance
    that is averaged is the group's own, where tf_keras's fused kernel has n/(n - 1) of it. A batch
    whose statistics are not finite leaves the averages as they are.

    Args:
        group_size: Examples that are normalized together; divides what one replica sees at once.
            Defaults to 128 (the paper).
        axis: The axis of the features. Defaults to -1.
        momentum: Of the running averages, per group: a batch has many. Defaults to 0.99.
        epsilon: Added to the variance. Defaults to 1e-3.
        center: Whether there is a beta. Defaults to True.
        scale: Whether there is a gamma. Defaults to True.
        beta_initializer: Defaults to "zeros".
        gamma_initializer: Defaults to "ones".
        moving_mean_initializer: Defaults to "zeros".
        moving_variance_initializer: Defaults to "ones".
        beta_regularizer: Defaults to None.
        gamma_regularizer: Defaults to None.
        beta_constraint: Defaults to None.
        gamma_constraint: Defaults to None.
        synchronized: Must be False: a group is never dealt out to several replicas.
        kwargs: `name`, `dtype` and `trainable`, as every layer has.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range; when a step is
            traced, where the groups do not take up the batch, or for a mask. Where TensorFlow does
            not know the batch beforehand, the step itself fails, at a last, smaller batch.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> layer = tf_lamb.GhostBatchNormalization(group_size=2)
    >>> x = np.array([[1.0], [3.0], [-2.0], [6.0]], "float32")
    >>> [round(float(y), 3) for y in np.ravel(layer(x, training=True))]
    [-1.0, 1.0, -1.0, 1.0]
    >>> round(float(layer.moving_mean[0]), 4)  # of two groups, at momentum 0.99
    0.0398

    References:
        - Hoffer et al., Train longer, generalize better, https://arxiv.org/abs/1705.08741
    """

    def __init__(
        self, group_size: int = 128, axis: int = -1, momentum: float = 0.99,
        epsilon: float = 1e-3, center: bool = True, scale: bool = True,
        beta_initializer: Any = "zeros", gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros", moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None, gamma_regularizer: Any = None, beta_constraint: Any = None,
        gamma_constraint: Any = None, synchronized: bool = False, **kwargs: Any,
    ):  # fmt: skip
        given = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        group_size = checks.whole("group_size", given.pop("group_size"))
        super().__init__(**given, **kwargs)
        self.group_size = group_size

    def call(self, inputs, training=None, mask=None):
        """The host's call, but in training."""
        if self._trains(training):
            return self._train(inputs, mask)
        return super().call(inputs, training=False, mask=mask)

    def get_config(self) -> dict[str, Any]:
        """The host's, and the size of a group."""
        return {**super().get_config(), "group_size": self.group_size}

    def _normalize(self, x, batch):
        if batch is not None:
            normalization.check_batch(self.name, batch, self.group_size)
        # XLA drops assertions. Whoever runs the step says which operation failed, by its name.
        with self._named(f"group_size_{self.group_size}_must_divide_the_batch"):
            y, *averages = normalization.train(
                self._xp, x, self._weights(x), group_size=self.group_size, **self._how()
            )
        self._take(averages)
        return y
