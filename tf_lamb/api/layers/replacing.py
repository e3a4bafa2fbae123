"""The face of what replaces the batch normalization of a model; each door adds its layers.

A layer becomes another by its class: both are the host's layer with the host's weights. A clone
would have to know how the model calls it: it reaches no layer that another holds, no subclassed
model, and leaves the variables behind that optimizers and checkpoints know.
"""

from typing import Any, TypeVar

from tf_lamb.core import checks

Model = TypeVar("Model")

_COMPILED = ("train_function", "train_tf_function", "test_function", "predict_function")


def replacing(host: Any, ghost: Any, split_: Any):
    """The public function, for the layers of one door."""

    def replace_batch_normalization(
        model: Model, group_size: int | None = None, *, split: bool = False
    ) -> Model:
        """Makes every `BatchNormalization` of a model one in parts. The model keeps its weights.

        It is the same model afterwards, with the same variables: layers inside other layers and
        subclassed models are reached, evaluation is unchanged to the bit, and checkpoints and
        optimizers go on. Subclasses of `BatchNormalization` that are not ours stay as they are.
        What was compiled is compiled again at the next step, if it is the outermost model that is
        given. A subclassed model that is built anew from its code or config must be replaced anew.

        Args:
            model: A model, or a layer that holds others.
            group_size: Examples of one group of `GhostBatchNormalization`.
            split: True makes them `SplitBatchNormalization` instead, whose auxiliary weights begin
                as copies. The model must be built, under its strategy's scope if it has one, and
                its optimizer not yet.

        Returns:
            The model.

        Raises:
            ValueError, TypeError: for a model without batch normalization or with one that is
                synchronized or renormalizes, and for both or neither of the two; nothing has
                changed then.

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
        cls = split_ if split else ghost
        settings = {} if split else {"group_size": checks.whole("group_size", group_size)}
        found = _found(model, host, cls)
        new = [layer for layer in found if type(layer) is host]
        if split and new:
            _check_unbuilt(model, new)
        for layer in found:
            layer.__class__ = cls
            for name, value in settings.items():
                setattr(layer, name, value)
        if split:
            for layer in new:
                layer._add_late()
        _forget_compiled(model)
        return model

    return replace_batch_normalization


def _found(model, host, cls):
    """The layers to replace, all of which can be."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers in both.
    if not hasattr(model, "_flatten_layers"):
        raise TypeError(
            f"replace_batch_normalization takes a model of {host.__module__.split('.')[0]}, not "
            f"{model!r:.80}."
        )
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


def _forget_compiled(model):
    """What was traced with the old layers is traced again."""
    for part in model._flatten_layers():
        for name in _COMPILED:
            if getattr(part, name, None) is not None:
                setattr(part, name, None)
