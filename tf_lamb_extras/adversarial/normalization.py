"""Batch normalization with two sets of statistics: of clean images, and of adversarial ones."""

import contextlib
import contextvars
from typing import Any

from tf_lamb.api import seams
from tf_lamb.api.batch_norm import SET, InParts, found
from tf_lamb.core import batch_norm as normalization


class Flag:
    """Down at first, in each thread: a replica is one. `with flag.up():` it is true."""

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


BY_AUXILIARY = Flag("auxiliary_statistics")  # in layers that are called, or traced, while it is up


class SplitBatchNormalization(InParts):
    """Batch normalization with two sets of weights and statistics, one for each half of a batch.

    In training, the main set normalizes the first half of a batch, for example clean images. The
    auxiliary set normalizes the second half, for example adversarial images. Evaluation uses the
    main set. Inside `with BY_AUXILIARY.up():` the auxiliary set normalizes the full batch, and no
    running average moves. A half with non-finite statistics does not change its
    averages.

    Args:
        kwargs: The arguments of `BatchNormalization`; `synchronized` must be False.

    Raises:
        ValueError, TypeError: at construction, for an argument out of its range; when a step is
            traced, for an odd batch or a mask.

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
        if not BY_AUXILIARY:
            return super().call(inputs, training=False, mask=mask)
        x, how = self._wide(inputs), self._norm_kwargs()
        weights = self._weights(x, "auxiliary_")
        y = normalization.normalized(self._xp, x, weights, how["axis"], how["epsilon"])
        return self._xp.cast(y, self.compute_dtype)

    def _normalize(self, x, batch):
        auxiliary = self._weights(x, "auxiliary_")
        if BY_AUXILIARY:
            return normalization.train(self._xp, x, auxiliary, **self._norm_kwargs())[0]
        if batch is not None:
            _check_half(self.name, batch)
        y, of_main, of_auxiliary = _halves(
            self._xp, x, self._weights(x), auxiliary, **self._norm_kwargs()
        )
        self._keep_settings(of_main)
        self._keep_settings(of_auxiliary, "auxiliary_")
        return y

    def _add_auxiliary(self):
        for name in SET:
            if (main := getattr(self, name, None)) is not None:
                setattr(self, f"auxiliary_{name}", self._add_like(main, f"auxiliary_{name}"))


def split(model: Any, cls: type) -> Any:
    """Every `BatchNormalization` of a model becomes a split one, in place; variables stay.

    Auxiliary weights start as copies. They come after the others, and before the optimizer's slots:
    the model is built, under its strategy's scope if it has one, and its optimizer is not.
    """
    layers = found(model, cls)
    new = [layer for layer in layers if type(layer) is not cls]
    if unbuilt := [layer.name for layer in new if not layer.built]:
        raise ValueError(
            f"{unbuilt[0]} has no weights yet that its auxiliary ones could begin with. Call the "
            "model once, or give it an Input."
        )
    optimizer = getattr(model, "optimizer", None)
    if new and getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        raise ValueError(
            f"The optimizer of {model.name} is built, and would not train the auxiliary weights. "
            "Compile again with a new optimizer."
        )
    for layer in new:
        seams.become(layer, cls, {})
        layer._add_late()
    seams.forget_compiled(model)
    return model


def _halves(xp, x, main, auxiliary, **how):
    """The first half by the main set, the second by the auxiliary; and the new averages of each."""
    half = xp.shape(x)[0] // 2
    first, *of_main = normalization.train(xp, x[:half], main, **how)
    second, *of_auxiliary = normalization.train(xp, x[half:], auxiliary, **how)
    return xp.concatenate([first, second]), of_main, of_auxiliary


def _check_half(name: str, batch: int) -> None:
    """The batch has two halves, or an error."""
    if batch % 2:
        raise ValueError(
            f"{name} gives each half of the batch statistics of its own, but it has {batch:,} "
            "examples. Take an even number."
        )
