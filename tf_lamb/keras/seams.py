"""What is replaced of Keras 3, or of a user's objects of it; nothing else does so.

The first optimizer of ours that is made calls `install`. All else is of one object, and named where
it is called; what both Kerases share is in `api/seams.py`.
"""

import contextlib
import functools
import itertools
import types

import keras

from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.keras import loss_scale


@functools.cache
def install():
    """Replaces what is of the whole process, in this order and once; no import does so."""
    have_loss_scales_leave_ours_alone()


def have_loss_scales_leave_ours_alone():
    """Changes `LossScaleOptimizer` around ours; others are as ever (Keras 3.12.0 to 3.15.1)."""
    wrapper = keras.optimizers.LossScaleOptimizer
    stepping, both = loss_scale.stepping(wrapper.build), (Layerwise, MeasureNoise)
    kinds: list = [(Layerwise, stepping), (both, loss_scale.FILES)]
    for kind, own in kinds:
        for name, method in own.items():
            setattr(wrapper, name, named.where_inside(kind, method, getattr(wrapper, name)))


def leave_sums(optimizer):
    """Has one of Keras's, 3.12.0 to 3.15.1, not sum gradients: `_all_reduce_sum_gradients`."""
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def use_train_step(model, train_step):
    """Trains a model with a function as its `train_step`, on JAX (Keras 3.15.1)."""
    model.train_step = types.MethodType(train_step, model)


def use_data_layout(distribution, get_data_layout):
    """Has `fit` ask a function for the layout of each epoch's first batch (Keras 3.15.1)."""
    distribution.get_data_layout = get_data_layout


def hide_shown(optimizer, wrapper):
    """Has what wraps an optimizer not save what is on show, which it lists (Keras 3.15.1)."""

    def without(method):
        def wrapped(store):
            with optimizer.without_shown():
                method(store)

        return wrapped

    for name in ("save_own_variables", "load_own_variables"):
        if name not in vars(wrapper):
            setattr(wrapper, name, without(getattr(wrapper, name)))


@contextlib.contextmanager
def lora_unmerged(model):
    """Inside it, layers with LoRA are saved as they are: Keras would merge what goes on training.

    Of Keras 3.15.1: `_flatten_layers`; `save_own_variables` of a layer may be set on it.
    """
    layers = [each for each in model._flatten_layers() if getattr(each, "lora_enabled", False)]
    methods = keras.layers.Layer.save_own_variables, keras.layers.Layer.load_own_variables
    for layer, method in itertools.product(layers, methods):
        setattr(layer, method.__name__, functools.partial(method, layer))
    try:
        yield
    finally:
        for layer, method in itertools.product(layers, methods):
            delattr(layer, method.__name__)


def put_array(variable, array):
    """Has a variable hold another array, past what an assignment checks: `_value`, Keras 3.15.1."""
    variable._value = array


def bare(batches):
    """What `fit` reads inputs alone from: Keras's adapter, which has tuples (3.12.0 to 3.15.1)."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    adapter = GeneratorDataAdapter((each,) for each in batches)
    tuples = adapter.generator
    adapter.generator = lambda: (each for (each,) in tuples())
    return adapter
