"""Door 1 on JAX under `keras.distribution`, on eight devices: sharded or not, training is the same.

`test_distribution.py` is its half on TensorFlow.
"""

import functools

import keras
import numpy as np
import pytest
from keras import distribution

import tf_lamb.keras

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution trains on JAX alone", allow_module_level=True)

import jax

CASES = {
    "LAMB": ("LAMB", {}),
    "LAMB clipped": ("LAMB", {"global_clipnorm": 0.1}),
    "LAMB averaged and accumulated": (
        "LAMB",
        {"use_ema": True, "ema_momentum": 0.5, "gradient_accumulation_steps": 2, "clipnorm": 0.5},
    ),
    "LAMB joined and sliced": (
        "LAMB",
        {"layer_groups": ["up/"], "layer_slices": {"down/kernel": [-1, 2]}},
    ),
    "LARS": ("LARS", {"trust_coefficient": 0.5}),
    "AdamP": ("AdamP", {}),
}


def data_parallel():
    return distribution.DataParallel(devices=distribution.list_devices())


def model_parallel():
    mesh = distribution.DeviceMesh((2, 4), ["batch", "model"], distribution.list_devices())
    layouts = distribution.LayoutMap(mesh)
    layouts["model/embedding/.*"] = (None, "model")
    layouts["model/up/kernel"] = (None, "model")
    layouts["model/up/bias"] = ("model",)
    layouts["model/down/kernel"] = ("model", "batch")
    return distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


STRATEGIES = {"data": data_parallel, "model": model_parallel}
SHARDED = {"embedding/embeddings", "up/kernel", "up/bias", "down/kernel"}


@pytest.fixture(autouse=True)
def undistributed():
    """Each test ends as it began."""
    yield
    distribution.set_distribution(None)


def data():
    rng = np.random.default_rng(1)
    return rng.integers(10, size=(64, 2)), rng.normal(size=(64, 8)).astype("float32")


def make(strategy, case, **changes):
    """A compiled model under the strategy, or on one device."""
    distribution.set_distribution(STRATEGIES[strategy]() if strategy else None)
    rng = np.random.default_rng(0)
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((2,), dtype="int32"), layers.Embedding(10, 4, name="embedding"),
        layers.Flatten(), layers.Dense(16, activation="tanh", name="up"),
        layers.LayerNormalization(name="normalization"), layers.Dense(8, name="down"),
    ], name="model")  # fmt: skip
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    name, arguments = CASES[case]
    # A small epsilon would magnify the rounding of a sum in another order.
    shared = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias$", "gamma$"],
              "epsilon": 0.1}  # fmt: skip
    optimizer = getattr(tf_lamb.keras, name)(0.05, **{**shared, **arguments, **changes})
    if name != "AdamP":
        optimizer.observe_trust_ratios()
    model.compile(optimizer=optimizer, loss="mse")
    return model


def fit(model, epochs=2):
    x, y = data()
    model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model


def values_of(model):
    return [np.asarray(v.value) for v in (*model.trainable_variables, *model.optimizer.variables)]


@functools.cache
def one_device(case):
    distribution.set_distribution(None)
    model = fit(make(None, case))
    ratios = model.optimizer.trust_ratios() if case != "AdamP" else []
    return values_of(model), [seen.trust_ratio for seen in ratios]


def test_there_are_eight_devices():
    assert len(distribution.list_devices()) == 8


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fit_is_that_of_one_device(strategy, case):
    """Weights, slots, accumulators, averages, and what is on show."""
    expected, ratios = one_device(case)
    model = fit(make(strategy, case))
    for value, other in zip(values_of(model), expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)
    if ratios:
        seen = [each.trust_ratio for each in model.optimizer.trust_ratios()]
        assert sum(ratio is not None for ratio in seen) >= 3
        for ratio, other in zip(seen, ratios, strict=True):
            assert ratio == (other if other is None else pytest.approx(other, rel=1e-6))


@pytest.mark.parametrize("case", ["LAMB", "LARS"])
def test_norms_are_of_whole_variables(case):
    model = make("model", case)
    before = {v.path: np.asarray(v.value) for v in model.trainable_variables}
    x, y = data()
    model.train_on_batch(x[:16], y[:16])
    seen = {each.path: each.weight_norm for each in model.optimizer.trust_ratios()}
    for name in ("embedding/embeddings", "up/kernel", "down/kernel"):
        path = f"model/{name}"
        assert seen[path] == pytest.approx(np.linalg.norm(before[path]), rel=1e-6)


def shards_of(variable):
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return value.sharding, {shard.data.shape for shard in value.addressable_shards}


@pytest.mark.parametrize(
    ("when", "changes"),
    [
        ("built", {}),
        ("built", {"slot_dtype": "bfloat16"}),
        ("built", {"gradient_accumulation_steps": 2, "use_ema": True}),
        ("trained", {"gradient_accumulation_steps": 2, "use_ema": True}),
    ],
)
def test_what_accompanies_a_variable_is_laid_out_like_it(when, changes):
    model = make("model", "LAMB", **changes)
    optimizer = model.optimizer
    if when == "built":
        optimizer.build(model.trainable_variables)
    else:
        fit(model, epochs=1)
    for i, variable in enumerate(model.trainable_variables):
        sharding, shapes = shards_of(variable)
        beside = [*optimizer._slots[i]]
        if "use_ema" in changes:
            beside += [optimizer._accumulated_gradients[i],
                       optimizer._model_variables_moving_average[i]]  # fmt: skip
        for each in beside:
            assert shards_of(each) == (sharding, shapes), each.path
        is_cut = shapes != {tuple(variable.shape)}
        assert is_cut == (variable.path.removeprefix("model/") in SHARDED)


def test_a_master_is_laid_out_like_its_variable():
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = make("model", "LAMB", master_weights=True)
        model.optimizer.build(model.trainable_variables)
    finally:
        keras.config.set_dtype_policy("float32")
    for variable, slots in zip(model.trainable_variables, model.optimizer._slots, strict=True):
        assert [slot.dtype for slot in slots] == ["float32"] * 3
        for slot in slots:
            assert shards_of(slot) == shards_of(variable)


@pytest.mark.parametrize("case", ["LARS", "LAMB averaged and accumulated"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_second_step_compiles_nothing(strategy, case):
    compiled = []

    def count(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    model = make(strategy, case)
    x, y = data()
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        model.train_on_batch(x[:16], y[:16])
        assert compiled
        compiled.clear()
        for start in (16, 32, 48):
            model.train_on_batch(x[start : start + 16], y[start : start + 16])
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()
