"""How many functions of the package a gradient passes on its way to the rule."""

import os
import pathlib
import sys

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS

import tf_lamb

# Not a part of a path that says tf_lamb: a clone has that name, too, and `.venv` lies in it.
PACKAGE = str(pathlib.Path(tf_lamb.__file__).parent)
MOST = {"keras": 8 if keras.backend.backend() == "jax" else 9, "tf_keras": 9}
HOOKS = {"_backend_apply_gradients", "_internal_apply_gradients"}


def stack_of_rule(frontend):
    """The package's functions from the framework's hook to the rule, in one eager step of LAMB."""
    host, own = FRONTENDS[frontend]
    layer = host.layers.Dense(2)
    layer.build((None, 3))
    optimizer = own.LAMB(0.1)
    optimizer.build(layer.trainable_variables)
    ones = [np.ones(v.shape, "float32") for v in layer.trainable_variables]
    stacks = []

    def trace(frame, event, _):
        if event == "call" and frame.f_code.co_filename.endswith("core/rules/lamb.py"):
            names = []
            while (frame := frame.f_back) and not HOOKS & set(names):
                if frame.f_code.co_filename.startswith(PACKAGE + os.sep):
                    names.append(frame.f_code.co_name)
            stacks.append(names)

    sys.setprofile(trace)
    try:
        optimizer.apply_gradients(zip(ones, layer.trainable_variables, strict=True))
    finally:
        sys.setprofile(None)
    return stacks[0]


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_the_rule_is_near_the_hook(frontend):
    names = stack_of_rule(frontend)
    assert names[-1] in HOOKS
    assert len(names) <= MOST[frontend], names
