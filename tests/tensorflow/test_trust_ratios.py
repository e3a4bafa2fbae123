"""Trust ratios on show under TensorFlow: replicas, graphs, checkpoints and TensorBoard's files."""

import numpy as np
import pytest
import tensorflow as tf
from support import watching
from support.clusters import mirrored
from support.examples import run_example
from support.frontends import FRONTENDS, every_frontend
from support.watching import optimizer_of, quiet, toy_model

from tf_lamb.api.optimizers import observation as observing
from tf_lamb.model_garden.folders.report import read_scalars


@every_frontend
def test_the_example_runs(frontend):
    run_example(FRONTENDS[frontend][1].LAMB.observe_trust_ratios, least=5)


@pytest.mark.parametrize("case", ["LAMB clipped", "LARS"])
@every_frontend
def test_replicas_show_what_one_device_shows(frontend, case):
    strategy = mirrored(2)
    with strategy.scope():
        model = toy_model(frontend, optimizer_of(frontend, case), run_eagerly=case == "LARS")
    watching.assert_equal(watching.fit(model, frontend, quiet(frontend), 3), case)
    # Each replica wrote its own copy.
    vectors = model.optimizer._storage.vectors()
    assert vectors
    for vector in vectors:
        one, other = (copy.numpy() for copy in strategy.experimental_local_results(vector))
        np.testing.assert_array_equal(one, other)


@every_frontend
def test_tensorboard_has_the_histograms(frontend, tmp_path):
    model = toy_model(frontend, optimizer_of(frontend, "LAMB clipped"), run_eagerly=True)
    watching.fit(model, frontend, quiet(frontend, directory=str(tmp_path)), 3)
    scalars = read_scalars(str(tmp_path))
    assert scalars["clipped_trust_ratios"] == {1: 1.0, 2: 1.0, 3: 1.0}
    steps, tags = {}, set()
    for path in tf.io.gfile.glob(f"{tmp_path}/events*"):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                tags.add(value.tag)
                if value.metadata.plugin_data.plugin_name == "histograms" or value.tag in steps:
                    steps.setdefault(value.tag, []).append(event.step)
    assert steps == dict.fromkeys(("weight_norms", "update_norms", "trust_ratios"), [1, 2, 3])
    kernel = next(v for v in model.trainable_variables if "kernel" in v.name)
    path = getattr(kernel, "path", kernel.name.split(":")[0])
    assert {f"{name}/{path}" for name in observing.NORMS_AND_RATIO} <= tags
    (first, *_) = watching.expected("LAMB clipped", 1)
    assert scalars[f"trust_ratio/{path}"][1] == pytest.approx(first["kernel"][2], rel=1e-5)
