"""Writes scikit-learn's handwritten digits as TFRecords for Model Garden's image classification.

    python -m tf_lamb.model_garden.sample_pictures --output_dir=DIR [--size=32] [...]

Nothing is downloaded: 1,797 digits of 8 x 8 pixels come with scikit-learn.
"""

import collections
import hashlib

from tf_lamb.core import checks, messages
from tf_lamb.model_garden.folders import samples

FILES = samples.OF_PICTURES


def write(output_dir, *, size=32, validation_fraction=0.2, seed=12345):
    """Writes `train.tfrecord`, `validation.tfrecord` and, last, `data.json`.

    The same settings give the same bytes. A second call finds them and writes nothing.

    Args:
      output_dir: local folder to write to, made if missing.
      size: height and width of the pictures in pixels, to which the digits are enlarged.
      validation_fraction: share of each class that is kept for validation.
      seed: of the choice of what is kept for validation.

    Returns:
      The facts in `data.json`, as a dict.

    Raises:
      ValueError, OSError: for input that cannot be used, before anything is written.
      ModuleNotFoundError: where a package that it reads or writes with is not installed.
    """
    room = "tf_lamb.model_garden.sample_pictures"
    messages.require_installed(room, "tensorflow", "tqdm", "sklearn", extra="model-garden")
    checks.integer("size", size, 8)
    samples.check_fraction(validation_fraction)
    from sklearn import datasets

    digits = datasets.load_digits()
    pictures = (digits.images * (255 / 16) + 0.5).astype("uint8")[..., None]
    classes, labels = [str(name) for name in digits.target_names], digits.target
    settings = {
        "pictures_sha256": _sha256(pictures, labels), "size": size,
        "validation_fraction": validation_fraction, "seed": seed,
    }  # fmt: skip
    if facts := samples.found(output_dir, FILES, settings, "pictures"):
        return facts

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


def _sha256(pictures, labels):
    digest = hashlib.sha256()
    for picture, label in zip(pictures, labels, strict=True):
        digest.update(bytes([label]) + picture.tobytes())
    return digest.hexdigest()


def _write_part(partial, part, pictures, labels, size):
    import tensorflow as tf
    import tqdm

    def encode(picture):
        picture = tf.cast(tf.round(tf.image.resize(picture, (size, size))), tf.uint8)
        # Chroma at half the resolution would lose more than the quality says.
        picture = tf.image.grayscale_to_rgb(picture)
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
    size, settings = facts["size"], {}
    if size != 32:
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
