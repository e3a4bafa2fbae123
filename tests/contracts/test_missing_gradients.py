"""A gradient of None in some micro-batches of an update, which takes what the others added up."""

import numpy as np
import pytest
from support import clusters
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    on_tensorflow,
    uncompiled,
)

ARGUMENTS = {"weight_decay": 0.1, "epsilon": 0.1}


def run(frontend, micro_batches, steps=None, wrap=None, leave_out=False, **arguments):
    """The variables after each call, two of them; a gradient for each or None, or left out."""
    ours, arguments = FRONTENDS[frontend][1], {**ARGUMENTS, **arguments}
    optimizer = ours.LAMB(0.1, gradient_accumulation_steps=steps, **arguments)
    if wrap:
        optimizer = getattr(ours, wrap)(optimizer)
    start = {"a": 1.0, "b": 2.0}
    variables = [new_variable(frontend, np.full(3, w), path=name) for name, w in start.items()]
    seen = []
    for gradients in micro_batches:
        pairs = [
            (None if g is None else np.full(3, g), v)
            for g, v in zip(gradients, variables, strict=True)
            if g is not None or not leave_out
        ]
        apply(optimizer, *zip(*pairs, strict=True))
        seen.append([array(v) for v in variables])
    return seen


@every_frontend
@pytest.mark.parametrize("arguments", [
    {}, {"global_clipnorm": 0.5}, {"treatments": {".": {"join": True}}}, {"use_ema": True},
    {"on_nonfinite": "propagate"}, {"wrap": "MeasureNoise"}, {"leave_out": True},
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@uncompiled()
def test_what_was_added_up_is_applied_by_its_own_update(frontend, arguments):
    found = run(frontend, [(1.0, 3.0), (2.0, None), (2.0, None), (1.0, 0.0)], 2, **arguments)
    expected = run(frontend, [(1.0, 3.0), (2.0, 0.0), (2.0, None), (1.0, 0.0)], 2, **arguments)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert (found[1][1] != 2.0).all()


@every_frontend
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@uncompiled()
def test_a_variable_without_any_gradient_stays(frontend):
    """As in one large batch: no decay, no moments."""
    found = run(frontend, [(1.0, None)] * 4, 2)
    one = run(frontend, [(1.0, None)] * 2)
    np.testing.assert_array_equal(found[3][1], 2.0)
    np.testing.assert_allclose(found[3], one[1], rtol=1e-6)


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("wrap", [pytest.param(None, marks=pytest.mark.slow), "MeasureNoise"])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_replicas_and_graphs(frontend, wrap):
    """The same sums in a step that is compiled, of each of two replicas.

    Elements differ: a trust ratio hides the scale of a gradient whose elements are all alike.
    """
    found = [run_on_two_replicas(frontend, wrap, last) for last in (None, 0.0)]
    np.testing.assert_allclose(*found, rtol=1e-6)


def run_on_two_replicas(frontend, wrap, last):
    import tensorflow as tf

    ours, strategy = FRONTENDS[frontend][1], clusters.mirrored(2)
    with strategy.scope():
        optimizer = ours.LAMB(0.1, gradient_accumulation_steps=2, **ARGUMENTS)
        if wrap:
            optimizer = getattr(ours, wrap)(optimizer)
        variables = [new_variable(frontend, np.full(3, w), path=p) for p, w in (("a", 1), ("b", 2))]
        optimizer.build(variables)

    def on_replica(one, other):
        given = [None if g is None else g * np.array([0.01, 0.1, 1.0]) for g in (one, other)]
        apply(optimizer, given, variables)

    step = tf.function(lambda *gradients: strategy.run(on_replica, gradients), autograph=False)
    for gradients in [(1.0, 3.0), (2.0, last)] * 2:
        step(*gradients)
    for variable in variables:
        copies = strategy.experimental_local_results(clusters.native(variable))
        np.testing.assert_array_equal(*map(np.asarray, copies))
    return [array(v) for v in variables]
