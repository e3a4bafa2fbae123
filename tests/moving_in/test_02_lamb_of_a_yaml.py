"""A classifier of jets whose YAML sets Keras's Lamb: an own warmup, clipped values, averages."""

import functools

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend

pytestmark = pytest.mark.usefixtures("quickly_compiled", "uncompiled_fits")

rng = np.random.default_rng(0)
JETS = rng.normal(size=(32, 6)).astype("float32")
KINDS = (JETS[:, 0] + JETS[:, 1] > 0).astype("int32")
# As the YAML gives it: a class's every argument has a key.
YAML = {
    "weight_decay": 0.0, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "clipnorm": None,
    "clipvalue": 0.01, "use_ema": True, "ema_momentum": 0.5,
}  # fmt: skip


@functools.cache
def warmup_class(frontend):
    schedules = FRONTENDS[frontend][0].optimizers.schedules

    @FRONTENDS[frontend][0].saving.register_keras_serializable("jets")
    class LinearWarmup(schedules.LearningRateSchedule):
        def __init__(self, after, warmup_steps):
            self.after, self.warmup_steps = after, warmup_steps

        def __call__(self, step):
            step = keras.ops.cast(step, "float32")
            share = keras.ops.minimum((step + 1.0) / self.warmup_steps, 1.0)
            return share * self.after(keras.ops.maximum(step - self.warmup_steps, 0.0))

        def get_config(self):
            after = schedules.serialize(self.after)
            return {"after": after, "warmup_steps": self.warmup_steps}

        @classmethod
        def from_config(cls, config):
            return cls(schedules.deserialize(config["after"]), config["warmup_steps"])

    return LinearWarmup


def schedule(frontend):
    decay = FRONTENDS[frontend][0].optimizers.schedules.CosineDecay(0.1, 4)
    return warmup_class(frontend)(decay, 3)


def compiled(frontend, optimizer):
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    layers = host.layers
    model = host.Sequential(
        [layers.Input((6,)), layers.Dense(8, activation="relu"), layers.LayerNormalization(),
         layers.Dense(2, activation="softmax")]
    )  # fmt: skip
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def fit(model, epochs=2, batch_size=8, **arguments):
    return model.fit(
        JETS, KINDS, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0, **arguments
    )


def trained(frontend, optimizer, **how):
    model = compiled(frontend, optimizer)
    fit(model, **how)
    return model


def assert_equal_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.skipif(not hasattr(keras.optimizers, "Lamb"), reason="this Keras has no Lamb")
def test_the_yaml_trains_to_where_keras_lamb_does():
    """Eight steps: the warmup, the whole cosine, and one beyond. Decay 0 leaves one formula."""
    before = trained("keras", keras.optimizers.Lamb(schedule("keras"), **YAML))
    after = trained("keras", FRONTENDS["keras"][1].LAMB(schedule("keras"), **YAML))
    assert_equal_weights(after, before, rtol=1e-4, atol=1e-6)


@every_frontend
def test_the_rate_is_that_of_the_own_schedule(frontend):
    optimizer = FRONTENDS[frontend][1].LAMB(schedule(frontend), **YAML)
    trained(frontend, optimizer, epochs=1)
    rate = 0.1 * (1 + np.cos(np.pi * 1 / 4)) / 2  # at step 4, a step into the cosine
    assert float(array(optimizer.learning_rate)) == pytest.approx(rate)


@every_frontend
def test_the_value_is_clipped_where_the_norm_is_given_as_none(frontend):
    ours = FRONTENDS[frontend][1]
    ends = [
        trained(frontend, ours.LAMB(0.1, **{**YAML, **own}), epochs=1).get_weights()
        for own in ({}, {"clipnorm": None, "clipvalue": None})
    ]
    differences = [np.abs(a - b).max() for a, b in zip(*ends, strict=True)]
    assert max(differences) > 1e-3


@every_frontend
@pytest.mark.once
def test_two_ways_to_clip_are_refused(frontend):
    with pytest.raises(ValueError, match="clipnorm.*clipvalue"):
        FRONTENDS[frontend][1].LAMB(**{**YAML, "clipnorm": 1.0})


@every_frontend
def test_the_end_of_fit_puts_the_averages_in(frontend):
    """One batch an epoch, whose weights are seen at its end."""
    host, ours = FRONTENDS[frontend]
    model, seen = compiled(frontend, ours.LAMB(schedule(frontend), **YAML)), []

    def see(epoch, logs):
        seen.append(model.get_weights())

    fit(model, 5, 32, callbacks=[host.callbacks.LambdaCallback(on_epoch_end=see)])
    averages = seen[0]
    for weights in seen[1:]:
        averages = [0.5 * a + 0.5 * w for a, w in zip(averages, weights, strict=True)]
    for end, average, raw in zip(model.get_weights(), averages, seen[-1], strict=True):
        np.testing.assert_allclose(end, average, rtol=1e-5, atol=1e-7)
        assert np.abs(end - raw).max() > 1e-4


@every_frontend
def test_validation_sees_the_weights_of_the_step_and_evaluation_the_averages(frontend):
    host, ours = FRONTENDS[frontend]
    model, raw = compiled(frontend, ours.LAMB(schedule(frontend), **YAML)), []

    def see(epoch, logs):
        raw[:] = model.get_weights()

    see_raw = host.callbacks.LambdaCallback(on_epoch_end=see)
    history = fit(model, 2, validation_data=(JETS, KINDS), callbacks=[see_raw])
    averaged = model.evaluate(JETS, KINDS, verbose=0)
    model.set_weights(raw)
    last = history.history["val_loss"][-1]
    assert model.evaluate(JETS, KINDS, verbose=0) == pytest.approx(last, rel=1e-5)
    assert averaged != pytest.approx(last, rel=1e-3)


@every_frontend
def test_a_saved_run_has_its_own_schedule_again(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    model = trained(frontend, ours.LAMB(schedule(frontend), **YAML), epochs=1)
    model.save(tmp_path / "jets.keras")
    loaded = host.models.load_model(tmp_path / "jets.keras")
    config = loaded.optimizer.get_config()
    assert {name: config[name] for name in YAML} == YAML
    fit(model), fit(loaded)
    assert_equal_weights(loaded, model, rtol=0)
