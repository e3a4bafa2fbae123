"""LARS, SGDP and AdamP: the rules against the oracle in NumPy, and what their mutants come to."""

import functools
import itertools

import numpy as np
import pytest
from oracle import AdamP, Lars

from tf_lamb.core.rules import adamp, lars, projection, sgdp

_LARS_KEYS = ("wd", "nesterov", "form", "denominator", "damp", "larc", "skip")
LARS_CASES = [
    dict(zip(_LARS_KEYS, values, strict=True))
    for values in itertools.product(
        (0.0, 0.1), (False, True), ("inside", "outside", "mixed"),
        ("sum_of_norms", "norm_of_sum", "norm_of_update"), (0.0, 0.5), (False, True), (False, True),
    )
    if values[3] != "norm_of_update" or values[2] == "outside"
]  # fmt: skip
RATES = (2.0, 1.0, 0.5, 0.25)


def problem(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=(len(RATES), *shape))


def check_lars(case, rule=lars):
    w, gradients = problem((4, 3))
    reference = Lars(w, eta=0.02, eps=1e-3, **case)
    state = (w, np.zeros_like(w))
    for t, (g, lr) in enumerate(zip(gradients, RATES, strict=True), 1):
        state = rule(
            np, g, *state, lr=lr, t=t, decay=case["wd"], adapt=not case["skip"],
            trust_coefficient=0.02, epsilon=1e-3, nesterov=case["nesterov"],
            momentum_form=case["form"], denominator=case["denominator"], dampening=case["damp"],
            clip=case["larc"],
        )  # fmt: skip
        np.testing.assert_allclose(state[0], reference.step(g, lr), rtol=1e-12)


def test_lars_is_the_oracle():
    for case in LARS_CASES:
        check_lars(case)


@pytest.mark.parametrize("adapt", [True, False])
def test_lars_keeps_a_zero_kernel_at_the_plain_rate(adapt):
    zero, g = np.zeros((2, 2)), np.ones((2, 2))
    w, _ = lars(np, g, zero, zero, lr=0.1, t=1, decay=0.0, adapt=adapt)
    np.testing.assert_allclose(w, -0.1)


def test_the_first_step_of_lars_is_no_longer_than_its_bound():
    w, gradients = problem((4, 3))
    new, _ = lars(np, gradients[0], w, 0 * w, lr=2.0, t=1, decay=0.3, adapt=True)
    assert np.linalg.norm(new - w) <= 2.0 * 0.001 * np.linalg.norm(w)


def orthogonal(w, g, view):
    """g without its part along w: in each channel, in the whole, or as it is."""
    if view == "channel":
        axes = tuple(range(w.ndim - 1))
        return g - w * np.sum(w * g, axis=axes) / np.sum(w * w, axis=axes)
    return g - w * np.sum(w * g) / np.sum(w * w) if view == "layer" else g


PROJECTED_CASES = [
    {"shape": shape, "wd": wd, "nesterov": nesterov, "sgd": sgd}
    for shape, wd, nesterov, sgd in itertools.product(
        ((6, 3), (3, 3, 2, 4), (5,), (1, 4)), (0.0, 0.1), (False, True), (False, True)
    )
]


def check_projected(case, rule=None, channel_axes=1):
    w, gradients = problem(case["shape"])
    sgd = case["sgd"]
    rule = rule or {True: sgdp, False: adamp}[sgd]
    damp = {"damp": 0.25} if sgd else {}
    reference = AdamP(w, wd=case["wd"], nesterov=case["nesterov"], sgd=sgd,
                      channel_axes=channel_axes, **damp)  # fmt: skip
    state = (w, *(np.zeros_like(w) for _ in range(1 if sgd else 2)))
    axes = tuple(range(w.ndim - channel_axes)) if w.ndim > 1 else None
    views = ("channel", "none", "layer", "channel")
    for t, (g, view) in enumerate(zip(gradients, views, strict=True), 1):
        g = orthogonal(state[0], g, view) if w.ndim > 1 and channel_axes == 1 else g
        state = rule(
            np, g, *state, lr=0.1, t=t, decay=case["wd"], adapt=True, axes=axes,
            nesterov=case["nesterov"], **({"dampening": 0.25} if sgd else {}),
        )  # fmt: skip
        np.testing.assert_allclose(state[0], reference.step(g, 0.1), rtol=1e-10, atol=1e-12)
    return reference.ratios


@pytest.mark.parametrize("case", PROJECTED_CASES, ids=str)
def test_the_projected_rules_are_the_oracle(case):
    ratios = check_projected(case)
    if case["shape"] == (6, 3):  # each view has had its turn
        assert ratios == [0.1, 1.0, 0.1, 0.1]


@pytest.mark.parametrize("sgd", [True, False])
def test_depthwise_kernels_have_their_channels_on_two_axes(sgd):
    case = {"shape": (3, 3, 2, 2), "wd": 0.1, "nesterov": False, "sgd": sgd}
    check_projected(case, channel_axes=2)


def test_without_a_projection_adamp_is_adamw():
    w, gradients = problem((5,))
    m, v = np.zeros_like(w), np.zeros_like(w)
    state = (w, m, v)
    for t, g in enumerate(gradients, 1):
        state = adamp(np, g, *state, lr=0.1, t=t, decay=0.1, adapt=True)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w * (1 - 0.1 * 0.1) - 0.1 * step
        np.testing.assert_allclose(state[0], w, rtol=1e-12)


def with_arguments(rule, **changes):
    def mutant(*args, **kwargs):
        return rule(*args, **{**kwargs, **{k: f(kwargs.get(k)) for k, f in changes.items()}})

    return mutant


def projecting(rule, **changes):
    """The rule with other numbers in its projection."""
    module = __import__(rule.__module__, fromlist=["project"])

    def mutant(*args, **kwargs):
        original = module.project
        module.project = lambda *a, **k: projection.project(*a, **{**k, **changes})
        try:
            return rule(*args, **kwargs)
        finally:
            module.project = original

    return mutant


LARS_MUTANTS = {
    "not adapted": with_arguments(lars, adapt=lambda _: False),
    "exclusion ignored": with_arguments(lars, adapt=lambda _: True),
    "decay flipped": with_arguments(lars, decay=lambda d: -d),
    "decay ignored": with_arguments(lars, decay=lambda _: 0.0),
    "nesterov dropped": with_arguments(lars, nesterov=lambda _: False),
    "nesterov forced": with_arguments(lars, nesterov=lambda _: True),
    "always inside": with_arguments(
        lars, momentum_form=lambda _: "inside", denominator=lambda _: "sum_of_norms"
    ),
    "always outside": with_arguments(lars, momentum_form=lambda _: "outside"),
    "always mixed": with_arguments(
        lars, momentum_form=lambda _: "mixed", denominator=lambda _: "sum_of_norms"
    ),
    "norm of the sum": with_arguments(lars, denominator=lambda _: "norm_of_sum"),
    "no dampening": with_arguments(lars, dampening=lambda _: 0.0),
    "no clip": with_arguments(lars, clip=lambda _: False),
    "no epsilon": with_arguments(lars, epsilon=lambda _: 0.0),
    "no trust coefficient": with_arguments(lars, trust_coefficient=lambda _: 1.0),
    "no momentum": functools.partial(lars, momentum=0.0),
}
PROJECTED_MUTANTS = {
    f"{rule.__name__} {name}": (rule, mutant)
    for rule in (adamp, sgdp)
    for name, mutant in {
        "never projected": with_arguments(rule, adapt=lambda _: False),
        "decay flipped": with_arguments(rule, decay=lambda d: -d),
        "decay ignored": with_arguments(rule, decay=lambda _: 0.0),
        "decay not shrunk": projecting(rule, wd_ratio=1.0),
        "always projected": projecting(rule, delta=1e9),
        "threshold four times as high": projecting(rule, delta=0.4),
        "nesterov dropped": with_arguments(rule, nesterov=lambda _: False),
        "nesterov forced": with_arguments(rule, nesterov=lambda _: True),
        "channels first": with_arguments(
            rule, axes=lambda axes: axes and tuple(a + 1 for a in axes)
        ),
    }.items()
}
PROJECTED_MUTANTS |= {
    "adamp betas swapped": (adamp, functools.partial(adamp, beta_1=0.999, beta_2=0.9)),
    "adamp t from 2": (adamp, with_arguments(adamp, t=lambda t: t + 1)),
    "sgdp no dampening": (sgdp, with_arguments(sgdp, dampening=lambda _: 0.0)),
    "sgdp no momentum": (sgdp, functools.partial(sgdp, momentum=0.0)),
}


def survives(check, cases):
    """Whether no case notices."""
    for case in cases:
        try:
            check(case)
        except AssertionError:
            return False
    return True


@pytest.mark.parametrize("name", LARS_MUTANTS)
def test_a_mutant_of_lars_dies(name):
    assert not survives(lambda case: check_lars(case, LARS_MUTANTS[name]), LARS_CASES)


@pytest.mark.parametrize("name", PROJECTED_MUTANTS)
def test_a_mutant_of_the_projected_rules_dies(name):
    rule, mutant = PROJECTED_MUTANTS[name]
    cases = [case for case in PROJECTED_CASES if case["sgd"] == (rule is sgdp)]
    assert not survives(lambda case: check_projected(case, mutant), cases)
