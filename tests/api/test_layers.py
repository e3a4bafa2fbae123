"""What a layer is, and in which precision its state is kept: in NumPy, then through both doors."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.core import layers, rounding
from tf_lamb.core.plan import plan_for
from tf_lamb.core.rules import lamb, lars
from tf_lamb.tensorflow import namespace

DOORS = {"keras": tf_lamb.keras, "tf_keras": tf_lamb.tf_keras}
PATHS = ("block/dense/kernel", "block/dense/bias", "block/stacked/kernel", "head/kernel")
SHAPES = ((4, 6), (6,), (3, 4, 2), (6, 2))


def plan(weight_decay=0.1, undecayed=None, unadapted=None, paths=PATHS, shapes=SHAPES, **layout):
    return plan_for(
        paths, shapes, weight_decay=weight_decay, exclude_from_weight_decay=undecayed,
        exclude_from_layer_adaptation=unadapted,
        excluded_by_identity=[False] * len(paths), **layout,
    )  # fmt: skip


def problem(seed=0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for s in shapes], [rng.normal(size=s) for s in shapes]


def step(plan, rule, slots, weights, gradients):
    """One step of every layer of the plan; returns the new weights."""
    result = list(weights)
    for layer in plan.layers(range(len(weights))):
        states = [
            [weights[i], *(np.zeros_like(weights[i]) for _ in range(slots))] for i in layer.members
        ]
        new = layers.step(
            np, rule, layer.treatments, [gradients[i] for i in layer.members], states, lr=0.1, t=1
        )
        for i, state in zip(layer.members, new, strict=True):
            result[i] = state[0]
    return result


RULES = {"lamb": (lamb, 2), "lars": (functools.partial(lars, trust_coefficient=0.1), 1)}


@pytest.mark.parametrize("rule", RULES)
def test_each_slice_is_a_layer_of_its_own(rule):
    weights, gradients = problem()
    apart = []
    for w, g in zip(weights[2], gradients[2], strict=True):
        alone = plan(paths=["kernel"], shapes=[w.shape])
        apart += step(alone, *RULES[rule], [w], [g])
    stacked = step(plan(layer_slices={"stacked": (0, None)}), *RULES[rule], weights, gradients)
    np.testing.assert_allclose(stacked[2], apart, rtol=1e-12)


@pytest.mark.parametrize("axis", [1, -1])
def test_blocks_along_an_axis_are_layers_of_their_own(axis):
    weights, gradients = problem()
    fused = step(plan(layer_slices={"dense/kernel": (axis, 3)}), lamb, 2, weights, gradients)[0]
    for block in range(3):
        part = np.s_[:, 2 * block : 2 * block + 2]
        alone = plan(paths=["kernel"], shapes=[(4, 2)])
        (expected,) = step(alone, lamb, 2, [weights[0][part]], [gradients[0][part]])
        np.testing.assert_allclose(fused[part], expected, rtol=1e-12)


def test_an_empty_axis_has_no_slices():
    empty = plan(paths=("head",), shapes=((0, 2),), layer_slices={"head": (0, None)})
    assert empty.treatments[0].view is None


def test_the_sizes_of_fused_blocks_no_longer_meet():
    """Block norms .04, 4 and 400 in one kernel: one ratio moves the blocks by 577, 5.8 and .06
    times themselves at rate .1; a ratio each moves each by a tenth."""
    w = np.repeat([0.01, 1.0, 100.0], 16).reshape(1, 48)
    g = np.ones_like(w)
    settings = {"paths": ["qkv/kernel"], "shapes": [w.shape], "weight_decay": 0.0}
    (fused,) = step(plan(**settings), lamb, 2, [w], [g])
    (apart,) = step(plan(layer_slices={"qkv": (-1, 3)}, **settings), lamb, 2, [w], [g])
    np.testing.assert_allclose(np.abs(fused - w)[0, ::16] / w[0, ::16], [577.4, 5.774, 0.05774],
                               rtol=1e-3)  # fmt: skip
    np.testing.assert_allclose(np.abs(apart - w) / w, 0.1, rtol=1e-9)


@pytest.mark.parametrize("undecayed", [None, ("bias",)])
@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_and_its_bias_share_a_ratio(rule, undecayed):
    weights, gradients = problem()
    joined = plan(undecayed=undecayed, layer_groups=("dense",))
    assert joined.groups == ("block/dense", "block/dense", "", "")
    new = step(joined, *RULES[rule], weights, gradients)
    # One long vector, written out: with LAMB's first step u = sign(g) + decay w.
    decays = (0.1, 0.0 if undecayed else 0.1)
    pairs = list(zip(weights[:2], gradients[:2], decays, strict=True))

    def length(arrays):
        return np.sqrt(sum(np.sum(a**2) for a in arrays))

    if rule == "lamb":
        moves = [g / (np.abs(g) + 1e-6) + d * w for w, g, d in pairs]
        ratio = length(weights[:2]) / length(moves)
    else:
        moves = [g + d * w for w, g, d in pairs]
        below = length(gradients[:2]) + length([d * w for w, _, d in pairs])
        ratio = 0.1 * length(weights[:2]) / below
    for got, w, move in zip(new, weights[:2], moves, strict=False):
        np.testing.assert_allclose(got, w - 0.1 * ratio * move, rtol=1e-9)


def test_an_explicit_exclusion_leaves_its_group():
    assert plan(layer_groups=("dense",), unadapted=("bias",)).groups[:2] == ("block/dense", "")


def test_the_table_says_what_a_layer_is():
    table = plan(layer_groups=("dense",), layer_slices={"stacked": (0, None)}).table()
    assert "joined in block/dense" in table
    assert "3 slices along axis 0" in table


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"layer_slices": {"head": (2, None)}}, ["axis 2", "head/kernel", "(6, 2)", "0 to 1"]),
        ({"layer_slices": {"head": (-3, None)}}, ["axis -3", "head/kernel"]),
        ({"layer_slices": {"head": (0, 4)}}, ["4 blocks", "head/kernel", "multiple of 4"]),
        ({"layer_slices": {"dense": (0, None)}, "layer_groups": ("dense",)},
         ["block/dense/kernel", "layer_slices", "layer_groups"]),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_is_refused(layout, words):
    with pytest.raises(ValueError) as caught:
        plan(**layout)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_a_refused_plan_leaves_the_variables_alone(door):
    variable = tf.Variable(tf.ones((6, 2)), name="kernel")
    optimizer = DOORS[door].LAMB(layer_slices={"kernel": 5})
    with pytest.raises(ValueError, match="axis 5 of kernel"):
        optimizer.apply_gradients([(tf.ones((6, 2)), variable)])
    np.testing.assert_array_equal(variable.numpy(), 1)
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"nvlamb": True, "exclude_from_layer_adaptation": ["bias"]}, ValueError,
         ["nvlamb=True", "['bias']"]),
        ({"nvlamb": True, "clipnorm": 1.0}, ValueError, ["nvlamb=True", "clipnorm=1.0"]),
        ({"phi_bounds": (2, 1)}, ValueError, ["phi_bounds", "(2, 1)", "low <= high"]),
        ({"ratio_bounds": (-1, 1)}, ValueError, ["ratio_bounds", "(-1, 1)"]),
        ({"ratio_bounds": 3}, TypeError, ["ratio_bounds", "3", "(0.01, 10.0)"]),
        ({"norm": "l3"}, ValueError, ["norm", "'l3'", "'linf'"]),
        ({"nesterov_moments": True}, ValueError, ["nesterov_moments", "True", "'both'"]),
        ({"weight_decay_mode": "adamw"}, ValueError, ["'adamw'", "'decoupled'"]),
        ({"slot_dtype": "int8"}, ValueError, ["slot_dtype", "'int8'", "'bfloat16'"]),
        ({"layer_slices": ["qkv"]}, TypeError, ["layer_slices", "dict"]),
        ({"layer_slices": {"qkv": "last"}}, TypeError, ["layer_slices['qkv']", "'last'"]),
        ({"layer_slices": {"qkv": [0, 0]}}, ValueError, ["layer_slices['qkv']", "0 blocks"]),
        ({"layer_slices": {"((": 0}}, ValueError, ["layer_slices", "'(('"]),
        ({"layer_groups": "dense"}, TypeError, ["layer_groups", "['dense']"]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("door", DOORS)
def test_contradictions_are_refused(door, arguments, error, words):
    with pytest.raises(error) as caught:
        DOORS[door].LAMB(**arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_contradictions_of_lars_are_refused(door):
    with pytest.raises(ValueError, match=r"clip=True.*ratio_bounds=\(0.0, 50.0\)"):
        DOORS[door].LARS(clip=True, ratio_bounds=(0, 50))
    with pytest.raises(ValueError, match="norm_of_update.*needs momentum_form='outside'"):
        DOORS[door].LARS(denominator="norm_of_update")


# Through the doors.


def run(door, name, arguments, weights, gradients, steps=3, dtype=tf.float32):
    variables = [tf.Variable(w, dtype=dtype, name=p) for w, p in zip(weights, PATHS, strict=False)]
    optimizer = getattr(DOORS[door], name)(0.1, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.build(variables)
    for t in range(steps):
        scale = tf.constant(1.0 + t, dtype)
        optimizer.apply_gradients(
            [(scale * tf.constant(g, dtype), v) for g, v in zip(gradients, variables, strict=True)]
        )
    return [v.numpy() for v in variables], optimizer


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@pytest.mark.parametrize("door", DOORS)
def test_the_doors_step_layers_as_numpy_does(door, name):
    weights, gradients = problem()
    layout = {"layer_groups": ["dense"], "layer_slices": {"stacked": 0, "head": [0, 3]}}
    arguments = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], **layout}
    if name == "LARS":
        arguments["trust_coefficient"] = 0.1
    got, _ = run(door, name, arguments, weights, gradients, steps=1)
    expected = step(
        plan(undecayed=("bias",), layer_groups=("dense",),
             layer_slices={"stacked": (0, None), "head": (0, 3)}),
        *RULES[name.lower()], weights, gradients,
    )  # fmt: skip
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_a_missing_gradient_leaves_the_rest_of_its_layer(door):
    weights, gradients = problem()
    variables = [
        tf.Variable(w, dtype=tf.float32, name=p) for w, p in zip(weights, PATHS, strict=True)
    ]
    optimizer = DOORS[door].LAMB(0.1, layer_groups=["dense"])
    optimizer.build(variables)
    pairs = [(None if i == 1 else tf.constant(g, tf.float32), v)
             for i, (g, v) in enumerate(zip(gradients, variables, strict=True))]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the host warns of the missing gradient
        optimizer.apply_gradients(pairs)
    np.testing.assert_array_equal(variables[1].numpy(), weights[1].astype("float32"))
    assert np.any(variables[0].numpy() != weights[0].astype("float32"))


@pytest.mark.parametrize(
    ("arguments", "dtype", "bytes_a_parameter"),
    [
        ({}, tf.float32, 8), ({"slot_dtype": "bfloat16"}, tf.float32, 4),
        ({}, tf.bfloat16, 8), ({"master_weights": True}, tf.bfloat16, 12),
        ({"master_weights": True, "slot_dtype": "bfloat16"}, tf.bfloat16, 8),
        ({"master_weights": True}, tf.float32, 8), ({"slot_dtype": "bfloat16"}, tf.float64, 16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@pytest.mark.parametrize("door", DOORS)
def test_memory_is_what_the_docstring_says(door, name, arguments, dtype, bytes_a_parameter):
    optimizer = getattr(DOORS[door], name)(**arguments)
    optimizer.build([tf.Variable(tf.ones(1000, dtype))])
    sizes = [np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in optimizer.variables
             if tuple(v.shape) == (1000,)]  # fmt: skip
    master = 4 if "master_weights" in arguments and dtype == tf.bfloat16 else 0
    slots = bytes_a_parameter - master if name == "LAMB" else (bytes_a_parameter - master) / 2
    assert sum(sizes) == 1000 * (slots + master)


@pytest.mark.parametrize("door", DOORS)
def test_bfloat16_slots_follow_float32_ones(door):
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(64, 64)), rng.normal(size=(64, 64))
    exact, _ = run(door, "LAMB", {}, [w], [g], steps=20)
    rounded, _ = run(door, "LAMB", {"slot_dtype": "bfloat16"}, [w], [g], steps=20)
    again, _ = run(door, "LAMB", {"slot_dtype": "bfloat16"}, [w], [g], steps=20)
    moved = np.linalg.norm(exact[0] - w)
    assert 0 < np.linalg.norm(exact[0] - rounded[0]) < 0.01 * moved
    np.testing.assert_array_equal(rounded[0], again[0])  # a resumed run is the same run


@pytest.mark.parametrize("x", [0.0, 1.0, 1.003, -0.7131, -2.0, 3.0e-20, 0.99999])
def test_stochastic_rounding_is_right_on_average(x):
    noise = np.random.default_rng(0).uniform(size=400_000).astype(np.float32)
    rounded = rounding.stochastic(np, np.full(noise.shape, x, np.float32), noise)
    np.testing.assert_array_equal(tf.cast(tf.cast(rounded, tf.bfloat16), tf.float32), rounded)
    assert len(set(rounded)) <= 2
    assert np.mean(rounded, dtype=np.float64) == pytest.approx(x, rel=2e-5)


@pytest.mark.parametrize("door", DOORS)
def test_a_moment_in_bfloat16_does_not_stand_still(door):
    """v decays by 0.1 % a step, less than half a unit of bfloat16."""
    variable = tf.Variable(tf.ones(4096))
    optimizer = DOORS[door].LAMB(1e-3, slot_dtype="bfloat16")
    optimizer.build([variable])
    v = optimizer._slots[0][1]
    v.assign(tf.ones(4096, tf.bfloat16))
    for _ in range(50):
        optimizer.apply_gradients([(tf.zeros(4096), variable)])
    mean = float(np.mean(tf.cast(v.value if door == "keras" else v, tf.float32)))
    assert mean == pytest.approx(0.999**50, rel=2e-3)


@pytest.mark.parametrize("door", DOORS)
def test_a_master_keeps_what_half_precision_cannot(door):
    w, g = np.full((8, 8), 1.0), np.ones((8, 8))

    def final(dtype, **arguments):
        arguments = {"exclude_from_layer_adaptation": [""], **arguments}
        variable = tf.Variable(w, dtype=dtype)
        optimizer = DOORS[door].LAMB(1e-4, **arguments)
        for _ in range(40):
            optimizer.apply_gradients([(tf.constant(g, dtype), variable)])
        return float(tf.cast(variable, tf.float32)[0, 0]), variable, optimizer

    exact, *_ = final(tf.float32)
    without, *_ = final(tf.bfloat16)
    with_master, variable, optimizer = final(tf.bfloat16, master_weights=True)
    assert without == 1.0  # 1e-4 is less than half a unit of bfloat16
    assert with_master == pytest.approx(exact, abs=2**-8)
    assert with_master < 1.0
    # A weight that somebody sets is what counts from then on.
    variable.assign(tf.fill((8, 8), tf.constant(2.0, tf.bfloat16)))
    optimizer.apply_gradients([(tf.constant(g, tf.bfloat16), variable)])
    assert float(variable[0, 0]) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("door", DOORS)
def test_lars_trains_an_embedding(door):
    dense = np.zeros((5, 2), "float32")
    np.add.at(dense, [1, 3, 1], np.array([[1, 2], [3, 4], [5, 6]], "float32"))
    sparse = tf.IndexedSlices(
        tf.constant([[1.0, 2], [3, 4], [5, 6]]), tf.constant([1, 3, 1]), (5, 2)
    )
    results = []
    for gradient in (tf.constant(dense), sparse):
        variable = tf.Variable(tf.ones((5, 2)))
        optimizer = DOORS[door].LARS(1.0, weight_decay=0.1)
        for _ in range(3):
            optimizer.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", ["LARS", "SGDP", "AdamP"])
@pytest.mark.parametrize("door", DOORS)
def test_every_optimizer_survives_its_config(door, name):
    cls = getattr(DOORS[door], name)
    extra = {"depthwise": ["dw"]} if name != "LARS" else {"layer_slices": {"a": [0, 2]}}
    optimizer = cls(0.25, weight_decay=0.5, exclude_from_weight_decay=["bias"], **extra)
    assert cls.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    host = keras if door == "keras" else __import__("tf_keras")
    again = host.optimizers.get(host.optimizers.serialize(optimizer))
    assert type(again) is cls


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 0), (7, 5), (8, 5), (19, 2), (3, 3, 4, 2)])
def test_the_sum_over_tensorflow_is_numpys(shape):
    """It begins with an eighth of the rows, where there are as many."""
    x = np.random.default_rng(1).standard_normal(shape)
    for jit_compile in (False, True):
        total = tf.function(namespace.sum, jit_compile=jit_compile)(tf.constant(x))
        np.testing.assert_allclose(total, np.sum(x), rtol=1e-12, atol=1e-12)
