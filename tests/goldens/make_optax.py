"""Goldens of optax 0.2.8 lamb and lars.

Environment:

    python3.11 -m venv .build/goldens/optax
    .build/goldens/optax/bin/pip install -r tests/goldens/optax.txt

Run:

    .build/goldens/optax/bin/python tests/goldens/make_optax.py [FOLDER]
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import re

import jax.numpy as jnp
import load
import numpy as np
import optax
import problem

SLOTS = {"lamb": ("mu", "nu"), "lars": ("trace",)}
RATE = {rule: {"learning_rate": rate} for rule, rate in problem.LEARNING_RATE.items()}
SCHEDULE = {"learning_rate": "schedule"}
DECAY = {"weight_decay": problem.WEIGHT_DECAY}
TRUST = {"trust_coefficient": problem.TRUST_COEFFICIENT}

# optax excludes by a mask: a tree of booleans, true where decay (or the ratio) applies.
MASK = {path: not re.search("|".join(problem.EXCLUDED), path) for path in problem.START}
MASK_DECAY, MASK_TRUST = {"weight_decay_mask": MASK}, {"trust_ratio_mask": MASK}

CASES = {
    "lamb_plain": ("lamb", RATE["lamb"]),
    "lamb_decay": ("lamb", RATE["lamb"] | DECAY),
    # optax.lamb spares variables the decay, never the ratio.
    "lamb_schedule": ("lamb", SCHEDULE | DECAY | {"mask": MASK}),
    "lars_plain": ("lars", RATE["lars"] | TRUST),
    "lars_classic": ("lars", SCHEDULE | DECAY | TRUST | MASK_DECAY | MASK_TRUST),
    "lars_classic_nesterov": (
        "lars",
        SCHEDULE | DECAY | TRUST | MASK_DECAY | MASK_TRUST | {"nesterov": True},
    ),
}


def chosen(arguments, key):
    mask = arguments.get(key, True)
    return [path for path in problem.START if mask is True or mask[path]]


def run_case(rule, arguments):
    call = dict(arguments)
    if call["learning_rate"] == "schedule":
        rates = jnp.array(problem.SCHEDULE[rule], jnp.float32)
        call["learning_rate"] = lambda count: rates[count]
    optimizer = getattr(optax, rule)(**call)
    weights = {path: jnp.array(array) for path, array in problem.START.items()}
    state = optimizer.init(weights)
    kept = {path: [] for path in weights}
    slots = {slot: {path: [] for path in weights} for slot in SLOTS[rule]}
    for step in range(problem.STEPS):
        gradients = {path: jnp.array(problem.GRADIENTS[path][step]) for path in weights}
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        for path, array in weights.items():
            kept[path].append(np.array(array))
            for slot, table in slots.items():
                table[path].append(np.array(optax.tree.get(state, slot)[path]))
    decayed = chosen(arguments, "mask" if rule == "lamb" else "weight_decay_mask")
    return {
        "rule": rule,
        "arguments": arguments,
        "decayed": decayed if "weight_decay" in arguments else [],
        "adapted": chosen(arguments, "trust_ratio_mask"),
        "config": None,
        "weights": {path: np.stack(values) for path, values in kept.items()},
        "slots": {
            slot: {path: np.stack(values) for path, values in table.items()}
            for slot, table in slots.items()
        },
    }


def main():
    load.write(
        "optax",
        load.output_folder(),
        cases={name: run_case(*case) for name, case in CASES.items()},
        models={},
        distributions=["optax", "jax", "jaxlib", "numpy"],
    )


if __name__ == "__main__":
    main()
