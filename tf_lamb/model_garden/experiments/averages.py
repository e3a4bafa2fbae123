"""Model Garden's averages of the weights, `trainer.optimizer_config.ema`, once an update."""

import tensorflow as tf
from official.modeling.optimization import ema_optimizer


class ExponentialMovingAverage(ema_optimizer.ExponentialMovingAverage):
    """Model Garden's in all but when averages move: only with `iterations`.

    They do not move at a micro-batch that accumulates, nor where an update is skipped.
    """

    @property
    def learning_rate(self):
        """The inner optimizer's learning rate, of any kind; the base class knows old ones alone."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self._optimizer.learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, name=None):
        """See base class."""
        with tf.init_scope():  # where an optimizer of Model Garden makes it, if this is its first
            iterations = self.iterations
        before = tf.identity(iterations)
        result = self._optimizer.apply_gradients(grads_and_vars, name)

        def average(strategy):
            tf.cond(iterations > before, lambda: self.update_average(strategy), lambda: None)

        ema_optimizer.maybe_merge_call(average, tf.distribute.get_strategy())
        return result
