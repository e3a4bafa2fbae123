"""Replaces parts of Keras 3, and methods of a user's models, layers and optimizers in Keras 3.

`api/seams.py` does the same where Keras 3 and tf_keras are alike. No other module replaces anything
of Keras 3. The first optimizer of this package that a process makes calls `install`, which changes
Keras's classes for the rest of the process. The other public functions change single objects, or
change something for the time of a `with` block.
"""

import contextlib
import functools
import itertools
import types

import keras
from keras import ops

from tf_lamb.api.data import batch_tuple
from tf_lamb.api.noise.measured import MeasureNoise
from tf_lamb.api.optimizers import layout, named
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import is_overwritten, unwrapped
from tf_lamb.keras import arrays, host, sharding


@functools.cache
def install():
    """Replaces methods of Keras's `LossScaleOptimizer`, `Model` and `MultiOptimizer`.

    Only the first call does so. A `LossScaleOptimizer` around an optimizer of another package works
    as before.

    Keras's `LossScaleOptimizer` drops a batch (with accumulation, a micro-batch) whose gradients
    are not finite, without a call of the optimizer inside. Around an optimizer such as LAMB, it now
    passes every batch on. The optimizer inside skips an update that is not finite, and counts it.
    It also lowers or raises the loss scale after each update.

    These members of `LossScaleOptimizer` (Keras 3.12.0 to 3.15.1) are replaced or used:

    `build`, `apply`, `stateless_apply`, `dynamic_scale`, `step_counter`: `stateless_apply` becomes
    that of Keras's base class, which calls `apply`.

    `save_own_variables`, `load_own_variables`: Keras's versions save and load the variables of the
    optimizer inside with those of the wrapper, by position. With them an optimizer of this package
    could not refuse a state that does not fit. In files of earlier versions, the wrapper's
    variables come first.

    `set_weights`: Keras's version sets only the wrapper's own variables from the weights in HDF5.

    `Model._setattr_hook` is replaced by a hook that also records to which model `compile` assigns
    an optimizer. So the place in that model is known for each variable that the optimizer trains. A
    patch of `compile` itself would come too late for the first optimizer, because `install` runs
    while the arguments of `compile` are evaluated.

    `__init__` and `build` of `MultiOptimizer` (Keras 3.15.1) also give its optimizers different
    names, and change the paths of their variables (`Variable._path`) accordingly. If two optimizers
    of this package had the same name, two variables would have the same path, and `get_state_tree`
    would refuse the model.
    """
    keras.Model._setattr_hook = _recording_model(keras.Model._setattr_hook)
    wrapper = keras.optimizers.LossScaleOptimizer
    step_methods = {
        "build": _with_scale_control(wrapper.build),
        "apply": _apply_unscaled,
        "stateless_apply": _with_model_check(keras.optimizers.Optimizer.stateless_apply),
    }
    file_methods = {
        "save_own_variables": _save_scale,
        "load_own_variables": _load_scale,
        "set_weights": _set_all_weights,
    }
    methods_by_class: list = [(Layerwise, step_methods), ((Layerwise, MeasureNoise), file_methods)]
    for inner_class, methods in methods_by_class:
        for name, method in methods.items():
            setattr(
                wrapper,
                name,
                named.method_by_inner_class(inner_class, method, getattr(wrapper, name)),
            )
    if multi_optimizer := getattr(keras.optimizers, "MultiOptimizer", None):  # Keras 3.15 has it
        for name in ("__init__", "build"):
            setattr(multi_optimizer, name, _with_distinct_names(getattr(multi_optimizer, name)))


def _with_distinct_names(method):
    """Wraps `__init__` or `build` of `MultiOptimizer`, to give its optimizers different names."""

    @functools.wraps(method)
    def wrapped(multi, *arguments, **named_arguments):
        method(multi, *arguments, **named_arguments)
        used_names: set = set()
        for optimizer in multi.optimizers:
            if isinstance(optimizer, (Layerwise, MeasureNoise)):
                _rename(optimizer, used_names)
            used_names.add(optimizer.name)

    return wrapped


def _rename(optimizer, used_names):
    """Adds a number to the name of an optimizer if the name is in `used_names`.

    The paths of the optimizer's variables get the new name, too.
    """
    old_name = optimizer.name
    names = (f"{old_name}_{i}" if i else old_name for i in itertools.count())
    optimizer.name = next(name for name in names if name not in used_names)
    if optimizer.name != old_name:
        for variable in optimizer.variables:
            path_parts = variable.path.split("/")
            variable._path = "/".join(
                optimizer.name if path_part == old_name else path_part for path_part in path_parts
            )


def _recording_model(setattr_hook):
    """Wraps `Model._setattr_hook`, to record the model to which an optimizer is assigned."""

    def method(model, name, value):
        if name == "optimizer":
            layout.record_model(value, model)
        return setattr_hook(model, name, value)

    return method


def _with_scale_control(build):
    """Wraps `LossScaleOptimizer.build`, to let the optimizer inside change the loss scale."""

    def method(wrapper, variables):
        unwrapped(wrapper)._follow_loss_scale(
            functools.partial(_change_scale, wrapper), lambda: wrapper.dynamic_scale
        )
        build(wrapper, variables)

    return method


def _with_model_check(stateless_apply):
    """Wraps `LossScaleOptimizer.stateless_apply`, to check the model first.

    An error is raised if `fit` trains another model than the optimizer inside was built for.
    """

    def method(wrapper, *arguments):
        host.check_model(wrapper.inner_optimizer)
        return stateless_apply(wrapper, *arguments)

    return method


def _apply_unscaled(wrapper, grads, trainable_variables=None):
    """Replaces `LossScaleOptimizer.apply`: divides gradients by the loss scale, and passes them on.

    The optimizer inside gets gradients even if they are not finite; then it skips the update.
    """
    if not wrapper.built:
        with keras.name_scope(wrapper.name):
            wrapper.build(trainable_variables)
    scale = ops.convert_to_tensor(wrapper.dynamic_scale)
    variables = trainable_variables or wrapper._trainable_variables
    unscaled = [
        gradient if gradient is None or is_overwritten(variable) else ops.divide(gradient, scale)
        for gradient, variable in zip(grads, variables, strict=True)
    ]
    wrapper.inner_optimizer.apply(unscaled, trainable_variables)


def _change_scale(wrapper, is_update, overflows):
    """Halves the loss scale after an update that overflowed; doubles it after many that did not.

    Args:
        wrapper: The wrapper. Its `dynamic_growth_steps` says after how many updates it doubles.
        is_update: Whether this micro-batch ends an update, a boolean scalar.
        overflows: Whether that update's gradients are not finite, a boolean scalar.
    """
    scale, step_counter = map(arrays.native, (wrapper.dynamic_scale, wrapper.step_counter))
    old_scale, old_count = map(ops.convert_to_tensor, (scale, step_counter))
    doubles = ~overflows & (old_count >= wrapper.dynamic_growth_steps - 1)
    new_count = ops.where(overflows | doubles, 0, old_count + 1)
    step_counter.assign(ops.where(is_update, new_count, old_count))
    factor = ops.where(overflows, 0.5, ops.where(doubles, 2.0, 1.0))
    scale.assign(ops.where(is_update, old_scale * ops.cast(factor, old_scale.dtype), old_scale))


# The variables of a `LossScaleOptimizer` that are saved. Its learning rate is left out, because it
# is that of the optimizer inside, which saves it.
_SCALE_VARIABLES = ("step_counter", "dynamic_scale")


def _save_scale(wrapper, store):
    """Replaces `LossScaleOptimizer.save_own_variables`: saves the loss scale's variables by name.

    An optimizer that is not built has none.
    """
    if wrapper.built:
        for name in _SCALE_VARIABLES:
            store[name] = arrays.to_numpy(getattr(wrapper, name))


def _load_scale(wrapper, store):
    """Replaces `LossScaleOptimizer.load_own_variables`: loads the loss scale's variables by name.

    In files of earlier versions it finds them by position.
    """
    if not wrapper.built:
        return
    variables, keys = wrapper._variables, list(store.keys())
    for name in _SCALE_VARIABLES:
        variable = getattr(wrapper, name)
        # Files of earlier versions have the wrapper's variables, and after them those of the
        # optimizer inside, under their positions. A file with no more variables than the wrapper
        # has now was saved before the build, so it has no loss scale to load.
        if name not in keys:
            name = str(next(i for i, candidate in enumerate(variables) if candidate is variable))
        if name in _SCALE_VARIABLES or len(keys) > len(variables):
            variable.assign(store[name][()])  # `[()]` reads an entry of HDF5


def _set_all_weights(wrapper, weights):
    """Replaces `LossScaleOptimizer.set_weights`, which would set the wrapper's variables alone.

    The first weights are for the variables of the wrapper, the others for the optimizer inside.
    """
    keras.optimizers.Optimizer.set_weights(wrapper, weights)
    wrapper.inner_optimizer.set_weights(weights[len(wrapper._variables) :])


def disable_sum_over_replicas(optimizer):
    """Keeps one of Keras's own optimizers from summing gradients over replicas.

    The wrapper `MeasureNoise` or `AdaScale` around it has summed them already.

    Seam (private API of Keras 3.12.0 to 3.15.1): `_all_reduce_sum_gradients`.
    """
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def use_train_step(model, train_step):
    """Replaces the `train_step` of a model on JAX (Keras 3.15.1).

    Args:
        model: The model.
        train_step: The new function; its first argument is the model.
    """
    model.train_step = types.MethodType(train_step, model)


def use_data_layout(distribution, get_data_layout):
    """Replaces the method by which `fit` asks for the layout of a batch (Keras 3.15.1).

    `fit` calls it for the first batch of each epoch.

    Args:
        distribution: The `keras.distribution` that is set.
        get_data_layout: The new function. It gets the shape of an array of the batch, and returns
            the layout.
    """
    distribution.get_data_layout = get_data_layout


def hide_trust_ratios(optimizer, wrapper):
    """Keeps a wrapper from saving the recorded trust ratios of its optimizer (Keras 3.15.1).

    On JAX they are among the variables of the optimizer, which the wrapper would save and load.

    Args:
        optimizer: The optimizer.
        wrapper: A wrapper of it, such as `LossScaleOptimizer`.
    """

    def without_trust_ratios(method):
        def wrapped(store):
            optimizer._hides_trust_ratios = True
            try:
                method(store)
            finally:
                optimizer._hides_trust_ratios = False

        return wrapped

    for name in ("save_own_variables", "load_own_variables"):
        if name not in vars(wrapper):
            setattr(wrapper, name, without_trust_ratios(getattr(wrapper, name)))


@contextlib.contextmanager
def lora_unmerged(model):
    """Makes Keras save and load kernel and LoRA factors of a layer apart, in a `with` block.

    Otherwise Keras would save the kernel with the factors merged into it. A backup needs them
    apart, because training continues with the factors.

    Seams (uses of private API of Keras 3.15.1): `_flatten_layers`; Keras calls a
    `save_own_variables` and a `load_own_variables` that are set on a layer object.
    """
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    methods = keras.layers.Layer.save_own_variables, keras.layers.Layer.load_own_variables
    for layer, method in itertools.product(layers, methods):
        setattr(layer, method.__name__, functools.partial(method, layer))
    try:
        yield
    finally:
        for layer, method in itertools.product(layers, methods):
            delattr(layer, method.__name__)


@contextlib.contextmanager
def allow_missing_parts():
    """Lets `test_on_batch` take a batch without sample weights or targets, in a `with` block.

    It is needed under a `keras.distribution`. `_distribute_data` of the JAX backend fails in Keras
    3.12.0, because it reads the shape of a missing part, which is None. In 3.15.1 it does not.
    """
    if keras.backend.backend() != "jax" or not sharding.is_distributed():
        yield
        return
    from keras.src.backend.jax import trainer

    distribute = trainer._distribute_data

    def distribute_present(data, layouts=None):
        if layouts is not None:
            return distribute(data, layouts)
        present = batch_tuple(data)
        return (*distribute(present), *(None for _ in data[len(present) :]))

    trainer._distribute_data = distribute_present
    try:
        yield
    finally:
        trainer._distribute_data = distribute


def put_array(variable, array):
    """Sets the array of a variable, without the checks of `assign`.

    Seam (private API of Keras 3.15.1): `_value`.

    Args:
        variable: The variable.
        array: The array.
    """
    variable._value = array


def adapter_without_targets(batches):
    """Returns an adapter that gives `fit` inputs without targets (Keras 3.12.0 to 3.15.1).

    Keras's adapter requires tuples when it is made. So inputs are put into tuples first, and taken
    out of them when `fit` reads the adapter.
    """
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    adapter = GeneratorDataAdapter((inputs,) for inputs in batches)
    tuples = adapter.generator
    adapter.generator = lambda: (inputs for (inputs,) in tuples())
    return adapter
