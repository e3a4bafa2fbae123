"""The tables that the tests of several hosts share."""

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


# Rows of the worked example: arguments at learning rate 0.1, then W and b after steps 1, 2 and 3.
WORKED_LAMB = {
    "A debias, b excluded": (
        {"weight_decay": 0.01, "exclude_from_weight_decay": ["bias"]},
        [
            ([[0.4494273025, -0.2495279206], [0.2502203147, 0.7492763225]],
             [2.580638502e-07, -0.1000001159]),
            ([[0.4024889086, -0.2024935369], [0.2972237602, 0.701758189]],
             [-0.09793375286, -0.0005559061283]),
            ([[0.3588925197, -0.1584283105], [0.3416493493, 0.6567909513]],
             [-0.191117247, 0.09783731802]),
        ],
    ),
    "B no debias": (
        {"weight_decay": 0.01, "exclude_from_weight_decay": ["bias"], "bias_correction": False},
        [
            ([[0.4494778385, -0.2495089746], [0.2504062305, 0.7494294603]],
             [-0.2162019617, 0.1162161722]),
            ([[0.4035379667, -0.2026038866], [0.298004087, 0.7013647804]],
             [-0.549284515, 0.5253881061]),
            ([[0.3640498516, -0.1596367256], [0.3447683096, 0.6538914037]],
             [-0.6149095454, 0.9298052197]),
        ],
    ),
    "D nothing excluded": (
        {"weight_decay": 0.01},
        [
            ([[0.4494273025, -0.2495279206], [0.2502203147, 0.7492763225]],
             [0.08419651876, -0.1841807086]),
            ([[0.402135396, -0.2022678194], [0.2966762651, 0.7017942621]],
             [0.06989262874, -0.1698449281]),
            ([[0.3575324654, -0.1575880206], [0.3394896708, 0.6569291549]],
             [0.05693347993, -0.1568301959]),
        ],
    ),
}  # fmt: skip


def random_problem(seed=0, shape=(4, 3), steps=5):
    """Start weights and a fixed list of gradients, as {"kernel", "bias"}."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": shape, "bias": shape[-1:]}
    start = {k: rng.normal(size=s) for k, s in shapes.items()}
    gradients = [{k: rng.normal(size=s) for k, s in shapes.items()} for _ in range(steps)]
    return start, gradients
