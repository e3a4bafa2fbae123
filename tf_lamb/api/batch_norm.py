"""Defines batch normalization over parts of a batch, and its replacement in a model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tf_lamb.api import frontends, seams
from tf_lamb.core import batch_norm as normalization
from tf_lamb.core import checks

# The attributes in which Keras's `BatchNormalization` keeps its weights.
WEIGHT_NAMES = ("gamma", "beta", "moving_mean", "moving_variance")


class PartwiseNormalization:
    """Changes how Keras's `BatchNormalization` normalizes in training, but no weight and no name.

    It is a mixin: a subclass lists it before the `BatchNormalization` of Keras 3 or tf_keras among
    its bases, and defines `_normalize`.
    """

    if TYPE_CHECKING:  # Keras's class and the subclasses define these
        _xp: Any
        name: str
        axis: Any
        momentum: float
        epsilon: float
        compute_dtype: str
        _is_training: Callable  # training argument -> whether this call trains
        _to_wide_float: Callable  # inputs -> the inputs in float32 or wider
        _assign: Callable  # assigns a value to a variable
        _add_weight_like: Callable  # makes a variable like another, with a new name
        _op_scope: Callable  # name -> a scope that names operations
        _normalize: Callable  # inputs, batch size -> the outputs in training

        def call(self, inputs, training, mask): ...
        def build(self, input_shape): ...
        def get_config(self) -> dict[str, Any]: ...

    def __init__(self, **kwargs: Any):
        self._check(**kwargs)
        super().__init__(**kwargs)

    @classmethod
    def _check(cls, axis=-1, synchronized=False, renorm=False, **others):
        """Raises ValueError for arguments with which parts of a batch cannot be normalized."""
        normalization.check_layer_arguments(
            cls.__name__, axis=axis, synchronized=synchronized, renorm=renorm
        )

    def _train(self, inputs, mask):
        """Returns the normalized batch in training; raises ValueError if there is a mask."""
        if mask is not None:
            raise ValueError(
                f"{self.name}: {type(self).__name__} takes no mask, because its parts would be of "
                "unequal size. Normalize before the layer that masks, or after pooling."
            )
        x = self._to_wide_float(inputs)
        return self._xp.cast(self._normalize(x, x.shape[0]), self.compute_dtype)

    def _norm_kwargs(self):
        """Returns axis, momentum and epsilon as keyword arguments for `core.batch_norm`."""
        axis = self.axis if isinstance(self.axis, int) else self.axis[0]
        return {"axis": axis, "momentum": self.momentum, "epsilon": self.epsilon}

    def _weights(self, x, prefix=""):
        """Returns the weights in the dtype of `x`, with None for each that the layer does not have.

        Args:
            x: The inputs.
            prefix: What the names of the weights begin with, for a second set of weights. Defaults
                to "": the weights of `BatchNormalization`.
        """
        values = (getattr(self, prefix + name, None) for name in WEIGHT_NAMES)
        return normalization.Weights(
            *(None if value is None else self._xp.cast(value, x.dtype) for value in values)
        )

    def _assign_averages(self, averages, prefix=""):
        """Assigns a new moving mean and a new moving variance to the weights of the layer.

        The names of these weights are `prefix` + "moving_mean" and `prefix` + "moving_variance".
        """
        for name, value in zip(("moving_mean", "moving_variance"), averages, strict=True):
            self._assign(getattr(self, prefix + name), value)


class GhostBatchNormalization(PartwiseNormalization):
    """Normalizes each group of `group_size` examples by its own statistics, at any batch size.

    For each group k of `group_size` consecutive examples:

        y = gamma (x - mean_k) / sqrt(variance_k + epsilon) + beta
        moving <- momentum moving + (1 - momentum) statistic_k        group after group

    Evaluation, the weights and their names are the same as in `BatchNormalization`. A group is
    always on one replica. Statistics are computed in float32 at least, also in mixed precision. The
    moving variance averages the variances of groups, whose divisor is n for n values; in tf_keras's
    fused kernel it is n - 1. A batch with non-finite statistics does not
    change the moving averages.

    Args:
        group_size: The number of examples in a group; it must divide the number of examples on one
            replica. Defaults to 128 (the paper).
        kwargs: The arguments of `BatchNormalization`. `momentum` applies once per group, so several
            times per batch. `synchronized` must be False, because a group is always on one replica.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range; when a training
            step is traced, if `group_size` does not divide the batch, or for a mask. If TensorFlow
            does not know the batch size while it traces, the step itself fails at a batch that
            `group_size` does not divide, such as a smaller last one.

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
        """Returns the normalized inputs: by statistics of each group in training, else as Keras.

        Args:
            inputs: The examples, with the batch as the first axis.
            training: Whether to normalize with statistics of the groups. Defaults to None: Keras
                decides; in `fit` it is True.
            mask: Must be None in training. Defaults to None.

        Raises:
            ValueError: in training, for a mask, or if `group_size` does not divide the batch.
        """
        if self._is_training(training):
            return self._train(inputs, mask)
        return super().call(inputs, training=False, mask=mask)

    def get_config(self) -> dict[str, Any]:
        """Returns the config of `BatchNormalization`, and `group_size`."""
        return {**super().get_config(), "group_size": self.group_size}

    def _normalize(self, x, batch):
        """Returns the normalized inputs, and updates the moving averages.

        Args:
            x: The inputs, at least in float32.
            batch: The number of examples; None if it is unknown when the step is traced.
        """
        if batch is not None:
            normalization.check_batch(self.name, batch, self.group_size)
        # An unknown batch size cannot be checked by an assertion, because XLA drops assertions. If
        # groups do not divide the batch, an operation inside the scope fails. Its error message
        # contains the name of the scope, which tells the reason.
        with self._op_scope(f"group_size_{self.group_size}_must_divide_the_batch"):
            y, *averages = normalization.train(
                self._xp, x, self._weights(x), group_size=self.group_size, **self._norm_kwargs()
            )
        self._assign_averages(averages)
        return y


Model = TypeVar("Model")


def replace_batch_normalization(model: Model, group_size: int) -> Model:
    """Replaces every `BatchNormalization` of a model by a `GhostBatchNormalization`, in place.

    The model keeps its variables and weights. Layers inside other layers and inside subclassed
    models are replaced, too. Evaluation does not change by a bit, and checkpoints and optimizers
    stay valid. Subclasses of `BatchNormalization` from other packages do not change. Pass the
    outermost model: the compiled functions of `model` and of models inside it are compiled again at
    the next step, but not those of a model around it. A subclassed model that is made again from
    its code or config has `BatchNormalization` again: call this function for it, too.

    Args:
        model: A model, or a layer that contains layers.
        group_size: The examples of one group.

    Returns:
        `model` itself.

    Raises:
        ValueError, TypeError: for a model without batch normalization, or with one that is
            synchronized or renormalizes. In this case nothing is changed.

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
    for layer in replaceable_batch_norms(model, cls):
        seams.change_class(layer, cls, {"group_size": group_size})
    seams.drop_traced_functions(model)
    return model


def replaceable_batch_norms(model: Any, cls: type) -> list:
    """Returns the batch normalization layers of a model, if `cls` can replace every one.

    Args:
        model: A model, or a layer that contains layers.
        cls: The class to put in the place of `BatchNormalization`. Layers that are of this class
            already are returned, too.

    Raises:
        ValueError, TypeError: if there is none, or if one of them cannot be replaced.
    """
    host_class = frontends.of(model).host.layers.BatchNormalization
    # seam: Keras 3.15.1, tf_keras 2.20.1. `_flatten_layers` is private, but no public function that
    # both have visits layers inside layers. The dict is keyed by id, because a model may hold a
    # layer twice.
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    replaceable = [layer for layer in layers if type(layer) in (host_class, cls)]
    if not replaceable:
        raise ValueError(
            f"{model.name} has no BatchNormalization to replace. A model that makes its layers "
            "when it is first called must have been called."
        )
    for layer in replaceable:
        cls._check(layer.axis, layer.synchronized, getattr(layer, "renorm", False))  # type: ignore[attr-defined]
    return replaceable
