"""LARS against the oracle, in NumPy, in every form that goes by its name."""

import itertools

import numpy as np
import pytest
from oracle import Lars
from support.cases import random_steps

from tf_lamb.core.rules import lars
from tf_lamb.core.rules.lars import LARSForm

_KEYS = ("wd", "nesterov", "form", "denominator", "larc", "skip")
CASES = [
    dict(zip(_KEYS, values, strict=True))
    for values in itertools.product(
        (0.0, 0.1), (False, True), ("inside", "outside", "mixed"),
        ("sum_of_norms", "norm_of_sum", "norm_of_update"), (False, True), (False, True),
    )
    if values[3] != "norm_of_update" or values[2] == "outside"
]  # fmt: skip
RATES = (2.0, 1.0, 0.5, 0.25)


def test_lars_is_the_oracle():
    w, gradients = random_steps((4, 3))
    for case in CASES:
        reference = Lars(w, eta=0.02, eps=1e-3, **case)
        state = (w, np.zeros_like(w))
        for t, (g, lr) in enumerate(zip(gradients, RATES, strict=True), 1):
            state = lars(
                np, g, *state, lr=lr, t=t, decay=case["wd"], adapt=not case["skip"],
                trust_coefficient=0.02, epsilon=1e-3, nesterov=case["nesterov"],
                form=LARSForm(case["form"], case["denominator"], case["larc"]),
            )  # fmt: skip
            expected = reference.step(g, lr)
            np.testing.assert_allclose(state[0], expected, rtol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("adapt", [True, False])
def test_lars_keeps_a_zero_kernel_at_the_plain_rate(adapt):
    zero, g = np.zeros((2, 2)), np.ones((2, 2))
    w, _ = lars(np, g, zero, zero, lr=0.1, t=1, decay=0.0, adapt=adapt)
    np.testing.assert_allclose(w, -0.1)
