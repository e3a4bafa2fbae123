"""A fine-tuning task whose held-out examples are few: adapters of rank 4 in a small network.

The classes are those of a sum of random scores of 16 tokens, of which a part is drawn anew. The
network is trained on other scores first, by Adam; then its dense layers get Keras's LoRA, and the
head begins anew.
"""

import functools

import numpy as np

CLASSES, TOKENS, LENGTH, WIDTH, RANK = 8, 64, 16, 64, 4
TRAINING, HELD_OUT, FRESH = 19200, 112, 4096
NOISE = 0.3  # of the labels


def examples(task, count, seed, noise=NOISE):
    """Tokens and classes."""
    scores = np.random.default_rng(task).normal(size=(TOKENS, CLASSES))
    rng = np.random.default_rng(seed)
    x = rng.integers(0, TOKENS, (count, LENGTH)).astype("int32")
    drawn = rng.integers(0, CLASSES, count)
    y = np.where(rng.random(count) < noise, drawn, scores[x].sum(1).argmax(1))
    return x, y.astype("int32")


def data():
    """(x, y) to train on, held out, and fresh ones, by which whole runs are judged."""
    counts = (TRAINING, HELD_OUT, FRESH)
    return [examples(2, count, seed) for seed, count in enumerate(counts, 3)]


def network():
    """An embedding, two residual layers and a head."""
    import keras
    from keras import layers

    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(TOKENS, WIDTH)(tokens))
    for i in range(2):
        x = x + layers.Dense(WIDTH, "gelu", name=f"dense_{i}")(layers.LayerNormalization()(x))
    x = layers.Dropout(0.1, seed=0)(layers.LayerNormalization()(x))
    return keras.Model(tokens, layers.Dense(CLASSES, name="head")(x))


def loss():
    """Cross-entropy."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@functools.cache
def trained():
    """The weights of a network that has learned other classes."""
    import keras

    keras.utils.set_random_seed(0)
    model = network()
    model.compile(keras.optimizers.Adam(2e-3), loss())
    model.fit(*examples(1, 8192, 1, 0.0), batch_size=128, epochs=8, verbose=0)
    return model.get_weights()


def model(optimizer, seed):
    """The network with adapters, whose first weights are of the seed, as are the head's."""
    import keras

    made = network()
    made.set_weights(trained())
    keras.utils.set_random_seed(seed)
    for layer in made.layers:
        layer.trainable = layer.name == "head"
        if layer.name.startswith("dense"):
            layer.trainable = True
            layer.enable_lora(RANK)
    head = made.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape, stddev=0.02, seed=seed))
    head.bias.assign(0 * head.bias)
    made.compile(optimizer, loss())
    return made
