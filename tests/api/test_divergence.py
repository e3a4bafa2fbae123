"""A run that diverges ends with a report, before anything good is overwritten."""

import numpy as np
import pytest
from test_adascale import BACKEND, DOORS, every_door

from tf_lamb.core.divergence import Readings
from tf_lamb.core.observing import Observation


def seen(path, *numbers):
    return Observation(path, 0, "", 1, *numbers)


def add(readings, step, skipped=0, loss=1.0, strange=(), observations=()):
    return readings.add(step, skipped, loss, list(strange), observations)


def test_the_report_names_the_variable_its_step_and_its_last_norms():
    readings = Readings(keep=2, patience=20)
    for step, update in ((10, 1.0), (20, 8.0), (30, np.nan)):
        observations = [seen("a/kernel", 3.0, 1.0, 3.0), seen("b/kernel", 4.0, update, 0.5)]
        report = add(readings, step, strange=["b/kernel"] * (step == 30),
                     observations=observations)  # fmt: skip
        assert (report is None) == (step < 30)
    title, _, header, *rows = report.splitlines()
    assert title == ("Training has diverged: at step 30, the weights of 'b/kernel' are not finite.")
    assert header.split() == ["variable", "step", "weight", "norm", "update", "norm", "trust",
                              "ratio"]  # fmt: skip
    assert [row.split() for row in rows[:4]] == [
        ["b/kernel", "20", "4", "8", "0.5"],
        ["30", "4", "nan", "0.5"],
        ["a/kernel", "20", "3", "1", "3"],
        ["30", "3", "1", "3"],
    ]
    assert "longer warmup" in rows[-1]
    assert "ratio_bounds" in rows[-1]


def test_what_has_risen_most_comes_first_where_all_weights_are_finite():
    readings = Readings(keep=5, patience=20)
    for step, norm in ((1, 1.0), (2, 9.0)):
        observations = [seen("calm", 1.0, 1.0, 1.0), seen("wild", 1.0, norm, 1.0)]
        report = add(readings, step, loss=np.inf if step == 2 else 1.0, observations=observations)
    assert "at step 2, the loss is inf." in report
    assert report.index("wild") < report.index("calm")


def test_one_skipped_batch_is_no_divergence():
    readings = Readings(keep=5, patience=3)
    assert add(readings, 1) is None
    assert add(readings, 2, skipped=1, loss=np.nan) is None
    assert add(readings, 2, skipped=3, loss=np.nan) is None  # two in a row for certain
    assert add(readings, 9, skipped=9) is None  # six, but there were steps in between
    assert add(readings, 9, skipped=11) is None
    assert "the last 3 steps were all skipped" in add(readings, 9, skipped=12)


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 2)).astype("float32")


def compiled(door, optimizer):
    host = DOORS[door][0]
    host.utils.set_random_seed(1)
    model = host.Sequential(
        [host.layers.Input((4,)), host.layers.Dense(3, name="first"),
         host.layers.Dense(2, name="last")]
    )  # fmt: skip
    model.compile(optimizer, "mse")
    return model


def fit(model, x, y, *callbacks, epochs=2):
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("kind", ["LAMB", "AdamP"])
@every_door
def test_fit_ends_where_a_weight_is_not_finite(door, kind, tmp_path):
    """The checkpoint of the epoch before is the last one."""
    host, ours = DOORS[door]
    x, y = data()
    model = compiled(door, getattr(ours, kind)(0.01, on_nonfinite="propagate"))
    report = ours.DivergenceReport(every=1)
    save = host.callbacks.ModelCheckpoint(
        str(tmp_path / "good.weights.h5"), save_weights_only=True, save_best_only=False
    )
    fit(model, x, y, report, save, epochs=1)
    x[40:48] = np.nan  # the sixth batch
    with pytest.raises(FloatingPointError, match="at step 14, the weights of .*first/kernel"):
        fit(model, x, y, report, save)
    model.load_weights(str(tmp_path / "good.weights.h5"))
    assert all(np.isfinite(w).all() for w in model.get_weights())


@every_door
def test_a_bad_batch_is_told_at_the_end(door):
    ours = DOORS[door][1]
    x, y = data()
    x[40] = np.nan
    told = []
    model = compiled(door, ours.LAMB(0.01))
    fit(model, x, y, ours.DivergenceReport(every=1, print_fn=told.append))
    assert told == ["2 steps were skipped: their gradients were not finite."]


@every_door
def test_steps_that_are_all_skipped_end_the_run(door):
    ours = DOORS[door][1]
    x, y = data()
    x[16:] = np.nan
    model = compiled(door, ours.Measured(ours.LAMB(0.01, gradient_accumulation_steps=2)))
    with pytest.raises(FloatingPointError, match="at step 1, the last 3 steps were all skipped"):
        fit(model, x, y, ours.DivergenceReport(every=1, patience=3))


@every_door
def test_what_it_cannot_read_is_refused(door):
    host, ours = DOORS[door]
    model = compiled(door, host.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="reads the optimizers of tf_lamb, not .*SGD"):
        fit(model, *data(), ours.DivergenceReport())
    with pytest.raises(ValueError, match="patience must be a whole number >= 1, not 0"):
        ours.DivergenceReport(patience=0)


if BACKEND == "tensorflow":
    import tensorflow as tf
    from support.garden import build, optimizer, tiny
    from test_garden_noise import run

    def test_a_run_of_the_model_garden_ends_before_it_saves(records, tmp_path):
        config = optimizer(on_nonfinite="propagate")
        config["learning_rate"] = {
            "type": "stepwise",
            "stepwise": {"boundaries": [3], "values": [1e-3, float("inf")]},
        }
        config["warmup"] = {"type": None}
        settings = tiny(records, optimizer_config=config)
        settings["trainer"] |= {"train_steps": 8, "steps_per_loop": 2, "checkpoint_interval": 2}
        with pytest.raises(FloatingPointError, match="at step 6, the weights of"):
            run(build(settings), tmp_path, "train")
        latest = tf.train.latest_checkpoint(str(tmp_path))
        assert latest.endswith("ckpt-4")
