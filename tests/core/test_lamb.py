"""LAMB against the oracle, in NumPy, and what its box promises: ratio, length, bias."""

import numpy as np
import pytest
from oracle import Lamb
from support.cases import LAMB_CASES, case_id, oracle_arguments, random_problem

from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import lamb
from tf_lamb.core.rules.shared import bias_divisor, trust_ratio


def run(start, gradients, case, lr=0.1):
    """Steps of the rule itself, of the treatments that the plan makes of a case."""
    case = {"exclude_from_weight_decay": None, "exclude_from_layer_adaptation": None, **case}
    plan = plan_for(
        list(start), [w.shape for w in start.values()],
        weight_decay=case["weight_decay"],
        exclude_from_weight_decay=case["exclude_from_weight_decay"],
        exclude_from_layer_adaptation=case["exclude_from_layer_adaptation"],
    )  # fmt: skip
    state = {k: (w, np.zeros_like(w), np.zeros_like(w)) for k, w in start.items()}
    trajectory = []
    for t, step in enumerate(gradients, 1):
        state = {
            k: lamb(np, step[k], *state[k], lr=lr, t=t, decay=d.decay, adapt=d.adapt,
                    bias_correction=case.get("bias_correction", True))
            for k, d in zip(start, plan.treatments, strict=True)
        }  # fmt: skip
        trajectory.append({k: s[0] for k, s in state.items()})
    return trajectory


@pytest.mark.parametrize("case", LAMB_CASES, ids=case_id)
def test_lamb_is_the_oracle(case):
    start, gradients = random_problem()
    reference = Lamb(start, lr=0.1, **oracle_arguments(case))
    for ours, step in zip(run(start, gradients, case), gradients, strict=True):
        expected = reference.step(step)
        for key in start:
            np.testing.assert_allclose(ours[key], expected[key], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("w", "u", "ratio"),
    [([3.0, 4.0], [0.0, 2.0], 2.5), ([0.0, 0.0], [1.0, 1.0], 1.0), ([1.0], [0.0], 1.0),
     ([0.0], [0.0], 1.0)],
)  # fmt: skip
def test_the_trust_ratio_is_one_where_a_norm_is_zero(w, u, ratio):
    with np.errstate(all="raise"):
        assert trust_ratio(np, np.array(w), np.array(u), adapt=True) == ratio


def test_an_adapted_step_has_the_length_lr_times_the_weight_norm():
    start, gradients = random_problem()
    after = run(start, gradients[:1], {"weight_decay": 0.3}, lr=0.02)[0]
    for key, w in start.items():
        assert np.linalg.norm(after[key] - w) == pytest.approx(0.02 * np.linalg.norm(w))


@pytest.mark.parametrize("beta", [0.9, 0.999, 0.99999])
@pytest.mark.parametrize("t", [1, 2, 1000])
def test_debias_keeps_its_digits_in_float32(beta, t):
    exact = 1 - beta ** np.float64(t)
    assert bias_divisor(np, beta, np.float32(t)) == pytest.approx(exact, rel=3e-7)
