"""Which variables the patterns and methods of a user exclude, and how they are told."""

import numpy as np
import pytest
from support import small_model
from support.frontends import FRONTENDS, every_frontend, new_variable
from support.small_model import functional

pytestmark = pytest.mark.once

PLANS = {
    "bias$": {"dense/bias", "head/bias"},
    "LayerNorm": {"LayerNorm/gamma", "LayerNorm/beta"},
    "layer_norm": {"final_layer_norm/gamma", "final_layer_norm/beta"},
}


@pytest.mark.parametrize("pattern", PLANS)
@every_frontend
@pytest.mark.parametrize("make", ["functional", "subclassed"])
def test_the_same_patterns_exclude_the_same_variables(frontend, make, pattern):
    variables = getattr(small_model, make)(frontend).trainable_variables
    optimizer = FRONTENDS[frontend][1].LAMB(weight_decay=0.1, exclude_from_weight_decay=[pattern])
    optimizer.build(variables)
    excluded = {
        "/".join(path.split("/")[-2:])
        for path, treatment in zip(*plan_of(optimizer), strict=True)
        if not treatment.decay and not treatment.adapt
    }
    assert excluded == PLANS[pattern]


def plan_of(optimizer):
    return optimizer.plan.paths, optimizer.plan.treatments


@every_frontend
def test_the_method_of_keras_excludes_too(frontend):
    model = functional(frontend)
    kernel = model.get_layer("head").kernel
    optimizer = FRONTENDS[frontend][1].LAMB(weight_decay=0.1, exclude_from_weight_decay=["gamma"])
    optimizer.exclude_from_weight_decay(var_list=[kernel], var_names=["bias"])
    optimizer.build(model.trainable_variables)
    undecayed = {path for path, t in zip(*plan_of(optimizer), strict=True) if not t.decay}
    assert undecayed == {
        "encoder/dense/bias", "encoder/LayerNorm/gamma", "final_layer_norm/gamma",
        "head/kernel", "head/bias",
    }  # fmt: skip
    again = type(optimizer).from_config(optimizer.get_config())
    again.build(model.trainable_variables)
    assert again.plan == optimizer.plan
    with pytest.raises(ValueError, match="built already"):
        optimizer.exclude_from_weight_decay(var_names=["beta"])


@every_frontend
def test_the_method_excludes_by_identity(frontend):
    one, other = (new_variable(frontend, np.ones(1)) for _ in range(2))  # both are called alike
    optimizer = FRONTENDS[frontend][1].LAMB(weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[other])
    optimizer.build([one, other])
    assert [t.decay for t in optimizer.plan.treatments] == [0.5, 0.0]
