"""Switches that make any optimizer from one set of keywords, as R does, and a search over rates.

Who is given an instance sets its rate before it has seen a model, and may give it to a second one.
"""

import inspect

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend

from tf_lamb.core import rules

pytestmark = pytest.mark.usefixtures("quickly_compiled", "uncompiled_fits")

# As R's `optimizer_lamb()` passes them, each by its name; none at its default.
KEYWORDS = {
    "learning_rate": 0.02, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5, "weight_decay": 0.1,
    "clipnorm": None, "clipvalue": None, "global_clipnorm": 1.0, "use_ema": True,
    "ema_momentum": 0.9, "ema_overwrite_frequency": 5, "name": "lamb", "loss_scale_factor": 8.0,
    "gradient_accumulation_steps": 2,
}  # fmt: skip
OF_KERAS_3 = ("loss_scale_factor",)
OF_LAMB = ("beta_1", "beta_2", "epsilon")
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :2] * 2 + 1


def keywords(frontend, leave_out=()):
    """Those that this Keras has."""
    left_out = (*leave_out, *(OF_KERAS_3 if frontend == "tf_keras" else ()))
    return {name: value for name, value in KEYWORDS.items() if name not in left_out}


def model_of(host):
    host.utils.set_random_seed(0)
    return host.Sequential([host.layers.Input((3,)), host.layers.Dense(2)])


def trained(host, optimizer):
    model = model_of(host)
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model


@pytest.mark.once
@pytest.mark.skipif(not hasattr(keras.optimizers, "Lamb"), reason="this Keras has no Lamb")
def test_these_are_all_keywords_of_keras():
    named = inspect.signature(keras.optimizers.Lamb).parameters
    assert {name for name, each in named.items() if each.kind is not each.VAR_KEYWORD} == {
        *KEYWORDS
    }


@every_frontend
@pytest.mark.once
def test_every_keyword_arrives(frontend):
    given = keywords(frontend)
    optimizer = FRONTENDS[frontend][1].LAMB(**given)
    config = optimizer.get_config()
    assert {name: config[name] for name in given} == given
    assert optimizer.name == "lamb"


@every_frontend
def test_with_every_keyword_it_trains(frontend):
    host, ours = FRONTENDS[frontend]
    model = trained(host, ours.LAMB(**keywords(frontend)))
    assert int(array(model.optimizer.iterations)) == 4  # of eight micro-batches
    assert all(np.isfinite(weights).all() for weights in model.get_weights())


@every_frontend
@pytest.mark.parametrize("name", rules.OURS)
@pytest.mark.once
def test_one_set_of_keywords_makes_each_class(frontend, name):
    given = keywords(frontend, leave_out=OF_LAMB)
    # The step of these two has the length of the weights or of none, whatever that of a gradient.
    optimizer = getattr(FRONTENDS[frontend][1], name)(**{**given, "global_clipnorm": None})
    assert {k: optimizer.get_config()[k] for k in given} == {**given, "global_clipnorm": None}


@every_frontend
@pytest.mark.parametrize("name", rules.OURS)
@pytest.mark.once
def test_an_instance_is_one_of_the_hosts(frontend, name):
    optimizer = getattr(FRONTENDS[frontend][1], name)()
    assert isinstance(optimizer, FRONTENDS[frontend][0].optimizers.Optimizer)
    assert FRONTENDS[frontend][0].optimizers.get(optimizer) is optimizer


@every_frontend
def test_a_rate_that_is_set_before_the_build_is_that_of_the_steps(frontend):
    """As one that was given to the class."""
    host, ours = FRONTENDS[frontend]
    instance = ours.LAMB()
    instance.learning_rate = 0.03
    assert instance.get_config()["learning_rate"] == 0.03
    for a, b in zip(
        trained(host, instance).get_weights(), trained(host, ours.LAMB(0.03)).get_weights(),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(a, b)


@every_frontend
def test_an_instance_that_has_trained_a_model_is_refused_by_a_second_one(frontend):
    """With what to do, and that works."""
    host, ours = FRONTENDS[frontend]
    instance = ours.LAMB(0.03)
    trained(host, instance)
    # Keras 3's own sentence on TensorFlow, and ours elsewhere.
    with pytest.raises(ValueError, match="[Mm]ake a new optimizer|recreate a new optimizer"):
        trained(host, instance)
    second = trained(host, ours.LAMB.from_config(instance.get_config()))
    for a, b in zip(
        second.get_weights(), trained(host, ours.LAMB(0.03)).get_weights(), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@every_frontend
@pytest.mark.skipif(BACKEND != "tensorflow", reason="elsewhere Keras sees values alone")
def test_keras_own_refuses_a_second_model_too(frontend):
    host, _ = FRONTENDS[frontend]
    trained(host, instance := host.optimizers.Adam())
    with pytest.raises((ValueError, KeyError), match="Unknown variable|cannot recognize variable"):
        trained(host, instance)


@every_frontend
def test_an_instance_that_a_model_was_only_compiled_with_serves_another(frontend):
    host, ours = FRONTENDS[frontend]
    instance = ours.LAMB(0.03)
    model_of(host).compile(instance, "mse")
    model = trained(host, instance)
    for a, b in zip(model.get_weights(), trained(host, ours.LAMB(0.03)).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
