"""What a model goes through in a week: each option, all of it, against a run without a break.

Fit, evaluate, fit again, save and load, fit, one batch by hand, a second `compile` with the same
optimizer, weights to a file and back, fit. Its twin has the same batches, and nothing between them.
"""

import contextlib
import dataclasses
import itertools

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, array, extra, precision
from support.own_arrays import assert_own_arrays

import tf_lamb.keras as ours
from tf_lamb.api.variables import step_of, unwrapped, variables_of

BATCHES = 4  # of a fit


@dataclasses.dataclass
class Case:
    """Options of an optimizer, and how it is trained."""

    arguments: dict = dataclasses.field(default_factory=dict)
    around: str = ""
    policy: str = "float32"
    compiled: dict = dataclasses.field(default_factory=dict)
    callback: str = ""
    devices: int = 0  # of a keras.distribution
    per_replica: bool = False


OPTIMIZERS = ("LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon", "SOAP")
EMA = {"use_ema": True, "ema_momentum": 0.5}
OVERWRITTEN = {**EMA, "ema_overwrite_frequency": 2}
HALF = {"dtypes": {"slots": "bfloat16"}}
TWO, THREE = {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3}
FALLING = keras.optimizers.schedules.PolynomialDecay(0.1, 8, 0.0)
# Keras on torch has no more than one.
SEVERAL_STEPS = {} if BACKEND == "torch" else {"steps_per_execution": 2}
OPTIONS = {
    "plain": Case({"on_nonfinite": "propagate"}, callback="BackupAndRestore"),
    "averages": Case({**EMA, **THREE}, callback="SwapEMAWeights"),
    "masters": Case(
        {**OVERWRITTEN, "dtypes": {"masters": "float32"}}, policy="bfloat16", compiled=SEVERAL_STEPS
    ),
    "half slots": Case({**EMA, **HALF, **TWO, "dtypes": {"masters": "float32"}}, policy="bfloat16"),
    "compiled": Case({**EMA, **HALF}, compiled={"jit_compile": True}, callback="TrustRatios"),
    "eager": Case({**OVERWRITTEN, **TWO}, compiled={"run_eagerly": True}, callback="TrustRatios"),
    "warmup": Case({**EMA, **TWO}, callback="AutoWarmup"),
    "multipliers": Case(
        {**EMA, **TWO, "treatments": {"norm": {"rate": 0}, "dense": {"rate": 0.5}}}
    ),
    "spikes": Case({**TWO, **EMA, "on_spike": [2, 1.0]}, callback="StopOnDivergence"),
    "falling decay": Case({**TWO, "weight_decay": FALLING}),
    "loss scale": Case(EMA, policy="mixed_float16", callback="StopOnDivergence"),
    "loss scale, accumulated": Case(THREE, policy="mixed_float16", compiled=SEVERAL_STEPS),
    "loss scale, measured": Case(
        TWO, around="AdaScale", policy="mixed_float16", callback="StopAtBaseSteps"
    ),
    "measured": Case(TWO, around="AdaScale", callback="TrustRatios"),
    "measured averages": Case({**EMA, **TWO}, around="MeasureNoise", callback="NoiseScale"),
}
DEVICES = {
    "shares": Case({**EMA, "shard_update": True}, devices=4),
    "shares, accumulated": Case(
        {**EMA, **THREE, "shard_update": True}, devices=4, per_replica=True
    ),
    "replicas": Case(THREE, devices=4, per_replica=True, callback="StopOnDivergence"),
}
QUICK = {("LAMB", "averages"), ("LARS", "masters"), ("LARS", "measured")}


def cases():
    """Each option with two optimizers on TensorFlow and with two others on JAX.

    So two pairs of three are on one of the two; `support/stateful.py` draws the others as well.
    Devices are Keras's on JAX alone.
    """
    options = {**OPTIONS, **(DEVICES if BACKEND == "jax" else {})}
    pairs = itertools.product(enumerate(OPTIMIZERS), enumerate(options.items()))
    for (i, optimizer), (j, (name, case)) in pairs:
        here = (i + j) % 3 == (BACKEND == "jax")
        if not here and (optimizer, name) not in QUICK:
            continue
        if case.callback == "TrustRatios" and optimizer not in ("LAMB", "LANS", "LARS"):
            case = dataclasses.replace(case, callback="StopOnDivergence")
        if case.around == "AdaScale" and optimizer in ("LANS", "Muon", "SOAP"):
            case = dataclasses.replace(case, around="MeasureNoise", callback="NoiseScale")
        slow = [] if (optimizer, name) in QUICK else [pytest.mark.slow]
        yield pytest.param(optimizer, case, id=f"{optimizer}, {name}", marks=slow)


def data(rows=8 * BATCHES):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x * 2 + 1


def network():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((4,)), layers.LayerNormalization(name="norm"), layers.Dense(4, name="dense")]
    )


def made(name, case):
    """The model, compiled."""
    optimizer = getattr(ours, name)(0.02, **case.arguments)
    if case.around == "AdaScale":
        optimizer = ours.AdaScale(optimizer, scale=2)
    if case.around == "MeasureNoise":
        optimizer = ours.MeasureNoise(optimizer)
    return compiled(case, network(), optimizer)


def compiled(case, model, optimizer):
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(), **case.compiled)
    return ours.per_replica(model) if case.per_replica else model


def callbacks(case, folder):
    make = {
        "": lambda: [],
        "SwapEMAWeights": lambda: [keras.callbacks.SwapEMAWeights()],
        "TrustRatios": lambda: [ours.TrustRatios(every=2, print_fn=None)],
        "AutoWarmup": lambda: [extra("automatic_warmup")["keras"][1].AutoWarmup(verbose=False)],
        "NoiseScale": lambda: [ours.NoiseScale(8, every=2, verbose=False)],
        "StopAtBaseSteps": lambda: [ours.StopAtBaseSteps(1000)],
        "StopOnDivergence": lambda: [ours.StopOnDivergence()],
        "BackupAndRestore": lambda: [ours.BackupAndRestore(folder)],
    }
    return make[case.callback]()


def fit(case, model, folder):
    x, y = data()
    more = {"validation_data": (x, y)} if case.callback == "SwapEMAWeights" else {}
    model.fit(
        x, y, batch_size=8, shuffle=False, verbose=0, **more, callbacks=callbacks(case, folder)
    )


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
        optimizer = unwrapped(model.optimizer)
        assert step_of(optimizer) + optimizer.spiked_steps == micro_batches // steps


@contextlib.contextmanager
def surroundings(case):
    """The dtype policy, the devices and, on JAX, programs that are compiled quickly."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(precision("keras", policy=case.policy))
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


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_a_life_with_breaks_is_one_without(name, case, tmp_path):
    with surroundings(case):
        model, twin = made(name, case), made(name, case)
        x, y = data()
        fit(case, model, tmp_path / "a")
        assert_sound(model, case, BATCHES)
        losses = [model.evaluate(x, y, batch_size=8, verbose=0) for _ in range(2)]
        assert losses[0] == losses[1]
        fit(case, model, tmp_path / "a")
        assert_sound(model, case, 2 * BATCHES)

        model.save(path := str(tmp_path / "model.keras"))
        saved, model = state(model), keras.models.load_model(path)
        assert_same(state(model), saved)
        if case.per_replica:
            ours.per_replica(model)
        fit(case, model, tmp_path / "a")
        model.train_on_batch(x[:8], y[:8])
        assert_sound(model, case, 3 * BATCHES + 1)

        compiled(case, model, model.optimizer)
        model.save_weights(path := str(tmp_path / "model.weights.h5"))
        saved = state(model)
        for weight in model.trainable_variables:
            weight.assign(array(weight) + 1)
        model.load_weights(path)
        assert_same(state(model), saved)
        fit(case, model, tmp_path / "a")
        assert_sound(model, case, 4 * BATCHES + 1)

        for _ in range(3):
            fit(case, twin, tmp_path / "b")
        twin.train_on_batch(x[:8], y[:8])
        fit(case, twin, tmp_path / "b")
        assert_same(state(model), state(twin), 1e-6)
