"""The pages for those who move in: what they show runs."""

import contextlib
import io
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from goldens import problem
from support import words
from support.migrating import ADDONS, GARDEN
from support.pages import ROOT, blocks

import tf_lamb.keras

BLOCKS = [
    block
    for page in ("moving_in.md", "start/addons.md", "start/lars.md")
    for block in blocks(ROOT / "docs" / page, "python")
]
# What is marked `before` is not ours to run.
AFTER = [block for block in BLOCKS if not block[1].startswith("# before")]


@pytest.mark.parametrize(("heading", "code"), AFTER, ids=[heading for heading, _ in AFTER])
def test_what_the_docs_show_runs(heading, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ADDONS["files"]["checkpoint"].parent, tmp_path / "addons")
    shutil.copy(ADDONS["files"]["hdf5"], tmp_path / "addons.h5")
    shutil.copytree(GARDEN["lars_model"]["files"]["checkpoint"].parent, tmp_path / "garden")
    with contextlib.redirect_stdout(io.StringIO()):
        for host in (keras, tf_keras):
            host.backend.clear_session()
        rng = np.random.default_rng(0)
        ids, targets = rng.integers(0, 7, (8, 4)), rng.normal(size=(8, 2))
        exec(code, {"ids": ids, "targets": targets, "build_model": problem.build_model})


class Count(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that is 1 more than the step it is given."""

    def __call__(self, step):
        return 1.0 + keras.ops.cast(step, "float32")


def sgd(rate, **arguments):
    """Keras's, and ours that computes the same."""
    plain = {"momentum": 0.0, "exclude_from_layer_adaptation": ["."]}
    return keras.optimizers.SGD(rate, **arguments), tf_lamb.keras.LARS(rate, **plain, **arguments)


def weights_after(optimizer, gradients):
    variable = keras.Variable([0.0])
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor([gradient], "float32")], [variable])
        yield float(variable.numpy()[0])
    optimizer.finalize_variable_values([variable])
    yield float(variable.numpy()[0])


def test_what_keras_counts_otherwise():
    """The rows of the table under that heading."""
    steps = []
    for optimizer in sgd(Count(), gradient_accumulation_steps=4):
        moved = -np.diff([0.0, *weights_after(optimizer, np.ones(12))])
        steps.append([round(rate) - 1 for rate in moved if rate])
    assert steps == [[3, 7, 11], [0, 1, 2]]

    averaged = {"use_ema": True, "ema_momentum": 0.5, "gradient_accumulation_steps": 4}
    averages = [list(weights_after(each, np.ones(12)))[-1] for each in sgd(1.0, **averaged)]
    # Ours as Keras's of n = 1; Keras's with the momentum to the power of n.
    np.testing.assert_allclose(averages, [-2.46875, -2.25])

    moves = []
    for optimizer in sgd(1.0, gradient_accumulation_steps=2):
        scaled = keras.optimizers.LossScaleOptimizer(optimizer)
        weights = list(weights_after(scaled, [1.0, np.inf, 1.0, 1.0]))
        moves.append([bool(each) for each in weights[:4]])
    assert moves == [[False, False, True, True], [False, False, False, True]]
    assert optimizer.skipped_steps == 1


def test_keras_averages_under_accumulation_as_the_page_says():
    """Each is ours with the power of the momentum, mixed with ours of the update before."""
    gradients = np.random.default_rng(0).normal(size=12)
    averaged = {"use_ema": True, "gradient_accumulation_steps": 3}
    (theirs, _), momentum = sgd(1.0, ema_momentum=0.9, **averaged), 0.9**3
    keras_weights = list(weights_after(theirs, gradients))
    ours = [
        list(weights_after(sgd(1.0, ema_momentum=momentum, **averaged)[1], gradients[:size]))
        for size in (9, 12)
    ]
    np.testing.assert_allclose(keras_weights[:-1], ours[1][:-1], rtol=1e-6)
    before, after = (weights[-1] for weights in ours)
    mixed = ((0.9 - momentum) * before + (1 - 0.9) * after) / (1 - momentum)
    np.testing.assert_allclose(keras_weights[-1], mixed, rtol=1e-5)
    assert abs(keras_weights[-1] - after) > 0.01

    overwritten = {**averaged, "ema_momentum": 0.9, "ema_overwrite_frequency": 2}
    moves = [
        [bool(move) for move in np.diff(list(weights_after(optimizer, gradients)))]
        for optimizer in sgd(1.0, **overwritten)
    ]
    assert moves[0][8] and not moves[1][8]  # the first micro-batch of the fourth update


BEFORE = [block for block in BLOCKS if block[1].startswith("# before\n")]


def test_there_are_four_ports():
    assert len(BEFORE) == 4


@pytest.mark.parametrize(("heading", "before"), BEFORE, ids=[heading for heading, _ in BEFORE])
def test_a_port_is_three_lines(heading, before):
    """In the same Keras; a move to the other one changes its imports, too."""
    after = next(c for h, c in BLOCKS if h == heading and c.startswith("# after"))
    new = set(after.splitlines()) - set(before.splitlines()) - {"# after"}
    assert len(new) <= 3, new


def test_the_table_of_words_is_what_the_optimizers_know():
    """`PYTHONPATH=.:tests python -m support.words` writes it anew."""
    assert words.parts(words.PAGE.read_text())[1] == words.lines()


def test_lars_without_decay_makes_the_steps_of_the_model_gardens():
    from official.modeling.optimization import lars

    rng = np.random.default_rng(1)
    start, gradients = rng.normal(size=(3, 2)), rng.normal(size=(5, 3, 2))
    weights = []
    for host, make in ((tf_keras, lars.LARS), (keras, tf_lamb.keras.LARS)):
        rate = host.optimizers.schedules.CosineDecay(0.2, 1000, alpha=1.0)
        variable = host.Variable(start) if host is keras else tf.Variable(start, dtype="float32")
        optimizer = make(learning_rate=rate)
        for gradient in gradients:
            step = tf.constant(gradient, "float32")
            optimizer.apply_gradients([(step, variable)])
        weights.append(np.array(variable))
    np.testing.assert_allclose(*weights, rtol=1e-6)
    assert np.abs(weights[0] - start).max() > 1e-5
