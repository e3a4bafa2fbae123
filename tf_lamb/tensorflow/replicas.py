"""Gradient statistics of replicas under `tf.distribute`, and where they are kept."""

import tensorflow as tf


def squared_norm(gradient):
    """|g|^2 in float32."""
    return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))


def sum_over_replicas(tensor):
    """One all-reduce; nothing where there is one replica."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)


def check_strategy(strategy, name):
    """Gradients of replicas that an optimizer knows nothing of would never be summed."""
    context = tf.distribute.get_replica_context()
    if context and context.num_replicas_in_sync != strategy.num_replicas_in_sync:
        raise ValueError(
            f"{name} was made outside of the strategy that it trains under: make it, and the "
            "optimizer that it stands around, inside strategy.scope()."
        )


def assign(strategy, variables, values):
    """Gives every replica's copy the value, on which replicas agree."""

    # Rewriting this package's own code for AutoGraph would take seconds.
    @tf.autograph.experimental.do_not_convert
    def put(variable, value):
        variable.assign(tf.cast(value, variable.dtype))

    def everywhere(strategy, values):
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, put, args=(value,), group=False)

    tf.__internal__.distribute.interim.maybe_merge_call(everywhere, strategy, list(values))
