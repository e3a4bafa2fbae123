"""Writes scikit-learn's handwritten digits as TFRecords for Model Garden's image classification.

    python -m tf_lamb.model_garden.sample_pictures --output_dir=DIR

Nothing is downloaded: 1,797 digits of 8 x 8 pixels come with scikit-learn.
"""

import collections

from tf_lamb.core import messages
from tf_lamb.model_garden.common.errors import INSTALL
from tf_lamb.model_garden.folders import samples

FILES = ("train.tfrecord", "validation.tfrecord", "data.json")
SIZE = 32  # pixels: the height and the width to which the digits are enlarged
# The share of each class that is for validation, and the seed of the split.
SPLIT = {"validation_fraction": 0.2, "seed": 12345}


def write(output_dir):
    """Writes `train.tfrecord`, `validation.tfrecord` and, last, `data.json`.

    The files are always the same, byte for byte. If the folder already has them, nothing is
    written. The command's help shows the description of `output_dir` below.

    Args:
        output_dir: local folder to write to, made if missing.

    Returns:
        The content of `data.json`: the settings, and facts such as the number of examples.

    Raises:
        OSError: if the folder has other data.
        ModuleNotFoundError: if scikit-learn, TensorFlow or tqdm is not installed.
    """
    room = "tf_lamb.model_garden.sample_pictures"
    messages.require_installed(room, "tensorflow", "tqdm", "sklearn", install=INSTALL)
    settings = {"size": SIZE, **SPLIT}
    if facts := samples.find_same_data(output_dir, FILES, settings):
        return facts
    from sklearn import datasets, model_selection

    digits = datasets.load_digits()
    pictures = (digits.images * (255 / 16) + 0.5).astype("uint8")[..., None]
    train, validation, train_labels, labels = model_selection.train_test_split(
        pictures, digits.target, test_size=SPLIT["validation_fraction"],
        random_state=SPLIT["seed"], stratify=digits.target,
    )  # fmt: skip
    # The share of the commonest class is the accuracy of a model that always predicts this class.
    label, count = collections.Counter(map(int, labels)).most_common(1)[0]
    facts = {
        **settings, "num_classes": len(digits.target_names),
        "train_examples": len(train_labels), "validation_examples": len(labels),
        "validation_commonest_class": str(label),
        "validation_commonest_class_share": count / len(labels),
    }  # fmt: skip
    with samples.fill_folder(output_dir, FILES, facts) as folder:
        _write_part(folder, "train", train, train_labels)
        _write_part(folder, "validation", validation, labels)
    return facts


def _write_part(partial, part, pictures, labels):
    """Writes the TFRecord of one part, "train" or "validation", with JPEGs and their labels."""
    import tensorflow as tf
    import tqdm

    def encode(picture):
        picture = tf.cast(tf.round(tf.image.resize(picture, (SIZE, SIZE))), tf.uint8)
        # By default `encode_jpeg` stores color at half the resolution (chroma downsampling), which
        # loses information even at a quality of 100.
        picture = tf.image.grayscale_to_rgb(picture)
        return tf.io.encode_jpeg(picture, quality=100, chroma_downsampling=False)

    jpegs = tf.data.Dataset.from_tensor_slices(pictures).map(encode, tf.data.AUTOTUNE)
    with tf.io.TFRecordWriter(f"{partial}/{part}.tfrecord") as writer:
        progress = tqdm.tqdm(
            jpegs.as_numpy_iterator(), f"{part} examples", len(labels), disable=None
        )
        for jpeg, label in zip(progress, labels, strict=True):
            example = tf.train.Example()
            feature = example.features.feature
            feature["image/encoded"].bytes_list.value.append(jpeg)
            feature["image/class/label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString(deterministic=True))


if __name__ == "__main__":
    samples.run(
        "sample_pictures",
        write,
        "{train_examples} training and {validation_examples} validation pictures of "
        "{num_classes} classes",
        "lamb/resnet_imagenet",
        "resnet_small_lamb_cpu.yaml",
    )
