"""An optimizer of optax, as the loops of the benchmarks want one of Keras."""

from types import SimpleNamespace


class OfOptax:
    """Its updates are times the rate, which is a variable as Keras has it.

    Args:
        transformation: Of optax, made with a learning rate of 1; or the name of one.
    """

    def __init__(self, transformation):
        if isinstance(transformation, str):
            import optax

            transformation = getattr(optax, transformation)(1.0)
        self.transformation = transformation

    def build(self, variables):
        """Makes the state for these variables."""
        import jax
        import keras

        weights = [v.value for v in variables]
        leaves, self.tree = jax.tree.flatten(self.transformation.init(weights))
        self._learning_rate = keras.Variable(1.0, trainable=False)
        rest = [SimpleNamespace(value=jax.numpy.asarray(leaf)) for leaf in leaves]
        self.variables = [self._learning_rate, *rest]

    def stateless_apply(self, slots, gradients, weights):
        """New weights and state."""
        import jax

        rate, *leaves = slots
        state = jax.tree.unflatten(self.tree, leaves)
        updates, state = self.transformation.update(gradients, state, weights)
        made = [w + rate * update for w, update in zip(weights, updates, strict=True)]
        return made, [rate, *jax.tree.leaves(state)]
