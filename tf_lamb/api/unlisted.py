"""Finds state of a model that training changes and `model.variables` does not list.

`find_rate` and `find_batch` train one model several times, and restore this state between the runs,
too.
"""

from typing import Any

from tf_lamb.api import frontends


def unlisted(model: Any) -> list:
    """Returns the variables and buffers of a model that `model.variables` may not list.

    They are the variables in the attribute `states` of layers, such as stateful RNNs, and what the
    frontend finds: variables of TensorFlow, and buffers of torch.
    """
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public function visits layers inside of layers.
    layer_states = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    states = [leaf for leaf in leaves(layer_states) if hasattr(leaf, "assign")]
    return [*states, *frontends.of(model).unlisted(model)]


def identity_of(variable: Any) -> Any:
    """Returns a key that no other variable has.

    It is the attribute `identity` of an object that stands for a variable, such as
    `keras.unlisted.Buffer`, and otherwise the `id`.
    """
    return getattr(variable, "identity", None) or id(variable)


def leaves(nested: Any) -> list:
    """Returns the leaves of nested lists, tuples and dicts."""
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, (list, tuple)):
        return [leaf for element in nested for leaf in leaves(element)]
    return [nested]
