"""LANS in every frontend: the oracle's numbers, and what does not go with it."""

import numpy as np
import pytest
from oracle import Lans
from support.cases import random_problem
from support.frontends import FRONTENDS, every_frontend, precision, train, uncompiled


@every_frontend
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, {}),
        ({"beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.1}, {"b1": 0.8, "b2": 0.95, "eps": 0.1}),
    ],
)
@uncompiled()
def test_lans_is_the_oracle(frontend, arguments, words, dtype, tolerance):
    start, gradients = random_problem()
    words = {"kernel": {"wd": 0.1, **words}, "bias": {"skip": True, **words}}
    references = {key: Lans(w, lr=0.125, **words[key]) for key, w in start.items()}
    with precision(frontend, dtype):
        optimizer = FRONTENDS[frontend][1].LANS(
            0.125, weight_decay=0.1, exclude_from_weight_decay=["bias"], **arguments
        )
        trained = train(frontend, optimizer, start, gradients, dtype)
        for ours, step in zip(trained, gradients, strict=True):
            for key, reference in references.items():
                expected = reference.step(step[key])
                np.testing.assert_allclose(ours[key], expected, rtol=tolerance, atol=tolerance)


@every_frontend
@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm"])
def test_clipping_a_norm_warns_that_it_has_no_effect(frontend, name):
    LANS = FRONTENDS[frontend][1].LANS
    with pytest.warns(UserWarning, match=f"{name}=1 has no effect on LANS"):
        LANS(**{name: 1.0})
    LANS(clipvalue=1.0)


@every_frontend
def test_what_nobody_was_seen_to_need_is_no_argument(frontend):
    for name in ("weight_decay_mode", "grad_averaging", "normalize_gradients", "bias_correction"):
        with pytest.raises(TypeError, match=f"LANS.* unexpected keyword argument '{name}'"):
            FRONTENDS[frontend][1].LANS(**{name: None})


@every_frontend
def test_its_schedule_is_constant_between_warmup_and_decay(frontend):
    host, ours = FRONTENDS[frontend]
    fall = host.optimizers.schedules.PolynomialDecay(0.5, 5, end_learning_rate=0.0)
    schedule = ours.schedules.Warmup(4, ours.schedules.Stages((3, 5), (0.5, fall)))
    rates = [float(schedule(step)) for step in range(13)]
    expected = [0.125 * i for i in range(4)] + [0.5] * 4 + [0.4, 0.3, 0.2, 0.1, 0.0]
    np.testing.assert_allclose(rates, expected, atol=1e-7)
