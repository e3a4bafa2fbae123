"""A model's train step as programs that a TPU compiler takes; nothing of it runs.

It is the step that `fit` jits: `train_step` with its state donated, sharded as `keras.distribution`
says. What is compiled is a twin of the model, which shares layers and variables with it and has a
compile state of its own, with a copy of the optimizer whose slots have shapes and no values.

Seams into Keras 3 (3.15.1), all in this file:
    `Trainer._symbolic_build`, `_compile_loss`, `_compile_metrics`: as its trainer uses them.
    `Variable._layout`, `Distribution._device_mesh`, `ModelParallel._layout_map`: set on copies.
    `Optimizer._trainable_variables`: which ones it was built for.
"""

import copy
import math

import keras
from keras.distribution import DataParallel, DeviceMesh, LayoutMap, TensorLayout

from tf_lamb.keras import replicas, sharding


def on_devices(distribution, devices):
    """The distribution over other devices than its own: by default, the data over all of them."""
    if distribution is None:
        return DataParallel(device_mesh=DeviceMesh((len(devices),), ["batch"], list(devices)))
    own = distribution.device_mesh
    twin = copy.copy(distribution)
    twin._device_mesh = DeviceMesh(own.shape, own.axis_names, list(devices))
    if hasattr(distribution, "_layout_map"):
        twin._layout_map = LayoutMap(twin._device_mesh)
        for path, layout in distribution._layout_map.items():
            twin._layout_map[path] = TensorLayout(layout.axes)
    return twin


def copy_of(optimizer, model):
    """An optimizer with the same arguments, unbuilt."""
    optimizer = keras.optimizers.get(optimizer)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    variables = {id(v) for v in model.trainable_variables}
    if inner.built and {id(v) for v in inner._trainable_variables} != variables:
        raise ValueError(
            f"optimizer {optimizer.name!r} is built for other variables than those of model "
            f"{model.name!r}: give a new one with the same arguments"
        )
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception as error:
        raise ValueError(
            f"optimizer {optimizer.name!r} cannot be made again from its config, so that yours "
            f"stays as it is: {error}"
        ) from error


def predictions(model, inputs):
    """The model's predictions for the inputs, by shape; builds it if it is not built."""
    import jax

    caller = _twin(model) if model.built else model
    try:
        with keras.StatelessScope():  # its end gives new variables their values
            return jax.eval_shape(caller, keras.tree.map_structure(_struct, inputs))
    except Exception as error:
        shapes = keras.tree.map_structure(lambda spec: f"{spec.dtype}{list(spec.shape)}", inputs)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"model {model.name!r} takes no inputs {shapes}: {reason}") from error


def _twin(model):
    """Another object with the same attributes: what is set on it is not set on the model."""
    twin = object.__new__(type(model))
    vars(twin).update(vars(model))
    return twin


class Steps:
    """The programs of one model under one distribution.

    Args:
        model: built.
        optimizer: unbuilt, and its own.
        loss: as `compile` takes it.
        inputs, targets: a batch, as `keras.KerasTensor`s; any length of it will do.
        distribution: over the devices to compile for.

    Attributes:
        weights, slots: bytes on one device: the model's variables, and all of the optimizer's.
    """

    def __init__(self, model, optimizer, loss, inputs, targets, distribution):
        import jax

        self._distribution = distribution
        self._twin = _twin(model)
        self._twin._compile_loss = self._twin._compile_metrics = None
        self._twin.compile(optimizer=optimizer, loss=loss)
        optimizer = self._twin.optimizer  # in half precision, Keras has wrapped it
        trained = [self._laid_out(v) for v in self._twin.trainable_variables]
        with distribution.scope():
            if replicas.is_per_replica(model):
                replicas.per_replica(self._twin)
            jax.eval_shape(lambda: optimizer.build(trained))
        self._twin._symbolic_build(data_batch=(inputs, targets))
        parts = (
            self._twin.trainable_variables, self._twin.non_trainable_variables,
            optimizer.variables, self._twin.metrics_variables,
        )  # fmt: skip
        self._state = tuple([self._abstract(v) for v in part] for part in parts)
        trainable, others, slots, _ = self._state
        self.weights, self.slots = _bytes(trainable + others), _bytes(slots)

    def step(self, inputs, targets):
        """The whole step on such a batch, lowered."""
        batch = (inputs,) if targets is None else (inputs, targets)
        data = keras.tree.map_structure(self._sharded_data, batch)
        shardings = _shardings(self._state)
        return self._lower(self._twin.train_step, (None, shardings), (0,), self._state, data)

    def update(self):
        """The optimizer's update alone, lowered: of gradients that are sharded as their weights.

        Per-replica gradients lie where they were made.
        """
        weights, _, slots, _ = self._state
        gradients = (
            self._per_replica_gradients() if replicas.is_per_replica(self._twin) else weights
        )

        def update(weights, slots, gradients):
            return self._twin.optimizer.stateless_apply(slots, gradients, weights)

        # In the order of the results: JAX has them take the places of donated arguments so.
        return self._lower(update, _shardings((weights, slots)), (0, 1), weights, slots, gradients)

    def _per_replica_gradients(self):
        def per_replica(variable):
            layout = sharding.per_replica_layout(variable)
            return _struct(
                keras.KerasTensor((parts, *variable.shape), variable.dtype),
                layout.backend_layout,
            )

        with self._distribution.scope():
            _, _, parts = sharding.data_axis("per_replica()")
            return list(map(per_replica, self._twin.trainable_variables))

    def _lower(self, function, results, donated, *arguments):
        import jax

        # A variable that no step touches lies in memory all the same, hence `keep_unused`.
        jitted = jax.jit(function, donate_argnums=donated, out_shardings=results, keep_unused=True)
        with self._distribution.scope():  # layers ask it for the layouts of their outputs
            return jitted.lower(*arguments)

    def _laid_out(self, variable):
        """A copy of a variable, laid out as this distribution says: not as when it was made."""
        own = copy.copy(variable)
        own._layout = None
        own._layout = layout = self._distribution.get_variable_layout(own)
        try:
            layout.backend_layout.shard_shape(own.shape)
        except ValueError as error:
            raise ValueError(
                f"variable {own.path!r} of shape {own.shape} does not split as its layout "
                f"{layout.axes} over the mesh {layout.device_mesh.shape} says: {error}"
            ) from error
        return own

    def _abstract(self, variable):
        layout = getattr(variable, "_layout", None)
        if layout is None or layout.device_mesh is not self._distribution.device_mesh:
            layout = self._laid_out(variable)._layout
        return _struct(variable, layout.backend_layout)

    def _sharded_data(self, spec):
        return _struct(spec, self._distribution.get_data_layout(spec.shape).backend_layout)


def _struct(spec, sharding=None):
    import jax

    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)


def _shardings(structs):
    import jax

    return jax.tree.map(lambda struct: struct.sharding, structs)


def _bytes(structs):
    """The bytes on one device."""
    shards = ((struct.sharding.shard_shape(struct.shape), struct.dtype) for struct in structs)
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)
