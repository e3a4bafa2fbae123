"""What is compiled: equal to what is not, whole or in part, and once."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases import random_problem
from support.clusters import mirrored
from support.frontends import FRONTENDS, every_frontend

from tf_lamb.tensorflow import namespace

# A side that gradients do not span has no determined basis.
OPTIMIZERS = {"LAMB": {}, "SOAP": {"form": {"one_sided": True}, "precondition_frequency": 3}}
TOLERANCE = {"LAMB": 1e-6, "SOAP": 1e-5}


def final_weights(frontend, gradients, start, around=None, name="LAMB", **arguments):
    """Where steps get to that stand in a function of the user's, as `around` makes of it."""
    variables = {k: tf.Variable(w, dtype=tf.float32, name=k) for k, w in start.items()}
    optimizer = getattr(FRONTENDS[frontend][1], name)(
        0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"], **arguments
    )
    optimizer.build(list(variables.values()))

    def step(gradients):
        optimizer.apply_gradients([(gradients[k], v) for k, v in variables.items()])

    step = around(step) if around else step
    for gradient in gradients:
        step({k: tf.constant(g, tf.float32) for k, g in gradient.items()})
    return {k: v.numpy() for k, v in variables.items()}, optimizer


def assert_close(one, other, tolerance):
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], rtol=tolerance, atol=tolerance)


@pytest.fixture
def all_compiled(monkeypatch):
    """As if every layer were large."""
    monkeypatch.setattr(namespace, "XLA_MIN_ELEMENTS", 1)


@every_frontend
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_eager_and_graph_are_equal(frontend, name, all_compiled):
    start, gradients = random_problem(shape=(64, 32), steps=10)
    own = {"name": name, **OPTIMIZERS[name]}
    compiled, _ = final_weights(frontend, gradients, start, **own)
    for settings in (
        {"jit_compile": False},
        {"around": tf.function},
        {"around": tf.function, "jit_compile": False},
    ):
        other, _ = final_weights(frontend, gradients, start, **own, **settings)
        assert_close(compiled, other, TOLERANCE[name])


@every_frontend
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_can_be_compiled(frontend, name):
    """Inside a user's own `jit_compile=True` function the update is part of their program."""
    start, gradients = random_problem()
    own = {"name": name, **OPTIMIZERS[name]}
    expected, _ = final_weights(frontend, gradients, start, **own)
    whole, _ = final_weights(frontend, gradients, start, tf.function(jit_compile=True), **own)
    assert_close(whole, expected, TOLERANCE[name])


def programs(optimizer):
    return optimizer._update._programs


def is_compiled(optimizer):
    """Whether XLA compiles it, of each program."""
    return [bool(program._jit_compile) for program in programs(optimizer).values()]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@every_frontend
def test_a_second_step_compiles_nothing(frontend, graph, monkeypatch):
    """One program a (shape, dtype, treatment), traced once whatever the number of variables."""
    monkeypatch.setattr(namespace, "STACK_MAX_ELEMENTS", 0)
    start = {f"layer_{i}/{k}": np.ones(s) for i in range(6)
             for k, s in {"kernel": (4, 4), "bias": (4,)}.items()}  # fmt: skip
    _, optimizer = final_weights(frontend, [start] * 3, start, tf.function if graph else None)
    assert len(programs(optimizer)) == 2
    traced = [*programs(optimizer).values(), *optimizer._update._steps.values()]
    assert [f.experimental_get_tracing_count() for f in traced] == [1, 1] + [1] * (not graph)


def groups_of(optimizer):
    """How many layers each program updates."""
    return sorted(layer_count for layer_count, *_ in programs(optimizer))


SIX_LAYERS = {
    f"layer_{i}/{name}": np.random.default_rng(i).normal(size=shape)
    for i in range(6)
    for name, shape in {"kernel": (4, 3), "bias": (3,)}.items()
}


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon", "SOAP"])
def test_small_layers_in_stacks_step_as_one_by_one(frontend, name, monkeypatch):
    gradients = [{k: (i + 1) * w**2 for k, w in SIX_LAYERS.items()} for i in range(3)]
    stacked, optimizer = final_weights(frontend, gradients, SIX_LAYERS, tf.function, name)
    assert max(groups_of(optimizer)) == 6
    monkeypatch.setattr(namespace, "STACK_MAX_ELEMENTS", 0)
    single, _ = final_weights(frontend, gradients, SIX_LAYERS, tf.function, name)
    assert_close(stacked, single, TOLERANCE.get(name, 1e-6))


@every_frontend
def test_a_stack_takes_gradients_of_several_dtypes(frontend):
    start = {f"layer_{i}": np.full((2, 3), i + 1.0) for i in range(3)}

    def steps_to(dtypes):
        variables = [tf.Variable(w, dtype=tf.float32, name=name) for name, w in start.items()]
        optimizer = FRONTENDS[frontend][1].LAMB(0.1)
        optimizer.build(variables)
        gradients = [tf.ones((2, 3), dtype) for dtype in dtypes]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        assert groups_of(optimizer) == [3]
        return dict(zip(start, map(np.asarray, variables), strict=True))

    assert_close(steps_to(["float64", "float32", "float16"]), steps_to(["float32"] * 3), 1e-6)


@every_frontend
def test_layers_that_differ_in_more_than_their_weights_are_in_no_stack(frontend):
    def groups(**arguments):
        _, optimizer = final_weights(frontend, [SIX_LAYERS], SIX_LAYERS, **arguments)
        return groups_of(optimizer)

    assert groups() == [6, 6]
    assert groups(exclude_from_layer_adaptation=["layer_0"]) == [1, 1, 5, 5]
    assert groups(treatments={"layer_1/kernel": {"rate": 0.5}}) == [1, 5, 6]
    assert groups(treatments={"layer_1": {"join": True}}) == [1, 5, 5]
    assert groups(dtypes={"slots": "bfloat16"}) == [1] * 2  # each is rounded with its own noise
    assert groups(jit_compile=False) == [6, 6]
    assert groups(around=tf.function(jit_compile=True)) == [1] * 2


@every_frontend
def test_small_layers_are_not_compiled_but_on_replicas(frontend, monkeypatch):
    """Theirs must be equal to the last bit."""
    start = {"small": np.ones((4, 4)), "large": np.ones((4, 5))}
    monkeypatch.setattr(namespace, "XLA_MIN_ELEMENTS", 20)
    _, optimizer = final_weights(frontend, [start], start)
    assert is_compiled(optimizer) == [False, True]
    _, optimizer = final_weights(frontend, [start], start, name="SOAP")
    assert is_compiled(optimizer) == [False, False]  # its decompositions do not gain by it
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(np.ones(3, "float32"))
        optimizer = FRONTENDS[frontend][1].LAMB()
        optimizer.build([variable])
    strategy.run(lambda: optimizer.apply_gradients([(tf.ones(3), variable)]))
    assert is_compiled(optimizer) == [True]


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 0), (7, 5), (8, 5), (19, 2), (3, 3, 4, 2)])
def test_the_sum_over_tensorflow_is_numpys(shape):
    """It begins with an eighth of the rows, where there are as many."""
    x = np.random.default_rng(1).standard_normal(shape)
    for jit_compile in (False, True):
        total = tf.function(namespace.sum, jit_compile=jit_compile)(tf.constant(x))
        np.testing.assert_allclose(total, np.sum(x), rtol=1e-12, atol=1e-12)
