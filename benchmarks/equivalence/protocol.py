"""The frozen numbers of docs/protocol.md, their hash, and the points of a search."""

import dataclasses
import hashlib
import json
import math
import pathlib

_FILE = pathlib.Path(__file__).with_name("protocol.json")
FROZEN = json.loads(_FILE.read_text())
HASH = hashlib.sha256(_FILE.read_bytes()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is tuned at the base batch; warmup is a share of the run."""

    rate: float
    beta_1: float
    warmup: float
    weight_decay: float
    global_clipnorm: float | None
    beta_2: float = FROZEN["search"]["beta_2"]


def points() -> list[Settings]:
    """The quasi-random points of every search, the same for all optimizers."""
    from scipy.stats import qmc

    box = FROZEN["search"]
    sobol = qmc.Sobol(5, seed=box["sobol_seed"])
    return [_point(box, *map(float, row)) for row in sobol.random(box["points"])]


def _point(box, rate, beta, warmup, decay, clip):
    low, high = box["log10_rate"]
    none = box["no_weight_decay"]
    decayed = between(*box["weight_decay"], (decay - none) / (1 - none))
    return Settings(
        rate=short(10 ** (low + (high - low) * rate)),
        beta_1=short(1 - between(*box["one_minus_beta_1"], beta)),
        warmup=one_of(box["warmup"], warmup),
        weight_decay=0.0 if decay < none else short(decayed),
        global_clipnorm=one_of(box["global_clipnorm"], clip),
    )


def between(low, high, share):
    """So far from low to high, on a logarithmic scale."""
    return low * (high / low) ** share


def one_of(choices, share):
    return choices[math.floor(share * len(choices))]


def short(number):
    return float(f"{number:.4g}")
