"""A gradient of None in some micro-batches of an update, which takes what the others added up.

Of a layer that is frozen when the update comes it takes nothing, and drops that for good.
"""

import numpy as np
import pytest
from support import clusters
from support.cases import assert_same
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
FROZEN = "frozen"


def run(frontend, micro_batches, steps=None, wrap=None, leave_out=False, rule="LAMB", **arguments):
    """The variables after each call, two of them; a gradient for each, or None, or `FROZEN`."""
    ours, arguments = FRONTENDS[frontend][1], {**ARGUMENTS, **arguments}
    if rule == "LARS":
        del arguments["epsilon"]
    optimizer = getattr(ours, rule)(0.1, gradient_accumulation_steps=steps, **arguments)
    if wrap:
        optimizer = wrapped(frontend, wrap, optimizer)
    start = {"a": 1.0, "b": 2.0}
    variables = [new_variable(frontend, np.full(3, w), path=name) for name, w in start.items()]
    seen = []
    for gradients in micro_batches:
        apply_some(optimizer, gradients, variables, leave_out)
        seen.append([array(v) for v in variables])
    return seen


def wrapped(frontend, wrap, optimizer):
    host, ours = FRONTENDS[frontend]
    if wrap == "LossScaleOptimizer":
        return host.mixed_precision.LossScaleOptimizer(optimizer)
    return getattr(ours, wrap)(optimizer)


def apply_some(optimizer, gradients, variables, leave_out=False, scale=1.0):
    """One micro-batch, as a loop by hand has it: what is frozen is left out."""
    pairs = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if hasattr(variable, "path"):  # in Keras 3, as its layer has it
            variable.trainable = gradient != FROZEN
        if gradient != FROZEN and not (leave_out and gradient is None):
            pairs.append((None if gradient is None else np.full(3, gradient) * scale, variable))
    apply(optimizer, *zip(*pairs, strict=True))


@every_frontend
@pytest.mark.parametrize("arguments", [
    {}, {"global_clipnorm": 0.5}, {"treatments": {".": {"join": True}}}, {"use_ema": True},
    {"on_nonfinite": "propagate"}, {"wrap": "MeasureNoise"}, {"leave_out": True},
    {"wrap": "LossScaleOptimizer"},
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@uncompiled()
def test_what_was_added_up_is_applied_by_its_own_update(frontend, arguments):
    if frontend == "tf_keras" and arguments.get("leave_out"):
        pytest.skip("what is left out there is frozen")
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


@every_frontend
@pytest.mark.parametrize("rule", ["LAMB", "LANS", "LARS"])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@uncompiled()
def test_a_joined_variable_without_any_gradient_stays(frontend, rule):
    """Its layer's trust ratio is that of the others, as without micro-batches."""
    joined = {"treatments": {".": {"join": True}}, "rule": rule}
    steps = [(1.0, 3.0), (2.0, None), (0.5, None), (1.0, 2.0)]
    found = run(frontend, [each for each in steps for _ in range(2)], 2, **joined)
    alone = run(frontend, steps, **joined)
    np.testing.assert_array_equal(found[5][1], found[1][1])
    np.testing.assert_allclose(found[1::2], alone, rtol=1e-6)


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


@every_frontend
@pytest.mark.parametrize("wrap", [None, "MeasureNoise", "LossScaleOptimizer"])
@uncompiled()
def test_what_is_frozen_when_the_update_comes_stays_as_it_was(frontend, wrap):
    """Weight, master, slots and average; what had been added up never comes again."""
    outer, optimizer, variables = accumulating(frontend, wrap)
    for gradients in [(1.0, 3.0), (2.0, 1.0), (1.0, 3.0)]:
        apply_some(outer, gradients, variables)
    before = state_of(optimizer, 1)
    assert all(each.any() for each in before) and len(before) == 5
    apply_some(outer, (2.0, FROZEN), variables)
    assert_same(state_of(optimizer, 1), before)

    frozen_before, other, others = accumulating(frontend, wrap)
    for gradients in [(1.0, 3.0), (2.0, 1.0), (1.0, FROZEN), (2.0, FROZEN)]:
        apply_some(frozen_before, gradients, others)
    for each, those in ((outer, variables), (frozen_before, others)):
        for gradients in [(1.0, 2.0), (1.0, 2.0)]:
            apply_some(each, gradients, those)
    assert_same(state_of(optimizer, 1), state_of(other, 1))
    assert (array(variables[1]) != before[0]).any()


def accumulating(frontend, wrap):
    """An optimizer, itself without what wraps it, and its two variables, with all one may keep."""
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, gradient_accumulation_steps=2, use_ema=True, dtypes={"masters": "float32"}, **ARGUMENTS
    )
    start = {"a": 1.0, "b": 2.0}
    values = ((np.full(3, w), "bfloat16", name) for name, w in start.items())
    variables = [new_variable(frontend, *each) for each in values]
    outer = wrapped(frontend, wrap, optimizer) if wrap else optimizer
    outer.build(variables)
    return outer, optimizer, variables


def state_of(optimizer, index):
    storage = optimizer._storage
    kept = storage.weights[index], storage.masters[index], *optimizer.state_of(index).values()
    return [array(each).astype("float32") for each in kept]
