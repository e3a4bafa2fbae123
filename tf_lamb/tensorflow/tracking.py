"""An optimizer's state in TensorFlow's checkpoints, which know objects by the names of their edges.

The slot `m` of the fourth variable is the edge `m:3`. The first edge leads to a node without values
and has the layout of the variables in its name: it is looked up before the others, and tells which
of them belongs to which variable here. So a layer that is frozen in between moves none.

Seams into TensorFlow (2.20), of what it tracks: `_trackable_children` is asked once when an
optimizer is restored, then `_lookup_dependency` for each edge in the checkpoint, in its order, and
nothing is assigned before all are found; `_handle_deferred_dependencies` restores what is made
later.
"""

import tensorflow as tf

from tf_lamb.api.optimizers import layout, named

_EDGE = "layout:"


class _Restored:
    """What the checkpoint that is being restored says of an optimizer."""

    def __init__(self):
        self.node = tf.Module()  # to which the layout is an edge
        self.layout = None
        self.variables = None  # by the name of an edge in that checkpoint


def _restored(optimizer):
    # Past `__setattr__`, by which hosts would track it.
    return optimizer.__dict__.setdefault("_restored", _Restored())


def children(optimizer, others):
    """The edges of an optimizer in a checkpoint: to variables by name, and to no lists of them."""
    state, restored = optimizer._named_state(), _restored(optimizer)
    if state.parts:
        restored.layout = restored.variables = None  # of a checkpoint before
    own = state.variables()
    known = {id(variable) for variable in own.values()}
    first = {_EDGE + state.layout.to_text(): restored.node} if state.layout.trained else {}
    return (
        first
        | own
        | {
            name: child
            for name, child in others.items()
            if not isinstance(child, (list, tuple, dict)) and id(child) not in known
        }
    )


def lookup(optimizer, name, otherwise):
    """The object at an edge of the checkpoint that is being restored.

    Args:
        optimizer: One of ours.
        name: Of the edge.
        otherwise: Looks a name up that has nothing to do with the layout.

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
    """At the end of a build: what a checkpoint has held for what is there now."""
    state, restored = optimizer._named_state(), _restored(optimizer)
    variables = state.variables()
    if restored.layout is not None and state.parts:
        variables = named.variables_of_saved(optimizer.name, state, restored.layout)
    for name, variable in variables.items():
        optimizer._handle_deferred_dependencies(name, variable)
