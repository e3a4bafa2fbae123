"""A Keras model trained on JAX, a compiled call an update: for grids of hundreds of runs.

The learning rate is an argument of the call, so that every rate and every seed of a grid is one
program. A batch of more than `PART` examples is added up from parts: the same gradient, in a
processor's cache.
"""

import math
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import keras
import numpy as np
from jax import numpy as jnp

PART = 128


def cross_entropy(y, logits):
    """Mean over all that is to be told."""
    each = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return keras.ops.mean(each)


def preferred(score, rates, widest=8):
    """The rate of the lowest score, with a worse one on either side: else the grid is widened."""
    scores = {}
    for rate in rates:
        scores[rate] = score(rate)
    for _ in range(widest):
        best = min(scores, key=scores.get)
        if min(scores) < best < max(scores):
            return best
        wider = best * 2 if best == max(scores) else best / 2
        scores[wider] = score(wider)
    raise ValueError(f"no rate is preferred: {scores}")


class Loop:
    """A network and an optimizer, on data that is held in memory.

    Args:
        network: Makes the model; its first weights are a seed's. Nothing else may change in it.
        optimizer: Of Keras; its learning rate is a number, in whose place the loop's comes.
        x, y: The examples.
        loss: (y, outputs) -> their mean loss.
    """

    def __init__(self, network, optimizer, x, y, loss=cross_entropy):
        self.network, self.optimizer, self.loss = network, optimizer, loss
        self.x, self.y = jax.tree.map(jnp.asarray, (x, y))
        self.model = network()
        optimizer.build(self.model.trainable_variables)
        self.others = [v.value for v in self.model.non_trainable_variables]
        self.slots = [v.value for v in optimizer.variables]
        rate = optimizer._learning_rate
        self.rate = next(i for i, v in enumerate(optimizer.variables) if v is rate)
        self.outputs = jax.jit(self._outputs)
        self._part = jax.jit(self._add, donate_argnums=1)
        self._apply = jax.jit(self._step, donate_argnums=0)
        self._whole = jax.jit(self._update, donate_argnums=0)

    def start(self, seed):
        """The weights and the slots that a run begins with."""
        keras.utils.set_random_seed(seed)
        weights = [v.value for v in self.network().trainable_variables]
        return jax.tree.map(jnp.array, (weights, self.slots))

    def advance(self, state, rate, batch):
        """One update at this rate: the state, and the loss before it. `batch` is of indices."""
        counts = range(math.ceil(len(batch) / PART), len(batch) + 1)
        parts = np.split(batch, next(n for n in counts if len(batch) % n == 0))
        rate = np.float32(rate)
        if len(parts) == 1:
            return self._whole(state, batch, rate)
        total = self._zeros(state[0])
        for part in parts:
            total = self._part(state[0], total, part)
        return self._apply(state, jax.tree.map(lambda each: each / len(parts), total), rate)

    def tell(self, weights, x, size=1000):
        """What the model says of all these examples."""
        cuts = range(size, len(jax.tree.leaves(x)[0]), size)
        parts = (jax.tree.map(lambda each, i=i: each[i : i + size], x) for i in (0, *cuts))
        return np.concatenate([self.outputs(weights, part) for part in parts])

    @staticmethod
    def _zeros(weights):
        return jax.tree.map(jnp.zeros_like, (jnp.float32(0), weights))

    def _outputs(self, weights, x):
        return self.model.stateless_call(weights, self.others, x)[0]

    def _add(self, weights, total, part):
        """Adds the loss and the gradients of these examples to the total."""
        x, y = jax.tree.map(lambda each: each[part], (self.x, self.y))
        made = jax.value_and_grad(lambda w: self.loss(y, self._outputs(w, x)))(weights)
        return jax.tree.map(jnp.add, total, made)

    def _step(self, state, made, rate):
        (weights, slots), (loss, gradients) = state, made
        slots = [rate if i == self.rate else slot for i, slot in enumerate(slots)]
        return self.optimizer.stateless_apply(slots, gradients, weights), loss

    def _update(self, state, batch, rate):
        return self._step(state, self._add(state[0], self._zeros(state[0]), batch), rate)


def batches(examples, batch, seed):
    """Without end, the indices of a batch: one permutation after another, whatever the batch."""
    rng, left = np.random.default_rng(seed), np.zeros(0, "int32")
    while True:
        while len(left) < batch:
            left = np.concatenate([left, rng.permutation(examples).astype("int32")])
        yield left[:batch]
        left = left[batch:]
