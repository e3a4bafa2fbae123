"""The one problem that every peer is given, in NumPy alone.

Two parts. `START` and `GRADIENTS` are a few variables and ten fixed gradients of each: no model, so
that nothing but the optimizer computes. `build_model`, `MODEL_START` and `BATCHES` are a tiny model
for files that only a model can write (a checkpoint, an HDF5 file).

Draws are rounded to 4 decimals before they become float32, so that another libm cannot move them;
`digest()` is written into every golden file, and `load.py` refuses a file made from other numbers.
"""

import hashlib

import numpy as np

STEPS = 10
SAVED_AFTER = 5

# Large enough for ten steps to move a weight by a tenth: a wrong ratio is then far outside 1e-6.
LEARNING_RATE = {"lamb": 0.02, "lars": 0.5}
# Warmup, then a decay that ends low. Rate k is that of step k + 1: peers count from 0 here.
_SCHEDULE = [0.25, 0.5, 0.75, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.1]
SCHEDULE = {rule: [rate * factor for factor in _SCHEDULE] for rule, rate in LEARNING_RATE.items()}

# As BERT excludes them.
EXCLUDED = ["layer_norm", "bias"]
WEIGHT_DECAY = 0.01
TRUST_COEFFICIENT = 0.02


def _draw(rng, shape, scale, mean=0.0):
    return np.round(mean + scale * rng.normal(size=shape), 4).astype(np.float32)


def _make_variables():
    rng = np.random.default_rng(20190401)
    # Path -> shape, mean and scale of the start, scale of the gradients. Biases start at zero, as
    # they do in practice: the trust ratio of a variable whose norm is zero is 1.
    table = {
        "encoder/embedding/embeddings": ((5, 4), 0.0, 0.05, 0.02),
        "encoder/layer_norm/gamma": ((3,), 1.0, 0.02, 0.05),
        "encoder/layer_norm/beta": ((3,), 0.0, 0.0, 0.05),
        "encoder/conv/kernel": ((2, 2, 3, 4), 0.0, 0.2, 0.01),
        "encoder/dense/kernel": ((4, 3), 0.0, 0.5, 0.1),
        "encoder/dense/bias": ((3,), 0.0, 0.0, 0.3),
    }
    start, gradients = {}, {}
    for path, (shape, mean, scale, gradient_scale) in table.items():
        start[path] = _draw(rng, shape, scale, mean)
        # A common direction keeps the first moment from averaging to nothing.
        drift = _draw(rng, shape, gradient_scale).astype(np.float64)
        gradients[path] = np.stack([_draw(rng, shape, gradient_scale, drift) for _ in range(STEPS)])
    # Tokens that a batch does not hold: row 4 never occurs, row 0 only from step 4 on.
    gradients["encoder/embedding/embeddings"][:, 4] = 0
    gradients["encoder/embedding/embeddings"][:3, 0] = 0
    # Weight and update are both zero in this one's first step.
    gradients["encoder/layer_norm/beta"][0] = 0
    return start, gradients


# START: path -> array. GRADIENTS: path -> array of STEPS gradients.
START, GRADIENTS = _make_variables()


def build_model(keras):
    """The tiny model, not compiled, on any Keras; its variables have the order of `MODEL_START`."""
    layers = keras.layers
    ids = keras.Input((4,), dtype="int32", name="ids")
    x = layers.Embedding(7, 4, name="word_embeddings")(ids)
    x = layers.LayerNormalization(epsilon=1e-3, name="layer_norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    x = layers.Dense(3, activation="tanh", name="dense")(x)
    x = layers.Dense(2, name="head")(x)
    model = keras.Model(ids, x, name="tiny")
    model.set_weights(list(MODEL_START.values()))
    return model


def _make_model_data():
    rng = np.random.default_rng(20190402)
    start = {
        "word_embeddings/embeddings": _draw(rng, (7, 4), 0.5),
        "layer_norm/gamma": _draw(rng, (4,), 0.02, 1.0),
        "layer_norm/beta": np.zeros(4, np.float32),
        "dense/kernel": _draw(rng, (4, 3), 0.5),
        "dense/bias": np.zeros(3, np.float32),
        "head/kernel": _draw(rng, (3, 2), 0.5),
        "head/bias": np.zeros(2, np.float32),
    }
    # Ids repeat within a batch, so an embedding's sparse gradient has duplicates to sum.
    batches = [
        (rng.integers(0, 7, size=(8, 4)).astype(np.int32), _draw(rng, (8, 2), 1.0, 0.5))
        for _ in range(STEPS)
    ]
    return start, batches


# MODEL_START: path -> array. BATCHES: STEPS pairs of ids and targets; the loss is "mse".
MODEL_START, BATCHES = _make_model_data()


def digest():
    """SHA-256 of every number above."""
    sha = hashlib.sha256()
    for table in (START, GRADIENTS, MODEL_START):
        for path, array in table.items():
            sha.update(path.encode() + array.tobytes())
    for ids, targets in BATCHES:
        sha.update(ids.tobytes() + targets.tobytes())
    sha.update(repr((LEARNING_RATE, SCHEDULE, EXCLUDED, WEIGHT_DECAY, TRUST_COEFFICIENT)).encode())
    return sha.hexdigest()
