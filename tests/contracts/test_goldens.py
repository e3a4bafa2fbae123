"""Our optimizers against what the peers themselves computed (`tests/goldens`), step by step.

Where a peer follows the published formula, or another that we have an argument for, ten steps agree
to 1e-6. Where it departs from the paper, the difference is asserted, too.
"""

import re

import numpy as np
import pytest
from goldens import load, problem
from support.frontends import FRONTENDS, every_frontend, train, uncompiled

# Its moments are others than those of the gradient that it was given.
SPARSE = "lamb_model_sparse"
# Forms of Adam, or of Nesterov's step, that ours has not; and the first.
APART = ("muon_epsilon", "muon_ratio", "muon_nesterov", SPARSE)
ALL = {
    f"{peer} {name}": (peer, case)
    for peer in load.PEERS
    for table in (load.cases(peer), load.models(peer))
    for name, case in table.items()
}
FOLLOWED = [key for key in ALL if not key.endswith(APART)]


def ours(peer, case):
    """The case in our arguments, as a user would port them."""
    if case["rule"] == "muon":
        return our_muon(peer, case)
    words = {"weight_decay_rate": "weight_decay", "eeta": "trust_coefficient"}
    left_out = ("mask", "weight_decay_mask", "trust_ratio_mask", "classic_momentum")
    given = case["arguments"]
    arguments = {words.get(k, k): v for k, v in given.items() if k not in left_out}
    if peer == "keras":
        arguments |= {
            "epsilon": 1e-7,
            "weight_decay_mode": "decoupled",
            "exclude_from_weight_decay": case["excluded_names"],
            "exclude_from_layer_adaptation": [],
        }
    elif peer == "optax":
        paths = set(case["weights"])
        if given.get("weight_decay"):
            arguments["exclude_from_weight_decay"] = exactly(paths - set(case["decayed"]))
        arguments["exclude_from_layer_adaptation"] = exactly(paths - set(case["adapted"]))
    elif not given.get("exclude_from_layer_adaptation"):
        arguments["exclude_from_layer_adaptation"] = None  # an empty list is none given to them
    if case["rule"] == "lars":
        classic = given.get("classic_momentum", True)
        arguments["form"] = {
            "momentum": "inside" if classic else "outside",
            "denominator": "norm_of_sum" if classic else "norm_of_update",
        }
    return arguments


def our_muon(peer, case):
    given = case["arguments"]
    names = ("learning_rate", "nesterov", "epsilon", "weight_decay")
    arguments = {name: given[name] for name in names if name in given}
    others = set(case["weights"]) - set(case["adapted"])
    arguments["exclude_from_layer_adaptation"] = exactly(others)
    if peer == "optax":
        scale = "rms" if "consistent_rms" in given else "shape"
        return arguments | {"form": {"update_scale": scale}}
    return arguments | {
        "weight_decay": case["config"]["config"]["weight_decay"],
        "form": {"fallback_lr_scale": given.get("adam_lr_ratio", 1.0)},
        "exclude_from_weight_decay": exactly(set(case["weights"]) - set(case["decayed"])),
    }


def exactly(paths):
    return [f"^{re.escape(path)}$" for path in sorted(paths)]


def follow(frontend, case, arguments):
    """Path -> the weights of our optimizer after each step on the case's gradients."""
    host, room = FRONTENDS[frontend]
    arguments = dict(arguments)
    if arguments["learning_rate"] == "schedule":
        rates = problem.SCHEDULE[case["rule"]]
        arguments["learning_rate"] = host.optimizers.schedules.PiecewiseConstantDecay(
            list(range(len(rates) - 1)), rates
        )
    start, gradients = problem.START, problem.GRADIENTS
    if "gradients" in case:
        start, gradients = problem.MODEL_START, case["gradients"]
    family = {"lamb": "LAMB", "lars": "LARS", "muon": "Muon"}[case["rule"]]
    optimizer = getattr(room, family)(**arguments)
    start = {path: start[path] for path in case["weights"]}
    steps = [{path: gradients[path][i] for path in start} for i in range(problem.STEPS)]
    with uncompiled():
        weights = list(train(frontend, optimizer, start, steps))
    return {path: np.stack([each[path] for each in weights]) for path in start}


def distance(case, weights):
    """The largest difference, over the largest weight of the variable."""
    return max(
        np.max(np.abs(weights[path] - theirs)) / np.max(np.abs(theirs))
        for path, theirs in case["weights"].items()
    )


@every_frontend
@pytest.mark.parametrize("key", FOLLOWED)
def test_ten_steps_as_the_peer_made_them(frontend, key):
    peer, case = ALL[key]
    weights = follow(frontend, case, ours(peer, case))
    for path, theirs in case["weights"].items():
        np.testing.assert_allclose(weights[path], theirs, rtol=0, atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    ("key", "papers", "at_least"),
    [
        # Keras decays outside the ratio; its epsilon alone is a tenth of the paper's.
        ("keras lamb_decay_excluded", {"weight_decay_mode": "update"}, 1e-3),
        ("keras lamb_decay_excluded", {"exclude_from_layer_adaptation": None}, 1e-3),
        ("keras lamb_plain", {"epsilon": 1e-6}, 5e-5),
        # Its second moment of an embedding squares the rows before it sums them.
        (f"keras {SPARSE}", {}, 1e-2),
        # The ratio of LARS has the sum of the norms below, not the norm of the sum.
        ("model_garden lars_classic", {"form": None}, 1e-2),
        # An empty list is no list to Addons.
        ("tensorflow_addons lamb_empty_adaptation", {"exclude_from_layer_adaptation": []}, 1e-3),
        # optax adapts what it does not decay.
        ("optax lamb_schedule", {"exclude_from_layer_adaptation": None}, 1e-3),
        # Keras's epsilon stands beside the raw second moment, at its default, too.
        ("keras muon_epsilon", {}, 1e-4),
        # Names that it spares the decay meet the last part of a path alone.
        ("keras muon_decay_excluded", {"exclude_from_weight_decay": problem.EXCLUDED}, 1e-4),
        # It leaves convolutions to Adam; optax does, and orthogonalizes embeddings.
        ("keras muon_plain", {"exclude_from_layer_adaptation": None}, 1e-2),
        ("optax muon_plain", {"form": {"update_scale": "rms"}}, 1e-3),
        # optax corrects the bias of both parts of Nesterov's step, and its Adam is NAdam then.
        ("optax muon_nesterov", {}, 1e-2),
    ],
)
def test_where_a_peer_departs_from_the_paper(key, papers, at_least):
    peer, case = ALL[key]
    weights = follow("keras", case, ours(peer, case) | papers)
    assert distance(case, weights) > at_least
