"""The registered language model: its driver end to end at a tiny size, its traced updates."""

import json
import sys

import keras
import numpy as np
import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence.protocol import Settings
from benchmarks.language_model import plan, protocol
from benchmarks.language_model.data import PARTS
from benchmarks.language_model.runs import Run, Work

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="the runs are JAX's")
TINY = {"tokens": 8, "vocabulary": 32, "layers": 1, "width": 16, "heads": 2, "inner": 32}
SMALL = {
    "model": TINY, "base": 4, "large": 32, "micro": 4, "beyond": [128], "seeds": 2, "looks": 2,
    "data": {"train": 256, "validation": 32, "test": 32},
}  # fmt: skip


@pytest.fixture
def task(monkeypatch):
    """A model that learns to count; the protocol is of its size."""
    from benchmarks.language_model.train import Task

    for name, value in SMALL.items():
        monkeypatch.setitem(protocol.FROZEN, name, value)
    monkeypatch.setitem(protocol.FROZEN["search"], "points", 2)
    monkeypatch.setattr(plan, "STEPS", (4, 32))
    tokens = {part: SMALL["data"][part] * TINY["tokens"] + 1 for part in PARTS}
    return Task(
        {part: np.arange(n, dtype="uint16") % TINY["vocabulary"] for part, n in tokens.items()},
        TINY,
        SMALL["micro"],
    )


def work(path, task, seconds=1000.0):
    return Work(str(path), task, seconds, {"commit": "abc", "card": "cpu", "program": "test"})


def test_the_driver_makes_every_run_once_and_goes_on_where_it_stopped(tmp_path, task):
    path = tmp_path / "log.jsonl"
    own = work(path, task)
    for portion in (plan.base, plan.large, plan.beyond):
        portion(own, 256)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    runs = [line for line in lines if "arm" in line]
    # 2 points, 2 seeds of each optimizer; 2 fewer; 2 of each arm; growing; 2 by transfer at 128.
    assert len(runs) == 4 + 4 + 2 + 6 + 2 + 4
    assert all(line["updates"][-1] > 0 and line["commit"] == "abc" for line in runs)
    updates = {(line["arm"], line["batch"]): line["updates"][-1] for line in runs}
    assert updates["tuned adamw", 4] == 64 and updates["fewer adamw", 4] == 61
    assert updates["transfer muon", 32] == 8 and updates["transfer muon", 128] == 2
    assert 8 < updates["growing adamw", 32] < 64
    assert {line["examples"] for line in runs} == {256, 244}
    base = next(line for line in runs if line["arm"] == "tuned adamw" and line["seed"])
    assert base["looks"][-1] < base["looks"][0] < np.log(TINY["vocabulary"])
    before = path.read_text()
    again = work(path, task, 0.0)  # no time: nothing is missing
    for portion in (plan.base, plan.large, plan.beyond):
        portion(again, 256)
    assert path.read_text() == before
