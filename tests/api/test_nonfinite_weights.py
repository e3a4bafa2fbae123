"""What is not finite is found in all weights, and our batch normalization keeps out of it."""

import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def spoiled():
    x = X.copy()
    x[3, 1] = np.nan
    return x


def model_of(frontend, layer):
    host, ours = FRONTENDS[frontend]
    made = getattr(ours, layer, None) or getattr(host.layers, layer)
    model = host.Sequential([host.layers.Input((3,)), made(name="norm"), host.layers.Dense(1)])
    model.compile(ours.LAMB(0.01), "mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


@every_frontend
def test_the_moving_averages_of_a_skipped_batch_are_found_by_name(frontend):
    model = model_of(frontend, "BatchNormalization")
    model(spoiled(), training=True)
    assert model.optimizer.nonfinite_weights() == []
    found = model.optimizer.nonfinite_weights(model)
    assert [path.split("norm/")[1] for path in found] == ["moving_mean", "moving_variance"]


@every_frontend
def test_the_report_ends_the_run_and_says_that_no_step_did_it(frontend):
    model = model_of(frontend, "BatchNormalization")
    report = FRONTENDS[frontend][1].StopOnDivergence(every=1)
    with pytest.raises(
        FloatingPointError, match="(?s)norm/moving_mean.*The optimizer has not made them so"
    ):
        model.fit(spoiled(), np.ones((8, 1)), verbose=0, callbacks=[report])


@every_frontend
def test_ours_keep_averages_that_are_finite(frontend):
    norm = FRONTENDS[frontend][1].GhostBatchNormalization(4)
    norm(X, training=True)
    before = [array(w) for w in norm.weights]
    out = norm(spoiled(), training=True)
    assert np.isnan(array(out)).any()  # the step has to see it
    for one, other in zip(before, norm.weights, strict=True):
        np.testing.assert_array_equal(one, array(other))
        assert np.isfinite(array(other)).all()
