"""What a step takes together, uncompiled: micro-batches, and variables of one shape."""

import numpy as np
from oracle import Lamb
from support.cases import random_problem
from support.frontends import FRONTENDS, every_frontend, train, uncompiled


@every_frontend
@uncompiled()
def test_micro_batches_count_by_their_mean(frontend):
    start, gradients = random_problem(steps=6)
    reference = Lamb(start, lr=0.1, wd=0.1, eps=1.0)  # so large that it sees how long they are
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, weight_decay=0.1, epsilon=1.0, gradient_accumulation_steps=2
    )
    *_, last = train(frontend, optimizer, start, gradients)
    for one, other in zip(gradients[::2], gradients[1::2], strict=True):
        expected = reference.step({key: (one[key] + other[key]) / 2 for key in start})
    for key in start:
        np.testing.assert_allclose(last[key], expected[key], rtol=1e-6, atol=1e-6)


@every_frontend
@uncompiled()
def test_variables_of_one_shape_keep_their_own_treatment(frontend):
    start, gradients = random_problem(shape=(3,), steps=2)
    reference = Lamb(start, lr=0.1, wd=0.1, undecayed=["bias"], unadapted=["bias"])
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"]
    )
    for ours, step in zip(train(frontend, optimizer, start, gradients), gradients, strict=True):
        expected = reference.step(step)
        for key in start:
            np.testing.assert_allclose(ours[key], expected[key], rtol=1e-6, atol=1e-6)
