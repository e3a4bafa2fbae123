"""The registered language model: its driver end to end at a tiny size, its traced updates."""

import json
import sys
import time

import keras
import numpy as np
import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence.protocol import Settings
from benchmarks.language_model import plan, protocol
from benchmarks.language_model.data import PARTS
from benchmarks.language_model.runs import OutOfTime, Work

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="the runs are JAX's")
TINY = {"tokens": 8, "vocabulary": 32, "layers": 1, "width": 16, "heads": 2, "inner": 32}
SMALL = {
    "model": TINY, "base": 4, "large": 32, "micro": 4, "beyond": [128], "seeds": 2, "looks": 2,
    "data": {"train": 256, "validation": 32, "test": 32},
}  # fmt: skip


@pytest.fixture(scope="module")
def task():
    """A model that learns to count; the protocol is of its size."""
    from benchmarks.language_model.train import Task

    tokens = {part: SMALL["data"][part] * TINY["tokens"] + 1 for part in PARTS}
    parts = {part: np.arange(n, dtype="uint16") % 32 for part, n in tokens.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setitem(protocol.FROZEN, name, value)
        patch.setitem(protocol.FROZEN["search"], "points", 2)
        yield Task(parts, TINY, SMALL["micro"])


@pytest.fixture(scope="module")
def updates(task):
    from benchmarks.language_model.train import Update

    return {name: Update(name, task.model.trainable_variables) for name in ("adamw", "muon")}


def work(path, task, updates, seconds=1000.0):
    own = Work(str(path), task, seconds, {"commit": "abc", "card": "cpu", "program": "test"})
    own.updates = updates
    return own


def test_the_driver_makes_every_run_once_and_goes_on_where_it_stopped(tmp_path, task, updates):
    path = tmp_path / "log.jsonl"
    own = work(path, task, updates)
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
    again = work(path, task, updates, 0.0)  # no time: nothing is missing
    for portion in (plan.base, plan.large, plan.beyond):
        portion(again, 256)
    assert path.read_text() == before


def test_a_run_that_would_not_end_in_time_is_not_begun(tmp_path, task, updates):
    own = work(tmp_path / "log.jsonl", task, updates)
    plan.decided(own, 256)
    own.end = time.monotonic()
    with pytest.raises(OutOfTime, match="s are left, and about"):
        plan.base(own)
    assert not own.lines(arm="tuned adamw")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_update_that_is_told_its_numbers_is_the_optimizer_with_them(task, updates, name):
    import jax

    from benchmarks.equivalence.training import optimizer

    variables, told = task.model.trainable_variables, updates[name]
    own = [0.02, 0.93, 0.999, 0.05]  # rate, beta_1, beta_2, decay
    settings = Settings(own[0], own[1], 0.0, own[3], 1.0, own[2])
    plain = optimizer(name, settings, own[0])
    plain.build(variables)
    step = jax.jit(plain.stateless_apply)
    rng = np.random.default_rng(0)
    states = [task.weights(1), told.slots], [task.weights(1), [v.value for v in plain.variables]]
    for _ in range(3):
        gradients = [rng.normal(size=v.shape).astype("float32") for v in variables]
        new = told.step(*map(jax_copy, states[0]), gradients, *map(np.float32, own))
        states = new, step(states[1][1], gradients, states[1][0])
    for one, other, before in zip(states[0][0], states[1][0], task.weights(1), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        assert np.abs(np.subtract(other, before)).max() > 0.01


def jax_copy(arrays):
    return list(map(keras.ops.array, arrays))


def test_a_loss_in_chunks_and_its_gradient_are_those_of_the_whole_batch(task):
    import jax

    weights = list(map(jax.numpy.asarray, task.weights(3)))
    order = jax.numpy.arange(256)
    rows = [jax.numpy.zeros_like(w) for w in weights]
    summed = task.gradient(weights, rows, order, 8, 16)  # in four micro-batches

    @jax.jit
    @jax.value_and_grad
    def whole(weights, x, y):
        logits = task.model.stateless_call(weights, [], x.astype("int32"))[0].astype("float32")
        own = jax.numpy.take_along_axis(logits, y.astype("int32")[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - own).mean()

    _, wanted = whole(weights, task.x[8:24], task.y[8:24])
    wrong = [np.subtract(one, other) for one, other in zip(summed, wanted, strict=True)]
    # Of bfloat16, which has eight bits.
    assert np.hypot.reduce(list(map(np.linalg.norm, wrong))) < 0.02 * np.hypot.reduce(
        list(map(np.linalg.norm, wanted))
    )
    ((x, y),) = task.held_out["test"]
    losses = [float(whole(weights, x[i : i + 16], y[i : i + 16])[0]) for i in (0, 16)]
    assert task.tell(weights, "test") == pytest.approx(np.mean(losses), rel=1e-5)
