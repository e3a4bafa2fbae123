"""What is replaced of Keras 3, or of a user's objects of it; nothing else does so.

The first optimizer of ours that is made calls `install`. All else is of one object, and named where
it is called; what both Kerases share is in `api/seams.py`.
"""

import contextlib
import functools
import itertools
import types

import keras
from keras import ops

from tf_lamb.api.data import whole
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import layout, named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import is_overwritten, unwrapped
from tf_lamb.keras import arrays, host, sharding


@functools.cache
def install():
    """Changes `LossScaleOptimizer` around ours, once; others are as ever (Keras 3.12.0 to 3.15.1).

    By itself the wrapper drops a call, under accumulation a micro-batch, whose gradients are not
    finite, and nobody inside learns of it. Here every call goes through: the optimizer inside skips
    the update and counts it, and the scale moves by what became of the update.

    `build`, `apply`, `stateless_apply`, `dynamic_scale`, `step_counter`: with `stateless_apply` of
        Keras's base class, which calls `apply`.
    `save_own_variables`, `load_own_variables`: it saves and loads what is inside with its own, by
        position, before ours can refuse them. Its own are the first in files of before.
    `set_weights`: of HDF5's weights it sets its own alone.

    `_setattr_hook` of models: what `compile` sets as the optimizer is not told whose variables it
        trains, and notes it here. A patch of `compile` itself would come too late for the first
        optimizer, which is made while its arguments are evaluated.

    Of `MultiOptimizer` (Keras 3.15.1) `__init__` and `build`, after which it knows its parts, and
        `Variable._path` of theirs: with one name for two of ours, two variables have one path, and
        `get_state_tree` refuses the model.
    """
    keras.Model._setattr_hook = _noting_model(keras.Model._setattr_hook)
    wrapper = keras.optimizers.LossScaleOptimizer
    stepping = {
        "build": _built_by(wrapper.build),
        "apply": _apply,
        "stateless_apply": _checked(keras.optimizers.Optimizer.stateless_apply),
    }
    files = {"save_own_variables": _save, "load_own_variables": _load, "set_weights": _set_weights}
    kinds: list = [(Layerwise, stepping), ((Layerwise, MeasureNoise), files)]
    for kind, own in kinds:
        for name, method in own.items():
            setattr(wrapper, name, named.where_inside(kind, method, getattr(wrapper, name)))
    if multi := getattr(keras.optimizers, "MultiOptimizer", None):  # of Keras 3.15
        for name in ("__init__", "build"):
            setattr(multi, name, _then_names_apart(getattr(multi, name)))


def _then_names_apart(method):
    @functools.wraps(method)
    def wrapped(multi, *arguments, **named_arguments):
        method(multi, *arguments, **named_arguments)
        taken: set = set()
        for optimizer in multi.optimizers:
            if isinstance(optimizer, (Layerwise, MeasureNoise)):
                _rename(optimizer, taken)
            taken.add(optimizer.name)

    return wrapped


def _rename(optimizer, taken):
    """Gives one whose name is taken a number, as Keras's have by default; in its paths, too."""
    before = optimizer.name
    names = (f"{before}_{i}" if i else before for i in itertools.count())
    optimizer.name = next(name for name in names if name not in taken)
    if optimizer.name != before:
        for variable in optimizer.variables:
            parts = variable.path.split("/")
            variable._path = "/".join(optimizer.name if p == before else p for p in parts)


def _noting_model(setattr_hook):
    def method(model, name, value):
        if name == "optimizer":
            layout.note_model(value, model)
        return setattr_hook(model, name, value)

    return method


def _built_by(build):
    def method(wrapper, variables):
        unwrapped(wrapper)._follow_loss_scale(
            functools.partial(_move, wrapper), lambda: wrapper.dynamic_scale
        )
        build(wrapper, variables)

    return method


def _checked(stateless_apply):
    def method(wrapper, *arguments):
        host.check_model(wrapper.inner_optimizer)
        return stateless_apply(wrapper, *arguments)

    return method


def _apply(wrapper, grads, trainable_variables=None):
    if not wrapper.built:
        with keras.name_scope(wrapper.name):
            wrapper.build(trainable_variables)
    scale = ops.convert_to_tensor(wrapper.dynamic_scale)
    variables = trainable_variables or wrapper._trainable_variables
    unscaled = [
        g if g is None or is_overwritten(v) else ops.divide(g, scale)
        for g, v in zip(grads, variables, strict=True)
    ]
    wrapper.inner_optimizer.apply(unscaled, trainable_variables)


def _move(wrapper, due, overflowed):
    """Halves the scale where an update is due and overflows; doubles it after many that do not."""
    scale, steps = map(arrays.native, (wrapper.dynamic_scale, wrapper.step_counter))
    now, taken = map(ops.convert_to_tensor, (scale, steps))
    grows = ~overflowed & (taken >= wrapper.dynamic_growth_steps - 1)
    steps.assign(ops.where(due, ops.where(overflowed | grows, 0, taken + 1), taken))
    factor = ops.where(overflowed, 0.5, ops.where(grows, 2.0, 1.0))
    scale.assign(ops.where(due, now * ops.cast(factor, now.dtype), now))


_SCALE = ("step_counter", "dynamic_scale")  # what a loss scale is; the learning rate is not its own


def _save(wrapper, store):
    if wrapper.built:
        for name in _SCALE:
            store[name] = arrays.to_numpy(getattr(wrapper, name))


def _load(wrapper, store):
    if not wrapper.built:
        return
    own, keys = wrapper._variables, list(store.keys())
    for name in _SCALE:
        variable = getattr(wrapper, name)
        if name not in keys:  # of before, with all that is inside; 4 are of what was not built
            name = str(next(i for i, each in enumerate(own) if each is variable))
        if name in _SCALE or len(keys) > len(own):
            variable.assign(store[name][()])  # of HDF5, too


def _set_weights(wrapper, weights):
    keras.optimizers.Optimizer.set_weights(wrapper, weights)
    wrapper.inner_optimizer.set_weights(weights[len(wrapper._variables) :])


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


@contextlib.contextmanager
def parts_may_lack():
    """Inside it, `test_on_batch` takes a batch without weights or targets under a distribution.

    By `_distribute_data` of its JAX backend, Keras 3.12.0 asks what is None for its shape; 3.15.1
    does not.
    """
    if keras.backend.backend() != "jax" or not sharding.is_distributed():
        yield
        return
    from keras.src.backend.jax import trainer

    distribute = trainer._distribute_data

    def distribute_given(data, layouts=None):
        if layouts is not None:
            return distribute(data, layouts)
        given = whole(data)
        return (*distribute(given), *(None for _ in data[len(given) :]))

    trainer._distribute_data = distribute_given
    try:
        yield
    finally:
        trainer._distribute_data = distribute


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
