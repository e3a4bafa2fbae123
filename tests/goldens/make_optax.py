"""Goldens of optax 0.2.8: lamb, lars and contrib.muon."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import re

import jax.numpy as jnp
import load
import numpy as np
import optax
import optax.contrib
import problem

SLOTS = {"lamb": ("mu", "nu"), "lars": ("trace",), "muon": ("mu", "nu")}
RATE = {rule: {"learning_rate": rate} for rule, rate in problem.LEARNING_RATE.items()}
SCHEDULE = {"learning_rate": "schedule"}
DECAY = {"weight_decay": problem.WEIGHT_DECAY}
TRUST = {"trust_coefficient": problem.TRUST_COEFFICIENT}

# optax excludes by a mask: a tree of booleans, true where decay (or the ratio) applies.
MASK = {path: not re.search("|".join(problem.EXCLUDED), path) for path in problem.START}
# As in make_keras.py.
MUON = {"learning_rate": 2e-3}
# Axes of rows and of columns; what has none, Adam steps. By default every variable of two axes has.
MATRICES = dict.fromkeys(problem.START) | {
    "encoder/conv/kernel": [[0, 1, 2], [3]], "encoder/dense/kernel": [[0], [1]],
}  # fmt: skip
MASK_DECAY, MASK_TRUST = {"weight_decay_mask": MASK}, {"trust_ratio_mask": MASK}

CASES = {
    "lamb_plain": ("lamb", RATE["lamb"]),
    "lamb_decay": ("lamb", RATE["lamb"] | DECAY),
    # optax.lamb spares variables the decay, never the ratio.
    "lamb_schedule": ("lamb", SCHEDULE | DECAY | {"mask": MASK}),
    "lars_plain": ("lars", RATE["lars"] | TRUST),
    "lars_classic": ("lars", SCHEDULE | DECAY | TRUST | MASK_DECAY | MASK_TRUST),
    "lars_classic_nesterov": (
        "lars", SCHEDULE | DECAY | TRUST | MASK_DECAY | MASK_TRUST | {"nesterov": True},
    ),
    "muon_plain": ("muon", MUON | {"nesterov": False}),
    "muon_decay": (
        "muon",
        MUON | DECAY | {"adam_weight_decay": problem.WEIGHT_DECAY, "nesterov": False}
        | {"consistent_rms": 0.2, "muon_weight_dimension_numbers": MATRICES},
    ),
    "muon_nesterov": ("muon", MUON),
}  # fmt: skip


def chosen(arguments, key):
    mask = arguments.get(key, True)
    return [path for path in problem.START if mask is True or mask[path]]


def slot_of(state, slot, path, shape):
    """A slot of a variable; 0 where it has none, as a matrix of muon has no nu."""
    for _, tree in optax.tree.get_all_with_path(state, slot):
        if not isinstance(tree[path], optax.MaskedNode):  # of the other half of muon
            return np.array(tree[path])
    return np.zeros(shape, np.float32)


def run_case(rule, arguments):
    call = dict(arguments)
    if call["learning_rate"] == "schedule":
        rates = jnp.array(problem.SCHEDULE[rule], jnp.float32)
        call["learning_rate"] = lambda count: rates[count]
    if axes := call.get("muon_weight_dimension_numbers"):
        call["muon_weight_dimension_numbers"] = {
            path: optax.contrib.MuonDimensionNumbers(*each) if each else None
            for path, each in axes.items()
        }
    optimizer = (optax.contrib.muon if rule == "muon" else getattr(optax, rule))(**call)
    weights = {path: jnp.array(array) for path, array in problem.START.items()}
    state = optimizer.init(weights)
    record = load.Record()
    for step in range(problem.STEPS):
        gradients = {path: jnp.array(problem.GRADIENTS[path][step]) for path in weights}
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        for path, array in weights.items():
            record.keep(path, array)
            for slot in SLOTS[rule]:
                record.keep(path, slot_of(state, slot, path, array.shape), slot)
    decayed = chosen(arguments, "mask" if rule == "lamb" else "weight_decay_mask")
    adapted = chosen(arguments, "trust_ratio_mask")
    if rule == "muon":
        axes = arguments.get("muon_weight_dimension_numbers")
        adapted = [p for p, w in weights.items() if (axes[p] if axes else w.ndim == 2)]
    return {
        "rule": rule,
        "arguments": arguments,
        "decayed": decayed if "weight_decay" in arguments else [],
        "adapted": adapted,
        "config": None,
        **record.arrays(),
    }


if __name__ == "__main__":
    load.write(
        "optax",
        cases={name: run_case(*case) for name, case in CASES.items()},
        distributions=["optax", "jax", "jaxlib", "numpy"],
    )
