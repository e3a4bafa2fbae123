"""What the tests of several hosts share: tables, drawn problems, and a comparison."""

import itertools

import numpy as np

# Every combination of decay, exclusions and bias correction.
LAMB_CASES = [
    {
        "weight_decay": weight_decay,
        "exclude_from_weight_decay": undecayed,
        "exclude_from_layer_adaptation": unadapted,
        "bias_correction": bias_correction,
    }
    for weight_decay, undecayed, unadapted, bias_correction in itertools.product(
        (0.0, 0.1), (None, ["bias"]), (None, [], ["kernel"]), (True, False)
    )
]


def case_id(case):
    return " ".join(f"{value}" for value in case.values())


def oracle_arguments(case):
    """A case in the oracle's words."""
    undecayed = {k for k in ("kernel", "bias") if k in (case["exclude_from_weight_decay"] or [])}
    unadapted = case["exclude_from_layer_adaptation"]
    return {
        "wd": case["weight_decay"],
        "undecayed": undecayed,
        "unadapted": undecayed if unadapted is None else set(unadapted),
        "debias": case["bias_correction"],
    }


def random_problem(seed=0, shape=(4, 3), steps=5):
    """Start weights and a fixed list of gradients, as {"kernel", "bias"}."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": shape, "bias": shape[-1:]}
    start = {k: rng.normal(size=s) for k, s in shapes.items()}
    gradients = [{k: rng.normal(size=s) for k, s in shapes.items()} for _ in range(steps)]
    return start, gradients


def random_steps(shape, steps=4, seed=0):
    """One weight and a gradient a step."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=(steps, *shape))


def assert_same(found, expected, tolerance=0.0):
    """One array after the other: to the last bit, or within a relative and absolute tolerance."""
    for one, other in zip(found, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(one, other)
