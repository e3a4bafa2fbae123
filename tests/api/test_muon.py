"""Muon behind every door: the oracle's numbers, its slots, and what cannot be meant."""

import numpy as np
import pytest
from oracle import Muon
from support.cases import random_steps
from support.doors import DOORS, every_door, new_variable, precision, train, uncompiled

SHAPES = {"conv/kernel": (2, 2, 3, 4), "dense/kernel": (4, 6), "dense/bias": (6,),
          "logits/kernel": (6, 3)}  # fmt: skip


@every_door
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-9)])
@pytest.mark.parametrize("others", ["adamw", "lamb"])
@uncompiled()
def test_muon_is_the_oracle(door, others, dtype, tolerance):
    problems = {path: random_steps(shape, seed=i) for i, (path, shape) in enumerate(SHAPES.items())}
    start = {path: w for path, (w, _) in problems.items()}
    gradients = [{path: g[t] for path, (_, g) in problems.items()} for t in range(4)]
    references = {
        path: Muon(w, lr=0.125, wd=0.1, matrix="conv" in path or path == "dense/kernel",
                   others=others, rate=0.5)
        for path, w in start.items()
    }  # fmt: skip
    with precision(door, dtype):
        optimizer = DOORS[door][1].Muon(
            0.125, weight_decay=0.1, others=others, others_rate=0.5,
            exclude_from_layer_adaptation=["logits"],
        )  # fmt: skip
        for ours, step in zip(
            train(door, optimizer, start, gradients, dtype), gradients, strict=True
        ):
            for path, reference in references.items():
                expected = reference.step(step[path])
                np.testing.assert_allclose(ours[path], expected, rtol=tolerance, atol=tolerance)
    assert [len(slots) for slots in optimizer._slots] == [1, 1, 2, 2]


@every_door
def test_a_plan_without_a_matrix_is_refused(door):
    bias = new_variable(door, np.ones(3), path="dense/bias")
    with pytest.raises(ValueError, match="would orthogonalize nothing: none of its 1 variables"):
        DOORS[door][1].Muon().build([bias])


@every_door
@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"newton_schulz_steps": 0}, "newton_schulz_steps"), ({"update_scale": 2}, "update_scale"),
     ({"others": "sgd"}, "'adamw'"), ({"others_rate": -1.0}, "others_rate")],
)  # fmt: skip
def test_what_it_cannot_take_is_refused(door, arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        DOORS[door][1].Muon(**arguments)


@every_door
@pytest.mark.parametrize("name", ["LANS", "Muon"])
def test_adascale_does_not_stand_around_what_forgets_a_length(door, name):
    ours = DOORS[door][1]
    with pytest.raises(ValueError, match=f"but LANS and Muon, not {name}"):
        ours.AdaScale(getattr(ours, name)(gradient_accumulation_steps=2), scale=2)
