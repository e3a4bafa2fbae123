"""A run that skips its steps says so, without a callback and without waiting in every step."""

import warnings

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, apply, every_frontend, new_variable

BAD = np.full((4, 3), np.nan, "float32")


def optimizer(frontend, **arguments):
    made = FRONTENDS[frontend][1].LAMB(0.01, name="it", **arguments)
    made.build([variable := new_variable(frontend, np.ones((4, 3)), path="w")])
    return made, variable


def step(made, variable, gradient=BAD):
    apply(made, [gradient], [variable])


@every_frontend
def test_the_end_of_fit_says_how_many_steps_were_skipped(frontend):
    host, ours = FRONTENDS[frontend]
    model = host.Sequential([host.layers.Input((3,)), host.layers.Dense(1)])
    model.compile(ours.LAMB(0.01, name="it"), "mse", run_eagerly=BACKEND == "tensorflow")
    with pytest.warns(UserWarning, match="it: of 3 steps, 3 have been skipped") as w:
        model.fit(BAD, np.ones((4, 1)), batch_size=4, epochs=3, verbose=0)
    assert [each.filename for each in w if "it: of" in str(each.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)  # none more


def fit(model, batches, epochs=1):
    x = np.random.default_rng(0).normal(size=(4 * batches, 3)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0)


@pytest.mark.parametrize("kind", ["alone", "growing", "MeasureNoise", "AdaScale", "of the host"])
@every_frontend
def test_a_fit_without_an_update_says_so(frontend, kind):
    host, ours = FRONTENDS[frontend]
    steps = {0: 8, 5: 16} if kind == "growing" else 8
    around = {"MeasureNoise": ours.MeasureNoise, "AdaScale": lambda own: ours.AdaScale(own, 8)}
    if kind == "of the host":
        if frontend == "tf_keras":
            pytest.skip("its own optimizers do not accumulate")
        sgd = host.optimizers.SGD(0.1, name="it", gradient_accumulation_steps=steps)
        made = ours.MeasureNoise(sgd)
    else:
        made = ours.LARS(0.1, name="it", gradient_accumulation_steps=steps)
        made = around.get(kind, lambda own: own)(made)
    model = host.Sequential([host.layers.Input((3,)), host.layers.Dense(1)])
    model.compile(made, "mse", run_eagerly=BACKEND == "tensorflow")
    before = model.get_weights()
    with pytest.warns(
        UserWarning, match="it: fit has changed no weight.* 8 batches .* 6 have come"
    ):
        fit(model, 3, epochs=2)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model, 3)  # they count; one more waits
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    with pytest.warns(UserWarning, match="it: fit has changed no weight.* 3 have come"):
        fit(model, 2)


@every_frontend
def test_the_first_fit_after_a_load_says_so_too(frontend):
    """Steps that were loaded are none of its own."""
    host, ours = FRONTENDS[frontend]
    models = []
    for _ in range(2):
        model = host.Sequential([host.layers.Input((3,)), host.layers.Dense(1)])
        optimizer = ours.LARS(0.1, name="it", gradient_accumulation_steps=8)
        model.compile(optimizer, "mse", run_eagerly=BACKEND == "tensorflow")
        optimizer.build(model.trainable_variables)
        models.append(model)
    trained, other = models
    fit(trained, 9)
    trained.optimizer.save_own_variables(store := {})
    other.optimizer.load_own_variables(store)
    with pytest.warns(UserWarning, match="it: fit has changed no weight.* 3 have come"):
        fit(other, 2)


def skipping(frontend, **arguments):
    """Returns a model of one layer, compiled with a LAMB whose slots are there."""
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = host.Sequential([host.layers.Input((3,)), host.layers.Dense(1)])
    optimizer = ours.LAMB(0.01, name="it", **arguments)
    model.compile(optimizer, "mse", run_eagerly=BACKEND == "tensorflow")
    optimizer.build(model.trainable_variables)
    return model


def loaded(frontend, trained, **arguments):
    """Returns a second such model, which has loaded the state of the first one's optimizer."""
    resumed = skipping(frontend, **arguments)
    trained.optimizer.save_own_variables(store := {})
    resumed.optimizer.load_own_variables(store)
    return resumed


@every_frontend
def test_a_resumed_run_does_not_warn_of_steps_that_were_skipped_before(frontend):
    trained = skipping(frontend)
    with pytest.warns(UserWarning, match="it: of 1 steps, 1 have been skipped"):
        trained.fit(BAD, np.ones((4, 1)), batch_size=4, verbose=0)
    resumed = loaded(frontend, trained)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(resumed, 2)
    assert resumed.optimizer.skipped_steps == 1


@every_frontend
def test_both_warnings_count_all_steps_that_were_tried(frontend):
    """Those taken, those that were not finite, and spikes."""
    model = skipping(frontend, on_spike=[16, 50.0])
    fit(model, 24)
    x = np.concatenate([np.full((4, 3), 1e4, "float32"), BAD])
    with pytest.warns(UserWarning) as caught:
        model.fit(x, np.ones((8, 1)), batch_size=4, shuffle=False, verbose=0)
    told = [str(w.message) for w in caught if "have been skipped" in str(w.message)]
    assert [text.partition(" have")[0] for text in told] == ["it: of 26 steps, 1"] * 2


@every_frontend
def test_a_resumed_run_does_not_warn_of_spikes_that_were_skipped_before(frontend):
    trained = skipping(frontend, on_spike=[16, 50.0])
    fit(trained, 24)
    with pytest.warns(UserWarning, match="1 have been skipped because .* a spike"):
        trained.fit(np.full((4, 3), 1e4), np.ones((4, 1)), batch_size=4, verbose=0)
    resumed = loaded(frontend, trained, on_spike=[16, 50.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(resumed, 2)
    assert resumed.optimizer.spiked_steps == 1
