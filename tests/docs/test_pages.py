"""Every Python block of every page runs, in the order of the page.

Where a page shows a part of a program, the test gives it what went before; the pages that begin
anew are given nothing. What would take hours is made short, by `SHORTER`.
"""

import os
import subprocess
import sys
import warnings

import keras
import matplotlib
import numpy as np
import pytest
from support import clusters
from support.pages import PAGES, ROOT, blocks

import tf_lamb

matplotlib.use("Agg")
# Each has a test of its own.
ELSEWHERE = {
    "README.md", "moving_in.md", "start/addons.md", "start/custom_loop.md", "start/lars.md",
    "start/model_garden.md", "start/tpu.md",
}  # fmt: skip
ON_JAX = {"decentralized.md", "preflight.md", "start/several_hosts.md"}
SLOW = {*ON_JAX, "adversarial.md", "adascale.md", "noise_scale.md", "trust_ratios.md"}

# A warning that nobody caused, of Keras's or ours, is an error.
WARNINGS = "import warnings; warnings.simplefilter('error', UserWarning)"
DATA = """
import numpy as np
x = np.random.default_rng(0).normal(size=(256, 64)).astype("float32")
y = np.random.default_rng(1).integers(0, 10, 256)
"""
SHORTER = {
    "adversarial.md": [("batch_size=8192, epochs=90", "batch_size=4, epochs=1")],
    "automatic_warmup.md": [("batch_size=8192, epochs=60", "batch_size=64, epochs=30")],
    "fixed_point.md": [("epochs=10", "epochs=1")],
    "make_it_larger.md": [
        (
            "=256, baseline_epochs=12, large_batch_size=1024",
            "=8, baseline_epochs=12, noise_scale=64, verbose=False, "
            "step_seconds={8: 0.01, 32: 0.011}",
        ),
        (
            '2048, "Muon", epochs=12, budget=0.6',
            '32, "Adam", epochs=12, baseline_batch_size=8, budget=3, verbose=False',
        ),
    ],
    "adascale.md": [("steps = 4800 ", "steps = 3 ")],
    "preflight.md": [('(4096, 64), "v3:4x4"', '(64, 64), "v3:2x2"')],
}


X = np.random.default_rng(0).normal(size=(512, 4)).astype("float32")
PICTURES = np.random.default_rng(0).uniform(0, 255, (8, 6, 6, 1))
DIGITS = np.random.default_rng(0).integers(0, 17, (64, 8, 8, 1)).astype("float32")


def given(*layers, x=X, y=X[:, :1], optimizer=None):
    """A model of these layers and data for it, as a page has had them before."""
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    if optimizer:
        model.compile(optimizer, "mse")
    data = {"x": x, "y": y, "x_test": x, "y_test": y}
    return {"model": model, "schedule": 0.1, "tf_lamb": tf_lamb, **data}


def regression(optimizer=None):
    layers = keras.layers
    return given(layers.Dense(4), layers.LayerNormalization(), layers.Dense(1), optimizer=optimizer)


def classes():
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(3, "softmax")]
    return given(*layers, y=np.argmax(X[:, :3], axis=1))


def pictures():
    layers = keras.layers
    return given(
        layers.Conv2D(2, 3), layers.BatchNormalization(), layers.Flatten(),
        layers.Dense(2, "softmax"), x=PICTURES, y=np.arange(8) % 2,
    )  # fmt: skip


def written(name, **features):
    """Writes a TFRecord of one example."""
    import tensorflow as tf

    os.makedirs(os.path.dirname(name), exist_ok=True)
    kinds = {
        feature: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, bytes)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for feature, value in features.items()
    }
    with tf.io.TFRecordWriter(name) as writer:
        example = tf.train.Example(features=tf.train.Features(feature=kinds))
        writer.write(example.SerializeToString())


def saved(folder, serve, **inputs):
    """Writes a SavedModel that answers so."""
    import tensorflow as tf

    module = tf.Module()
    signature = [tf.TensorSpec(*of_input, name=name) for name, of_input in inputs.items()]
    module.serve = tf.function(serve, input_signature=signature)
    tf.saved_model.save(module, folder, {"serving_default": module.serve})
    return {}


def served_pictures():
    """What the commands of the page have written: a picture, and the SavedModel."""
    import tensorflow as tf

    jpeg = tf.io.encode_jpeg(np.zeros((32, 32, 3), np.uint8)).numpy()
    features = {"image/encoded": jpeg, "image/class/label": [0]}
    written(".build/pictures/validation.tfrecord", **features)
    return saved(
        ".build/served",
        lambda inputs: {"probs": tf.zeros((tf.shape(inputs)[0], 10))},
        inputs=((None, None, None, 3), tf.uint8),
    )


def served_sentences():
    """What the commands of the page have written: a pair of sentences, and the SavedModel."""
    import tensorflow as tf

    lengths = {name: 128 for name in ("input_word_ids", "input_mask", "input_type_ids")}
    lengths["masked_lm_positions"] = 20
    features = {name: [0] * length for name, length in lengths.items()}
    written(".build/data/validation.tfrecord", **features, next_sentence_labels=[0])

    def serve(input_word_ids, input_mask, input_type_ids, masked_lm_positions):
        return {"classification": tf.zeros((tf.shape(input_word_ids)[0], 2))}

    inputs = {name: ((None, length), tf.int32) for name, length in lengths.items()}
    return saved(".build/bert_served", serve, **inputs)


BEFORE = {
    "index.md": classes, "adversarial.md": pictures, "automatic_warmup.md": classes,
    "fixed_point.md": lambda: {"x": DIGITS, "y": np.arange(64) % 10}, "adascale.md": regression,
    "noise_scale.md": regression,
    "make_it_larger.md": lambda: regression(keras.optimizers.Adam(0.01)),
    "start/bert.md": served_sentences, "start/resnet.md": served_pictures,
    "divergence.md": lambda: regression(tf_lamb.LAMB(1e-3)), "trust_ratios.md": regression,
    "resume.md": lambda: regression(tf_lamb.LAMB(1e-3)),
}  # fmt: skip


def name_of(page):
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def code(page):
    """The blocks of a page, made short."""
    found = [text for _, text in blocks(page, "python")]
    for before, after in SHORTER.get(name_of(page), ()):
        assert sum(before in text for text in found) == 1, before
        found = [text.replace(before, after) for text in found]
    return found


WITH_CODE = [page for page in PAGES if blocks(page, "python") and name_of(page) not in ELSEWHERE]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if name_of(page) in SLOW else [])
        for page in WITH_CODE
    ],
    ids=name_of,
)
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    if name_of(page) in ON_JAX:
        script = "\n".join([WARNINGS, DATA, *code(page)])
        (alone,) = clusters.jax_processes(1, 8)  # for the page that asks for the other processes
        environment = {**os.environ, **alone, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
        return
    names = {}
    with warnings.catch_warnings():
        exec(WARNINGS)
        for text in code(page):
            names.update(BEFORE.get(name_of(page), dict)())
            exec(text, names)


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_what_a_page_shows_is_python(page):
    for text in code(page):
        compile(text, page.name, "exec")
