"""Finds state of a model that training changes, but that `model.variables` does not list.

`find_rate` and `find_batch` train one model several times. Between the runs they restore this
state, together with the model's variables.
"""

from typing import Any

from tf_lamb.api import frontends


def unlisted(model: Any) -> list:
    """Returns the variables and buffers of a model that `model.variables` may not list.

    They are the variables in the attribute `states` of layers, such as stateful RNNs, and those
    that the module for the model's Keras finds: variables of TensorFlow, or buffers of torch.
    """
    # seam: Keras 3.15.1, tf_keras 2.20.1. `_flatten_layers` is private, but no public function
    # visits layers inside layers.
    layer_states = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    states = [leaf for leaf in leaves(layer_states) if hasattr(leaf, "assign")]
    return [*states, *frontends.of(model).unlisted(model)]


def identity_of(variable: Any) -> Any:
    """Returns a key that no other variable has.

    It is the attribute `identity` if there is one, as in the class `tf_lamb.keras.unlisted.Buffer`,
    which represents a buffer of torch. Otherwise it is the `id` of the variable.
    """
    return getattr(variable, "identity", None) or id(variable)


def leaves(nested: Any) -> list:
    """Returns the leaves of nested lists, tuples and dicts."""
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, (list, tuple)):
        return [leaf for element in nested for leaf in leaves(element)]
    return [nested]
