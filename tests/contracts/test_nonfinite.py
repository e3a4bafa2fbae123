"""Steps whose gradients are not finite, and norms that float32 squares would lose.

A run that meets a bad step and skips it is, bit for bit, the run that never met it.
"""

import keras
import numpy as np
import pytest
from oracle import Lamb, Lars
from support.feeding import LAYOUTS, START, Feed, assert_never_been, gradients, maker
from support.frontends import BACKEND, FRONTENDS, every_frontend, on_tensorflow

if BACKEND == "tensorflow":
    import tensorflow as tf

BAD = {"nan": np.nan, "infinite": -np.inf, "square overflows": 1e30}
# One device and micro-batches, and on TensorFlow replicas with micro-batches.
FEW = [layout for layout in LAYOUTS if layout != "replicas"]
COUNTS = ("skipped_steps", "micro_step")
VOID = (*COUNTS, "iteration", "accumul")  # once a step has raised


def spoiled(parts, value=np.nan, key="bias"):
    """The parts of a step, with one element of the last part made something else."""
    parts = [dict(part) for part in parts]
    parts[-1][key] = parts[-1][key].copy()
    parts[-1][key][-1] = value
    return parts


def feed(
    frontend, layout="one device", kind="LAMB", rate=0.1, traced=False, dtype="float32", **own
):
    replicas, micro = LAYOUTS[layout]
    make = maker(frontend, kind, rate, micro=micro, **{"weight_decay": 0.1, **own})
    return Feed(frontend, make, replicas, dtype, traced)


def iterations(feed):
    return int(keras.ops.convert_to_numpy(feed.optimizer.iterations))


def steps(layout, count=3):
    replicas, micro = LAYOUTS[layout]
    return gradients(count, replicas * micro)


@pytest.mark.parametrize(
    ("layout", "bad", "traced"),
    [
        *((layout, "nan", False) for layout in LAYOUTS),
        *((layout, bad, False) for layout in (FEW[0], FEW[-1]) for bad in BAD if bad != "nan"),
        # On JAX each plain call compiles anew, and `fit`, below, has micro-batches.
        (FEW[-1] if BACKEND == "tensorflow" else FEW[0], "nan", True),
    ],
)
@every_frontend
def test_a_skipped_step_has_never_been(frontend, layout, bad, traced):
    met, spared = (feed(frontend, layout, use_ema=True, traced=traced) for _ in range(2))
    for i, parts in enumerate(steps(layout)):
        if i == 1:
            before = met.bits(COUNTS)
            met.step(spoiled(parts, BAD[bad]))
            assert met.bits(COUNTS) == before
        met.step(parts)
        spared.step(parts)
    assert met.bits(COUNTS) == spared.bits(COUNTS)
    assert met.optimizer.skipped_steps == 1
    assert spared.optimizer.skipped_steps == 0
    assert iterations(met) == 3


@pytest.mark.parametrize("kind", ["LARS", "SGDP"])
@every_frontend
def test_every_optimizer_skips(frontend, kind):
    run = feed(frontend, kind=kind)
    (parts,) = steps("one device", 1)
    before = run.bits(COUNTS)
    run.step(spoiled(parts))
    assert run.bits(COUNTS) == before
    run.step(parts)
    assert run.bits(COUNTS) != before


@every_frontend
def test_propagate_takes_the_step(frontend):
    run = feed(frontend, on_nonfinite="propagate")
    run.step(spoiled(steps("one device", 1)[0]))
    kernel, bias = run.weights()
    assert np.isfinite(kernel).all()
    assert np.isnan(bias).any()
    assert iterations(run) == 1
    assert run.optimizer.skipped_steps == 0
    assert not any("skipped" in v.name for v in run.optimizer.variables)


@pytest.mark.parametrize(
    ("layout", "traced"), [(layout, traced) for layout in FEW for traced in (False, True)]
)
@every_frontend
def test_raise_names_the_variable_and_leaves_the_state(frontend, layout, traced):
    run = feed(frontend, layout, traced=traced, on_nonfinite="raise")
    first, second = steps(layout, 2)
    run.step(first)
    before = run.bits(VOID)
    error = tf.errors.InvalidArgumentError if BACKEND == "tensorflow" else FloatingPointError
    with pytest.raises(error, match="on_nonfinite asks to raise.*longer warmup") as caught:
        run.step(spoiled(second))
    assert "bias" in str(caught.value).partition("Not finite are")[2]
    assert "kernel" not in str(caught.value).partition("Not finite are")[2].partition("[[")[0]
    assert run.bits(VOID) == before


@pytest.mark.parametrize("dtypes", [{"slots": "bfloat16"}, {"masters": "float32"}], ids=str)
@every_frontend
def test_low_precision_skips_too(frontend, dtypes):
    met, spared = (feed(frontend, dtype="bfloat16", dtypes=dtypes) for _ in range(2))
    assert_never_been(met, spared, steps("one device"), spoiled, COUNTS)
    assert met.optimizer.skipped_steps == 3


@pytest.mark.parametrize("layout", FEW)
@every_frontend
def test_a_schedule_does_not_see_a_skipped_step(frontend, layout):
    falling = FRONTENDS[frontend][0].optimizers.schedules.PolynomialDecay(0.1, 3, 0.0)
    met, spared = (feed(frontend, layout, rate=falling) for _ in range(2))
    assert_never_been(met, spared, steps(layout), spoiled, COUNTS)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "one device"])
@every_frontend
def test_adascale_measures_no_skipped_step(frontend, layout):
    replicas, micro = LAYOUTS[layout]
    ours, inner = FRONTENDS[frontend][1], maker(frontend, micro=micro)
    met, spared = (Feed(frontend, lambda: ours.AdaScale(inner(), 2.0), replicas) for _ in range(2))
    assert_never_been(met, spared, steps(layout), spoiled, COUNTS)
    assert met.optimizer.inner_optimizer.skipped_steps == 3


@every_frontend
def test_the_count_is_saved_with_the_slots(frontend):
    run, fresh = feed(frontend), feed(frontend)
    (parts,) = steps("one device", 1)
    run.step(spoiled(parts))
    run.step(parts)
    run.optimizer.save_own_variables(store := {})
    fresh.optimizer.load_own_variables(store)
    assert fresh.optimizer.skipped_steps == 1


@every_frontend
def test_an_unknown_choice_is_refused(frontend):
    with pytest.raises(ValueError, match="on_nonfinite must be one of 'skip', 'raise', 'propaga"):
        FRONTENDS[frontend][1].LAMB(on_nonfinite="ignore")


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("on_nonfinite", ["skip", "raise"])
def test_a_step_that_is_compiled_whole_skips(frontend, on_nonfinite):
    run = feed(frontend, jit_compile=True, traced=True, on_nonfinite=on_nonfinite)
    run.call = tf.function(run._call, jit_compile=True)
    first, second = steps("one device", 2)
    run.step(first)
    before = run.bits(COUNTS)
    run.step(spoiled(second))
    assert run.bits(COUNTS) == before
    assert run.optimizer.skipped_steps == 1


@pytest.mark.parametrize(("weight", "gradient"), [(1e12, 1.0), (1.0, 1e-12), (1e-12, 1.0)])
@pytest.mark.parametrize("kind", ["LAMB", "LARS"])
@every_frontend
def test_the_frontends_have_the_right_ratio(frontend, kind, weight, gradient):
    run = feed(frontend, kind=kind, weight_decay=0.0)
    start = {k: w.astype("float32") * np.float32(weight) for k, w in START.items()}
    for variable, w in zip(run.variables, start.values(), strict=True):
        variable.assign(w)
    ((part,),) = gradients(1, 1)
    part = {k: g * np.float32(gradient) for k, g in part.items()}
    run.step([part])
    if kind == "LAMB":
        exact = Lamb(start, lr=0.1).step(part)
    else:
        exact = {k: Lars(w).step(part[k], 0.1) for k, w in start.items()}
    for ours, key in zip(run.weights(), START, strict=True):
        np.testing.assert_allclose(ours, exact[key], rtol=1e-5, atol=1e-6 * weight)
