"""Properties of any case that hypothesis finds: the oracle to the last places, and invariants.

`benchmarks/properties.py` runs the same properties on twenty times as many cases.
"""

import contextlib
import json
import re
import warnings

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from oracle import LENGTHS
from support import property_cases as properties
from support.property_cases import cases
from support.running_error import FLOAT32, FLOAT64

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.core.plan import Treatment, plan_for


@st.composite
def rule_cases(draw, family):
    shape = draw(properties.SHAPES)
    treatment, channel_axes = draw(properties.treatments(family, shape))
    opts = draw(properties.options(family))
    w, g, earlier = (draw(properties.values(shape)) for _ in range(3))
    state = [w, *properties.history(family, earlier, opts)]
    lr, t = np.float32(draw(properties.RATES)), draw(properties.STEPS)
    return treatment, channel_axes, g, state, {"lr": lr, "t": t, "opts": opts}


def oracle_of(family, treatment, channel_axes, g, state, scalars):
    result = [np.zeros(treatment.view or array.shape) for array in state]
    for (g_, *state_), index in properties.sliced(treatment, [g, *state]):
        new = properties.expected(
            family, g_, state_, decay=treatment.decay, adapt=treatment.adapt,
            channel_axes=channel_axes, **scalars,
        )  # fmt: skip
        for whole, part in zip(result, new, strict=True):
            whole[index] = part
    return [whole.reshape(g.shape) for whole in result]


@pytest.mark.parametrize("family", properties.RULES)
def test_a_rule_in_float32_is_the_oracle_to_the_last_places(family):
    @cases(60)
    @given(rule_cases(family))
    def check(case):
        treatment, channel_axes, g, state, scalars = case
        exact = oracle_of(family, treatment, channel_axes, g, state, scalars)
        bound = properties.tracked(family, treatment, g, state, **scalars)
        properties.well_conditioned(state[0], exact[0], bound[0])
        scalars["t"] = np.float32(scalars["t"])
        got = properties.one_step(np, family, treatment, g, state, **scalars)
        assert all(array.dtype == np.float32 for array in got)
        properties.compare(f"{family}, the rule", got, exact, bound, state[0])
        properties.held(f"{family}, the rule")

    check()


# -- through the doors ----------------------------------------------------------------------------

DOORS = {"keras": tf_lamb.keras, "tf_keras": tf_lamb.tf_keras}
PATHS = (
    "encoder/dense/kernel", "encoder/dense/bias", "encoder/layer_norm/gamma", "head/kernel",
    "head/bias", "scale",
)  # fmt: skip
PATTERNS = (
    "bias", "kernel$", "^encoder/", "(gamma|beta)$", "norm", "^scale$", r"/\w+/", "matches_nothing",
    "",
)  # fmt: skip
DTYPES = ("float32", "float32", "float64", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
PER_DOOR = st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True)


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
            "exclude_from_weight_decay": draw(st.none() | PER_DOOR),
            "exclude_from_layer_adaptation": draw(st.none() | PER_DOOR),
            "master_weights": draw(st.booleans()),
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
    return Treatment(decay, not excluded(unadapted), axes=axes)


def variable_of(door, path, value, dtype):
    if door == "tf_keras":
        return tf.Variable(tf.cast(value, dtype), name=path)
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=dtype, name=name)


def built(door, run, jit_compile=False):
    """The optimizer of a run, and its variables by path."""
    variables = {
        path: variable_of(door, path, value, dtype)
        for path, value, dtype in zip(run["paths"], run["start"], run["dtypes"], strict=True)
    }
    optimizer = getattr(DOORS[door], run["family"])(
        run["lr"], **run["opts"], **run["arguments"], jit_compile=jit_compile
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that match nothing
        optimizer.build(list(variables.values()))
    optimizer.iterations.assign(run["before"])
    return optimizer, variables


def state_of(optimizer, variables):
    """Path -> the arrays from which the next step begins, the master in the place of its weight."""
    count, result = len(optimizer.slot_names), {}
    for path, slots in zip(variables, optimizer._slots, strict=True):
        weight, *arrays = (np.asarray(v.numpy()) for v in (variables[path], *slots))
        if len(arrays) > count and optimizer.iterations.numpy() and np.any(arrays[-1]):
            weight = arrays.pop()
        result[path] = [weight, *arrays[:count]]
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
    after = {
        path: [np.asarray(v.numpy()) for v in (variables[path], *slots)]
        for path, slots in zip(variables, optimizer._slots, strict=True)
    }
    assert int(optimizer.iterations) == t
    for path, g in gradients.items():
        if g is None:
            kept = after[path][: len(before[path])]
            for old, new in zip(before[path][1:], kept[1:], strict=True):
                np.testing.assert_array_equal(old, new)
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
    exact = oracle_of(family, treatment, 1, g, state, scalars)
    bound = properties.tracked(family, treatment, g, state, precision=precision, **scalars)
    properties.well_conditioned(start, exact[0], bound[0], precision.dtype)
    count = len(before)
    got, master = after[:count], after[count:]
    properties.compare(name, got, exact, bound, start)
    for kept in master:
        properties.compare(name, [kept], exact[:1], bound[:1], start)
        np.testing.assert_array_equal(kept.astype(got[0].dtype), got[0])


@pytest.fixture
def eager():
    """Steps are few here: tracing them would take longer."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_the_oracle_to_the_last_places(door):
    @cases(40)
    @given(runs())
    def check(run):
        optimizer, variables = built(door, run)
        for step in range(len(run["gradients"])):
            check_step(f"door {door}", run, optimizer, variables, step)
        properties.held(f"door {door}")

    check()


@pytest.mark.parametrize("door", DOORS)
def test_a_compiled_door_is_the_oracle_to_the_last_places(door):
    @cases(2)
    @given(runs())
    def check(run):
        optimizer, variables = built(door, run, jit_compile=True)
        check_step(f"door {door}, compiled", run, optimizer, variables, 0)
        properties.held(f"door {door}, compiled")

    check()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("door", DOORS)
def test_the_order_of_variables_and_those_without_a_gradient_change_nothing(door):
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
            optimizer, variables = built(door, each)
            others = {p: v.numpy() for p, v in variables.items() if p != first}
            for gradients in run["gradients"]:
                given_ = dict.fromkeys(variables) | {first: gradients[kept[0]]}
                apply(optimizer, variables, given_, each["order"])
            for path, value in others.items():
                assert_identical(variables[path].numpy(), value)
            weights.append(state_of(optimizer, variables)[first])
        for one, other in zip(*weights, strict=True):
            assert_identical(one, other)
        properties.held(f"door {door}, other orders")

    check()


def assert_identical(one, other):
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


# -- invariants -----------------------------------------------------------------------------------

DECAY = st.just(0.0) | st.floats(1e-6, 0.1)
PLAIN = {
    "beta_1": 0.9, "beta_2": 0.999, "bias_correction": True, "grad_averaging": True,
    "weight_decay_mode": "update", "phi_bounds": None, "ratio_bounds": None,
}  # fmt: skip


@st.composite
def lamb_cases(draw, nonzero=False):
    """A first step in float32: weights, gradients, learning rate and the options that matter."""
    shape = draw(properties.SHAPES.filter(lambda shape: 0 not in shape))
    w, g = (draw(properties.values(shape, 2.0**-20, 2.0**20)) for _ in range(2))
    if nonzero:
        g = np.where(g == 0, np.float32(1), g)
    own = {
        "norm": draw(st.sampled_from(["l2", "l1", "linf"])),
        "nesterov_moments": draw(st.sampled_from(["none", "first", "both"])),
    }
    return w, g, np.float32(draw(properties.RATES)), {**PLAIN, **own}


def first_step(w, g, lr, opts, decay=0.0, dtype=np.float32):
    zero = np.zeros(w.shape, dtype)
    arrays = [np.asarray(array, dtype) for array in (g, w)]
    scalars = {"lr": dtype(lr), "t": dtype(1), "opts": opts}
    return properties.one_step(
        np, "LAMB", Treatment(decay, True), arrays[0], [arrays[1], zero, zero], **scalars
    )[0]


def test_the_scale_of_the_gradient_does_not_matter_as_epsilon_goes_to_0():
    @cases(60)
    @given(lamb_cases(nonzero=True), st.integers(-20, 20), DECAY)
    def check(case, exponent, decay):
        w, g, lr, opts = case
        scale = 2.0**exponent  # exact in float32, so that every digit must agree
        plain = first_step(w, g, lr, {**opts, "epsilon": 0.0}, decay)
        scaled = first_step(w, np.float32(scale) * g, lr, {**opts, "epsilon": 0.0}, decay)
        assert_identical(plain, scaled)
        # An epsilon lengthens a root by no more than this share of it, and shortens the direction.
        step = np.float64(w) - first_step(w, g, lr, {**opts, "epsilon": 0.0}, dtype=np.float64)
        for share in (2.0**-8, 2.0**-18, 2.0**-28):
            epsilon = share * np.min(np.abs(g)) * scale
            after = first_step(
                w, scale * np.float64(g), lr, {**opts, "epsilon": epsilon}, dtype=np.float64
            )
            rounding = 2.0**-50 * (np.abs(np.float64(w)) + w.size * np.abs(step))
            assert np.all(np.abs(w - after - step) <= 3 * share * np.abs(step) + rounding)
        properties.held("LAMB, scale of the gradient")

    check()


def test_an_adapted_step_has_the_length_lr_phi_of_the_weight():
    @cases(60)
    @given(lamb_cases(), properties.BOUNDS, DECAY)
    def check(case, phi_bounds, decay):
        w, g, lr, opts = case
        opts = {**opts, "epsilon": 1e-6, "phi_bounds": phi_bounds}
        length = LENGTHS[opts["norm"]]
        step = first_step(np.zeros_like(w), g, lr, {**opts, "phi_bounds": None}, decay)
        assert length(step) > 0 or not np.any(g)  # with no weights, the ratio is 1
        if not (np.any(w) and np.any(g)):
            hypothesis.reject()
        moved = np.float64(w) - first_step(w, g, lr, opts, decay, np.float64)
        expected = float(lr) * np.clip(length(w), *(phi_bounds or (0, np.inf)))
        # Rounding of the weights, and of the sums of both norms.
        rounding = 2.0**-53 * (2 * length(w) + (w.size + 100) * expected)
        assert abs(length(moved) - expected) <= 4 * rounding
        properties.held("LAMB, length of a step")

    check()


# Few names, so that one of them may be a model's as well as a layer's.
NAMES = st.lists(st.sampled_from(["a", "b", "bias"]), min_size=1, max_size=3)
DOUBTFUL = st.sampled_from(["a/b/a", "a/b/bias", "b/a/b", "b/a/bias", "a/b", "bias"])
PATH_LISTS = st.one_of(
    st.lists(paths, min_size=1, max_size=4, unique=True)
    for paths in (NAMES.map("/".join), DOUBTFUL)
)
REGEXES = st.sampled_from(
    ["a", "^a/", "^b/", "bias$", "zzz|a/b", "^bias$", "b/.*", "", "zzz", "^[ab]/b"]
)
LISTS = st.none() | st.lists(REGEXES, max_size=3)


@st.composite
def plans(draw):
    given_ = {
        "exclude_from_weight_decay": draw(LISTS),
        "exclude_from_layer_adaptation": draw(LISTS),
    }
    kind = draw(st.sampled_from(["layer_groups", "layer_slices", "depthwise"]))
    patterns = draw(st.lists(REGEXES, max_size=2))
    given_[kind] = dict.fromkeys(patterns, (-1, None)) if kind == "layer_slices" else patterns
    return draw(PATH_LISTS), given_


def test_the_plan_does_not_depend_on_the_order_of_variables():
    @cases(200)
    @given(plans(), st.randoms())
    def check(case, random):
        paths, given_ = case
        shapes = {path: (len(path), 3, 2)[: len(path) % 4] or (4,) for path in paths}
        identified = {path: random.random() < 0.2 for path in paths}

        def planned(paths):
            plan = plan_for(
                paths, [shapes[p] for p in paths], weight_decay=0.1,
                excluded_by_identity=[identified[p] for p in paths], **given_,
            )  # fmt: skip
            by_path = zip(plan.paths, plan.treatments, plan.groups, strict=True)
            return {path: rest for path, *rest in by_path}, plan.unmatched

        one = planned(paths)
        random.shuffle(paths)
        assert planned(paths) == one
        for path, (treatment, group) in one[0].items():
            undecayed = identified[path] or any(
                re.search(p, path) for p in given_["exclude_from_weight_decay"] or ()
            )
            assert not (undecayed and treatment.decay)
            assert group in ("", path.rpartition("/")[0] or path)
        properties.held("plan, order of variables")

    check()


@pytest.mark.parametrize("door", DOORS)
def test_a_config_makes_the_same_optimizer_again(door):
    @cases(40)
    @given(runs())
    def check(run):
        cls = getattr(DOORS[door], run["family"])
        config = cls(run["lr"], **run["opts"], **run["arguments"]).get_config()
        assert cls.from_config(json.loads(json.dumps(config))).get_config() == config
        for name, value in {**run["opts"], **run["arguments"]}.items():
            kept = tuple(config[name]) if isinstance(value, tuple) else config[name]
            assert kept == value, name
        properties.held(f"door {door}, config")

    check()
