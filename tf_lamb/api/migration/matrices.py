"""What is Muon's alone on the way in: which variables are matrices, and arguments of Keras's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tf_lamb.api.migration.peers import SHARED, Peer
from tf_lamb.core.plan import exact

KERAS_MUON = Peer(
    "keras.optimizers.Muon", "Muon", {"momentum": "m", "velocity": "v"},
    (*SHARED, "others_rate", "newton_schulz_steps", "exclude_from_weight_decay"),
    {"update_scale": "rms"},
)  # fmt: skip


def check_same(
    origin: str,
    there: Mapping[str, Mapping[str, Any]],
    here: Mapping[str, Sequence[str]],
    shapes: Mapping[str, tuple],
):
    """Raises where a path is a matrix on one side alone: its momentum is no first moment.

    Args:
        origin: for the error.
        there: path -> slots, of the variables that continue.
        here: path -> our names of the slots that it has with us.
        shapes: path -> shape.
    """
    others = {path for path, slots in there.items() if "v" in slots}
    differ = [path for path in there if (path in others) != ("v" in here[path])]
    if differ:
        patterns = [exact(path) for path in shapes if path in others and len(shapes[path]) > 1]
        ways = [f"To go on as there, pass exclude_from_layer_adaptation={patterns}."]
        if fresh := [path for path in differ if path not in others]:
            ways.append(f"What is a matrix there alone begins at zero with fresh={fresh}.")
        raise ValueError(
            f"{origin} orthogonalizes other variables than this Muon, and their slots mean other "
            f"things then: {', '.join(map(repr, differ))}. {' '.join(ways)} Nothing was changed."
        )


def changes(said: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Argument of Keras's Muon that ours does not have -> its value there, and what is here."""
    here = {"rms_rate": 0.2, "muon_a": 3.4445, "muon_b": -4.7750, "muon_c": 2.0315}
    if "adam_weight_decay" in said:
        # Theirs decays at the whole rate what Adam steps.
        here["adam_weight_decay"] = ours["weight_decay"] * ours["others_rate"]
    there = {name: (said[name] or 0.0, value) for name, value in here.items() if name in said}
    return {name: pair for name, pair in there.items() if not math.isclose(*pair, rel_tol=1e-6)}
