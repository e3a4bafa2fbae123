"""Variables of TensorFlow that a model holds, whether or not its Keras lists them."""

import tensorflow as tf


def variables_below(model):
    """The variables that TensorFlow tracks below a model, but for those of its optimizer."""
    found, waiting = [], [model]
    seen = {id(model), id(model.optimizer)}
    while waiting:
        children = tf.train.TrackableView.children(waiting.pop()).values()
        fresh = list({id(each): each for each in children if id(each) not in seen}.values())
        seen.update(map(id, fresh))
        waiting += fresh
        found += [each for each in fresh if isinstance(each, tf.Variable)]
    return found
