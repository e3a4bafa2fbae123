"""Normalizes batches with two sets of statistics: of clean images, and of adversarial ones."""

import contextlib
import contextvars
from typing import Any

from tf_lamb.api import seams
from tf_lamb.api.batch_norm import WEIGHT_NAMES, PartwiseNormalization, replaceable_batch_norms
from tf_lamb.core import batch_norm as normalization


class Flag:
    """Is True inside of `with flag.up():`, and False otherwise.

    Each thread has its own value of the flag, because TensorFlow runs each replica in a thread.

    Args:
        name: A name for the context variable that stores the flag.
    """

    def __init__(self, name: str):
        self._is_up = contextvars.ContextVar(name, default=False)

    def __bool__(self):
        return self._is_up.get()

    @contextlib.contextmanager
    def up(self):
        """Makes the flag True inside the `with` statement."""
        token = self._is_up.set(True)
        try:
            yield
        finally:
            self._is_up.reset(token)


# While this is True, every `SplitBatchNormalization` normalizes a whole batch with its auxiliary
# set of weights and statistics.
BY_AUXILIARY = Flag("auxiliary_statistics")


class SplitBatchNormalization(PartwiseNormalization):
    """Normalizes a batch with two sets of weights and statistics, one for each half of the batch.

    In training, the main set normalizes the first half of a batch, for example clean images. The
    auxiliary set normalizes the second half, for example adversarial images. Evaluation uses the
    main set. Inside of `with BY_AUXILIARY.up():` the auxiliary set normalizes the full batch, and
    no running average changes. If the statistics of a half are not finite, the running averages of
    its set do not change.

    Args:
        kwargs: The arguments of `BatchNormalization`; `synchronized` must be False.

    Raises:
        ValueError, TypeError: At construction, for an argument out of its range; when a step is
            traced, for an odd batch or a mask.

    References:
        - Xie et al., Adversarial Examples Improve Image Recognition,
          https://arxiv.org/abs/1911.09665
    """

    def build(self, input_shape):
        """Adds the weights of Keras's layer, and then those of the auxiliary set."""
        super().build(input_shape)
        self._add_auxiliary()

    def call(self, inputs, training=None, mask=None):
        """Normalizes the inputs.

        In evaluation it calls the base class's layer, unless `BY_AUXILIARY` is True.

        Args:
            inputs: A batch. In training its first half is clean, its second half adversarial.
            training: Whether to train. Defaults to None: Keras decides.
            mask: A mask of time steps; must be None in training. Defaults to None.
        """
        if self._is_training(training):
            return self._train(inputs, mask)
        if not BY_AUXILIARY:
            return super().call(inputs, training=False, mask=mask)
        x, settings = self._to_wide_float(inputs), self._norm_kwargs()
        weights = self._weights(x, "auxiliary_")
        y = normalization.normalize(self._xp, x, weights, settings["axis"], settings["epsilon"])
        return self._xp.cast(y, self.compute_dtype)

    def _normalize(self, x, batch):
        """Normalizes a batch in training; updates running averages unless `BY_AUXILIARY` is True.

        Args:
            x: The batch.
            batch: The number of examples in it, or None if it is unknown when the step is traced.
        """
        auxiliary = self._weights(x, "auxiliary_")
        if BY_AUXILIARY:
            return normalization.train(self._xp, x, auxiliary, **self._norm_kwargs())[0]
        if batch is not None:
            _check_half(self.name, batch)
        y, main_averages, auxiliary_averages = _halves(
            self._xp, x, self._weights(x), auxiliary, **self._norm_kwargs()
        )
        self._assign_averages(main_averages)
        self._assign_averages(auxiliary_averages, "auxiliary_")
        return y

    def _add_auxiliary(self):
        """Adds the auxiliary set of weights, with a copy of each weight of the main set."""
        for name in WEIGHT_NAMES:
            if (main := getattr(self, name, None)) is not None:
                setattr(self, f"auxiliary_{name}", self._add_weight_like(main, f"auxiliary_{name}"))


def split(model: Any, cls: type) -> Any:
    """Changes every `BatchNormalization` of a model to a `SplitBatchNormalization`, in place.

    The weights of the layer stay, and become its main set. The weights of the auxiliary set are new
    and start as copies. They must be made after the model's other weights, so the model must be
    built. They must be made before the optimizer's slots, so its optimizer must not be built. If
    the model has a distribution strategy, call this function under its scope.

    Args:
        model: A built Keras model.
        cls: The class `SplitBatchNormalization` for the model's Keras.

    Returns:
        The same model.

    Raises:
        ValueError: If a batch normalization is not built, or the optimizer is already built.
    """
    layers = replaceable_batch_norms(model, cls)
    unsplit = [layer for layer in layers if type(layer) is not cls]
    if unbuilt := [layer.name for layer in unsplit if not layer.built]:
        raise ValueError(
            f"{unbuilt[0]} has no weights yet that its auxiliary ones could begin with. Call the "
            "model once, or give it an Input."
        )
    optimizer = getattr(model, "optimizer", None)
    if unsplit and getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        raise ValueError(
            f"The optimizer of {model.name} is built, and would not train the auxiliary weights. "
            "Compile again with a new optimizer."
        )
    for layer in unsplit:
        seams.change_class(layer, cls, {})
        layer._add_late()
    seams.drop_traced_functions(model)
    return model


def _halves(xp, x, main, auxiliary, **how):
    """Normalizes the first half of x with the main set, and the second half with the auxiliary set.

    Args:
        xp: A namespace of array functions.
        x: The batch.
        main: The weights and running averages of the main set.
        auxiliary: The weights and running averages of the auxiliary set.
        **how: The settings of the normalization, such as epsilon.

    Returns:
        The normalized batch, the new running averages of the main set, and those of the auxiliary
        set.
    """
    half = xp.shape(x)[0] // 2
    first, *main_averages = normalization.train(xp, x[:half], main, **how)
    second, *auxiliary_averages = normalization.train(xp, x[half:], auxiliary, **how)
    return xp.concatenate([first, second]), main_averages, auxiliary_averages


def _check_half(name: str, batch: int) -> None:
    """Raises ValueError if the number of examples in the batch is odd."""
    if batch % 2:
        raise ValueError(
            f"{name} gives each half of the batch statistics of its own, but it has {batch:,} "
            "examples. Take an even number."
        )
