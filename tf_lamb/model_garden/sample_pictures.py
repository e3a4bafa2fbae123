"""Writes local images as TFRecords for Model Garden's image classification.

    python -m tf_lamb.model_garden.sample_pictures --output_dir=DIR [--source=digits] [...]

Nothing is downloaded. `digits` and `photographs` come with scikit-learn; `fashion_mnist` is a
package of Debian and of Ubuntu. A part of the data is (images, labels): uint8 arrays of height x
width x channels, and integers.
"""

import collections
import gzip
import hashlib
import os
import pathlib

from tf_lamb.core import checks, messages
from tf_lamb.model_garden.folders import samples

FILES = samples.OF_PICTURES
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
_FASHION_MNIST_FILES = {"train": "train", "validation": "t10k"}
_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"


def write(
    output_dir,
    *,
    source="digits",
    size=32,
    validation_fraction=0.2,
    seed=12345,
    fashion_mnist_dir=FASHION_MNIST,
):
    """Writes `train.tfrecord`, `validation.tfrecord` and, last, `data.json`.

    The same pictures and settings give the same bytes. A second call finds them and writes nothing.

    Args:
      output_dir: local folder to write to, made if missing.
      source: digits (1,797 handwritten ones of 8 x 8 pixels, enlarged), photographs (patches of
        two; the class is the photograph) or fashion_mnist (70,000 articles of clothing).
      size: height and width of the pictures in pixels.
      validation_fraction: share of each class that is kept for validation. Ignored with
        fashion_mnist, which comes with a test set.
      seed: of the choice of what is kept for validation. Ignored with fashion_mnist.
      fashion_mnist_dir: folder with the four files of Fashion-MNIST. Ignored with the others.

    Returns:
      The facts in `data.json`, as a dict.

    Raises:
      ValueError, OSError: for input that cannot be used, before anything is written.
      ModuleNotFoundError: where a package that it reads or writes with is not installed.
    """
    read_by = ["sklearn"] if source in ("digits", "photographs") else []
    room = "tf_lamb.model_garden.sample_pictures"
    messages.require_installed(room, "tensorflow", "tqdm", *read_by, extra="model-garden")
    checks.integer("size", size, 8)
    samples.check_fraction(validation_fraction)
    classes, parts = read(source, size, fashion_mnist_dir)
    is_split = "validation" in parts
    settings = {
        "source": source,
        "pictures_sha256": _sha256(parts),
        "size": size,
        "validation_fraction": None if is_split else validation_fraction,
        "seed": None if is_split else seed,
    }
    if facts := samples.found(output_dir, FILES, settings, "pictures"):
        return facts

    if not is_split:
        pictures, labels = parts["train"]
        parts = train_validation_split(pictures, labels, validation_fraction, seed)
    more = {"classes": classes, "num_classes": len(classes)}
    with samples.filled(output_dir, FILES, settings, more) as (partial, facts):
        for part, (pictures, labels) in parts.items():
            facts[f"{part}_examples"] = len(labels)
            _write_part(partial, part, pictures, labels, size)
        # `labels` are now validation's. Always to answer the commonest is right that often.
        label, count = collections.Counter(map(int, labels)).most_common(1)[0]
        facts["validation_commonest_class"] = classes[label]
        facts["validation_commonest_class_share"] = count / len(labels)
    return facts


def _sha256(parts):
    digest = hashlib.sha256()
    for pictures, labels in parts.values():
        for picture, label in zip(pictures, labels, strict=True):
            digest.update(bytes([label]) + picture.tobytes())
    return digest.hexdigest()


def _write_part(partial, part, pictures, labels, size):
    import tensorflow as tf
    import tqdm

    def encode(picture):
        picture = tf.cast(tf.round(tf.image.resize(picture, (size, size))), tf.uint8)
        if picture.shape[-1] == 1:
            picture = tf.image.grayscale_to_rgb(picture)
        # Chroma at half the resolution would lose more than the quality says.
        return tf.io.encode_jpeg(picture, quality=100, chroma_downsampling=False)

    jpegs = tf.data.Dataset.from_tensor_slices(pictures).map(encode, tf.data.AUTOTUNE)
    with tf.io.TFRecordWriter(f"{partial}/{part}.tfrecord") as writer:
        seen = tqdm.tqdm(jpegs.as_numpy_iterator(), f"{part} examples", len(labels), disable=None)
        for jpeg, label in zip(seen, labels, strict=True):
            example = tf.train.Example()
            feature = example.features.feature
            feature["image/encoded"].bytes_list.value.append(jpeg)
            feature["image/class/label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString(deterministic=True))


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
    pictures = (digits.images * (255 / 16) + 0.5).astype("uint8")[..., None]
    return [str(name) for name in digits.target_names], {"train": (pictures, digits.target)}


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


def _fashion_mnist(path):
    if not path.is_dir():
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {str(path)!r}; install it (Debian and Ubuntu: apt-get "
            "install dataset-fashion-mnist) or name its folder as fashion_mnist_dir."
        )
    parts = {}
    for part, name in _FASHION_MNIST_FILES.items():
        pictures = _idx(path / f"{name}-images-idx3-ubyte.gz", rank=3)
        labels = _idx(path / f"{name}-labels-idx1-ubyte.gz", rank=1)
        if len(pictures) != len(labels):
            raise ValueError(
                f"{str(path)!r} has {len(pictures)} {part} pictures and {len(labels)} labels; "
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


def train_validation_split(pictures, labels, fraction, seed):
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


def trained_by(output_dir, facts):
    """The line that trains the small ResNet on them."""
    settings = {}
    if facts["num_classes"] != 10:
        settings["model.num_classes"] = facts["num_classes"]
    if (size := facts["size"]) != 32:
        settings["model.input_size"] = f"[{size},{size},3]"
    return samples.command(
        "lamb/resnet_imagenet", "resnet_small_lamb_cpu.yaml", output_dir, **settings
    )


if __name__ == "__main__":
    samples.run(
        "sample_pictures",
        write,
        "{train_examples} training and {validation_examples} validation "
        "pictures of {num_classes} classes",
        trained_by,
    )
