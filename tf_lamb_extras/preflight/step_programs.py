"""Lowers a Keras model's training step to programs that a TPU compiler takes, without running it.

The step is the same as the one that `fit` jits: `train_step` with its state donated, sharded as a
`keras.distribution` says. To leave the user's model as it is, a shallow copy of it, called its
twin, is lowered. The twin shares layers and variables with the model. It has its own compile state,
with a copy of the optimizer whose variables have shapes but no values.

This file uses private API of Keras 3.15.1:
    `Trainer._symbolic_build`, `_compile_loss`, `_compile_metrics`: used as Keras's trainer does.
    `Variable._layout`, `Distribution._device_mesh`, `ModelParallel._layout_map`: set on copies.
    `Optimizer._trainable_variables`: the variables for which the optimizer was built.
"""

import copy
import math

import keras
from keras.distribution import DataParallel, DeviceMesh, LayoutMap, TensorLayout

from tf_lamb.keras import replicas, sharding


def on_devices(distribution, devices):
    """Returns a copy of a distribution that is over other devices.

    Args:
        distribution: A `keras.distribution.DataParallel` or `ModelParallel`. None stands for data
            parallelism over all devices.
        devices: The other devices.
    """
    if distribution is None:
        return DataParallel(device_mesh=DeviceMesh((len(devices),), ["batch"], list(devices)))
    mesh = distribution.device_mesh
    twin = copy.copy(distribution)
    twin._device_mesh = DeviceMesh(mesh.shape, mesh.axis_names, list(devices))
    if hasattr(distribution, "_layout_map"):
        twin._layout_map = LayoutMap(twin._device_mesh)
        for path, layout in distribution._layout_map.items():
            twin._layout_map[path] = TensorLayout(layout.axes)
    return twin


def copy_of(optimizer, model):
    """Returns a new optimizer, which is not built, with the arguments of another one.

    Args:
        optimizer: An optimizer, as for `compile`.
        model: The model to train.

    Raises:
        ValueError: If the optimizer is built for another model, or cannot be made from its config.
    """
    optimizer = keras.optimizers.get(optimizer)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # inside a `LossScaleOptimizer`
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
    """Returns the shapes and dtypes of a model's predictions, as `jax.ShapeDtypeStruct`s.

    If the model is not built yet, it is built.

    Args:
        model: The model.
        inputs: The inputs, as `keras.KerasTensor`s.

    Raises:
        ValueError: If the model does not take these inputs.
    """
    import jax

    caller = _twin(model) if model.built else model
    try:
        # In this scope `eval_shape` does not trace the initial values of new variables. The
        # variables get their values when the scope ends.
        with keras.StatelessScope():
            return jax.eval_shape(caller, keras.tree.map_structure(_struct, inputs))
    except Exception as error:
        shapes = keras.tree.map_structure(lambda spec: f"{spec.dtype}{list(spec.shape)}", inputs)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"model {model.name!r} takes no inputs {shapes}: {reason}") from error


def _twin(model):
    """Returns a shallow copy of a model, which shares its layers and variables.

    To compile the copy leaves the model as it was, because it only sets attributes of the copy.
    """
    twin = object.__new__(type(model))
    vars(twin).update(vars(model))
    return twin


class Steps:
    """Lowers the programs of one model under one distribution.

    Args:
        model: The model, built.
        optimizer: An optimizer that is not built, and that nothing else uses.
        loss: A loss, as for `compile`.
        inputs: The inputs of a batch of any size, as `keras.KerasTensor`s.
        targets: The targets of the batch, as `keras.KerasTensor`s; or None.
        distribution: The distribution over the devices to compile for.

    Attributes:
        weights: The bytes of the model's variables on one device.
        slots: The bytes of all the optimizer's variables on one device.
    """

    def __init__(self, model, optimizer, loss, inputs, targets, distribution):
        import jax

        self._distribution = distribution
        self._twin = _twin(model)
        self._twin._compile_loss = self._twin._compile_metrics = None
        self._twin.compile(optimizer=optimizer, loss=loss)
        # With the policy mixed_float16, Keras has wrapped the optimizer in a `LossScaleOptimizer`.
        optimizer = self._twin.optimizer
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
        trainable, non_trainable, slots, _ = self._state
        self.weights, self.slots = _bytes(trainable + non_trainable), _bytes(slots)

    def step(self, inputs, targets):
        """Returns the lowered training step for a batch, a `jax.stages.Lowered`.

        Args:
            inputs: The inputs, as `keras.KerasTensor`s.
            targets: The targets, as `keras.KerasTensor`s; or None.
        """
        batch = (inputs,) if targets is None else (inputs, targets)
        data = keras.tree.map_structure(self._sharded_data, batch)
        shardings = _shardings(self._state)
        return self._lower(self._twin.train_step, (None, shardings), (0,), self._state, data)

    def update(self):
        """Returns the lowered update of the optimizer, without the rest of the step.

        Its gradients are sharded as their weights are. If the function `per_replica` of `tf_lamb`
        was applied to the model, each replica has its own gradients instead.
        """
        weights, _, slots, _ = self._state
        gradients = (
            self._per_replica_gradients() if replicas.is_per_replica(self._twin) else weights
        )

        def update(weights, slots, gradients):
            return self._twin.optimizer.stateless_apply(slots, gradients, weights)

        # The donated arguments are in the order of the results, because each result then reuses the
        # memory of the corresponding argument.
        return self._lower(update, _shardings((weights, slots)), (0, 1), weights, slots, gradients)

    def _per_replica_gradients(self):
        """Returns the shape and sharding of each weight's gradients, if each replica has its own.

        The first axis of such an array is that of the replicas.
        """

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
        """Returns a lowered function, a `jax.stages.Lowered`.

        Args:
            function: The function.
            results: The shardings of its results.
            donated: The indices of the arguments whose memory the results may reuse.
            arguments: The arguments, as `jax.ShapeDtypeStruct`s.
        """
        import jax

        # `keep_unused` is True, because variables that the step does not use take memory, too.
        jitted = jax.jit(function, donate_argnums=donated, out_shardings=results, keep_unused=True)
        # The layers read the layouts of their outputs from the distribution of this scope.
        with self._distribution.scope():
            return jitted.lower(*arguments)

    def _laid_out(self, variable):
        """Returns a copy of a variable, with its layout under this distribution.

        Raises:
            ValueError: If the layout does not split the variable evenly.
        """
        twin = copy.copy(variable)
        twin._layout = None
        twin._layout = layout = self._distribution.get_variable_layout(twin)
        try:
            layout.backend_layout.shard_shape(twin.shape)
        except ValueError as error:
            raise ValueError(
                f"variable {twin.path!r} of shape {twin.shape} does not split as its layout "
                f"{layout.axes} over the mesh {layout.device_mesh.shape} says: {error}"
            ) from error
        return twin

    def _abstract(self, variable):
        """Returns a `jax.ShapeDtypeStruct` with the shape, dtype and sharding of a variable."""
        layout = getattr(variable, "_layout", None)
        if layout is None or layout.device_mesh is not self._distribution.device_mesh:
            layout = self._laid_out(variable)._layout
        return _struct(variable, layout.backend_layout)

    def _sharded_data(self, spec):
        """Returns a `jax.ShapeDtypeStruct` with the sharding of an array of the batch.

        Args:
            spec: An object with the shape and the dtype of the array.
        """
        return _struct(spec, self._distribution.get_data_layout(spec.shape).backend_layout)


def _struct(spec, sharding=None):
    """Returns a `jax.ShapeDtypeStruct`.

    Args:
        spec: An object with the shape and the dtype.
        sharding: The sharding. Defaults to None.
    """
    import jax

    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)


def _shardings(structs):
    """Returns the sharding of each `jax.ShapeDtypeStruct`, in the same structure."""
    import jax

    return jax.tree.map(lambda struct: struct.sharding, structs)


def _bytes(structs):
    """Returns the bytes that arrays take on one device.

    Args:
        structs: The arrays, as `jax.ShapeDtypeStruct`s with a sharding.
    """
    shards = ((struct.sharding.shard_shape(struct.shape), struct.dtype) for struct in structs)
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)
