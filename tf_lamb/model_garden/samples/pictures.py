"""Pictures with labels, from what is installed: read, and split for training and validation.

A part is (pictures, labels): uint8 arrays of height x width x channels, and whole numbers.
"""

import gzip
import os
import pathlib

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
_FASHION_MNIST_FILES = {"train": "train", "validation": "t10k"}
_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"


def read(source, size, fashion_mnist_dir):
    """Returns (the names of the classes, {"train": part}), and "validation" if it has one."""
    readers = {
        "digits": _digits,
        "fashion_mnist": lambda: _fashion_mnist(pathlib.Path(fashion_mnist_dir)),
        "photographs": lambda: _photographs(size),
    }
    if source not in readers:
        raise ValueError(f"source is {source!r}; use {', '.join(readers)}.")
    return readers[source]()


def _digits():
    from sklearn import datasets

    digits = datasets.load_digits()
    pictures = (digits.images * (255 / 16) + 0.5).astype("uint8")
    return [str(name) for name in digits.target_names], {
        "train": (pictures[..., None], digits.target)
    }


def _photographs(size):
    from sklearn import datasets

    photographs = datasets.load_sample_images()
    patches, labels = [], []
    for label, image in enumerate(photographs.images):
        height, width, _ = image.shape
        for y in range(0, height - size + 1, size):
            for x in range(0, width - size + 1, size):
                patches.append(image[y : y + size, x : x + size])
                labels.append(label)
    if len(patches) < 8:
        raise ValueError(
            f"size is {size}, which cuts the photographs of {height} x {width} pixels into "
            f"{len(patches)} patches; use {height // 2} or less."
        )
    names = [os.path.splitext(os.path.basename(name))[0] for name in photographs.filenames]
    return names, {"train": (patches, labels)}


def _fashion_mnist(folder):
    if not folder.is_dir():
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {str(folder)!r}; install it (Debian and Ubuntu: apt-get "
            "install dataset-fashion-mnist) or name its folder as fashion_mnist_dir."
        )
    parts = {}
    for part, name in _FASHION_MNIST_FILES.items():
        pictures = _idx(folder / f"{name}-images-idx3-ubyte.gz", rank=3)
        labels = _idx(folder / f"{name}-labels-idx1-ubyte.gz", rank=1)
        if len(pictures) != len(labels):
            raise ValueError(
                f"{str(folder)!r} has {len(pictures)} {part} pictures and {len(labels)} labels; "
                "install it again."
            )
        parts[part] = pictures[..., None], labels
    return _CLOTHES.split(", "), parts


def _idx(path, rank):
    """Reads the array of bytes in a file of MNIST's format."""
    import tensorflow as tf

    try:
        data = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{str(path)!r} is not whole ({error}); install it again.") from None
    start = 4 + 4 * rank
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    array = tf.io.decode_raw(data[start:], tf.uint8)
    # Two zeros, 8 for bytes, the number of dimensions.
    if data[:4] != bytes([0, 0, 8, rank]) or array.shape != tf.math.reduce_prod(shape):
        raise ValueError(f"{str(path)!r} is not an IDX file of {rank} dimensions.")
    return tf.reshape(array, shape).numpy()


def split(pictures, labels, fraction, seed):
    """Splits off the fraction of each class for validation; returns {name: part}."""
    from sklearn import model_selection

    try:
        train, validation, train_labels, validation_labels = model_selection.train_test_split(
            pictures, labels, test_size=fraction, random_state=seed, stratify=labels
        )
    except ValueError as error:
        raise ValueError(
            f"validation_fraction is {fraction}, too little or too much of {len(labels)} "
            f"pictures: {error}"
        ) from None
    return {"train": (train, train_labels), "validation": (validation, validation_labels)}
