"""What `ParameterServerStrategy` asks of an update, whose variables lie on several servers.

Seam into TensorFlow (2.20): `_sharded_container` of a part, which `api.variables` asks for, too.
"""

import contextlib

import tensorflow as tf


def are_used():
    """Whether this is a step under `ParameterServerStrategy`."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


@contextlib.contextmanager
def beside(variable):
    """A layer is updated by the server that holds it; elsewhere nothing is moved."""
    if not are_used():
        yield
        return
    # By name: in a branch of a `tf.cond` the variable is an argument, which lies nowhere yet.
    with (
        tf.compat.v1.colocate_with(None, ignore_existing=True),
        tf.device(variable.device),
    ):
        yield


def refuse_parts(variables, plan, clipnorm):
    """A norm is of a whole variable, and `variable_partitioner` gives each server a part.

    Raises:
        ValueError: for a variable in parts that is adapted, or clipped by its own norm.
    """
    for variable, path, treatment in zip(variables, plan.paths, plan.treatments, strict=True):
        if not hasattr(variable, "_sharded_container"):
            continue
        if treatment.adapt:
            needs, instead = "its trust ratio", f"name {path!r} in exclude_from_layer_adaptation"
        elif clipnorm is not None:
            needs, instead = f"clipnorm={clipnorm!r}", "set global_clipnorm instead"
        else:
            continue
        raise ValueError(
            f"The variable_partitioner of the strategy has cut {path} into parts, but {needs} is "
            f"of the whole variable: leave the partitioner out, give it a min_shard_bytes that "
            f"spares this variable, or {instead}."
        )
