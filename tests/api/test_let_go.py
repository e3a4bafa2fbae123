"""What an optimizer has trained goes with it: nothing of the process holds its variables."""

import gc
import weakref

import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend
from support.small_model import two_layers

from tf_lamb.api.variables import variables_of

MADE = {
    "LAMB": lambda host, ours: ours.LAMB(0.1, use_ema=True, on_spike="skip"),
    "MeasureNoise": lambda host, ours: ours.MeasureNoise(
        ours.LARS(0.1, gradient_accumulation_steps=2)
    ),
    "as in Keras": lambda host, ours: host.optimizers.Adam(),
}


@every_frontend
@pytest.mark.parametrize("name", MADE)
def test_no_variable_outlives_its_model_and_optimizer(frontend, name):
    known = trained(*FRONTENDS[frontend], frontend, name)
    gc.collect()
    assert len(known) > 9
    assert [word for word, each in known if each() is not None] == []


def trained(host, ours, frontend, name):
    """Weak references to what a step of `fit` has used, with words."""
    model = two_layers(frontend)
    model.compile(optimizer=MADE[name](host, ours), loss="mse")
    model.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=4, verbose=0)
    every = [*model.trainable_variables, *variables_of(model.optimizer)]
    held = [*every, *(getattr(v, "_value", v) for v in every), model, model.optimizer]
    return [(str(each), weakref.ref(each)) for each in held]
