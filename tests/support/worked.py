"""The worked examples: optimizer, arguments and numbers of each row of worked_examples.txt."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable

import numpy as np
from oracle import Toy

_TEXT = pathlib.Path(__file__).with_name("worked_examples.txt").read_text()

_LAMB = {"weight_decay": 0.01, "exclude_from_weight_decay": ["bias"]}
_LARS = {"weight_decay": 0.1, "trust_coefficient": 0.02, "exclude_from_weight_decay": ["bias"]}

# Row -> the arguments that choose its reading.
ARGUMENTS = {
    "LAMB A": _LAMB,
    "LAMB B": {**_LAMB, "bias_correction": False},
    "LAMB C": {**_LAMB, "bias_correction": False, "exclude_from_layer_adaptation": []},
    "LAMB D": {"weight_decay": 0.01},
    "LAMB E": {**_LAMB, "bounds": {"weight_norm": (0, 0.5)}},
    "LAMB J": {**_LAMB, "exclude_from_layer_adaptation": [], "global_clipnorm": 1.0},
    "LAMB K": {**_LAMB, "global_clipnorm": 1.0},
    "LAMB N": {"weight_decay": 0.01, "weight_decay_mode": "decoupled", "epsilon": 1e-7},
    "LAMB O": {**_LAMB, "bounds": {"trust_ratio": (0.01, 0.3)}},
    "LARS A": _LARS,
    "LARS B": {**_LARS, "form": {"momentum": "outside"}},
    "LARS C": {**_LARS, "nesterov": True},
    "LARS D": {**_LARS, "form": {"denominator": "norm_of_sum"}},
    "LARS E": {**_LARS, "form": {"momentum": "outside", "denominator": "norm_of_update"}},
    "LARS G": {**_LARS, "form": {"momentum": "mixed", "clip": True}},
    "AdamP nest=0": {"weight_decay": 0.1},
    "AdamP nest=1": {"weight_decay": 0.1, "nesterov": True},
    "SGDP": {"weight_decay": 0.1},
}  # fmt: skip


def channel_gradients():
    """Gradients that are orthogonal to W: in each channel, in neither view, in the whole alone."""
    steps = iter([
        lambda w: [[-4.0, 2.0], [3.0, 1.0]],
        lambda w: [[1.0, 0.5], [0.2, -0.3]],
        lambda w: [[1.0, 0.0], [0.0, -w[0, 0] / w[1, 1]]],
    ])  # fmt: skip
    return lambda weights: {"kernel": np.array(next(steps)(weights["kernel"]))}


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: what to build, where to start, and the weights after each of three steps."""

    optimizer: str
    arguments: dict
    rates: tuple[float, ...]
    start: dict
    gradients: Callable
    expected: list[dict]


def row(name):
    optimizer, steps = name.split()[0], []
    for line in (line for line in _TEXT.splitlines() if line.startswith(name + " ")):
        keys = {"W": "kernel", "p": "kernel", "b": "bias"}
        found = re.findall(r"(?<!\S)(W|p|b)=(\[.*?\])(?=\s\s|$)", line)
        steps.append({keys[key]: np.array(json.loads(value)) for key, value in found})
    assert len(steps) == 3, name
    toy = optimizer in ("LAMB", "LARS")
    start = Toy.start if toy else {"kernel": np.array([[3.0, 1.0], [4.0, -2.0]])}
    rates = (1.0, 0.5, 0.25) if optimizer == "LARS" else (0.1,) * 3
    gradients = Toy.gradients if toy else channel_gradients()
    return Row(optimizer, ARGUMENTS[name], rates, start, gradients, steps)
