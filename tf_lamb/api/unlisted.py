"""What a model holds beside the variables that its Keras lists, for whoever restores them."""

from typing import Any

from tf_lamb.api import frontends


def unlisted(model: Any) -> list:
    """The states of its stateful RNNs, and what its frontend knows of besides."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    held = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    states = [each for each in leaves(held) if hasattr(each, "assign")]
    return [*states, *frontends.of(model).unlisted(model)]


def identity_of(variable: Any) -> Any:
    """What tells a variable, or what stands for one, from every other."""
    return getattr(variable, "identity", None) or id(variable)


def leaves(held: Any) -> list:
    """The leaves of lists, tuples and dicts that may stand inside of each other."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple)):
        return [leaf for each in held for leaf in leaves(each)]
    return [held]
