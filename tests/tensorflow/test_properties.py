"""Properties of any case that hypothesis finds, in both frontends on TensorFlow: the oracle to the
last places, whatever the dtypes, the order of variables and the gradients that are missing.

`benchmarks/fuzz/properties.py` runs the same properties on twenty times as many cases.
"""

import re
import warnings

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support import property_cases as properties
from support.cases import assert_same
from support.frontends import FRONTENDS, every_frontend, new_variable, uncompiled
from support.property_cases import cases
from support.running_error import FLOAT32, FLOAT64

from tf_lamb.core.plan import Treatment
from tf_lamb.tensorflow import namespace

PATHS = (
    "encoder/dense/kernel", "encoder/dense/bias", "encoder/layer_norm/gamma", "head/kernel",
    "head/bias", "scale",
)  # fmt: skip
PATTERNS = (
    "bias", "kernel$", "^encoder/", "(gamma|beta)$", "norm", "^scale$", r"/\w+/", "matches_nothing",
    "",
)  # fmt: skip
DTYPES = ("float32", "float32", "float64", "float16", "bfloat16")
PER_FRONTEND = st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True)


@st.composite
def runs(draw):
    """A model, an optimizer for it, and a few steps of it."""
    family = draw(st.sampled_from(list(properties.RULES)))
    paths = draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True))
    shapes = [draw(properties.SHAPES) for _ in paths]
    # In powers of two that float16 can hold.
    drawn = [
        [draw(properties.values(shape, 2.0**-8, 2.0**8, 16)) for shape in shapes]
        for _ in range(1 + draw(st.integers(1, 2)))
    ]
    lr = draw(st.floats(2.0**-10, 0.5, width=32))
    return {
        "family": family,
        "paths": paths,
        "dtypes": [draw(st.sampled_from(DTYPES)) for _ in paths],
        "start": drawn[0],
        "gradients": drawn[1:],
        "missing": [draw(st.sets(st.sampled_from(paths), max_size=2)) for _ in drawn[1:]],
        "order": draw(st.permutations(range(len(paths)))),
        "before": draw(st.sampled_from([0, 0, 1, 1000, 10**6])),
        "lr": lr,
        "opts": draw(properties.options(family)),
        "arguments": {
            "weight_decay": draw(properties.DECAYS),
            "exclude_from_weight_decay": draw(st.none() | PER_FRONTEND),
            "exclude_from_layer_adaptation": draw(st.none() | PER_FRONTEND),
            "dtypes": {"masters": draw(st.sampled_from([None, "float32"]))},
        },
    }


def treatment_of(path, shape, family, arguments):
    """What the documentation says of a path, read anew."""

    def excluded(patterns):
        return any(re.search(pattern, path) for pattern in patterns or ())

    lists = [arguments[f"exclude_from_{what}"] for what in ("weight_decay", "layer_adaptation")]
    unadapted = lists[0] if lists[1] is None else lists[1]
    axes = None
    if family in ("AdamP", "SGDP") and len(shape) > 1:
        axes = tuple(range(len(shape) - 1))
    decay = 0.0 if excluded(lists[0]) else arguments["weight_decay"]
    return Treatment(decay=decay, adapt=not excluded(unadapted), axes=axes)


def built(frontend, run, jit_compile=False):
    """The optimizer of a run, and its variables by path."""
    variables = {
        path: new_variable(frontend, value, dtype, path)
        for path, value, dtype in zip(run["paths"], run["start"], run["dtypes"], strict=True)
    }
    optimizer = getattr(FRONTENDS[frontend][1], run["family"])(
        run["lr"], **run["opts"], **run["arguments"], jit_compile=jit_compile
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that match nothing
        optimizer.build(list(variables.values()))
    optimizer.iterations.assign(run["before"])
    return optimizer, variables


def arrays_of(optimizer, variables):
    """Path -> weight, slots, and the master if there is one."""
    return {
        path: [np.asarray(v.numpy()) for v in (weight, *slots, master) if v is not None]
        for (path, weight), slots, master in zip(
            variables.items(), optimizer._storage.slots, optimizer._storage.masters, strict=True
        )
    }


def state_of(optimizer, variables):
    """Path -> the arrays from which the next step begins, the master in the place of its weight."""
    count, result = 1 + len(optimizer.rule.slots), {}
    for path, (weight, *arrays) in arrays_of(optimizer, variables).items():
        if len(arrays) == count and optimizer.iterations.numpy() and np.any(arrays[-1]):
            weight = arrays.pop()
        result[path] = [weight, *arrays[: count - 1]]
    return result


def apply(optimizer, variables, gradients, order):
    paths = [list(variables)[i] for i in order]
    native = {p: v.value if isinstance(v, keras.Variable) else v for p, v in variables.items()}
    pairs = [
        (None if gradients[p] is None else tf.cast(gradients[p], native[p].dtype), native[p])
        for p in paths
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the host's, of the missing gradients
        optimizer.apply_gradients(pairs)


def check_step(name, run, optimizer, variables, step):
    """Steps once, and compares every variable with the oracle's step from the same state."""
    family, t = run["family"], int(optimizer.iterations) + 1
    gradients = {
        p: None if p in run["missing"][step] else np.asarray(g)
        for p, g in zip(run["paths"], run["gradients"][step], strict=True)
    }
    if all(g is None for g in gradients.values()):
        return
    before = state_of(optimizer, variables)
    apply(optimizer, variables, gradients, run["order"])
    after = arrays_of(optimizer, variables)
    assert int(optimizer.iterations) == t
    for path, g in gradients.items():
        if g is None:
            kept = after[path][: len(before[path])]
            assert_same(before[path][1:], kept[1:])
            continue
        g = tf.cast(tf.cast(g, variables[path].dtype), tf.float64).numpy()  # as it was given
        g = np.asarray(g)
        compare_with_oracle(name, run, path, g, before[path], after[path], t, family)


def compare_with_oracle(name, run, path, g, before, after, t, family):
    precision = FLOAT64 if after[0].dtype == np.float64 else FLOAT32
    treatment = treatment_of(path, g.shape, family, run["arguments"])
    scalars = {"lr": run["lr"], "t": t, "opts": run["opts"]}
    start = before[0].astype(np.float64)
    state = [start, *before[1:]]
    exact = properties.oracle_of(family, treatment, 1, g, state, scalars)
    bound = properties.tracked(family, treatment, g, state, precision=precision, **scalars)
    properties.well_conditioned(start, exact[0], bound[0], precision.dtype)
    count = len(before)
    got, master = after[:count], after[count:]
    properties.compare(name, got, exact, bound, start)
    for kept in master:
        properties.compare(name, [kept], exact[:1], bound[:1], start)
        np.testing.assert_array_equal(kept.astype(got[0].dtype), got[0])


@every_frontend
@uncompiled()
def test_a_frontend_is_the_oracle_to_the_last_places(frontend):
    @cases(40)
    @given(runs())
    def check(run):
        optimizer, variables = built(frontend, run)
        for step in range(len(run["gradients"])):
            check_step(f"frontend {frontend}", run, optimizer, variables, step)
        properties.held(f"frontend {frontend}")

    check()


@every_frontend
def test_a_compiled_frontend_is_the_oracle_to_the_last_places(frontend, monkeypatch):
    monkeypatch.setattr(namespace, "XLA_MIN_ELEMENTS", 1)  # small layers are not compiled otherwise

    @cases(2)
    @given(runs())
    def check(run):
        optimizer, variables = built(frontend, run, jit_compile=True)
        check_step(f"frontend {frontend}, compiled", run, optimizer, variables, 0)
        properties.held(f"frontend {frontend}, compiled")

    check()


@every_frontend
@uncompiled()
def test_the_order_of_variables_and_those_without_a_gradient_change_nothing(frontend):
    """Bit for bit: the weights of the reversed model, and of one without the others."""

    @cases(10)
    @given(runs(), st.data())
    def check(run, data):
        first = data.draw(st.sampled_from(run["paths"]))
        kept = [run["paths"].index(first)]
        alone = {**run, "missing": [set()] * 2, "order": [0]}
        for key in ("paths", "dtypes", "start"):
            alone[key] = [run[key][i] for i in kept]
        turned = {**run, "missing": [set(run["paths"]) - {first}] * 2}
        turned |= {key: run[key][::-1] for key in ("paths", "dtypes", "start")}
        weights = []
        for each in (alone, turned):
            optimizer, variables = built(frontend, each)
            others = {p: v.numpy() for p, v in variables.items() if p != first}
            for gradients in run["gradients"]:
                given_ = dict.fromkeys(variables) | {first: gradients[kept[0]]}
                apply(optimizer, variables, given_, each["order"])
            for path, value in others.items():
                assert_identical(variables[path].numpy(), value)
            weights.append(state_of(optimizer, variables)[first])
        for one, other in zip(*weights, strict=True):
            assert_identical(one, other)
        properties.held(f"frontend {frontend}, other orders")

    check()


def assert_identical(one, other):
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
