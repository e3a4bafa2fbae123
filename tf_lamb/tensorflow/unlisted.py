"""Finds all TensorFlow variables of a model, also those that `model.variables` does not list."""

import tensorflow as tf


def variables_below(model):
    """Returns the variables of a model and of objects inside it, except its optimizer's."""
    variables, pending = [], [model]
    visited = {id(model), id(model.optimizer)}
    while pending:
        children = tf.train.TrackableView.children(pending.pop()).values()
        new_children = list(
            {id(child): child for child in children if id(child) not in visited}.values()
        )
        visited.update(map(id, new_children))
        pending += new_children
        variables += [child for child in new_children if isinstance(child, tf.Variable)]
    return variables
