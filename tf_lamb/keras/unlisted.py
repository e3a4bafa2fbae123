"""Finds the state of a Keras 3 model that is not in Keras variables.

It is in `tf.Variable`s on TensorFlow, and in buffers of modules on torch.
"""

import keras
from keras import ops

from tf_lamb.api.unlisted import leaves
from tf_lamb.keras import arrays


class Buffer:
    """Wraps a buffer of a torch module, so that `find_rate` can read and assign it like a variable.

    Args:
        module: The module.
        name: The name of the buffer in it.

    Attributes:
        identity: A key that no other buffer has.
    """

    def __init__(self, module, name):
        self._module, self._name = module, name
        # The name, and not the id of the tensor, because the module may replace the tensor.
        self.identity = id(module), name

    @property
    def value(self):
        """The tensor that the module has as this buffer now."""
        return self._module.get_buffer(self._name)

    def assign(self, value):
        """Copies a value into the tensor in place, because other objects may refer to it."""
        import torch

        with torch.no_grad():
            self.value.copy_(ops.convert_to_tensor(value))


def unlisted_state(model):
    """Returns a list of the state that training may change and `model.variables` does not have.

    On TensorFlow these are `tf.Variable`s, on torch a `Buffer` for each buffer of a module. On JAX
    the list is empty.
    """
    # seam: private API of Keras 3.15.1. No public function lists the layers inside of layers.
    layers = model._flatten_layers()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        from tf_lamb.tensorflow.unlisted import variables_below

        listed = {id(arrays.native(variable)) for variable in model.variables}
        # TensorFlow does not look into the dicts and lists in which Keras tracks its variables.
        contained = leaves([_containers(layer) for layer in layers])
        contained_variables = (leaf for leaf in contained if isinstance(leaf, tf.Variable))
        variables_by_id = {
            id(variable): variable for variable in (*variables_below(model), *contained_variables)
        }
        return [variable for key, variable in variables_by_id.items() if key not in listed]
    if keras.backend.backend() == "torch":
        modules = {id(module): module for layer in layers for module in layer.modules()}
        return [
            Buffer(module, name)
            for module in modules.values()
            for name, tensor in module.named_buffers(recurse=False)
            if tensor.numel()
        ]
    return []


def _containers(layer):
    """Returns the dicts, lists and tuples among the attributes of a layer.

    They may contain variables of TensorFlow that are not found otherwise.
    """
    return [value for value in vars(layer).values() if isinstance(value, (dict, list, tuple))]
