"""Half precision: what is kept in it, what is not, and what that costs of memory."""

import numpy as np
import pytest
from oracle import Lamb
from support import clusters
from support.cases import random_problem
from support.feeding import Feed, maker
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    dtype_of,
    every_frontend,
    new_variable,
    on_tensorflow,
    precision,
    train,
    uncompiled,
)
from support.references import NAMES
from support.small_model import fit, two_layers


@every_frontend
@pytest.mark.parametrize("policy", ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"])
def test_policies_train(frontend, policy):
    host, ours = FRONTENDS[frontend]
    with precision(frontend, policy=policy):
        model, losses = fit(frontend, ours.LAMB(0.02), two_layers, epochs=10)
    assert losses[-1] < 0.5 * losses[0]
    is_scaled = isinstance(model.optimizer, host.mixed_precision.LossScaleOptimizer)
    assert is_scaled == (policy == "mixed_float16")


@every_frontend
@uncompiled()
def test_a_master_keeps_what_half_precision_cannot(frontend):
    def final(dtype, **arguments):
        arguments = {"exclude_from_layer_adaptation": [""], **arguments}
        variable = new_variable(frontend, np.ones((8, 8)), dtype)
        optimizer = FRONTENDS[frontend][1].LAMB(1e-4, **arguments)
        for _ in range(40):
            apply(optimizer, [np.ones((8, 8))], [variable])
        return float(array(variable)[0, 0]), variable, optimizer

    exact, *_ = final("float32")
    without, *_ = final("bfloat16")
    with_master, variable, optimizer = final("bfloat16", dtypes={"masters": "float32"})
    assert without == 1.0  # 1e-4 is less than half a unit of bfloat16
    assert with_master == pytest.approx(exact, abs=2**-8)
    assert with_master < 1.0
    # A weight that somebody sets is what counts from then on.
    variable.assign(np.full((8, 8), 2.0))
    apply(optimizer, [np.ones((8, 8))], [variable])
    assert float(array(variable)[0, 0]) == pytest.approx(2.0, abs=0.01)


def half_problem(frontend, dtype):
    """A weight and the gradients of 40 steps, all numbers that the dtype has."""
    start, gradients = random_problem(steps=40)

    def rounded(w):
        return array(new_variable(frontend, w, dtype)).astype("float64")

    return rounded(start["kernel"]), [rounded(step["kernel"]) for step in gradients]


@every_frontend
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("when", ["in training", "at the end of fit"])
@uncompiled()
def test_what_averages_overwrite_is_the_master_too(frontend, when, dtype):
    """Else all progress below half a unit of the dtype is lost each time, and that is all."""
    start, gradients = half_problem(frontend, dtype)
    frequency = 5 if when == "in training" else None
    optimizer = FRONTENDS[frontend][1].LAMB(
        1e-4, dtypes={"masters": "float32"}, use_ema=True, ema_momentum=0.9,
        ema_overwrite_frequency=frequency,
    )  # fmt: skip
    variable = new_variable(frontend, start, dtype)
    reference, average = Lamb({"kernel": start}, lr=1e-4), None
    for t, gradient in enumerate(gradients, 1):
        apply(optimizer, [gradient], [variable])
        w = reference.step({"kernel": gradient})["kernel"]
        average = w if average is None else 0.9 * average + 0.1 * w
        if t % 5 == 0:
            reference.w["kernel"] = average
            if not frequency:
                optimizer.finalize_variable_values([variable])
    (master,) = map(array, optimizer._storage.masters)
    held = array(optimizer.state_of(0)["average"])
    np.testing.assert_allclose(master, average, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(held, average, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(array(variable), master.astype(array(variable).dtype))
    assert np.abs(average - start).mean() > 1e-4


@every_frontend
@uncompiled()
def test_bfloat16_slots_follow_float32_ones(frontend):
    random = np.random.default_rng(0)
    w, g = random.normal(size=(2, 64, 64))

    def final(**arguments):
        optimizer = FRONTENDS[frontend][1].LAMB(0.1, **arguments)
        scaled = [{"w": g * (1 + t)} for t in range(20)]
        *_, weights = train(frontend, optimizer, {"w": w}, scaled)
        return weights["w"], {dtype_of(slot) for slot in optimizer.state_of(0).values()}

    exact, _ = final()
    rounded, dtypes = final(dtypes={"slots": "bfloat16"})
    again, _ = final(dtypes={"slots": "bfloat16"})
    assert dtypes == {"bfloat16"}
    assert 0 < np.linalg.norm(exact - rounded) < 0.01 * np.linalg.norm(exact - w)
    np.testing.assert_array_equal(rounded, again)  # a resumed run is the same run


@every_frontend
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@uncompiled()
def test_an_average_follows_what_somebody_sets(frontend):
    """A variable without a gradient is not stepped: its master is still that of before."""
    optimizer = FRONTENDS[frontend][1].LAMB(
        1e-4, dtypes={"masters": "float32"}, use_ema=True, ema_momentum=0.5,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    variables = [new_variable(frontend, np.ones(4), "bfloat16", path) for path in "ab"]
    for last in (np.ones(4), None):
        if last is None:
            variables[1].assign(np.full(4, 3.0))
        for _ in range(2):
            apply(optimizer, [np.ones(4), last], variables)
    average = array(optimizer.state_of(1)["average"])
    np.testing.assert_allclose(average, 2.0, atol=1e-3)


@on_tensorflow
@every_frontend
def test_masters_take_their_averages_on_replicas(frontend):
    make = maker(
        frontend, "LAMB", 1e-4, dtypes={"masters": "float32"}, use_ema=True,
        ema_overwrite_frequency=5,
    )  # fmt: skip
    feed = Feed(frontend, make, 2, dtype="bfloat16", traced=True)
    one = {"kernel": np.ones((2, 2)), "bias": np.ones(2)}
    for _ in range(5):
        feed.step([one, one])
    masters = feed.optimizer._storage.masters
    for i, weight in enumerate(feed.variables):
        kept = (weight, masters[i], feed.optimizer.state_of(i)["average"])
        copies = (feed.strategy.experimental_local_results(clusters.native(v)) for v in kept)
        for own, master, average in zip(*(map(array, each) for each in copies), strict=True):
            np.testing.assert_array_equal(master, average)
            np.testing.assert_array_equal(own, master.astype(own.dtype))
            assert (master != own.astype("float32")).any()


@every_frontend
@uncompiled()
def test_bfloat16_slots_move_nothing_where_gradients_of_low_rank_are_0(frontend):
    """Of a rounded m SOAP would make steps of 80,000 times the rate."""
    random = np.random.default_rng(0)
    left, right = random.normal(size=(32, 4)), random.normal(size=(4, 32))
    gradients = [{"w": left @ np.diag(random.normal(size=4)) @ right} for _ in range(12)]
    optimizer = FRONTENDS[frontend][1].SOAP(
        1.0, dtypes={"slots": "bfloat16"}, precondition_frequency=5
    )
    *_, before, after = train(frontend, optimizer, {"w": np.zeros((32, 32))}, gradients)
    assert 0.1 < np.abs(after["w"] - before["w"]).max() < 5


@every_frontend
@uncompiled()
def test_scalars_of_float64_variables_are_float64(frontend):
    """Of averages the momentum, a bound, the threshold of clipping: float32 holds none of them."""
    start, gradients = np.array([0.3, -0.7]), np.random.default_rng(0).normal(size=(3, 2))
    with precision(frontend, "float64"):
        optimizer = FRONTENDS[frontend][1].LAMB(
            0.1, beta_1=0.0, beta_2=0.0, epsilon=0.0, bias_correction=False, global_clipnorm=0.3,
            bounds={"trust_ratio": (0.1, 0.7)}, use_ema=True, ema_momentum=0.9,
        )  # fmt: skip
        variable = new_variable(frontend, start, "float64")
        weights, average = start, None
        for gradient in gradients:
            apply(optimizer, [gradient], [variable])
            ratio = np.clip(np.linalg.norm(weights) / 2**0.5, 0.1, 0.7)
            weights = weights - 0.1 * ratio * np.sign(gradient)
            average = weights if average is None else 0.9 * average + (1 - 0.9) * weights
    np.testing.assert_allclose(array(variable), weights, rtol=1e-14)
    held = array(optimizer.state_of(0)["average"])
    np.testing.assert_allclose(held, average, rtol=1e-14)


@every_frontend
@uncompiled()
def test_a_moment_in_bfloat16_does_not_stand_still(frontend):
    """v decays by 0.1 % a step, less than half a unit of bfloat16."""
    variable = new_variable(frontend, np.ones(4096))
    optimizer = FRONTENDS[frontend][1].LAMB(1e-3, dtypes={"slots": "bfloat16"})
    optimizer.build([variable])
    v = optimizer.state_of(0)["v"]
    v.assign(np.ones(4096))
    for _ in range(50):
        apply(optimizer, [np.zeros(4096)], [variable])
    mean = np.mean(array(v).astype("float64"))
    assert mean == pytest.approx(0.999**50, rel=2e-3)


@every_frontend
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("arguments", "dtype", "bytes_a_parameter"),
    [
        ({}, "float32", 8), ({"dtypes": {"slots": "bfloat16"}}, "float32", 4),
        ({}, "bfloat16", 8), ({"dtypes": {"masters": "float32"}}, "bfloat16", 12),
        ({"dtypes": {"masters": "float32", "slots": "bfloat16"}}, "bfloat16", 8),
        ({"dtypes": {"masters": "float32"}}, "float32", 8),
        ({"dtypes": {"slots": "bfloat16"}}, "float64", 16),
    ],
)  # fmt: skip
def test_memory_is_what_the_docstring_says(frontend, name, arguments, dtype, bytes_a_parameter):
    optimizer = getattr(FRONTENDS[frontend][1], name)(**arguments)
    optimizer.build([new_variable(frontend, np.ones((10, 100)), dtype)])
    sizes = [array(v).nbytes for v in optimizer.variables if tuple(v.shape) == (10, 100)]
    master = 4 if "masters" in arguments.get("dtypes", ()) and dtype == "bfloat16" else 0
    slots = bytes_a_parameter - master
    if name in ("LARS", "SGDP", "Muon"):  # Muon of a matrix
        slots /= 2
    if name == "SOAP" and slots == 4:  # its first moment is never rounded
        slots += 2
    assert sum(sizes) == 1000 * (slots + master)
