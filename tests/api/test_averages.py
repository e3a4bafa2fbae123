"""`use_ema` at its ends: averages that nobody has made, and those that become the weights."""

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend, new_variable, precision
from support.own_arrays import assert_own_arrays
from support.small_model import data, go_on, two_layers


def weights_of(model):
    return [array(v) for v in model.trainable_variables]


def assert_same(found, expected, tolerance=0.0):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def compiled(frontend, **arguments):
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = two_layers(frontend)
    optimizer = ours.LAMB(0.1, use_ema=True, ema_momentum=0.5, **arguments)
    model.compile(optimizer=optimizer, loss="mse")
    return model


@every_frontend
def test_without_an_update_the_weights_stay(frontend):
    """In a fit that is too short for one, of weights that came after the build."""
    model = compiled(frontend, gradient_accumulation_steps=8)
    model.optimizer.build(model.trainable_variables)
    model.set_weights([w + 1 for w in model.get_weights()])
    before = weights_of(model)
    model.fit(*data(), batch_size=16, verbose=0)
    assert_same(weights_of(model), before)


@every_frontend
def test_a_second_fit_begins_with_the_averages(frontend):
    """As a new model does that is given all of the first one's numbers."""
    model = compiled(frontend)
    go_on(model)
    assert_own_arrays(model)
    other = compiled(frontend)
    other.optimizer.build(other.trainable_variables)
    pairs = [*zip(model.trainable_variables, other.trainable_variables, strict=True)]
    pairs += zip(model.optimizer.variables, other.optimizer.variables, strict=True)
    for own, its in pairs:
        its.assign(array(own))
    losses = [go_on(each, epochs=2) for each in (model, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_same(weights_of(model), weights_of(other), 1e-6)
    assert_same(weights_of(model), averages_of(model), 1e-6)


def averages_of(model, of=4):
    """Of its first variables."""
    states = map(model.optimizer.state_of, range(of))
    return [array(each["average"]) for each in states]


def test_swap_ema_weights_over_a_fit():
    """Of 8 micro-batches an update: the first epoch, of 4, has none."""
    model = compiled("keras", gradient_accumulation_steps=8)
    x, y = data()
    before = model.evaluate(x, y, verbose=0)
    history = model.fit(
        x, y, batch_size=16, epochs=4, shuffle=False, verbose=0, validation_data=(x, y),
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    ).history["val_loss"]  # fmt: skip
    plain = compiled("keras", gradient_accumulation_steps=8)
    go_on(plain, epochs=4)
    assert history[0] == pytest.approx(before, rel=1e-5)
    assert history[1] != pytest.approx(before, rel=1e-2)
    assert_same(weights_of(model), weights_of(plain), 1e-5)
    assert_own_arrays(model)
    go_on(model)


def test_swap_ema_weights_of_bfloat16_weights_is_refused():
    """It would round float32 averages at every swap."""
    with precision("keras", policy="bfloat16"):
        model = compiled("keras")
    x, y = data()
    swap = keras.callbacks.SwapEMAWeights()
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        model.fit(x, y, validation_data=(x, y), verbose=0, callbacks=[swap])


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="Keras trains all of the build there")
@every_frontend
def test_a_frozen_layer_has_an_average_from_the_first_update_on(frontend):
    """Of its weights, with which it goes on when it trains again; a file held no averages."""
    model = compiled(frontend)
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    plain, store = FRONTENDS[frontend][1].LAMB(0.1), {}
    plain.build(model.trainable_variables)
    plain.save_own_variables(store)
    optimizer.load_own_variables(store)
    model.set_weights([w + 1 for w in model.get_weights()])

    model.layers[0].trainable = False
    model.compile(optimizer=optimizer, loss="mse")
    before = [array(v) for v in model.layers[0].variables]
    go_on(model, epochs=2)
    assert_same(averages_of(model, of=2), before)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_variable_without_a_gradient_is_averaged_as_in_keras():
    """And overwritten by its average, in the step that it has no gradient in."""
    own = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3}
    ours = FRONTENDS["keras"][1].LARS(0.1, momentum=0.0, exclude_from_layer_adaptation=["."], **own)
    trained = []
    for optimizer in (ours, keras.optimizers.SGD(0.1, **own)):
        variables = [new_variable("keras", np.full(3, w), path=p) for p, w in (("a", 1), ("b", 2))]
        optimizer.build(variables)
        ones, threes = keras.ops.ones((3,)), keras.ops.full((3,), 3.0)
        for given in ([ones, threes], [ones, threes], [ones, None]):
            optimizer.apply(given, variables)
        trained.append(list(map(array, variables)))
    assert_same(*trained, 1e-6)
