"""The decoder: bfloat16 between the layers, float32 in weights, normalizations and softmax."""

import math

import keras
from keras import ops

NARROW = "mixed_bfloat16"


class Tied(keras.layers.Layer):
    """A table that embeds tokens, and gives the logits of what comes out at the end.

    In float32, in which the gradient of a frequent token is summed, too.
    """

    def __init__(self, vocabulary, width, **kwargs):
        super().__init__(dtype="float32", autocast=False, **kwargs)
        self.table = self.add_weight((vocabulary, width), _normal(0.02), name="embeddings")

    def call(self, inputs, reverse=False):
        """Embeddings of tokens; or logits in bfloat16."""
        if not reverse:
            return ops.take(self.table, inputs, axis=0)
        return ops.matmul(inputs, ops.transpose(ops.cast(self.table, inputs.dtype)))


class Position(keras.layers.Layer):
    """Adds a learned vector at every position; gives bfloat16."""

    def build(self, shape):
        """Makes the vectors."""
        self.vectors = self.add_weight(shape[1:], _normal(0.02), name="embeddings")

    def call(self, x):
        """The sum."""
        return ops.cast(x + ops.cast(self.vectors, x.dtype), "bfloat16")


class Block(keras.layers.Layer):
    """Causal attention and a perceptron, each on a normalized copy of the stream."""

    def __init__(self, width, heads, inner, layers, **kwargs):
        super().__init__(dtype=NARROW, **kwargs)
        last = 0.02 / math.sqrt(2 * layers)  # of what is added to the stream
        self.heads = heads
        self.norms = [keras.layers.LayerNormalization(dtype=NARROW) for _ in range(2)]
        self.query, self.key, self.value = (_dense(width, n) for n in ("query", "key", "value"))
        self.output_ = _dense(width, "output", last)
        self.inner = _dense(inner, "inner")
        self.outer = _dense(width, "outer", last)

    def build(self, shape):
        """Makes the weights."""
        for layer in (*self.norms, self.query, self.key, self.value, self.output_, self.inner):
            layer.build(shape)
        self.outer.build((*shape[:-1], self.inner.units))

    def call(self, x):
        """The stream, with what both add."""
        normed = self.norms[0](x)
        query, key, value = (self._split(d(normed)) for d in (self.query, self.key, self.value))
        seen = ops.dot_product_attention(
            query, key, value, is_causal=True, flash_attention=False
        )  # fmt: skip
        x = x + self.output_(ops.reshape(seen, ops.shape(x)))
        return x + self.outer(ops.gelu(self.inner(self.norms[1](x)), approximate=True))

    def _split(self, x):
        return ops.reshape(x, (*ops.shape(x)[:-1], self.heads, x.shape[-1] // self.heads))


def decoder(tokens, vocabulary, layers, width, heads, inner) -> keras.Model:
    """Tokens -> logits, in bfloat16, of each token's next one."""
    table = Tied(vocabulary, width, name="token_embedding")
    inputs = keras.Input((tokens,), dtype="int32")
    x = Position(dtype="float32", autocast=False, name="position_embedding")(table(inputs))
    for i in range(layers):
        x = Block(width, heads, inner, layers, name=f"block_{i}")(x)
    x = keras.layers.LayerNormalization(dtype=NARROW, name="norm")(x)
    return keras.Model(inputs, table(x, reverse=True))


def _dense(width, name, deviation=0.02):
    return keras.layers.Dense(
        width, use_bias=False, kernel_initializer=_normal(deviation), dtype=NARROW, name=name
    )


def _normal(deviation):
    return keras.initializers.RandomNormal(stddev=deviation)
