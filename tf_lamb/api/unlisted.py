"""Finds the state of a model that its Keras does not list as variables.

A search trains one model several times. Between the runs it restores this state, too.
"""

from typing import Any

from tf_lamb.api import frontends


def unlisted(model: Any) -> list:
    """Returns what has `assign` in the `states` of layers, and what the frontend finds beside it.

    Stateful RNNs have such states.
    """
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public function visits layers inside of layers.
    layer_states = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    states = [leaf for leaf in leaves(layer_states) if hasattr(leaf, "assign")]
    return [*states, *frontends.of(model).unlisted(model)]


def identity_of(variable: Any) -> Any:
    """Returns a key that tells a variable from all others.

    An object that stands for a variable, such as `keras.unlisted.Buffer`, has an `identity`.
    """
    return getattr(variable, "identity", None) or id(variable)


def leaves(held: Any) -> list:
    """Returns the leaves of nested lists, tuples and dicts."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple)):
        return [leaf for element in held for leaf in leaves(element)]
    return [held]
