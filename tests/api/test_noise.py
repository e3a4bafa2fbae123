"""MeasureNoise and the noise scale in both frontends, and what the callbacks make of them."""

import math

import numpy as np
import pytest
from support.feeding import START, Feed, gradients, maker, scaled
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    on_tensorflow,
)
from support.noise import assert_noise
from support.regression import fit, regression, weights_of

from tf_lamb.api.variables import variables_of
from tf_lamb.core import noise

SETTINGS = [
    ("LAMB", False, {"gradient_accumulation_steps": 2, "weight_decay": 0.1}),
    ("LAMB", False, {"gradient_accumulation_steps": 2, "clipnorm": 0.5}),
    ("LARS", False, {"gradient_accumulation_steps": 2, "use_ema": True}),
    ("SGD", True, {"gradient_accumulation_steps": 2, "momentum": 0.9}),
]
every_setting = pytest.mark.parametrize(
    ("inner", "host", "own"), SETTINGS, ids=["LAMB", "LAMB, clipped", "LARS, averaged", "Keras SGD"]
)


def plain_and_measured(frontend, inner, host, own):
    """Two functions that make the same optimizer, one measured."""
    if host and frontend == "tf_keras":
        pytest.skip("tf_keras's own optimizers do not accumulate")
    plain = maker(frontend, inner, 0.05, host, **own)
    return plain, lambda: FRONTENDS[frontend][1].MeasureNoise(plain())


@every_setting
@every_frontend
def test_measuring_changes_no_step(frontend, inner, host, own):
    alone, measured = (
        Feed(frontend, make) for make in plain_and_measured(frontend, inner, host, own)
    )
    for parts in gradients(6, 2):
        for feed in (alone, measured):
            for part in parts:
                feed.step([part])
    for one, other in zip(measured.weights(), alone.weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert math.isfinite(measured.optimizer.noise_scale(8))


@every_frontend
def test_the_noise_scale_is_numpys(frontend):
    ours = FRONTENDS[frontend][1]
    make = maker(frontend, micro=4)
    feed = Feed(frontend, lambda: ours.MeasureNoise(make(), smoothing=0.9))
    steps = gradients(6, 4)
    assert math.isnan(feed.optimizer.noise_scale(32))
    for parts in steps:
        feed.step(parts)
    assert_noise(feed.optimizer.noise_scale(32), steps)


@every_frontend
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_none_in_the_last_micro_batch_is_measured_as_zeros(frontend):
    """The update takes what its variable has added up; in Keras 3 so where it is left out, too."""
    ours, make = FRONTENDS[frontend][1], maker(frontend, micro=4)
    feed = Feed(frontend, lambda: ours.MeasureNoise(make(), smoothing=0.9))
    steps = gradients(6, 4)
    for parts in steps:
        feed.step([*parts[:-1], {**parts[-1], "bias": None}])
        parts[-1]["bias"] *= 0
        feed.leaves_out = frontend == "keras"  # in tf_keras that is a frozen variable
    assert_noise(feed.optimizer.noise_scale(32), steps)


@every_frontend
def test_readings_join_the_logs(frontend, capsys):
    ours = FRONTENDS[frontend][1]
    model = regression(frontend, scaled(frontend, 2))
    watch = ours.NoiseScale(batch_size=16, every=4)
    history = fit(model, epochs=3, callbacks=[watch]).history
    assert watch.history["step"] == [2, 4, 6, 8, 10, 12]
    assert history["noise_scale"] == watch.history["noise_scale"][1::2]
    expected = model.optimizer.noise_scale(16)
    assert history["noise_scale"][-1] == pytest.approx(expected, nan_ok=True)
    assert capsys.readouterr().out.strip() == watch.advice()
    fit(model, epochs=1, callbacks=[ours.NoiseScale(16, verbose=False)])
    assert capsys.readouterr().out == ""


def test_before_fit_nothing_is_known():
    watch = FRONTENDS["keras"][1].NoiseScale(batch_size=16)
    assert math.isnan(watch.standard_error())
    assert watch.advice() == "Nothing was measured so far: pass this callback to fit."


@every_frontend
def test_readings_tell_how_precise_the_last_one_is(frontend):
    """One after every update gives back what each of them measured, over several calls of fit."""
    ours = FRONTENDS[frontend][1]
    model = regression(frontend, scaled(frontend, 2, smoothing=0.9))
    watch = ours.NoiseScale(batch_size=16, every=2, verbose=False)
    fit(model, epochs=2, callbacks=[watch])
    first = watch.standard_error()
    fit(model, epochs=3, callbacks=[watch])
    assert model.optimizer.averages().count == len(watch.history["step"])
    errors = noise.standard_error(watch._averages, 0.9)
    assert watch.standard_error() == errors != first > 0
    assert f"about {watch.history['noise_scale'][-1]:,.0f} (standard err" in watch.advice()


@every_frontend
def test_a_fit_whose_parts_are_equal_says_that_it_measured_no_noise(frontend, capsys):
    """As where one batch is trained on again and again."""
    ours = FRONTENDS[frontend][1]
    own = ours.MeasureNoise(ours.LARS(0.1, gradient_accumulation_steps=2))
    model = regression(frontend, lambda: own)
    x = np.ones((8, 2), "float32")
    watch = ours.NoiseScale(batch_size=16, every=1)
    model.fit(x, 3 * x, batch_size=8, epochs=8, verbose=0, callbacks=[watch])
    assert watch.history["noise_scale"][1:] == [0.0] * 4  # the first reading is before an update
    assert np.isnan(watch.standard_error())
    assert "No noise was measured" in capsys.readouterr().out


@every_frontend
def test_readings_begin_anew_with_another_model_and_go_on_where_the_state_is_put_back(frontend):
    ours = FRONTENDS[frontend][1]
    watch = ours.NoiseScale(16, every=4, verbose=False)
    for smoothing in (0.9, 0.1):  # whose readings come at the same steps
        model = regression(frontend, scaled(frontend, 2, smoothing=smoothing))
        fit(model, epochs=1, callbacks=[watch])
        assert watch.history["step"] == [2, 4]
        assert watch.history["noise_scale"][-1] == model.optimizer.noise_scale(16)
    kept = [(v, v.numpy().copy()) for v in variables_of(model.optimizer)]
    fit(model, epochs=4, callbacks=[watch])
    for variable, value in kept:
        variable.assign(value)
    fit(model, epochs=1, callbacks=[watch])
    assert watch.history["step"] == [2, 4, 6, 8] == [each.count for each in watch._averages[1:]]
    for variable, value in kept:  # within fit, at a step that no one tells
        variable.assign(value)
    watch._at_reading()
    assert watch.history["step"] == [2, 4] == [each.count for each in watch._averages[1:]]


@every_frontend
def test_the_standard_error_goes_on_where_the_state_is_put_back(frontend):
    """A new callback, as in a new process, and one that has the readings of before."""
    ours = FRONTENDS[frontend][1]
    model = regression(frontend, scaled(frontend, 2, smoothing=0.9))
    whole, late = (ours.NoiseScale(batch_size=16, every=1, verbose=False) for _ in range(2))
    fit(model, epochs=4, callbacks=[whole])
    kept, before = (
        [(v, v.numpy().copy()) for v in variables_of(model.optimizer)],
        [*whole._averages],
    )
    fit(model, epochs=4, callbacks=[whole, late])
    assert late.standard_error() == pytest.approx(whole.standard_error(), rel=0.5)
    for variable, value in kept:
        variable.assign(value)
    fit(model, epochs=1, callbacks=[whole])
    assert whole._averages[: len(before)] == before
    assert whole.standard_error() == noise.standard_error(whole._averages, 0.9) > 0


# --- What is refused, by AdaScale and by what it shares with MeasureNoise ---


def initial(model):
    """Whether no step has been taken."""
    return all(
        (w == start.astype("float32")).all()
        for w, start in zip(weights_of(model), START.values(), strict=True)
    )


@every_frontend
@pytest.mark.parametrize("wrapper", ["AdaScale", "MeasureNoise"])
def test_one_part_is_refused_before_any_step(frontend, wrapper):
    host, ours = FRONTENDS[frontend]
    of_host = wrapper == "MeasureNoise"  # of what is inside
    model = regression(
        frontend,
        (lambda: ours.MeasureNoise(host.optimizers.SGD(0.1))) if of_host else scaled(frontend, 1),
    )
    with pytest.raises(ValueError, match="a step has one part: one replica, and no") as caught:
        fit(model)
    assert initial(model)
    if of_host:  # of tf_keras's own, none accumulates
        said = "an inner optimizer of tf_lamb (" in str(caught.value)
        assert said == (frontend == "tf_keras")


WRAPPERS = {
    "MeasureNoise": lambda ours: ours.MeasureNoise(ours.LARS()),
    "AdaScale": lambda ours: ours.AdaScale(ours.LARS(), 2),
}


@every_frontend
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_configs_of_before_load(frontend, wrapper):
    former = {"previous_gradient": False, "averaging": "paper"}
    optimizer = WRAPPERS[wrapper](FRONTENDS[frontend][1])
    config, kind = optimizer.get_config(), type(optimizer)
    assert kind.from_config({**config, **former}).get_config() == config


@every_frontend
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_configs_with_an_option_that_is_gone_are_refused(frontend, wrapper):
    host, ours = FRONTENDS[frontend]
    saved = host.optimizers.serialize(WRAPPERS[wrapper](ours))
    saved["config"]["previous_gradient"] = True
    with pytest.raises((ValueError, TypeError), match="previous_gradient=True is gone: take"):
        host.optimizers.deserialize(saved)


BAD = {
    "scale < 1": (lambda h, o: o.AdaScale(o.LARS(), 0.5), ValueError, "scale must be a number in"),
    "RMSprop": (
        lambda h, o: o.AdaScale(h.optimizers.RMSprop(), 2), ValueError, "not RMSprop: how its gain",
    ),
    "no optimizer": (lambda h, o: o.AdaScale("sgd", 2), TypeError, "wraps an optimizer"),
    "wrapped": (
        lambda h, o: o.AdaScale(o.AdaScale(o.LARS(), 2), 2), ValueError, "measures already",
    ),
    "loss scale": (
        lambda h, o: o.AdaScale(h.mixed_precision.LossScaleOptimizer(h.optimizers.SGD()), 2),
        ValueError, "put AdaScale around that optimizer, and LossScaleOptimizer.* outside",
    ),
    "loss_scale_factor": (
        lambda h, o: o.MeasureNoise(FRONTENDS["keras"][0].optimizers.SGD(loss_scale_factor=8.0)),
        (TypeError, ValueError), "with loss_scale_factor: leave that out|of tf_keras",
    ),
    "built": (lambda h, o: o.AdaScale(built(h, o.LARS()), 2), ValueError, "has not stepped yet"),
    "preconditioned": (
        lambda h, o: o.AdaScale(h.optimizers.SGD(), 2, preconditioned=True),
        ValueError, "needs second moments",
    ),
}  # fmt: skip


def built(host, optimizer):
    if host.__name__ == "keras":
        variable = host.Variable(np.zeros(2, "float32"), name="w")
    else:
        variable = host.backend.variable(np.zeros(2, "float32"), name="w")
    optimizer.build([variable])
    return optimizer


@pytest.mark.parametrize("name", BAD)
@every_frontend
def test_bad_input_is_refused_in_a_sentence(frontend, name):
    make, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        make(*FRONTENDS[frontend])
    assert len(str(caught.value)) < 400


# An optimizer, a callback that asks more of it, and the words of the error.
UNMEASURED = {
    "NoiseScale": (
        lambda ours: ours.LARS(), lambda ours: ours.NoiseScale(8),
        "measures: compile with optimizer=tf_lamb.MeasureNoise",
    ),
    "StopAtBaseSteps": (
        lambda ours: ours.LARS(), lambda ours: ours.StopAtBaseSteps(8),
        "needs optimizer=tf_lamb.AdaScale",
    ),
    "StopAtBaseSteps of MeasureNoise": (
        lambda ours: ours.MeasureNoise(ours.LARS(gradient_accumulation_steps=2)),
        lambda ours: ours.StopAtBaseSteps(8), "needs optimizer=tf_lamb.AdaScale",
    ),
}  # fmt: skip


@every_frontend
@pytest.mark.parametrize("case", UNMEASURED)
def test_callbacks_want_an_optimizer_that_measures(frontend, case):
    ours = FRONTENDS[frontend][1]
    make, callback, words = UNMEASURED[case]
    model = regression(frontend, lambda: make(ours))
    with pytest.raises(ValueError, match=words):
        fit(model, callbacks=[callback(ours)])
    assert initial(model)


@on_tensorflow
@every_frontend
def test_shared_batch_statistics_are_warned_of(frontend):
    host, ours = FRONTENDS[frontend]
    layer = host.layers.BatchNormalization(synchronized=True, name="shared")
    model = regression(frontend, scaled(frontend, 2), layers=[layer])
    with pytest.warns(UserWarning, match="'shared' normalizes with statistics of all replicas"):
        ours.NoiseScale(8, verbose=False).set_model(model)


@every_frontend
def test_fewer_micro_batches_than_wait_are_measured_as_one_update(frontend):
    """As by `set_weights`, which knows no names: four wait, and the run goes on with two."""
    ours = FRONTENDS[frontend][1]
    batches = [np.random.default_rng(i).normal(size=3).astype("float32") for i in range(4)]
    variable = new_variable(frontend, np.ones(3))
    four, two = (
        ours.MeasureNoise(ours.LARS(0.1, gradient_accumulation_steps=steps)) for steps in (4, 2)
    )
    for optimizer in (four, two):
        optimizer.build([variable])
    for gradient in batches[:3]:
        apply(four, [gradient], [variable])
    for here, there in ((two, four), (two.inner_optimizer, four.inner_optimizer)):
        for own, other in zip(variables_of(here), variables_of(there), strict=True):
            own.assign(array(other))
    apply(four, batches[3:], [variable])
    apply(two, batches[3:], [variable])
    assert two.averages() == pytest.approx(four.averages(), rel=1e-6)
    assert two.averages().count == 1
