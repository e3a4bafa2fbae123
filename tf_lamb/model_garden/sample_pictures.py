"""Writes pictures that are at hand as TFRecords that Model Garden's image classification reads.

    python -m tf_lamb.model_garden.sample_pictures --output_dir=DIR [--source=digits] [...]

Nothing is downloaded. `digits` and `photographs` come with scikit-learn; `fashion_mnist` is a
package of Debian and of Ubuntu.
"""

import collections
import hashlib
import pathlib

from tf_lamb.core.checks import installed
from tf_lamb.model_garden.folders import data_folder
from tf_lamb.model_garden.samples import pictures as picture_sources

FILES = ("train.tfrecord", "validation.tfrecord", "data.json")


def write(
    output_dir,
    *,
    source="digits",
    size=32,
    validation_fraction=0.2,
    seed=12345,
    fashion_mnist_dir=picture_sources.FASHION_MNIST,
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
    installed.require(room, "tensorflow", "tqdm", *read_by, extra="model-garden")
    if size < 8:
        raise ValueError(f"size is {size}; use 8 or more.")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction is {validation_fraction}; use one between 0 and 1.")
    classes, parts = picture_sources.read(source, size, fashion_mnist_dir)
    settings = {
        "source": source,
        "pictures_sha256": _sha256(parts),
        "size": size,
        "validation_fraction": None if "validation" in parts else validation_fraction,
        "seed": None if "validation" in parts else seed,
    }
    output_dir = pathlib.Path(output_dir)
    facts = data_folder.find(output_dir, FILES, settings)
    if facts:
        print(f"reusing {output_dir}: same pictures, same settings")
        return facts

    if "validation" not in parts:
        parts = picture_sources.split(*parts["train"], validation_fraction, seed)
    facts = {
        **settings,
        "fingerprint": data_folder.sha256(settings),
        "classes": classes,
        "num_classes": len(classes),
    }
    with data_folder.filled(output_dir, FILES, settings, facts) as partial:
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


def _write_part(folder, part, pictures, labels, size):
    import tensorflow as tf
    import tqdm

    def encode(picture):
        picture = tf.cast(tf.round(tf.image.resize(picture, (size, size))), tf.uint8)
        if picture.shape[-1] == 1:
            picture = tf.image.grayscale_to_rgb(picture)
        # Chroma at half the resolution would lose more than the quality says.
        return tf.io.encode_jpeg(picture, quality=100, chroma_downsampling=False)

    jpegs = tf.data.Dataset.from_tensor_slices(pictures).map(encode, tf.data.AUTOTUNE)
    with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord") as writer:
        for jpeg, label in zip(
            tqdm.tqdm(jpegs.as_numpy_iterator(), f"{part} examples", len(labels), disable=None),
            labels,
            strict=True,
        ):
            example = tf.train.Example()
            feature = example.features.feature
            feature["image/encoded"].bytes_list.value.append(jpeg)
            feature["image/class/label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString(deterministic=True))


def trained_by(output_dir, facts):
    """The line that trains the small ResNet on them."""
    settings = {}
    if facts["num_classes"] != 10:
        settings["model.num_classes"] = facts["num_classes"]
    if (size := facts["size"]) != 32:
        settings["model.input_size"] = f"[{size},{size},3]"
    return data_folder.command(
        "lamb/resnet_imagenet", "resnet_small_lamb_cpu.yaml", output_dir, **settings
    )


if __name__ == "__main__":
    data_folder.run(
        "sample_pictures",
        write,
        "{train_examples} training and {validation_examples} validation pictures of {num_classes}"
        " classes",
        trained_by,
    )
