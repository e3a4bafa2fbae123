"""What a model goes through in a week: each option, all of it, against a run without a break.

Fit, evaluate, fit again, save and load, fit, one batch by hand, a second `compile` with the same
optimizer, weights to a file and back, fit. Its twin has the same batches, and nothing between them.
"""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest
from support.doors import BACKEND, DOORS, array, precision
from support.own_arrays import assert_own_arrays

from tf_lamb.api.variables import step_of, variables_of
from tf_lamb.api.wrappers import unwrapped

BATCHES = 4  # of a fit


@dataclasses.dataclass
class Case:
    """One optimizer with its options, and how it is trained."""

    optimizer: str
    arguments: dict = dataclasses.field(default_factory=dict)
    around: str = ""
    policy: str = "float32"
    compiled: dict = dataclasses.field(default_factory=dict)
    callback: str = ""
    devices: int = 0  # of a keras.distribution
    per_replica: bool = False


EMA = {"use_ema": True, "ema_momentum": 0.5}
QUICK = {
    "averages": Case("LAMB", {**EMA, "gradient_accumulation_steps": 3}, callback="SwapEMAWeights"),
    "masters": Case(
        "LARS", {**EMA, "ema_overwrite_frequency": 2, "master_weights": True}, policy="bfloat16",
        compiled={} if BACKEND == "torch" else {"steps_per_execution": 2},  # Keras has 1 there
    ),
    "measured": Case(
        "LARS", {"gradient_accumulation_steps": 2}, around="AdaScale", callback="TrustRatios"
    ),
}  # fmt: skip
SLOW = {
    "plain": Case("LAMB", {"on_nonfinite": "propagate"}, callback="BackupAndRestore"),
    "half slots": Case("LANS", {"slot_dtype": "bfloat16", **EMA}, compiled={"jit_compile": True}),
    "eager": Case("AdamP", {"gradient_accumulation_steps": 2, **EMA},
                  compiled={"run_eagerly": True}),
    "eager, joined": Case("LAMB", {"layer_groups": ["."]}, compiled={"run_eagerly": True},
                          callback="TrustRatios"),
    "matrices": Case("Muon", {**EMA, "ema_overwrite_frequency": 1}, callback="DivergenceReport"),
    "loss scale": Case("LAMB", EMA, policy="mixed_float16", callback="DivergenceReport"),
    "loss scale, accumulated": Case(
        "AdamP", {"gradient_accumulation_steps": 3}, policy="mixed_float16",
        compiled={"steps_per_execution": 2},
    ),
    "measured steps": Case("LANS", EMA, around="Measured", callback="NoiseScale"),
    "loss scale, measured": Case("LARS", {"gradient_accumulation_steps": 2}, around="AdaScale",
                                 policy="mixed_float16", callback="StopAtScaleInvariantStep"),
}  # fmt: skip
DEVICES = {
    "shares, accumulated": Case(
        "LAMB", {**EMA, "shard_update": True, "gradient_accumulation_steps": 3}, devices=4,
        per_replica=True,
    ),
    "replicas": Case("LARS", {"gradient_accumulation_steps": 3}, devices=4, per_replica=True,
                     callback="DivergenceReport"),
}  # fmt: skip


def cases():
    """The quick ones on every backend; the others on JAX, where a step donates what it is given."""
    every = {**QUICK, **({**SLOW, **DEVICES} if BACKEND == "jax" else {})}
    for name, case in every.items():
        slow = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param("keras", case, id=name, marks=slow)


def data(rows=8 * BATCHES):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x * 2 + 1


def network(door):
    host, _ = DOORS[door]
    host.utils.set_random_seed(0)
    layers = host.layers
    return host.Sequential([
        host.Input((4,)), layers.Dense(8, name="up"), layers.LayerNormalization(name="norm"),
        layers.Dense(4, name="down"),
    ], name="model")  # fmt: skip


def made(door, case):
    """The model, compiled."""
    _, ours = DOORS[door]
    optimizer = getattr(ours, case.optimizer)(0.02, **case.arguments)
    if case.around == "AdaScale":
        optimizer = ours.AdaScale(optimizer, scale=2)
    if case.around == "Measured":
        optimizer = ours.Measured(optimizer, previous_gradient=True)
    return compiled(door, case, network(door), optimizer)


def compiled(door, case, model, optimizer):
    host, ours = DOORS[door]
    model.compile(optimizer=optimizer, loss=host.losses.MeanSquaredError(), **case.compiled)
    return ours.per_replica(model) if case.per_replica else model


def callbacks(door, case, folder):
    host, ours = DOORS[door]
    options = {
        "TrustRatios": {"every": 2, "print_fn": None}, "AutoWarmup": {"verbose": False},
        "StopAtScaleInvariantStep": {"steps": 1000}, "BackupAndRestore": {"backup_dir": folder},
    }.get(case.callback, {})  # fmt: skip
    if case.callback == "NoiseScale":
        return [ours.NoiseScale(8, every=2, verbose=False)]
    owner = host.callbacks if case.callback == "SwapEMAWeights" else ours
    return [getattr(owner, case.callback)(**options)] if case.callback else []


def fit(door, case, model, folder):
    x, y = data()
    more = {"validation_data": (x, y)} if case.callback == "SwapEMAWeights" else {}
    model.fit(
        x, y, batch_size=8, shuffle=False, verbose=0, **more,
        callbacks=callbacks(door, case, folder),
    )  # fmt: skip


def state(model):
    """All of a model's numbers, and its optimizer's but for those that are only shown."""
    with getattr(unwrapped(model.optimizer), "without_shown", contextlib.nullcontext)():
        every = [*model.weights, *variables_of(model.optimizer)]
    return [array(v).astype("float64") for v in every]


def assert_same(found, expected, tolerance=0.0):
    for one, other in zip(found, expected, strict=True):
        if one.shape == other.shape:  # sums of replicas come together in a load
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def assert_sound(model, case, micro_batches):
    assert_own_arrays(model)
    assert all(np.isfinite(array(w).astype("float32")).all() for w in model.weights)
    if case.policy != "mixed_float16":  # which skips steps, to find its scale
        steps = case.arguments.get("gradient_accumulation_steps", 1)
        assert step_of(unwrapped(model.optimizer)) == micro_batches // steps


@contextlib.contextmanager
def surroundings(door, case):
    """The dtype policy, the devices and, on JAX, programs that are compiled quickly."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(precision(door, policy=case.policy))
        if BACKEND == "jax":
            import jax

            jax.config.update("jax_disable_most_optimizations", True)
            stack.callback(jax.config.update, "jax_disable_most_optimizations", False)
        if case.devices:
            distribution = keras.distribution
            devices = distribution.list_devices()[: case.devices]
            distribution.set_distribution(distribution.DataParallel(devices=devices))
            stack.callback(distribution.set_distribution, None)
        yield


@pytest.mark.parametrize(("door", "case"), list(cases()))
def test_a_life_with_breaks_is_one_without(door, case, tmp_path):
    host, ours = DOORS[door]
    with surroundings(door, case):
        model, twin = made(door, case), made(door, case)
        x, y = data()
        fit(door, case, model, tmp_path / "a")
        assert_sound(model, case, BATCHES)
        losses = [model.evaluate(x, y, batch_size=8, verbose=0) for _ in range(2)]
        assert losses[0] == losses[1]
        fit(door, case, model, tmp_path / "a")
        assert_sound(model, case, 2 * BATCHES)

        model.save(path := str(tmp_path / "model.keras"))
        saved, model = state(model), host.models.load_model(path)
        assert_same(state(model), saved)
        if case.per_replica:
            ours.per_replica(model)
        fit(door, case, model, tmp_path / "a")
        model.train_on_batch(x[:8], y[:8])
        assert_sound(model, case, 3 * BATCHES + 1)

        compiled(door, case, model, model.optimizer)
        model.save_weights(path := str(tmp_path / "model.weights.h5"))
        saved = state(model)
        for weight in model.trainable_variables:
            weight.assign(array(weight) + 1)
        model.load_weights(path)
        assert_same(state(model), saved)
        fit(door, case, model, tmp_path / "a")
        assert_sound(model, case, 4 * BATCHES + 1)

        for _ in range(3):
            fit(door, case, twin, tmp_path / "b")
        twin.train_on_batch(x[:8], y[:8])
        fit(door, case, twin, tmp_path / "b")
        assert_same(state(model), state(twin), 1e-6)
