"""Adds up gradients on each replica, and computes sums and maxima over replicas.

These functions run in a step under `tf.distribute`. Others check the strategy under which an
optimizer is used.

Under `ParameterServerStrategy` the variables lie on several servers. If a variable is split over
servers, each of its parts has an attribute `_sharded_container`, which is private in TensorFlow
2.20. This module reads it, as `tf_lamb/api/variables.py` does.
"""

import contextlib

import tensorflow as tf


def uses_servers():
    """Returns whether the present strategy is a `ParameterServerStrategy`."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


@contextlib.contextmanager
def on_server_of(variable):
    """Places the operations of a `with` block on the parameter server that holds a variable.

    Under any other strategy it does nothing.
    """
    if not uses_servers():
        yield
        return
    # The device is set by its name. In a branch of a `tf.cond` the variable is a function argument,
    # with which operations cannot be colocated.
    with tf.compat.v1.colocate_with(None, ignore_existing=True), tf.device(variable.device):
        yield


def refuse_split_variables(variables, plan, clipnorm):
    """Raises if an update needs the norm of a variable that is split over parameter servers.

    Args:
        variables: The variables that the optimizer is built for.
        plan: The `Plan` of these variables, which says how each is updated.
        clipnorm: The argument of the optimizer; None does not clip.

    Raises:
        ValueError: If a split variable has layer-wise adaptation, or is clipped by its norm.
    """
    for variable, path, treatment in zip(variables, plan.paths, plan.treatments, strict=True):
        if not hasattr(variable, "_sharded_container"):
            continue
        if treatment.adapt:
            subject, remedy = "its update", f"name {path!r} in exclude_from_layer_adaptation"
        elif clipnorm is not None:
            subject, remedy = f"clipnorm={clipnorm!r}", "set global_clipnorm instead"
        else:
            continue
        raise ValueError(
            f"The variable_partitioner of the strategy has cut {path} into parts, but {subject} is "
            f"of the whole variable: leave the partitioner out, give it a min_shard_bytes that "
            f"spares this variable, or {remedy}."
        )


@contextlib.contextmanager
def per_replica_variables():
    """Gives each replica its own copy of variables that are made in a `with` block.

    A saved file holds the sum of the copies. When it is loaded, each replica gets an equal share of
    this sum. Under `ParameterServerStrategy` all workers share the variables instead.
    """

    def create_per_replica(create, **kwargs):
        if not uses_servers():
            kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
            kwargs["aggregation"] = tf.VariableAggregation.SUM
        return create(**kwargs)

    with tf.variable_creator_scope(create_per_replica):
        yield


@contextlib.contextmanager
def colocated_with(strategy, variable, dtype):
    """Places the variables that are made in a `with` block on the devices of another variable.

    Each worker initializes a bfloat16 variable by itself, with the same values on all workers,
    because TensorFlow's broadcast from the first worker does not take bfloat16.

    Args:
        strategy: The strategy of the variables.
        variable: The other variable, of TensorFlow.
        dtype: The dtype of the new variables.
    """
    extended = strategy.extended
    with extended.colocate_vars_with(variable):
        # seam: TensorFlow 2.20.0, the private `_num_workers` of `MultiWorkerMirroredStrategy`. With
        # 1, the initial value is not broadcast.
        worker_count = getattr(extended, "_num_workers", 1)
        if worker_count == 1 or dtype != "bfloat16":
            yield
            return
        extended._num_workers = 1
        try:
            yield
        finally:
            extended._num_workers = worker_count


def accumulate(strategy, accumulators, gradients, is_update):
    """Adds the gradients of this replica to its accumulators.

    If this micro-batch ends an update, the accumulators of all replicas are then set to their sum.

    Args:
        strategy: The strategy of the optimizer.
        accumulators: The variables that add up gradients, with a copy on each replica.
        gradients: The gradients of this replica.
        is_update: A function that returns whether this micro-batch ends an update, a scalar.

    Raises:
        ValueError: If the accumulators have copies and there is no replica to whose copies the
            gradients could be added.
    """
    if accumulators and is_outside_of_strategy_of(accumulators[0]):
        raise ValueError(
            "gradient_accumulation_steps adds up the gradients of each replica: call "
            "apply_gradients inside strategy.run, or give it the mean gradients of all "
            "micro-batches, without gradient_accumulation_steps."
        )
    for accumulator, gradient in zip(accumulators, gradients, strict=True):
        accumulator.assign_add(tf.cast(gradient, accumulator.dtype))
    if strategy.num_replicas_in_sync == 1:
        return

    def in_cross_replica_context(strategy, totals):
        def sum_accumulators():
            context = tf.distribute.get_replica_context()
            # If XLA compiles the whole step for GPUs, TensorFlow calls this function on each
            # replica, without a merge call. Only then is there a replica context.
            if context:
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, totals)
            else:
                pairs = list(zip(totals, accumulators, strict=True))
                sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
            _assign_on_replicas(strategy, accumulators, sums)

        tf.cond(is_update(), sum_accumulators, lambda: None)

    totals = [accumulator.read_value() for accumulator in accumulators]
    tf.__internal__.distribute.interim.maybe_merge_call(in_cross_replica_context, strategy, totals)


def is_outside_of_strategy_of(variable):
    """Returns whether a variable has copies on replicas, but no strategy is entered."""
    is_copied = isinstance(variable, tf.distribute.DistributedValues)
    return is_copied and not tf.distribute.has_strategy()


def merge_call_for(weight):
    """Returns the strategy of an update, and the function that runs it once for all replicas.

    The function is TensorFlow's `maybe_merge_call`, which each replica calls in `strategy.run`, or
    the only device. A training loop may also compute the gradients of a whole batch, and apply them
    outside of `strategy.run`. There, the copies of the weight tell the strategy, and the function
    enters its scope.

    Args:
        weight: The first weight that is updated.

    Returns:
        The strategy, and a function of the update, the strategy and the gradients. The update is a
        function of the strategy and the gradients, which is called in cross-replica context.
    """
    if not is_outside_of_strategy_of(weight):
        return tf.distribute.get_strategy(), tf.__internal__.distribute.interim.maybe_merge_call

    def call_in_scope(update, strategy, gradients):
        with strategy.scope():
            return update(strategy, gradients)

    return weight.distribute_strategy, call_in_scope


def replica_state(strategy, state, weight):
    """Returns a `State` with one replica's copies of the variables.

    A `tf.function` accepts these copies as arguments, so that it can update other variables in
    another call. A mirrored variable cannot be an argument: the function would capture it while it
    is traced, and would change the same variable in every call.

    Args:
        strategy: The strategy of the optimizer.
        state: The `State` of the mirrored variables.
        weight: The replica's copy of the first weight, which identifies the replica.
    """
    local_copies = strategy.experimental_local_results
    first_copies = enumerate(local_copies(state.stored[0].weight))
    replica_index = next((i for i, copy in first_copies if copy is weight), None)
    if replica_index is None:  # on a TPU, all replicas are traced as one
        return state
    return tf.nest.map_structure(
        lambda v: None if v is None else local_copies(v)[replica_index], state
    )


def squared_norm(gradient):
    """Returns |g|^2 of a gradient g, in float32."""
    return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))


def sum_over_replicas(tensor):
    """Returns the sum of a tensor over replicas, by one all-reduce if there are several."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)


def max_over_replicas(tensors):
    """Returns the elementwise maximum of each tensor over replicas, by one all-reduce for all.

    Under `ParameterServerStrategy` it returns the tensors as they are.

    The all-reduce is a sum, of a matrix with one row for each replica; the maximum of the rows is
    taken afterwards. `all_gather` would be simpler, but in TensorFlow 2.20 two strategies of one
    process may give the same collective key to an all-gather and an all-reduce, and the second one
    then raises InternalError.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1 or uses_servers():
        return tensors
    flat_values = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    is_this_replica = tf.range(context.num_replicas_in_sync) == context.replica_id_in_sync_group
    rows = tf.where(is_this_replica[:, None], flat_values[None], tf.zeros_like(flat_values)[None])
    flat_values = tf.reduce_max(context.all_reduce(tf.distribute.ReduceOp.SUM, rows), 0)
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    split_values = zip(tf.split(flat_values, sizes), tensors, strict=True)
    return [tf.reshape(values, tensor.shape) for values, tensor in split_values]


def scope_of(strategy):
    """Returns the scope of the strategy that an optimizer was made under, to build it in.

    Outside of that scope, a build would make variables that only one replica has. If a scope is
    entered already, the result is a context that does nothing.
    """
    default_strategy = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or strategy in (None, default_strategy):
        return contextlib.nullcontext()
    return strategy.scope()


def check_strategy_of_variables(strategy, variables, name):
    """Raises if variables were made under a strategy with replicas, but the optimizer was not.

    Args:
        strategy: The strategy of the optimizer.
        variables: The variables that it is built for.
        name: The name of the optimizer, for the message.

    Raises:
        ValueError: If a variable has another strategy than the optimizer, with several replicas.
    """
    for variable in variables:
        variable_strategy = getattr(variable, "distribute_strategy", strategy)
        if (
            variable_strategy is not strategy
            and getattr(variable_strategy, "num_replicas_in_sync", 1) > 1
        ):
            raise ValueError(
                f"{name} was made outside of the strategy that its variables are made under: make "
                "it inside strategy.scope(), as the model."
            )


def check_strategy(strategy, name):
    """Raises if a step runs under another strategy than that of the optimizer.

    The optimizer would not see the gradients of the step's replicas, and would not sum them.

    Args:
        strategy: The strategy of the optimizer.
        name: The name of the optimizer, for the message.

    Raises:
        ValueError: If the step has another number of replicas.
    """
    if strategy.num_replicas_in_sync > 1 and not tf.distribute.has_strategy():
        raise ValueError(
            f"{name} compares the gradients of the replicas: call apply_gradients inside "
            "strategy.run, where each replica has its own."
        )
    context = tf.distribute.get_replica_context()
    if context and context.num_replicas_in_sync != strategy.num_replicas_in_sync:
        raise ValueError(
            f"{name} was made outside of the strategy that it trains under: make it, and the "
            "optimizer that it wraps, inside strategy.scope()."
        )


def assign(strategy, variables, values):
    """Assigns values to this replica's copies of variables. It is called on each replica.

    Args:
        strategy: The strategy of the optimizer.
        variables: The variables.
        values: The values for this replica's copies.
    """

    def in_cross_replica_context(strategy, values):
        _assign_on_replicas(strategy, variables, values)

    tf.__internal__.distribute.interim.maybe_merge_call(
        in_cross_replica_context, strategy, list(values)
    )


def _assign_on_replicas(strategy, variables, values):
    """Assigns values to the copies of variables on every replica."""

    # AutoGraph would take seconds to rewrite the code of this package, which does not need it.
    @tf.autograph.experimental.do_not_convert
    def assign_value(variable, value):
        variable.assign(tf.cast(value, variable.dtype))

    for variable, value in zip(variables, values, strict=True):
        strategy.extended.update(variable, assign_value, args=(value,), group=False)
