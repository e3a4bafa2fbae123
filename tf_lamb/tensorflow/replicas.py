"""Replicas under `tf.distribute`: what each adds up by itself, its sum, and statistics of both.

Under `ParameterServerStrategy` the variables lie on several servers. Seam into TensorFlow (2.20):
`_sharded_container` of a part, which `api.variables` asks for, too.
"""

import contextlib

import tensorflow as tf


def uses_servers():
    """Whether this is a step under `ParameterServerStrategy`."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


@contextlib.contextmanager
def on_server_of(variable):
    """A layer is updated by the server that holds it; elsewhere nothing is moved."""
    if not uses_servers():
        yield
        return
    # By name: in a branch of a `tf.cond` the variable is an argument, which lies nowhere yet.
    with tf.compat.v1.colocate_with(None, ignore_existing=True), tf.device(variable.device):
        yield


def refuse_parts(variables, plan, clipnorm):
    """Raises for a variable in parts, each on a server, that is adapted, or clipped by its norm."""
    for variable, path, treatment in zip(variables, plan.paths, plan.treatments, strict=True):
        if not hasattr(variable, "_sharded_container"):
            continue
        if treatment.adapt:
            what, instead = "its update", f"name {path!r} in exclude_from_layer_adaptation"
        elif clipnorm is not None:
            what, instead = f"clipnorm={clipnorm!r}", "set global_clipnorm instead"
        else:
            continue
        raise ValueError(
            f"The variable_partitioner of the strategy has cut {path} into parts, but {what} is "
            f"of the whole variable: leave the partitioner out, give it a min_shard_bytes that "
            f"spares this variable, or {instead}."
        )


@contextlib.contextmanager
def per_replica_variables():
    """Variables made inside are each replica's own; a file has their sum, and gives each a share.

    A parameter server's are those of all workers.
    """

    def creator(make, **kwargs):
        if not uses_servers():
            kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
            kwargs["aggregation"] = tf.VariableAggregation.SUM
        return make(**kwargs)

    with tf.variable_creator_scope(creator):
        yield


def gather(strategy, accumulators, gradients, is_update):
    """Each replica adds its gradients to its own accumulators, of which an update takes the sum."""
    for accumulator, gradient in zip(accumulators, gradients, strict=True):
        accumulator.assign_add(tf.cast(gradient, accumulator.dtype))
    if strategy.num_replicas_in_sync == 1:
        return

    def everywhere(strategy, own):
        def add_up():
            context = tf.distribute.get_replica_context()
            if context:  # of a step that XLA compiles whole for GPUs
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
            else:
                pairs = list(zip(own, accumulators, strict=True))
                sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
            _put(strategy, accumulators, sums)

        tf.cond(is_update(), add_up, lambda: None)

    own = [accumulator.read_value() for accumulator in accumulators]
    tf.__internal__.distribute.interim.maybe_merge_call(everywhere, strategy, own)


def of_replica(strategy, state, weight):
    """The state as a replica has it, told by its copy of the first weight.

    A `tf.function` takes a replica's copy as an argument, but captures a mirrored variable: a
    program would then work on the variables that it was traced with, whatever it is given.
    """
    copies = strategy.experimental_local_results
    of_first = enumerate(copies(state.stored[0].weight))
    replica = next((i for i, copy in of_first if copy is weight), None)
    if replica is None:  # a TPU's, where replicas are traced together
        return state
    return tf.nest.map_structure(lambda v: None if v is None else copies(v)[replica], state)


def squared_norm(gradient):
    """|g|^2 in float32."""
    return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))


def sum_over_replicas(tensor):
    """One all-reduce; nothing where there is one replica."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)


def largest(tensors):
    """Of each tensor the elements that are largest on any replica, by one all-reduce for all.

    `all_gather` of TensorFlow 2.20 numbers its exchanges as another strategy of the process numbers
    its sums, and the later one breaks off.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1 or uses_servers():
        return tensors
    flat = tf.concat([tf.reshape(each, [-1]) for each in tensors], 0)
    is_ours = tf.range(context.num_replicas_in_sync) == context.replica_id_in_sync_group
    rows = tf.where(is_ours[:, None], flat[None], tf.zeros_like(flat)[None])
    flat = tf.reduce_max(context.all_reduce(tf.distribute.ReduceOp.SUM, rows), 0)
    sizes = [each.shape.num_elements() for each in tensors]
    parts = zip(tf.split(flat, sizes), tensors, strict=True)
    return [tf.reshape(part, each.shape) for part, each in parts]


def scope_of(strategy):
    """The scope of the strategy that an optimizer was made under, for a caller that is in none.

    There a build would make variables that one replica has.
    """
    none = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or strategy in (None, none):
        return contextlib.nullcontext()
    return strategy.scope()


def check_made_under(strategy, variables, name):
    """Raises where variables have copies on replicas that the optimizer does not know of."""
    for variable in variables:
        theirs = getattr(variable, "distribute_strategy", strategy)
        if theirs is not strategy and getattr(theirs, "num_replicas_in_sync", 1) > 1:
            raise ValueError(
                f"{name} was made outside of the strategy that its variables are made under: make "
                "it inside strategy.scope(), as the model."
            )


def check_strategy(strategy, name):
    """Gradients of replicas that an optimizer knows nothing of would never be summed."""
    context = tf.distribute.get_replica_context()
    if context and context.num_replicas_in_sync != strategy.num_replicas_in_sync:
        raise ValueError(
            f"{name} was made outside of the strategy that it trains under: make it, and the "
            "optimizer that it wraps, inside strategy.scope()."
        )


def assign(strategy, variables, values):
    """Gives every replica's copy of a variable that replica's value."""

    def everywhere(strategy, values):
        _put(strategy, variables, values)

    tf.__internal__.distribute.interim.maybe_merge_call(everywhere, strategy, list(values))


def _put(strategy, variables, values):
    # Rewriting this package's own code for AutoGraph would take seconds.
    @tf.autograph.experimental.do_not_convert
    def put(variable, value):
        variable.assign(tf.cast(value, variable.dtype))

    for variable, value in zip(variables, values, strict=True):
        strategy.extended.update(variable, put, args=(value,), group=False)
