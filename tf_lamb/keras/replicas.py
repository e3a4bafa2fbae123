"""Computes a gradient for each replica, in Keras's own `fit` on JAX.

In Keras, XLA computes the gradient of the loss of the whole batch, and sums it over the devices in
every micro-batch. Here, each device of the data axis is a replica. It computes the gradient of its
own part of the batch, and the gradients of the replicas are summed later, once per update.

Seams (uses of private API) of Keras 3 (3.15.1), all in this file:
    `Trainer.compute_loss_and_updates`, `_update_metrics_variables`: of the JAX backend, as its own
        `train_step` calls them.
    `Trainer._compile_loss`: its metrics, one for each output, are updated as the loss is computed.
    `Trainer._compile_config`: the optimizer that the model was compiled with.
    `Layer._seed_generators`: their variables are the states of random generators.
"""

import keras

from tf_lamb.api.variables import is_overwritten, unwrapped
from tf_lamb.core.messages import warn
from tf_lamb.keras import host, seams, sharding
from tf_lamb.keras.measured import MeasuringOptimizer
from tf_lamb.keras.optimizer import LayerwiseOptimizer

# 2^32 divided by the golden ratio. Its multiples, modulo 2^32, lie far apart, so they are used as
# offsets of seeds.
GOLDEN_RATIO = 0x9E3779B9


def seed_state_ids(model):
    """Returns the `id` of each variable that holds the state of a random generator of the model."""
    return {
        id(generator.state)
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }


def per_replica(model: keras.Model) -> keras.Model:
    """Makes `fit` compute one gradient per replica, and sum them once per update.

    A step on JAX normally sums the gradients over all devices; with `gradient_accumulation_steps`
    it does so at every micro-batch. After this call, each device of the data axis is a replica,
    which accumulates its own gradients. The step that ends the update sums them over devices: one
    all-reduce per update instead of one per micro-batch. `MeasureNoise` and `AdaScale` then treat
    each replica as a part of the batch, as under `tf.distribute`, with or without accumulation.

    Replicas are independent, as under `tf.distribute`. Batch normalization uses the statistics of
    the replica's part of the batch, and averages the moving statistics over replicas. A loss is
    averaged within each part; with masks this differs from the average over the full batch. The
    weights are otherwise the same, up to the rounding of the sums.

    Args:
        model: A model compiled under a `keras.distribution`, with an optimizer of this package or
            one that wraps it. The number of devices must divide the batch of `fit`.

    Returns:
        The same model. The setting survives a second `compile` with the same optimizer. After a
        `compile` with another optimizer, `fit` warns, and sums the gradients at every micro-batch.
        In that case, and for a loaded model, call the function again.

    Raises:
        ValueError: If no distribution is set; if the model is not compiled, overrides `train_step`,
            or has an optimizer of another package; or if that optimizer is built and was set to
            another number of replicas. That includes a `MeasureNoise` or `AdaScale` that was built
            before this call, because it is set to one replica. `fit` raises a ValueError if the
            number of devices does not divide the batch.

    Example:

    >>> import keras, tf_lamb
    >>> keras.distribution.set_distribution(keras.distribution.DataParallel())
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile(tf_lamb.keras.LAMB(1e-3, gradient_accumulation_steps=8), "mse")
    >>> model = tf_lamb.keras.per_replica(model)
    """
    _, _, replicas = sharding.data_axis("per_replica()")
    if not model.compiled:
        raise ValueError(f"{model.name} is not compiled: compile it, and call per_replica() then.")
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which per_replica() would put "
            "aside: take the gradients apart in there, or leave per_replica() out."
        )
    inner = unwrapped(model.optimizer, LayerwiseOptimizer)
    if not isinstance(inner, LayerwiseOptimizer):
        raise ValueError(
            f"{inner.name} takes gradients that are summed: compile the model with an optimizer of "
            "tf_lamb, or leave per_replica() out."
        )
    measuring = unwrapped(model.optimizer, MeasuringOptimizer)
    if measuring._replicas != replicas:  # they are equal if this function was called before
        if measuring.built and (measuring is not inner or inner._replicas > 1):
            raise ValueError(
                f"{measuring.name} is built, for {measuring._replicas} replicas: call "
                "per_replica() before the first step, and load the state of a run after it."
            )
        inner._replicas = measuring._replicas = replicas
        if inner.built:
            host.split_accumulators(inner)
    seams.use_train_step(model, _train_step)
    return model


def is_per_replica(model):
    """Returns whether `per_replica` has been called on the model."""
    return getattr(vars(model).get("train_step"), "__func__", None) is _train_step


def _train_step(model, state, data):
    """Runs a training step as Keras's `train_step` does, but with a gradient for each replica.

    Args:
        model: The model.
        state: Four lists of values: of the model's trainable variables, of its non-trainable ones,
            of the optimizer's variables, and of the metrics' variables.
        data: The batch.

    Returns:
        The logs, a dict; and the new state, in the form of `state`.
    """
    weights, non_trainable, optimizer_variables, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, predictions, non_trainable, metrics, gradients = per_replica_gradients(
        model, weights, non_trainable, optimizer_variables, metrics, (x, y, sample_weight)
    )
    # This is a warning and not an error. An error would lose the weights, because Keras has taken
    # them out of the model's variables by now.
    if getattr(unwrapped(model.optimizer, MeasuringOptimizer), "_replicas", 1) == 1:
        if sharding.data_axis("per_replica()")[2] > 1 and not _has_temporary_optimizer(model):
            warn(
                f"{model.name} has been compiled with another optimizer since per_replica(): "
                "gradients are summed in every micro-batch. Call per_replica(model) again."
            )
        gradients = [
            gradient if is_overwritten(variable) else keras.ops.sum(gradient, axis=0)
            for gradient, variable in zip(gradients, model.trainable_variables, strict=True)
        ]
    weights, optimizer_variables = model.optimizer.stateless_apply(
        optimizer_variables, gradients, weights
    )
    logs, metrics = model._update_metrics_variables(metrics, loss, x, y, predictions, sample_weight)
    return logs, (weights, non_trainable, optimizer_variables, metrics)


def _has_temporary_optimizer(model):
    """Returns whether the model has another optimizer for a time, as during `find_rate`.

    That is so if `per_replica` was called for the optimizer that `compile` got.
    """
    compiled_optimizer = model._compile_config.config["optimizer"]
    return getattr(unwrapped(compiled_optimizer, MeasuringOptimizer), "_replicas", 1) > 1


def per_replica_gradients(model, weights, non_trainable, optimizer_variables, metrics, data):
    """Computes, for each replica i of n, the gradient g_i/n of its part of the batch.

    Args:
        model: The compiled model.
        weights: The values of the trainable variables.
        non_trainable: The values of the non-trainable variables.
        optimizer_variables: The values of the optimizer's variables.
        metrics: The values of the metrics' variables.
        data: Inputs, targets and sample weights of the whole batch.

    Returns:
        The loss; the predictions; the new values of the non-trainable variables and of the metrics'
        variables; and the gradients, with the replicas along a first axis. A variable such as the
        scale of a float8 layer has its next value as "gradient". That is the maximum over replicas,
        without an axis of replicas.

    Raises:
        ValueError: If the devices do not divide the batch.
    """
    import jax

    distribution, axis, n = sharding.data_axis("per_replica()")
    for leaf in jax.tree.leaves(data):
        if leaf.shape[0] % n:
            raise ValueError(
                f"a batch of {leaf.shape[0]:,} does not split into the parts of {n} devices: give "
                f"`fit` a batch_size that {n} divides, and leave out a last one that is smaller."
            )
    seed_ids = seed_state_ids(model)
    # True for the scales and histories of float8 layers, whose "gradients" are their next values.
    are_next_values = [is_overwritten(v) for v in model.trainable_variables]
    are_seeds = [id(v) in seed_ids for v in model.non_trainable_variables]

    def compute_replica(weights, non_trainable, optimizer_variables, metrics, data):
        """Computes the results of one replica from its part of `data`.

        It gets the other arguments whole, as every replica does.
        """
        # This offset is added to the seeds of this replica, so that replicas draw different random
        # numbers, and subtracted after the step.
        seed_offset = jax.numpy.uint32(GOLDEN_RATIO) * jax.lax.axis_index(axis).astype("uint32")
        non_trainable = [
            v.at[0].add(seed_offset) if is_seed else v
            for v, is_seed in zip(non_trainable, are_seeds, strict=True)
        ]
        (_, results), gradients = loss_and_gradients(
            model, axis, weights, non_trainable, optimizer_variables, metrics, data
        )
        loss, predictions, non_trainable, metrics = results
        non_trainable = [
            v.at[0].add(-seed_offset) if is_seed else _mean_over_replicas(v, axis)
            for v, is_seed in zip(non_trainable, are_seeds, strict=True)
        ]
        gradients = [
            jax.lax.pmax(g, axis) if is_next_value else g[None] / n
            for g, is_next_value in zip(gradients, are_next_values, strict=True)
        ]
        return jax.lax.pmean(loss, axis), predictions, non_trainable, metrics, gradients

    split_spec, replicated_spec = jax.P(axis), jax.P()
    # `check_vma=True` would refuse layers with a loop (such as RNNs), whose carried values are
    # equal on all replicas at first and differ later.
    return jax.shard_map(
        compute_replica,
        mesh=distribution.device_mesh.backend_mesh, axis_names={axis}, check_vma=False,
        in_specs=(replicated_spec,) * 4 + (split_spec,),
        out_specs=(
            replicated_spec, split_spec, replicated_spec, replicated_spec,
            [replicated_spec if is_next_value else split_spec for is_next_value in are_next_values],
        ),
    )(weights, non_trainable, optimizer_variables, metrics, data)  # fmt: skip


def loss_and_gradients(model, axis, weights, non_trainable, optimizer_variables, metrics, data):
    """Computes loss and gradients of one replica, and sums the loss's metrics over replicas.

    Args:
        model: The compiled model.
        axis: The name of the data axis.
        weights: The values of the trainable variables.
        non_trainable: The values of the non-trainable variables.
        optimizer_variables: The values of the optimizer's variables.
        metrics: The values of the metrics' variables.
        data: Inputs, targets and sample weights of the replica's part of the batch.

    Returns:
        A pair as `jax.value_and_grad` returns it. First, the scaled loss and a tuple: the loss, the
        predictions, the new values of the non-trainable variables and of the metrics' variables.
        Second, the gradients.
    """
    import jax

    value_and_gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    (scaled_loss, (loss, predictions, non_trainable, new_metrics)), gradients = value_and_gradient(
        weights,
        non_trainable,
        metrics,
        *data,
        training=True,
        optimizer_variables=optimizer_variables,
    )
    loss_metrics = getattr(model._compile_loss, "metrics", ())
    loss_variables = {id(v) for metric in loss_metrics for v in metric.variables}
    metrics = [
        # A metric's variables are sums, so the increments of the replicas add up.
        old + jax.lax.psum(new - old, axis) if id(v) in loss_variables else old
        for v, old, new in zip(model.metrics_variables, metrics, new_metrics, strict=True)
    ]
    return (scaled_loss, (loss, predictions, non_trainable, metrics)), gradients


def _mean_over_replicas(value, axis):
    """Returns the mean of a value over replicas.

    An integer is returned as it is, because it is a count that is equal on all replicas.
    """
    import jax

    return jax.lax.pmean(value, axis) if keras.backend.is_float_dtype(value.dtype) else value
