"""The frozen numbers of docs/protocol_language_model.md, their hash, and the points of a search."""

import hashlib
import json
import pathlib

from benchmarks.equivalence.protocol import Settings, between, one_of, short

_FILE = pathlib.Path(__file__).with_name("protocol.json")
FROZEN = json.loads(_FILE.read_text())
HASH = hashlib.sha256(_FILE.read_bytes()).hexdigest()[:12]


def points(optimizer: str) -> list[Settings]:
    """The quasi-random points of a search: the same for all, about each optimizer's own rate."""
    from scipy.stats import qmc

    box = FROZEN["search"]
    sobol = qmc.Sobol(5, seed=box["sobol_seed"])
    rows = sobol.random(box["points"])
    return [_point(box, box["default_rate"][optimizer], *map(float, row)) for row in rows]


def _point(box, default, rate, beta_1, beta_2, warmup, decay):
    low, high = box["decades_of_rate"]
    none = box["no_weight_decay"]
    decayed = between(*box["weight_decay"], max(0.0, decay - none) / (1 - none))
    return Settings(
        rate=short(default * 10 ** (low + (high - low) * rate)),
        beta_1=short(1 - between(*box["one_minus_beta_1"], beta_1)),
        warmup=one_of(box["warmup"], warmup),
        weight_decay=0.0 if decay < none else short(decayed),
        global_clipnorm=box["global_clipnorm"],
        beta_2=one_of(box["beta_2"], beta_2),
    )
