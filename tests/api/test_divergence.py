"""A run that diverges ends with a report, before anything good is overwritten."""

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, as_compiled, every_frontend


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 2)).astype("float32")


def compiled(frontend, optimizer, traced=BACKEND != "tensorflow"):
    host = FRONTENDS[frontend][0]
    host.utils.set_random_seed(1)
    model = host.Sequential(
        [
            host.layers.Input((4,)),
            host.layers.Dense(3, name="first"),
            host.layers.Dense(2, name="last"),
        ]
    )
    model.compile(optimizer, "mse", run_eagerly=not traced)
    return model


def fit(model, x, y, *callbacks, epochs=2):
    with as_compiled(model):
        model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("kind", ["LAMB", "AdamP"])
@every_frontend
def test_fit_ends_where_a_weight_is_not_finite(frontend, kind, tmp_path):
    """The checkpoint of the epoch before is the last one."""
    host, ours = FRONTENDS[frontend]
    x, y = data()
    model = compiled(
        frontend, getattr(ours, kind)(0.01, jit_compile=False, on_nonfinite="propagate")
    )
    report = ours.StopOnDivergence(every=1, keep=2)
    save = host.callbacks.ModelCheckpoint(
        str(tmp_path / "good.weights.h5"), save_weights_only=True, save_best_only=False
    )
    fit(model, x, y, report, save, epochs=1)
    x[40:48] = np.nan  # the sixth batch
    with pytest.raises(
        FloatingPointError, match="at step 14, the weights of .*first/kernel"
    ) as caught:
        fit(model, x, y, report, save)
    if kind in ("LAMB", "LARS"):  # which have trust ratios to show
        text = str(caught.value)
        assert " 13 " in text and " 14 " in text and " 12 " not in text
    model.load_weights(str(tmp_path / "good.weights.h5"))
    assert all(np.isfinite(w).all() for w in model.get_weights())


@every_frontend
def test_weights_that_break_with_the_last_step_of_an_epoch_are_not_saved(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    x, y = data()
    model = compiled(frontend, ours.LAMB(0.01, jit_compile=False, on_nonfinite="propagate"))
    report = ours.StopOnDivergence(every=10)
    path = tmp_path / "good.weights.h5"
    save = host.callbacks.ModelCheckpoint(str(path), save_weights_only=True)
    x[-1] = np.nan
    with pytest.raises(FloatingPointError, match="at step 8, the weights of"):
        fit(model, x, y, report, save, epochs=2)
    assert not path.exists()


@every_frontend
def test_the_loss_of_the_validation_ends_no_run(frontend):
    ours = FRONTENDS[frontend][1]
    x, y = data()
    model = compiled(frontend, ours.LAMB(0.01, jit_compile=False))
    validation = (np.full_like(x, np.nan), y)
    with as_compiled(model):
        history = model.fit(
            x,
            y,
            epochs=2,
            verbose=0,
            validation_data=validation,
            callbacks=[ours.StopOnDivergence()],
        )
    assert not np.isfinite(history.history["val_loss"]).any()


@every_frontend
def test_skipped_batches_warn_at_the_end(frontend):
    ours = FRONTENDS[frontend][1]
    x, y = data()
    x[40] = np.nan
    model = compiled(frontend, ours.LAMB(0.01, jit_compile=False), traced=True)
    with pytest.warns(UserWarning, match="of 16 steps, 2 have been .* All weights are finite"):
        fit(model, x, y, ours.StopOnDivergence(every=1))


@every_frontend
def test_a_loss_that_is_not_finite_ends_a_run_that_skipped_a_step_in_an_earlier_epoch(frontend):
    ours = FRONTENDS[frontend][1]
    x, y = data()
    bad = np.where(np.arange(64)[:, None] == 40, np.float32("nan"), x)
    model = compiled(frontend, ours.LAMB(0.01, jit_compile=False))
    with pytest.warns(UserWarning, match="of 8 steps, 1 have been skipped"):
        fit(model, bad, y, ours.StopOnDivergence(every=1), epochs=1)

    def without_a_number(y, predicted):  # with gradients that are finite
        return (y - predicted) ** 2 + float("nan")

    model.compile(model.optimizer, without_a_number, run_eagerly=BACKEND == "tensorflow")
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        fit(model, x, y, ours.StopOnDivergence(every=1), epochs=1)


@every_frontend
def test_a_batch_of_an_update_that_is_not_due_ends_no_run(frontend):
    """Of eight batches two are left over; the second `fit` begins with them."""
    ours = FRONTENDS[frontend][1]
    x, y = data()
    left_over = np.where(np.arange(64)[:, None] == 63, np.float32("nan"), x)
    inner = ours.LAMB(0.01, gradient_accumulation_steps=3, jit_compile=False)
    model = compiled(frontend, inner, traced=True)
    report = ours.StopOnDivergence(every=1)
    fit(model, left_over, y, report, epochs=1)
    assert inner.skipped_steps == 0
    with pytest.warns(UserWarning, match="of 5 steps, 1 have been skipped"):
        fit(model, x, y, report, epochs=1)


@every_frontend
def test_steps_that_are_all_skipped_end_the_run(frontend):
    ours = FRONTENDS[frontend][1]
    x, y = data()
    x[16:] = np.nan
    inner = ours.LAMB(0.01, gradient_accumulation_steps=2, jit_compile=False)
    model = compiled(frontend, ours.MeasureNoise(inner))
    with pytest.raises(FloatingPointError, match="at step 1, at least 3 more were tried and all"):
        fit(model, x, y, ours.StopOnDivergence(every=1, patience=3))


@every_frontend
def test_what_it_cannot_read_is_refused(frontend):
    host, ours = FRONTENDS[frontend]
    model = compiled(frontend, host.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="reads the optimizers of tf_lamb, not .*SGD"):
        fit(model, *data(), ours.StopOnDivergence())


@every_frontend
def test_a_patience_of_0_is_refused(frontend):
    with pytest.raises(ValueError, match="patience must be a whole number >= 1, not 0"):
        FRONTENDS[frontend][1].StopOnDivergence(patience=0)
