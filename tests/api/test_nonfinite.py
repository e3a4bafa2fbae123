"""Steps whose gradients are not finite, and norms that float32 squares would lose.

A run that meets a bad step and skips it is, bit for bit, the run that never met it.
"""

import functools

import keras
import numpy as np
import pytest
from test_adascale import BACKEND, DOORS, START, Feed, every_door, gradients, on_tensorflow

from tf_lamb.core.rules import lamb, lars

if BACKEND == "tensorflow":
    import tensorflow as tf

BAD = {"nan": np.nan, "infinite": -np.inf, "square overflows": 1e30}
LAYOUTS = {"one device": (1, 1), "micro-batches": (1, 3)}
if BACKEND == "tensorflow":
    LAYOUTS |= {"replicas": (4, 1), "replicas and micro-batches": (2, 2)}
COUNTS = ("skipped_steps", "micro_step", "iteration", "accumul")  # void once a step has raised
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def spoiled(parts, value=np.nan, key="bias"):
    """The parts of a step, with one element of the last part made something else."""
    parts = [dict(part) for part in parts]
    parts[-1][key] = parts[-1][key].copy()
    parts[-1][key][-1] = value
    return parts


def feed(
    door, layout="one device", kind="LAMB", rate=0.1, dtype="float32", graph=True, **arguments
):
    replicas, micro = LAYOUTS[layout]
    settings = {"jit_compile": False, "weight_decay": 0.1, **arguments}
    if micro > 1:
        settings["gradient_accumulation_steps"] = micro
    make = functools.partial(getattr(DOORS[door][1], kind), rate, **settings)
    return Feed(door, make, replicas, dtype, graph)


def iterations(feed):
    return int(keras.ops.convert_to_numpy(feed.optimizer.iterations))


def steps(layout, count=3):
    replicas, micro = LAYOUTS[layout]
    return gradients(count, replicas * micro)


def bits(feed, but=("skipped_steps", "micro_step")):
    """Every copy of every variable, by name, as bytes."""
    own = [v for v in feed.optimizer.variables if not any(name in v.name for name in but)]
    copies = feed.strategy.experimental_local_results if feed.strategy else lambda v: (v,)
    values = (getattr(v, "value", v) if isinstance(v, keras.Variable) else v
              for v in [*feed.variables, *own])  # fmt: skip
    return [keras.ops.convert_to_numpy(copy).tobytes() for v in values for copy in copies(v)]


@pytest.mark.parametrize("bad", BAD)
@every_layout
@every_door
def test_a_skipped_step_has_never_been(door, layout, bad):
    met, spared = (feed(door, layout, use_ema=True) for _ in range(2))
    for i, parts in enumerate(steps(layout)):
        if i == 1:
            before = bits(met)
            met.step(spoiled(parts, BAD[bad]))
            assert bits(met) == before
        met.step(parts)
        spared.step(parts)
    assert bits(met) == bits(spared)
    assert met.optimizer.skipped_steps == 1
    assert spared.optimizer.skipped_steps == 0
    assert iterations(met) == 3


@pytest.mark.parametrize("kind", ["LARS", "AdamP", "SGDP"])
@every_door
def test_every_optimizer_skips(door, kind):
    run = feed(door, kind=kind)
    (parts,) = steps("one device", 1)
    before = bits(run)
    run.step(spoiled(parts))
    assert bits(run) == before
    run.step(parts)
    assert bits(run) != before


@pytest.mark.parametrize("arguments", [{"slot_dtype": "bfloat16"}, {"master_weights": True}],
                         ids=["bfloat16 slots", "masters"])  # fmt: skip
@every_door
def test_low_precision_skips_too(door, arguments):
    met, spared = (feed(door, dtype="bfloat16", **arguments) for _ in range(2))
    for parts in steps("one device"):
        met.step(spoiled(parts))
        met.step(parts)
        spared.step(parts)
    assert bits(met) == bits(spared)
    assert met.optimizer.skipped_steps == 3


@every_layout
@every_door
def test_a_schedule_does_not_see_a_skipped_step(door, layout):
    falling = DOORS[door][0].optimizers.schedules.PolynomialDecay(0.1, 3, 0.0)
    met, spared = (feed(door, layout, rate=falling) for _ in range(2))
    for parts in steps(layout):
        met.step(spoiled(parts))
        met.step(parts)
        spared.step(parts)
    assert bits(met) == bits(spared)


@every_door
def test_propagate_takes_the_step(door):
    run = feed(door, on_nonfinite="propagate")
    run.step(spoiled(steps("one device", 1)[0]))
    kernel, bias = run.weights()
    assert np.isfinite(kernel).all()
    assert np.isnan(bias).any()
    assert iterations(run) == 1
    assert run.optimizer.skipped_steps == 0
    assert not any("skipped" in v.name for v in run.optimizer.variables)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@every_layout
@every_door
def test_raise_names_the_variable_and_leaves_the_state(door, layout, graph):
    run = feed(door, layout, graph=graph, on_nonfinite="raise")
    first, second = steps(layout, 2)
    run.step(first)
    before = bits(run, but=COUNTS)
    error = tf.errors.InvalidArgumentError if BACKEND == "tensorflow" else FloatingPointError
    with pytest.raises(error, match="on_nonfinite asks to raise.*longer warmup") as caught:
        run.step(spoiled(second))
    assert "bias" in str(caught.value).partition("Not finite are")[2]
    assert "kernel" not in str(caught.value).partition("Not finite are")[2].partition("[[")[0]
    assert bits(run, but=COUNTS) == before


@every_door
def test_the_count_is_saved_with_the_slots(door):
    run, fresh = feed(door), feed(door)
    (parts,) = steps("one device", 1)
    run.step(spoiled(parts))
    run.step(parts)
    store = {}
    run.optimizer.save_own_variables(store)
    fresh.optimizer.load_own_variables(store)
    assert fresh.optimizer.skipped_steps == 1


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="on_nonfinite must be one of 'skip', 'raise', 'propaga"):
        DOORS["keras"][1].LAMB(on_nonfinite="ignore")


# --- Compiled whole, in `fit`, beside loss scaling ---


@on_tensorflow
@every_door
def test_a_step_that_is_compiled_whole_skips(door):
    run = feed(door, jit_compile=True)
    run.call = tf.function(run._call, jit_compile=True)
    first, second = steps("one device", 2)
    run.step(first)
    before = bits(run)
    run.step(spoiled(second))
    assert bits(run) == before
    assert run.optimizer.skipped_steps == 1


@pytest.mark.parametrize("micro", [None, 2])
@every_door
def test_fit_goes_on_after_a_bad_batch(door, micro):
    host, ours = DOORS[door]
    host.utils.set_random_seed(1)
    model = host.Sequential([host.layers.Input((4,)), host.layers.Dense(2)])
    model.compile(ours.LAMB(0.01, gradient_accumulation_steps=micro), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)), rng.normal(size=(32, 2))
    x[9] = np.nan  # in the third batch of eight
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert model.optimizer.skipped_steps == 2
    assert int(model.optimizer.iterations) == 2 * (8 // (micro or 1) - 1)


@on_tensorflow  # on JAX, Keras's wrapper works inside a compiled step only
@every_door
def test_it_stands_beside_loss_scaling(door):
    """The wrapper halves its scale at a bad step; neither lets it through."""
    host, ours = DOORS[door]
    wrap = (host.optimizers.LossScaleOptimizer if door == "keras"
            else host.mixed_precision.LossScaleOptimizer)  # fmt: skip
    run = Feed(door, lambda: wrap(ours.LAMB(0.1, jit_compile=False)))
    weights = run.weights()
    run.step(spoiled(steps("one device", 1)[0]))
    assert all((a == b).all() for a, b in zip(run.weights(), weights, strict=True))
    scale = run.optimizer.loss_scale if door == "tf_keras" else run.optimizer.dynamic_scale
    assert float(scale) == 2.0**14


@every_layout
@every_door
def test_adascale_measures_no_skipped_step(door, layout):
    if LAYOUTS[layout] == (1, 1):
        return
    replicas, micro = LAYOUTS[layout]
    ours = DOORS[door][1]

    def make():
        inner = ours.LARS(0.1, jit_compile=False, gradient_accumulation_steps=micro)
        return ours.AdaScale(inner, 2.0)

    met, spared = (Feed(door, make, replicas) for _ in range(2))
    for parts in steps(layout):
        met.step(spoiled(parts))
        met.step(parts)
        spared.step(parts)
    assert bits(met) == bits(spared)
    assert met.optimizer.inner_optimizer.skipped_steps == 3


# --- Norms ---


def one_step(rule, dtype, w, g, **arguments):
    slots = [np.zeros_like(w, dtype)] * (2 if rule is lamb else 1)
    with np.errstate(over="ignore", under="ignore"):
        return rule(np, g.astype(dtype), w.astype(dtype), *slots, lr=dtype(0.1), t=1, decay=0.0,
                    adapt=True, **arguments)[0]  # fmt: skip


RANGE = [(1e25, 1.0), (1.0, 1e-30), (1e-25, 1.0), (1e12, 1e-12), (1.0, 1e15), (1.0, 1e-19)]


@pytest.mark.parametrize(("weight", "gradient"), RANGE)
@pytest.mark.parametrize("axes", [None, (0,)], ids=["whole", "slices"])
@pytest.mark.parametrize("rule", [lamb, lars], ids=["LAMB", "LARS"])
def test_the_ratio_is_right_where_squares_are_lost(rule, axes, weight, gradient):
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(2, 50, 8)) * np.array([weight, gradient])[:, None, None]
    exact, ours = (one_step(rule, dtype, w, g, axes=axes) for dtype in (np.float64, np.float32))
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6 * weight)
    assert np.abs(exact - w).max() > 1e-5 * weight  # a ratio of 1 would leave w, or leap


def test_a_ratio_beyond_float32_leaves_no_nan():
    """Times a learning rate it would be infinite, and infinity times an element of 0 is none."""
    w, g = np.full(2, 1e13), np.array([1e-28, 0.0])
    with np.errstate(under="ignore"):
        stepped = lars(np, *np.float32([g, w, [0, 0]]), lr=np.float32(10), t=1, decay=0.0,
                       adapt=True, momentum=0.0, trust_coefficient=1.0)[0]  # fmt: skip
    assert np.isfinite(stepped).all() and stepped[0] != w[0] and stepped[1] == np.float32(w[1])


@pytest.mark.parametrize(("weight", "gradient"), RANGE[:3])
@pytest.mark.parametrize("kind", ["LAMB", "LARS"])
@every_door
def test_the_doors_have_the_right_ratio(door, kind, weight, gradient):
    run = feed(door, kind=kind, weight_decay=0.0)
    start = {k: w.astype("float32") * np.float32(weight) for k, w in START.items()}
    for variable, w in zip(run.variables, start.values(), strict=True):
        variable.assign(w)
    (step,) = gradients(1, 1)
    step = [{k: g * np.float32(gradient) for k, g in step[0].items()}]
    run.step(step)
    rule = lamb if kind == "LAMB" else lars
    for ours, key in zip(run.weights(), START, strict=True):
        exact = one_step(rule, np.float64, start[key], step[0][key])
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6 * weight)
