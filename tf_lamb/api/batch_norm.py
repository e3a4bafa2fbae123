"""Batch normalization over parts of a batch, and its replacement in a model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tf_lamb.api import frontends, seams
from tf_lamb.core import batch_norm as normalization
from tf_lamb.core import checks

SET = ("gamma", "beta", "moving_mean", "moving_variance")


class InParts:
    """The host's layer, with its weights by its names, in all but how a batch is normalized."""

    if TYPE_CHECKING:  # the framework's and the frontend's
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
        _normalize: Callable  # the framework-independent half's: a batch in training

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

    def _norm_kwargs(self):
        axis = self.axis if isinstance(self.axis, int) else self.axis[0]
        return {"axis": axis, "momentum": self.momentum, "epsilon": self.epsilon}

    def _weights(self, x, prefix=""):
        values = (getattr(self, prefix + name, None) for name in SET)
        return normalization.Weights(
            *(None if v is None else self._xp.cast(v, x.dtype) for v in values)
        )

    def _keep_settings(self, averages, prefix=""):
        for name, value in zip(("moving_mean", "moving_variance"), averages, strict=True):
            self._assign(getattr(self, prefix + name), value)


class GhostBatchNormalization(InParts):
    """Batch normalization over groups of a fixed size; a larger batch changes no statistics.

    For each group k of `group_size` consecutive examples:

        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta
        moving <- momentum moving + (1 - momentum) statistic_k        group after group

    Evaluation and weights, with their names, are those of `BatchNormalization`. Groups are formed
    within a replica. Statistics are float32 at any precision. The running variance averages the
    group's own variance; tf_keras's fused kernel averages n/(n - 1) times it. A batch with
    non-finite statistics does not change the averages.

    Args:
        group_size: Examples per group; must divide the examples of one replica.
            Defaults to 128 (the paper).
        kwargs: The arguments of `BatchNormalization`. `momentum` is per group, of which a batch has
            many; `synchronized` must be False, for a group is always on one replica.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range; when a step is
            traced, if `group_size` does not divide the batch, or for a mask. If TensorFlow does not
            know the batch size when it traces, the step fails at a last, smaller batch.

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

    def __init__(self, group_size: int = 128, **kwargs: Any):
        group_size = checks.integer("group_size", group_size)
        super().__init__(**kwargs)
        self.group_size = group_size

    def call(self, inputs, training=None, mask=None):
        """Calls the framework's layer, except in training."""
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
                self._xp, x, self._weights(x), group_size=self.group_size, **self._norm_kwargs()
            )
        self._keep_settings(averages)
        return y


Model = TypeVar("Model")


def replace_batch_normalization(model: Model, group_size: int) -> Model:
    """Replaces every `BatchNormalization` of a model by a `GhostBatchNormalization`, in place.

    The model keeps its variables and weights. The replacement reaches layers inside other
    layers and subclassed models. Evaluation does not change by a bit, and checkpoints and
    optimizers stay valid. Subclasses of `BatchNormalization` from other packages do not change.
    If the argument is the outermost model, its compiled functions are compiled again at the
    next step. If you build a subclassed model again from its code or config, replace again.

    Args:
        model: A model, or a layer that contains layers.
        group_size: Examples of one group.

    Returns:
        The model.

    Raises:
        ValueError, TypeError: for a model without batch normalization, or with one that is
            synchronized or renormalizes. Then nothing has changed.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> layers = [tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()]
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    >>> _ = tf_lamb.replace_batch_normalization(model, group_size=8)
    >>> type(model.layers[1]).__name__, model.layers[1].group_size
    ('GhostBatchNormalization', 8)
    """
    group_size = checks.integer("group_size", group_size)
    cls = frontends.of(model).layers.GhostBatchNormalization
    for layer in found(model, cls):
        seams.become(layer, cls, {"group_size": group_size})
    seams.forget_compiled(model)
    return model


def found(model: Any, cls: type) -> list:
    """The layers of a model that can become ones of this class; raises where one cannot."""
    host = frontends.of(model).host.layers.BatchNormalization
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers in both.
    # A layer may be held twice.
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    every = [layer for layer in layers if type(layer) in (host, cls)]
    if not every:
        raise ValueError(
            f"{model.name} has no BatchNormalization to replace. A model that makes its layers "
            "when it is first called must have been called."
        )
    for layer in every:
        cls._check(layer.axis, layer.synchronized, getattr(layer, "renorm", False))  # type: ignore[attr-defined]
    return every
