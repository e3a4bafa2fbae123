"""The numbers of every frontend, uncompiled: the oracle's table, and what enters a step besides."""

import numpy as np
import pytest
from oracle import Lamb
from support import worked
from support.cases import LAMB_CASES, case_id, oracle_arguments, random_problem
from support.frontends import (
    FRONTENDS,
    array,
    every_frontend,
    new_variable,
    on_tensorflow,
    precision,
    train,
    uncompiled,
)
from support.small_model import assert_same_weights, fit, two_layers

from tf_lamb.core import rules


@every_frontend
@pytest.mark.parametrize("case", LAMB_CASES, ids=case_id)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@uncompiled()
def test_lamb_is_the_oracle(frontend, case, dtype, tolerance):
    start, gradients = random_problem()
    reference = Lamb(start, lr=0.125, **oracle_arguments(case))
    with precision(frontend, dtype):
        trained = train(
            frontend, FRONTENDS[frontend][1].LAMB(0.125, **case), start, gradients, dtype
        )
        for ours, step in zip(trained, gradients, strict=True):
            expected = reference.step(step)
            for key in start:
                assert ours[key].dtype == dtype
                np.testing.assert_allclose(ours[key], expected[key], rtol=tolerance, atol=tolerance)


@every_frontend
@pytest.mark.parametrize("name", worked.ARGUMENTS)
@uncompiled()
def test_the_worked_examples(frontend, name):
    row = worked.row(name)
    with precision(frontend, "float64"):
        optimizer = getattr(FRONTENDS[frontend][1], row.optimizer)(row.rates[0], **row.arguments)
        trained = train(frontend, optimizer, row.start, row.gradients, "float64", row.rates)
        for ours, expected in zip(trained, row.expected, strict=True):
            for key, value in expected.items():
                np.testing.assert_allclose(ours[key], value, rtol=1e-8, atol=1e-9)


def assert_follows(reference, frontend, optimizer, gradients, change=lambda g: g, before=None):
    """Each step is the oracle's; `before` is called before it, with its number."""
    start, _ = random_problem()
    trained = train(frontend, optimizer, start, gradients)
    for t, gradient in enumerate(gradients, 1):
        if before:
            before(t)
        ours, expected = next(trained), reference.step(change(gradient))
        np.testing.assert_allclose(ours["kernel"], expected["kernel"], rtol=1e-5, atol=1e-6)


# What gives a learning rate of 0.1 at first -> the rate at step t.
RATES = {
    "a schedule": lambda t: 0.1 - 0.05 * (t - 1) / 5,
    "a callable": lambda t: 0.1 * t,
    "an assignment": lambda t: 0.1 if t < 3 else 0.01,
}


@every_frontend
@pytest.mark.parametrize("kind", RATES)
@uncompiled()
def test_the_learning_rate_is_read_at_every_step(frontend, kind):
    start, gradients = random_problem()
    host, ours = FRONTENDS[frontend]
    now = [1]
    optimizer = ours.LAMB(
        {
            "a schedule": host.optimizers.schedules.PolynomialDecay(0.1, 5, 0.05),
            "a callable": lambda: RATES[kind](now[0]),
            "an assignment": 0.1,
        }[kind]
    )

    def before(t):
        now[0] = t
        if t == 3 and kind == "an assignment":
            optimizer.learning_rate = 0.01
        assert float(optimizer.learning_rate) == pytest.approx(RATES[kind](t), rel=1e-6)

    assert_follows(Lamb(start, lr=RATES[kind]), frontend, optimizer, gradients, before=before)
    assert isinstance(optimizer.get_config()["learning_rate"], (float, dict))


@every_frontend
def test_the_config_has_the_learning_rate_that_was_given(frontend):
    optimizer = FRONTENDS[frontend][1].LAMB(0.1)
    rate = lambda: optimizer.get_config()["learning_rate"]  # noqa: E731
    assert rate() == 0.1  # and not 0.10000000149, which the variable holds
    optimizer.learning_rate = 1 / 3
    assert rate() == 1 / 3
    optimizer._learning_rate.assign(0.7)  # by who does not tell the optimizer
    assert rate() == float(np.float32(0.7))


def norm(arrays):
    return np.sqrt(sum(np.sum(a**2) for a in arrays))


CLIPPED = {
    "clipnorm": lambda g: {k: x * min(1, 0.5 / norm([x])) for k, x in g.items()},
    "clipvalue": lambda g: {k: np.clip(x, -0.5, 0.5) for k, x in g.items()},
    "global_clipnorm": lambda g: {k: x * min(1, 0.5 / norm(g.values())) for k, x in g.items()},
}


@every_frontend
@pytest.mark.parametrize("clip", CLIPPED)
@uncompiled()
def test_gradients_are_clipped(frontend, clip):
    start, gradients = random_problem()
    gradients = [{k: g * 3**i for k, g in step.items()} for i, step in enumerate(gradients)]
    optimizer = FRONTENDS[frontend][1].LAMB(0.1, **{clip: 0.5})
    assert_follows(Lamb(start, lr=0.1), frontend, optimizer, gradients, CLIPPED[clip])


@every_frontend
@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm"])
def test_clipping_a_norm_warns_that_it_has_no_effect_on_lans(frontend, name):
    LANS = FRONTENDS[frontend][1].LANS
    with pytest.warns(UserWarning, match=f"{name}=1 has no effect on LANS"):
        LANS(**{name: 1.0})
    LANS(clipvalue=1.0)


@every_frontend
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}], ids=str)
@uncompiled(fits=True)
def test_accumulated_micro_batches_are_one_large_batch(frontend, clip):
    host, ours = FRONTENDS[frontend]
    rate = host.optimizers.schedules.PolynomialDecay(0.05, 4, 0.01)
    given = {"weight_decay": host.optimizers.schedules.PolynomialDecay(0.5, 2, 0.1), **clip}
    plain = ours.LAMB(rate, use_ema=True, **given)
    one, _ = fit(frontend, plain, two_layers, epochs=2, batch_size=32)
    accumulating = ours.LAMB(rate, use_ema=True, gradient_accumulation_steps=4, **given)
    many, _ = fit(frontend, accumulating, two_layers, epochs=2, batch_size=8)
    assert int(accumulating.iterations) == 4
    assert_same_weights(one, many, 1e-6)


@every_frontend
@uncompiled()
def test_micro_batches_count_by_their_mean(frontend):
    start, gradients = random_problem(steps=6)
    reference = Lamb(start, lr=0.1, wd=0.1, eps=1.0)  # so large that it sees how long they are
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, weight_decay=0.1, epsilon=1.0, gradient_accumulation_steps=2
    )
    *_, last = train(frontend, optimizer, start, gradients)
    for one, other in zip(gradients[::2], gradients[1::2], strict=True):
        expected = reference.step({key: (one[key] + other[key]) / 2 for key in start})
    for key in start:
        np.testing.assert_allclose(last[key], expected[key], rtol=1e-6, atol=1e-6)


@every_frontend
@uncompiled()
def test_variables_of_one_shape_keep_their_own_treatment(frontend):
    start, gradients = random_problem(shape=(3,), steps=2)
    reference = Lamb(start, lr=0.1, wd=0.1, undecayed=["bias"], unadapted=["bias"])
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"]
    )
    for ours, step in zip(train(frontend, optimizer, start, gradients), gradients, strict=True):
        expected = reference.step(step)
        for key in start:
            np.testing.assert_allclose(ours[key], expected[key], rtol=1e-6, atol=1e-6)


@every_frontend
@uncompiled()
def test_between_updates_nothing_moves(frontend):
    start, gradients = random_problem()
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=1
    )
    states = list(train(frontend, optimizer, start, gradients[:3]))
    np.testing.assert_array_equal(states[0]["kernel"], start["kernel"].astype("float32"))
    np.testing.assert_array_equal(states[1]["kernel"], states[2]["kernel"])
    assert np.any(states[1]["kernel"] != states[0]["kernel"])


@every_frontend
@pytest.mark.parametrize("frequency", [None, 2])
@uncompiled()
def test_averages_follow_the_weights(frontend, frequency):
    start, gradients = random_problem()
    start = {"kernel": start["kernel"]}
    gradients = [{"kernel": step["kernel"]} for step in gradients]
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=frequency
    )
    reference = Lamb(start, lr=0.1)
    average = None  # begins with the weights of the first step
    trained = train(frontend, optimizer, start, gradients)
    for t, (ours, step) in enumerate(zip(trained, gradients, strict=True), 1):
        w = reference.step(step)["kernel"]
        average = w if average is None else 0.9 * average + 0.1 * w
        if frequency and t % frequency == 0:
            reference.w["kernel"] = average
        np.testing.assert_allclose(ours["kernel"], reference.w["kernel"], rtol=1e-5, atol=1e-6)
    kept = array(optimizer._model_variables_moving_average[0])
    np.testing.assert_allclose(kept, average, rtol=1e-5)


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@uncompiled()
def test_sparse_gradients_are_dense_ones(frontend, name):
    import tensorflow as tf

    rows, values = [1, 3, 1], np.array([[1, 2], [3, 4], [5, 6]], "float32")
    dense = np.zeros((5, 2), "float32")
    np.add.at(dense, rows, values)
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(rows), (5, 2))
    results = []
    for gradient in (tf.constant(dense), sparse):
        variable = new_variable(frontend, np.ones((5, 2)))
        optimizer = getattr(FRONTENDS[frontend][1], name)(
            0.1 if name == "LAMB" else 1.0, weight_decay=0.1
        )
        for _ in range(3):
            optimizer.apply_gradients([(gradient, variable)])
        results.append(array(variable))
    np.testing.assert_array_equal(*results)


# What a user does with a model; a fit that is compiled stands for all that are.


@every_frontend
@pytest.mark.parametrize("name", rules.OURS)
@uncompiled(fits=True)
def test_every_optimizer_fits(frontend, name):
    """With what spares memory; at a rate that trains from whatever weights a backend draws."""
    optimizer = getattr(FRONTENDS[frontend][1], name)(
        0.1 if name in ("LARS", "Muon") else 0.02, weight_decay=1e-4,
        exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=[], dtypes={"slots": "bfloat16"},
        gradient_accumulation_steps=2,
        **({"trust_coefficient": 0.2} if name == "LARS" else {}),
    )  # fmt: skip
    _, losses = fit(frontend, optimizer, two_layers, epochs=10)
    assert losses[-1] < 0.7 * losses[0]


@every_frontend
def test_an_optimizer_belongs_to_its_model(frontend):
    optimizer = FRONTENDS[frontend][1].LAMB()
    one, stranger = (new_variable(frontend, np.ones(1), path="stranger") for _ in range(2))
    optimizer.build([one])
    with pytest.raises(ValueError, match="built for other variables than 'stranger'"):
        optimizer.build([stranger])
