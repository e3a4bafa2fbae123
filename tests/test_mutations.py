"""The suite kills mutants: each slip below must make the oracle's test fail."""

import functools

import numpy as np
import pytest
import test_rules
from support.cases import LAMB_CASES

from tf_lamb.core.rules import lamb as lamb_module
from tf_lamb.core.rules.lamb import lamb


def with_norms(**replacements):
    """LAMB with some of the functions that it calls replaced."""

    def mutant(*args, **kwargs):
        module = __import__("tf_lamb.core.rules.lamb", fromlist=["lamb"])
        kept = {name: getattr(module, name) for name in replacements}
        try:
            for name, function in replacements.items():
                setattr(module, name, function)
            return lamb(*args, **kwargs)
        finally:
            for name, function in kept.items():
                setattr(module, name, function)

    return mutant


def inverted(xp, w, u, adapt, **_):
    return np.linalg.norm(u) / np.linalg.norm(w) if adapt else 1.0


def changed(**changes):
    """LAMB with some of its arguments passed through a function."""

    def mutant(*args, **kwargs):
        for name, change in changes.items():
            kwargs[name] = change(kwargs.get(name))
        return lamb(*args, **kwargs)

    return mutant


def decay_outside_the_ratio(xp, g, w, m, v, *, lr, decay, **rest):
    new, m, v = lamb(xp, g, w, m, v, lr=lr, decay=0.0, **rest)
    return new - lr * decay * w, m, v


def decay_in_the_gradient(xp, g, w, m, v, *, decay, **rest):
    return lamb(xp, g + decay * w, w, m, v, decay=0.0, **rest)


def moments_swapped(xp, g, w, m, v, **rest):
    w, m, v = lamb(xp, g, w, m, v, **rest)
    return w, v, m


MUTANTS = {
    "no ratio": with_norms(trust_ratio=lambda xp, w, u, **_: 1.0),
    "ratio inverted": with_norms(trust_ratio=inverted),
    "ratio of the sums": with_norms(
        trust_ratio=lambda xp, w, u, adapt, **_: np.abs(w).sum() / np.abs(u).sum() if adapt else 1.0
    ),
    "decay flipped": changed(decay=lambda d: -d),
    "decay ignored": changed(decay=lambda d: 0.0),
    "decay outside the ratio": decay_outside_the_ratio,
    "decay in the gradient": decay_in_the_gradient,
    "bias correction dropped": changed(bias_correction=lambda b: False),
    "bias correction forced": changed(bias_correction=lambda b: True),
    "beta_1 and beta_2 swapped": functools.partial(lamb, beta_1=0.999, beta_2=0.9),
    "epsilon too large": functools.partial(lamb, epsilon=1e-3),
    "t counts from 0": changed(t=lambda t: t - 1),
    "t counts from 2": changed(t=lambda t: t + 1),
    "exclusion from adaptation ignored": changed(adapt=lambda a: True),
    "nothing is adapted": changed(adapt=lambda a: False),
    "moments swapped": moments_swapped,
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_mutant_dies(name, monkeypatch):
    monkeypatch.setattr(test_rules, "run", functools.partial(test_rules.run, rule=MUTANTS[name]))
    survived = []
    for case in LAMB_CASES:
        try:
            test_rules.test_lamb_is_the_oracle(case)
            survived.append(case)
        except AssertionError:
            pass
    assert len(survived) < len(LAMB_CASES), f"no test noticed: {name}"


def test_the_original_lives():
    assert lamb_module is not None
    for case in LAMB_CASES:
        test_rules.test_lamb_is_the_oracle(case)
