"""Saves and restores an optimizer in TensorFlow's checkpoints, by the names of its variables.

A checkpoint is a graph of objects, whose edges have names. The slot `m` of the fourth variable (a
state array such as Adam's m) is at the edge `m:3`. The first edge of an optimizer leads to an
object without values. The name of this edge contains the `Layout` of `api/optimizers/layout.py`:
the place of each variable in its model. TensorFlow looks this edge up before the others. So this
file knows which saved variable belongs to which variable of the optimizer, even if a layer was
frozen in between.

This module relies on private API of TensorFlow 2.20. To restore an optimizer, TensorFlow calls
`_trackable_children` once, then `_lookup_dependency` for each edge in the checkpoint, in the order
of the edges, and assigns no value before all edges are looked up. `_handle_deferred_dependencies`
restores variables that are made later.
"""

import tensorflow as tf

from tf_lamb.api.optimizers import layout, named

_LAYOUT_PREFIX = "layout:"  # the beginning of the name of the first edge


class _Restoration:
    """Holds what was read about an optimizer from the checkpoint that is being restored.

    Attributes:
        node: The object without values that the edge with the layout leads to.
        layout: The layout in the checkpoint; None before it is read.
        variables: Name of an edge in the checkpoint -> variable of the optimizer; None before the
            layout is read.
    """

    def __init__(self):
        self.node = tf.Module()
        self.layout = None
        self.variables = None


def _restoration(optimizer):
    """Returns the `_Restoration` of an optimizer, and makes it in the first call.

    It holds what TensorFlow has read about the optimizer from the checkpoint that it restores.
    """
    # It is written into `__dict__`, because the `__setattr__` of Keras 3 and tf_keras would add it
    # to checkpoints.
    return optimizer.__dict__.setdefault("_restoration", _Restoration())


def checkpoint_children(optimizer, keras_children):
    """Returns the edges of an optimizer in a checkpoint: name -> object.

    Each variable has its own edge, with the name of the variable. If the optimizer is built, what
    was read from an earlier checkpoint is forgotten.

    Args:
        optimizer: An optimizer of this package.
        keras_children: The edges that Keras would save, name -> object. Edges to collections of
            variables are left out.
    """
    state, restoration = optimizer._named_state(), _restoration(optimizer)
    if state.parts:
        restoration.layout = restoration.variables = None  # they belong to an earlier checkpoint
    state_variables = state.variables()
    state_ids = {id(variable) for variable in state_variables.values()}
    layout_edge = (
        {_LAYOUT_PREFIX + state.layout.to_text(): restoration.node} if state.layout.trained else {}
    )
    return (
        layout_edge
        | state_variables
        | {
            name: child
            for name, child in keras_children.items()
            if not isinstance(child, (list, tuple, dict)) and id(child) not in state_ids
        }
    )


def look_up(optimizer, name, look_up_as_keras):
    """Returns the object at an edge of the checkpoint that is being restored.

    If the edge is that of the layout, it also records the layout, by which later calls find slots.

    Args:
        optimizer: An optimizer of this package.
        name: The name of the edge.
        look_up_as_keras: A function without arguments that looks the name up as Keras does. It is
            called if the name is not that of the layout or of a slot.

    Returns:
        The object; None if the optimizer has not made it yet.

    Raises:
        ValueError: If the checkpoint was written by an optimizer of other layers.
    """
    restoration = _restoration(optimizer)
    if name.startswith(_LAYOUT_PREFIX):
        restoration.layout = layout.from_text(name.removeprefix(_LAYOUT_PREFIX))
        state = optimizer._named_state()
        if not state.parts:
            return None
        restoration.variables = named.variables_of_saved(optimizer.name, state, restoration.layout)
        return restoration.node
    if restoration.variables is not None and name.rpartition(":")[2].isdecimal():
        return restoration.variables.get(name)
    return look_up_as_keras()


def restore_deferred(optimizer):
    """Restores an optimizer's variables, after `build`, from a checkpoint read before `build`."""
    state, restoration = optimizer._named_state(), _restoration(optimizer)
    variables = state.variables()
    if restoration.layout is not None and state.parts:
        variables = named.variables_of_saved(optimizer.name, state, restoration.layout)
    for name, variable in variables.items():
        optimizer._handle_deferred_dependencies(name, variable)
