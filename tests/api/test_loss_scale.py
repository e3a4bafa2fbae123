"""A loss scale around an optimizer hides no step that is not finite, in either Keras."""

import warnings

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend

BATCHES = 4


def data(bad=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * BATCHES, 4)).astype("float32")
    if bad is not None:
        x[8 * bad] = np.nan
    return x, rng.normal(size=(8 * BATCHES, 2)).astype("float32")


def compiled(frontend, scale=None, around=lambda own: own, broken=False, growth=2000, **own):
    """A model; without a scale, as it is without the wrapper."""
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(1)
    model = host.Sequential([host.layers.Input((4,)), host.layers.Dense(2)])
    optimizer = around(ours.LAMB(0.01, name="it", jit_compile=False, **own))
    if scale:
        wrapper = host.mixed_precision.LossScaleOptimizer
        optimizer = wrapper(optimizer, initial_scale=scale, dynamic_growth_steps=growth)
    if BACKEND == "tensorflow":
        import tensorflow as xp
    else:
        xp = host.ops

    def finite_without_a_gradient(y, outputs):
        return xp.sqrt(0.0 * xp.square(outputs))

    model.compile(optimizer, finite_without_a_gradient if broken else "mse")
    return model


def fit(model, x, y, *callbacks, epochs=1):
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def scale_of(model):
    kept = "loss_scale" if hasattr(model.optimizer, "loss_scale") else "dynamic_scale"
    return float(array(getattr(model.optimizer, kept)))


def inner(model):
    own = model.optimizer
    while hasattr(own, "inner_optimizer"):
        own = own.inner_optimizer
    return own


@every_frontend
def test_a_run_without_a_finite_gradient_ends_with_the_report(frontend):
    """Its loss is finite all the time."""
    model = compiled(frontend, 2.0**15, broken=True)
    report = FRONTENDS[frontend][1].StopOnDivergence(every=1, patience=3)
    with pytest.raises(FloatingPointError, match="at step 0, at least 3 more were tried and all"):
        fit(model, *data(), report)


@pytest.mark.parametrize(
    ("scale", "told"),
    [(2.0**15, []), (1.0, ["it: of 4 steps, 1 have been skipped"])],
    ids=["a large scale", "a scale of 1"],
)
@every_frontend
def test_the_end_of_fit_tells_of_steps_that_no_scale_explains(frontend, scale, told):
    """At a scale of 1 it is the gradients that overflow; above, the scale may be too large."""
    model = compiled(frontend, scale)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit(model, *data(bad=1))
    words = [str(w.message).partition(" because")[0] for w in seen if "it:" in str(w.message)]
    assert words == told


@every_frontend
def test_raise_raises_where_no_scale_explains_it(frontend):
    model = compiled(frontend, 4.0, broken=True, on_nonfinite="raise")
    with pytest.raises(Exception, match="on_nonfinite asks to raise|CpuCallback error"):
        fit(model, *data())
    if BACKEND == "tensorflow":  # on JAX the arrays are gone
        assert inner(model).skipped_steps == 2  # at 4 and at 2


@pytest.mark.parametrize("own", [{}, {"gradient_accumulation_steps": 2, "use_ema": True}],
                         ids=["one batch", "micro-batches"])  # fmt: skip
@every_frontend
def test_a_bad_batch_is_skipped_as_without_the_wrapper(frontend, own):
    """With the update that it is a part of, and the report goes on."""
    found = []
    for scale in (None, 64.0):
        report = FRONTENDS[frontend][1].StopOnDivergence(every=1)
        model = compiled(frontend, scale, **own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fit(model, *data(bad=0), report, epochs=2)
        assert inner(model).skipped_steps == 2
        assert int(array(inner(model).iterations)) == (2 if own else 6)
        found.append(model.get_weights())
    assert scale_of(model) == 16.0
    for plain, scaled in zip(*found, strict=True):
        np.testing.assert_allclose(plain, scaled, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["MeasureNoise", "AdaScale"])
@every_frontend
def test_what_measures_hands_it_on(frontend, name):
    def around(own):
        kind = getattr(FRONTENDS[frontend][1], name)
        return kind(own, 2.0) if name == "AdaScale" else kind(own)

    model = compiled(frontend, 64.0, around, gradient_accumulation_steps=2)
    fit(model, *data(bad=0))
    assert inner(model).skipped_steps == 1
    assert int(array(inner(model).iterations)) == 1
    state = model.optimizer.inner_optimizer._meter.state
    assert all(np.isfinite(array(v)).all() for v in state.values())


@every_frontend
def test_the_scale_grows_with_updates(frontend):
    model = compiled(frontend, 64.0, growth=2, gradient_accumulation_steps=2)
    fit(model, *data(), epochs=3)
    assert scale_of(model) == 64.0 * 2**3  # six updates
