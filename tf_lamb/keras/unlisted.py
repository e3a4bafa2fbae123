"""What a model of Keras 3 holds beside its variables: variables of TensorFlow, buffers of torch."""

import keras
from keras import ops

from tf_lamb.api.unlisted import leaves
from tf_lamb.keras import arrays


class Buffer:
    """A buffer of a torch module, with what a search asks of a variable."""

    def __init__(self, module, name):
        self._module, self._name = module, name
        self.identity = id(module), name  # the module may put another tensor in its place

    @property
    def value(self):
        """The tensor."""
        return self._module.get_buffer(self._name)

    def assign(self, value):
        """Gives it this value, in place: others may hold the tensor, too."""
        import torch

        with torch.no_grad():
            self.value.copy_(ops.convert_to_tensor(value))


def unlisted(model):
    """What has values that training may change, and that Keras lists nowhere."""
    # seam: Keras 3.15.1. No public walk reaches layers inside of layers.
    layers = model._flatten_layers()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        from tf_lamb.tensorflow.unlisted import variables_below

        listed = {id(arrays.native(v)) for v in model.variables}
        # TensorFlow does not look into the dicts and lists in which Keras tracks its variables.
        held = leaves([_containers(layer) for layer in layers])
        inside = (each for each in held if isinstance(each, tf.Variable))
        every = {id(v): v for v in (*variables_below(model), *inside)}
        return [v for key, v in every.items() if key not in listed]
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
    """The dicts, lists and tuples among the attributes of a layer."""
    return [each for each in vars(layer).values() if isinstance(each, (dict, list, tuple))]
