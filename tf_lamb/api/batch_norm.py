"""Batch normalization over parts of a batch, and its replacement in a model."""

import contextlib
import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from tf_lamb.api import frontends, seams
from tf_lamb.core import batch_norm as normalization
from tf_lamb.core import checks

SET = ("gamma", "beta", "moving_mean", "moving_variance")


class InParts:
    """The host's layer in all but how a batch is normalized in training.

    It has the host's weights under the host's names, so that an existing layer can become one.
    """

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
    """Batch normalization with two sets of weights and statistics, one for each half of a batch.

    In training, the main set normalizes the first half of a batch, for example clean images. The
    auxiliary set normalizes the second half, for example adversarial images. Evaluation uses the
    main set. Inside `with tf_lamb.auxiliary_statistics():` the auxiliary set normalizes the full
    batch, and no running average moves. A half with non-finite statistics does not change its
    averages.

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
        """Adds the framework's weights, and the auxiliary ones."""
        super().build(input_shape)
        self._add_auxiliary()

    def call(self, inputs, training=None, mask=None):
        """Calls the framework's layer, except in training or for the auxiliary set."""
        if self._trains(training):
            return self._train(inputs, mask)
        if not _BY_AUXILIARY:
            return super().call(inputs, training=False, mask=mask)
        x, how = self._wide(inputs), self._norm_kwargs()
        weights = self._weights(x, "auxiliary_")
        y = normalization.normalized(self._xp, x, weights, how["axis"], how["epsilon"])
        return self._xp.cast(y, self.compute_dtype)

    def _normalize(self, x, batch):
        auxiliary = self._weights(x, "auxiliary_")
        if _BY_AUXILIARY:
            return normalization.train(self._xp, x, auxiliary, **self._norm_kwargs())[0]
        if batch is not None:
            normalization.check_half(self.name, batch)
        y, of_main, of_auxiliary = normalization.split_batch_norm(
            self._xp, x, self._weights(x), auxiliary, **self._norm_kwargs()
        )
        self._keep_settings(of_main)
        self._keep_settings(of_auxiliary, "auxiliary_")
        return y

    def _add_auxiliary(self):
        for name in SET:
            if (main := getattr(self, name, None)) is not None:
                setattr(self, f"auxiliary_{name}", self._add_like(main, f"auxiliary_{name}"))


def auxiliary_statistics() -> AbstractContextManager[None]:
    """Selects the auxiliary set of `SplitBatchNormalization` for full batches; no average moves.

    It applies to layers that are called, or traced, inside the `with` block.
    """
    return _BY_AUXILIARY.up()


Model = TypeVar("Model")


def replace_batch_normalization(
    model: Model, group_size: int | None = None, *, split: bool = False
) -> Model:
    """Replaces every `BatchNormalization` of a model by a ghost or split one, in place.

    The model keeps its variables and weights. The replacement reaches layers inside other
    layers and subclassed models. Evaluation does not change by a bit, and checkpoints and
    optimizers stay valid. Subclasses of `BatchNormalization` from other packages do not change.
    If the argument is the outermost model, its compiled functions are compiled again at the
    next step. If you build a subclassed model again from its code or config, replace again.

    Args:
        model: A model, or a layer that contains layers.
        group_size: Examples of one group of `GhostBatchNormalization`.
        split: True makes `SplitBatchNormalization` layers instead; their auxiliary weights
            start as copies. The model must be built, under its strategy's scope if it has one,
            and its optimizer must not be built.

    Returns:
        The model.

    Raises:
        ValueError, TypeError: for a model without batch normalization, or with one that is
            synchronized or renormalizes; for both or neither of the two arguments. Then nothing
            has changed.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> layers = [tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()]
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    >>> _ = tf_lamb.replace_batch_normalization(model, group_size=8)
    >>> type(model.layers[1]).__name__, model.layers[1].group_size
    ('GhostBatchNormalization', 8)
    """
    checks.flag("split", split)
    if split == (group_size is not None):
        raise ValueError(
            "replace_batch_normalization takes a group_size or split=True, and not both: it "
            f"got group_size={group_size!r} and split={split}. Try group_size=128."
        )
    frontend = frontends.of(model)
    host, ours = frontend.host.layers.BatchNormalization, frontend.layers
    cls = ours.SplitBatchNormalization if split else ours.GhostBatchNormalization
    settings = {} if split else {"group_size": checks.integer("group_size", group_size)}
    found = _found(model, host, cls)
    new = [layer for layer in found if type(layer) is host]
    if split and new:
        _check_unbuilt(model, new)
    for layer in found:
        seams.become(layer, cls, settings)
    if split:
        for layer in new:
            layer._add_late()
    seams.forget_compiled(model)
    return model


def _found(model, host, cls):
    """The layers to replace, all of which can be."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers in both.
    # A layer may be held twice.
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    found = [layer for layer in layers if type(layer) in (host, cls)]
    if not found:
        raise ValueError(
            f"{model.name} has no BatchNormalization to replace. A model that makes its layers "
            "when it is first called must have been called."
        )
    for layer in found:
        cls._check(layer.axis, layer.synchronized, getattr(layer, "renorm", False))
    return found


def _check_unbuilt(model, layers):
    """Auxiliary weights come after the others, and before the optimizer's slots."""
    unbuilt = [layer.name for layer in layers if not layer.built]
    if unbuilt:
        raise ValueError(
            f"{unbuilt[0]} has no weights yet that its auxiliary ones could begin with. Call the "
            "model once, or give it an Input."
        )
    optimizer = getattr(model, "optimizer", None)
    if getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        raise ValueError(
            f"The optimizer of {model.name} is built, and would not train the auxiliary weights. "
            "Replace before the first step, or compile again with a new optimizer."
        )
