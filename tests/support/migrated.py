"""What the tests of migrated state share, on every backend: a small model, its steps, its state."""

import numpy as np
from support.frontends import FRONTENDS, apply, array, precision

from tf_lamb.api.variables import unwrapped

SHAPES = [(3, 4), (4,), (4, 2), (2,)]


def model_of(frontend, policy="float32"):
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    with precision(frontend, policy=policy):
        dense = host.layers.Dense
        return host.Sequential([host.Input((3,)), dense(4, name="a"), dense(2, name="b")])


def steps(optimizer, model, first, last):
    for t in range(first, last):
        gradients = [np.random.default_rng(10 * t + i).normal(size=s) for i, s in enumerate(SHAPES)]
        length = 100.0 if t == 13 else 1.0
        apply(optimizer, [length * g for g in gradients], model.trainable_variables)


def kept(optimizer):
    """All state by name, in float64."""
    states = {id(each): each._named_state().by_key() for each in (optimizer, unwrapped(optimizer))}
    return {
        key.split(":", 1)[-1].rpartition("|")[2] + key[:1]: array(variable).astype(float)
        for state in states.values()
        for key, variable in state.items()
    }
