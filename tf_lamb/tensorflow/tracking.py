"""Tracks an optimizer's state in TensorFlow's checkpoints, by the names of edges between objects.

The slot `m` of the fourth variable is the edge `m:3`. The first edge leads to a node without values
and has the layout of the variables in its name. It is looked up before the others, and tells which
of them belongs to which variable here. So a layer that is frozen in between moves none.

Seams into TensorFlow (2.20), of what it tracks: `_trackable_children` is called once when an
optimizer is restored, then `_lookup_dependency` for each edge in the checkpoint, in its order, and
nothing is assigned before all are found; `_handle_deferred_dependencies` restores what is made
later.
"""

import tensorflow as tf

from tf_lamb.api.optimizers import layout, named

_EDGE = "layout:"  # the beginning of the name of the first edge


class _Restored:
    """Holds what the checkpoint that is being restored says of an optimizer.

    Attributes:
        node: The node that the edge with the layout leads to.
        layout: The layout in the checkpoint; None before it is read.
        variables: Name of an edge in the checkpoint -> variable here; None before the layout is
            read.
    """

    def __init__(self):
        self.node = tf.Module()
        self.layout = None
        self.variables = None


def _restored(optimizer):
    """Returns the `_Restored` of an optimizer."""
    # Set past `__setattr__`, by which both Kerases would track it.
    return optimizer.__dict__.setdefault("_restored", _Restored())


def children(optimizer, others):
    """Returns the edges of an optimizer in a checkpoint: to variables by name, not to lists.

    Args:
        optimizer: One of ours.
        others: The edges that the framework finds, name -> object.
    """
    state, restored = optimizer._named_state(), _restored(optimizer)
    if state.parts:
        restored.layout = restored.variables = None  # those of an earlier checkpoint
    state_variables = state.variables()
    state_ids = {id(variable) for variable in state_variables.values()}
    layout_edge = {_EDGE + state.layout.to_text(): restored.node} if state.layout.trained else {}
    return (
        layout_edge
        | state_variables
        | {
            name: child
            for name, child in others.items()
            if not isinstance(child, (list, tuple, dict)) and id(child) not in state_ids
        }
    )


def lookup(optimizer, name, otherwise):
    """Returns the object at an edge of the checkpoint that is being restored.

    Args:
        optimizer: One of ours.
        name: The name of the edge.
        otherwise: A function that looks up a name that has nothing to do with the layout.

    Returns:
        The object, or None where it is not made yet.

    Raises:
        ValueError: If the state in the checkpoint is that of other layers.
    """
    restored = _restored(optimizer)
    if name.startswith(_EDGE):
        restored.layout = layout.from_text(name.removeprefix(_EDGE))
        state = optimizer._named_state()
        if not state.parts:
            return None
        restored.variables = named.variables_of_saved(optimizer.name, state, restored.layout)
        return restored.node
    if restored.variables is not None and name.rpartition(":")[2].isdecimal():
        return restored.variables.get(name)
    return otherwise()


def restore_deferred(optimizer):
    """Restores, at the end of a build, what a checkpoint has held for the new variables."""
    state, restored = optimizer._named_state(), _restored(optimizer)
    variables = state.variables()
    if restored.layout is not None and state.parts:
        variables = named.variables_of_saved(optimizer.name, state, restored.layout)
    for name, variable in variables.items():
        optimizer._handle_deferred_dependencies(name, variable)
