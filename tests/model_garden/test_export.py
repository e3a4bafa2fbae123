"""What is served is what the trained model says."""

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
import tf_keras
from official.core import task_factory
from support import garden
from support.garden import EXPERIMENT, build, tiny, tiny_resnet

from tf_lamb.model_garden import export
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import model_dirs


def saved(params, experiment, folder):
    """The trained model of a run that has ended in a folder, with weights of no other model."""
    with tf.device("cpu:0"):
        model = task_factory.get_task(params.task, logging_dir=None).build_model()
        model.set_weights([
            w + 0.1 * np.random.default_rng(i).standard_normal(w.shape).astype(w.dtype)
            if np.issubdtype(w.dtype, np.floating) and w.min() == w.max()
            else w
            for i, w in enumerate(model.get_weights())
        ])  # fmt: skip
    model_dirs.write_params(params, str(folder))
    model_dirs.write_run(str(folder), experiment, seed=1)
    step = tf.Variable(1, dtype="int64")
    tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, global_step=step), str(folder), max_to_keep=1
    ).save()
    return model


def served(folder, out, **more):
    params = export.experiment_of(str(folder))
    export.export(params, export.weights_of(params, str(folder)), str(out), **more)
    return tf.saved_model.load(str(out)).signatures["serving_default"]


@pytest.mark.parametrize("groups", [None, 4])
def test_a_served_picture_has_the_probabilities_of_the_trained_model(pictures, tmp_path, groups):
    params = tiny_resnet(pictures, groups)
    model = saved(params, "lars/resnet_imagenet", tmp_path / "run")
    images = np.random.default_rng(1).integers(0, 255, (3, 32, 32, 3), np.uint8)
    # As Model Garden's data are: scaled by the mean and deviation of ImageNet.
    offset, scale = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    seen = (images / 255 - offset) / scale
    expected = tf_keras.activations.softmax(model(seen.astype("float32"), training=False))
    answer = served(tmp_path / "run", tmp_path / "out")(inputs=tf.constant(images))
    np.testing.assert_allclose(answer["probs"], expected, rtol=1e-3, atol=1e-5)
    assert np.ptp(expected) > 1e-3  # it says something


def test_a_served_pair_of_sentences_has_the_logits_of_the_trained_model(records, tmp_path):
    params = build(tiny(records))
    model = saved(params, EXPERIMENT, tmp_path / "run")
    random = np.random.default_rng(1)
    inputs = {
        "input_word_ids": random.integers(5, garden.VOCABULARY, (2, garden.LENGTH)),
        "input_mask": np.ones((2, garden.LENGTH)),
        "input_type_ids": random.integers(0, 2, (2, garden.LENGTH)),
        "masked_lm_positions": np.zeros((2, garden.MASKED)),
    }
    inputs = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
    answer = served(tmp_path / "run", tmp_path / "out")(**inputs)
    expected = model(inputs, training=False)["next_sentence"]
    np.testing.assert_allclose(answer["classification"], expected, rtol=1e-4, atol=1e-6)


def test_a_folder_without_params_cannot_be_exported(tmp_path):
    with pytest.raises(UserError, match="holds no params.yaml that says what was trained"):
        export.experiment_of(str(tmp_path))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "does not say its experiment. Write --experiment"),
        (("lamb/bert",), "'lamb/bert' is not known. Did you mean lamb/bert_"),
    ],
    ids=["none", "misspelt"],
)
def test_an_experiment_that_is_not_known_cannot_be_exported(records, tmp_path, given, words):
    model_dirs.write_params(build(tiny(records)), str(tmp_path))
    with pytest.raises(UserError, match=words):
        export.experiment_of(str(tmp_path), *given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "--model_dir={}: there is no checkpoint"),
        (("/no/such",), "--checkpoint=/no/such: there is no checkpoint"),
    ],
    ids=["in the folder", "by its name"],
)
def test_a_checkpoint_that_is_not_there_cannot_be_exported(records, tmp_path, given, words):
    model_dirs.write_params(build(tiny(records)), str(tmp_path))
    params = export.experiment_of(str(tmp_path), EXPERIMENT)
    with pytest.raises(UserError, match=words.format(tmp_path)):
        export.weights_of(params, str(tmp_path), *given)


def test_what_a_run_has_not_cannot_be_exported(records, tmp_path):
    model_dirs.write_params(build(tiny(records)), str(tmp_path))
    params = export.experiment_of(str(tmp_path), EXPERIMENT)
    other = build(tiny(records))
    other.trainer.optimizer_config.override({"ema": {}})
    saved(params, EXPERIMENT, tmp_path / "run")
    path = export.weights_of(params, str(tmp_path / "run"))
    with pytest.raises(UserError, match="without their averages, .* Export a best checkpoint"):
        export.weights_of(other, str(tmp_path / "run"))
    params.task.model.cls_heads = []
    with pytest.raises(UserError, match="what the head 'next_sentence' says, and .* has none"):
        export.export(params, path, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
