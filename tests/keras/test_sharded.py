"""Keras 3 on JAX, `keras.distribution`, eight devices: sharded or not, training is the same.

Weights in parts, the update in shares, the gradients of each replica apart: one device says what
comes out. `test_distribution.py` is its half on TensorFlow.
"""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import distribution
from support.frontends import precision

import tf_lamb.keras

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution trains on JAX alone", allow_module_level=True)

import jax

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undistributed")

ONE_SIDED = {"one_sided": True, "renewal": "cholesky"}
CASES = {
    "LAMB": ("LAMB", {}),
    "LAMB clipped": ("LAMB", {"global_clipnorm": 0.1, "on_spike": [4, 0.5]}),
    "LAMB averaged and accumulated": (
        "LAMB",
        {"use_ema": True, "ema_momentum": 0.5, "gradient_accumulation_steps": 2, "clipnorm": 0.5},
    ),
    "LAMB growing": (
        "LAMB",
        {"use_ema": True, "gradient_accumulation_steps": {0: 1, 2: 2, 4: 3}, "clipnorm": 0.5},
    ),
    "LAMB joined and sliced": (
        "LAMB",
        {"treatments": {"up/": {"join": True}, "down/kernel": {"slices": [-1, 2]}}},
    ),
    "LARS": (
        "LARS",
        {
            "trust_coefficient": 0.5,
            "treatments": {"up/": {"rate": 0.5}, "normalization": {"rate": 0.0}},
            "weight_decay": keras.optimizers.schedules.PolynomialDecay(0.2, 8, 0.05),
        },
    ),
    "AdamP": ("AdamP", {}),
    "Muon": ("Muon", {}),
    # A side that gradients do not span has no determined basis.
    "SOAP": ("SOAP", {"form": ONE_SIDED, "precondition_frequency": 2, "epsilon": 1.0}),
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


def data():
    rng = np.random.default_rng(1)
    return rng.integers(10, size=(64, 2)), rng.normal(size=(64, 8)).astype("float32")


def make(strategy, case, switches=(), **changes):
    """A compiled model under the strategy, or on one device, which has no use for the switches."""
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
    shared = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias$", "gamma$"], "epsilon": 0.1}
    changes = {"shard_update": "shared" in switches, **changes}
    optimizer = getattr(tf_lamb.keras, name)(0.05, **{**shared, **arguments, **changes})
    if optimizer.has_trust_ratios():
        optimizer.observe_trust_ratios()
    model.compile(optimizer=optimizer, loss="mse")
    return tf_lamb.keras.per_replica(model) if "apart" in switches else model


@dataclasses.dataclass
class Run:
    """What there is to see of a model that has trained on eight batches."""

    model: keras.Model
    before: dict  # the weights before the last step
    compilations: list  # in all, after each step
    values: list
    observed: list


class Watch(keras.callbacks.Callback):
    """Counts compilations, and keeps the weights that the last step begins with."""

    def __init__(self):
        super().__init__()
        self.compiled, self.after, self.before = 0, [], {}

    def on_train_batch_begin(self, batch, logs=None):
        if len(self.after) == 7:
            self.model.jax_state_sync()
            self.before = {v.path: np.asarray(v.value) for v in self.model.trainable_variables}

    def on_train_batch_end(self, batch, logs=None):
        self.after.append(self.compiled)

    def listen(self, event, seconds, **_):
        self.compiled += event == "/jax/core/compile/backend_compile_duration"


def trained(strategy, case, *switches):
    model, watch, (x, y) = make(strategy, case, switches), Watch(), data()
    jax.monitoring.register_event_duration_secs_listener(watch.listen)
    try:
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[watch])
    finally:
        jax.monitoring.clear_event_listeners()
    values = [np.asarray(v.value) for v in (*model.trainable_variables, *model.optimizer.variables)]
    optimizer = model.optimizer
    observed = optimizer.trust_ratios() if optimizer.has_trust_ratios() else []
    return Run(model, watch.before, watch.after, values, observed)


@pytest.fixture(scope="module")
def run():
    """Each strategy (None: one device) trains each case once."""
    return functools.cache(trained)


# Over rows, sums are what differs; weights in parts are what each case is about.
FITS = [("model", case) for case in CASES if case != "LAMB growing"]
FITS += [("data", case) for case in ("LAMB", "LAMB averaged and accumulated", "LARS", "Muon")]
FITS += [
    pytest.param(("data", case), marks=pytest.mark.slow)
    for case in ("LAMB clipped", "LAMB joined and sliced", "AdamP")
]


ACCUMULATED = "LAMB averaged and accumulated"
# In shares and apart, in one run where both can be.
SWITCHED = [
    ("data", ACCUMULATED, "shared"),
    ("data", ACCUMULATED, "shared", "apart"),
    ("data", "LAMB growing", "shared", "apart"),  # within its fifth update at the end
    ("model", ACCUMULATED, "shared", "apart"),
    ("model", "LAMB joined and sliced", "shared"),
    ("data", "Muon", "shared"),
    ("data", "SOAP", "shared"),
]
SWITCHED += [
    pytest.param(each, marks=pytest.mark.slow)
    for each in [
        ("data", ACCUMULATED, "apart"),
        ("model", ACCUMULATED, "shared"),
        ("data", "LARS", "shared", "apart"),
        ("data", "LAMB clipped", "shared", "apart"),
        ("data", "AdamP", "shared"),
    ]
]


@pytest.mark.parametrize("which", [*FITS, *SWITCHED], ids=", ".join)
def test_fit_is_that_of_one_device(which, run):
    """Weights, slots, accumulators, averages, and what is on show."""
    case = which[1]
    expected, found = run(None, case), run(*which)
    # Five products magnify the rounding of a sum; so do bases, and slots that belong to them more.
    tolerance = 1e-5 if case in ("Muon", "SOAP") else 1e-6
    compared = slice(7 if case == "SOAP" else None)
    for value, other in zip(found.values[compared], expected.values[compared], strict=True):
        value = value.sum(axis=0) if value.ndim > other.ndim else value  # of all replicas
        np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance)
    if found.observed:
        ratios, others = ([each.trust_ratio for each in of.observed] for of in (found, expected))
        assert sum(ratio is not None for ratio in ratios) >= 3
        for ratio, other in zip(ratios, others, strict=True):
            assert ratio == (other if other is None else pytest.approx(other, rel=1e-6))


def test_factors_and_bases_are_shared_out(run):
    optimizer = run("data", "SOAP", "shared").model.optimizer
    for i, side in ((1, "L"), (5, "R")):  # of up/kernel and down/kernel, the side of eight
        own = optimizer.state_of(i)
        assert shards_of(own[side])[1] == shards_of(own[f"{side}_basis"])[1] == {(1, 8)}


@pytest.mark.parametrize("case", ["LAMB", "LARS"])
def test_norms_are_of_whole_variables(case, run):
    found = run("model", case)
    seen = {each.path: each.weight_norm for each in found.observed}
    for name in ("embedding/embeddings", "up/kernel", "down/kernel"):
        path = f"model/{name}"
        assert seen[path] == pytest.approx(np.linalg.norm(found.before[path]), rel=1e-6)


@pytest.mark.parametrize("case", ["LARS", "LAMB averaged and accumulated"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_second_step_compiles_nothing(strategy, case, run):
    """But for what Keras divides at the end of the first epoch, of four steps, for its metrics."""
    first, second = run(strategy, case).compilations[:3], run(strategy, case).compilations[4:]
    assert first[0] > 0 and len(set(first)) == 1
    assert len(second) == 4 and len(set(second)) == 1


def shards_of(variable):
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return value.sharding, {shard.data.shape for shard in value.addressable_shards}


@pytest.mark.parametrize(
    ("when", "changes"),
    [
        ("built", {}),
        ("built", {"dtypes": {"slots": "bfloat16"}}),
        ("built", {"gradient_accumulation_steps": 2, "use_ema": True}),
        ("trained", {"gradient_accumulation_steps": 2, "use_ema": True}),
    ],
)
def test_what_accompanies_a_variable_is_laid_out_like_it(when, changes, run):
    if when == "built":
        model = make("model", "LAMB", **changes)
        model.optimizer.build(model.trainable_variables)
    else:
        model = run("model", "LAMB averaged and accumulated").model
    optimizer = model.optimizer
    for i, variable in enumerate(model.trainable_variables):
        sharding, shapes = shards_of(variable)
        beside = [*optimizer._storage.slots[i]]
        if "use_ema" in changes:
            beside += [optimizer._accumulated_gradients[i], optimizer.state_of(i)["average"]]
        for each in beside:
            assert shards_of(each) == (sharding, shapes), each.path
        is_cut = shapes != {tuple(variable.shape)}
        assert is_cut == (variable.path.removeprefix("model/") in SHARDED)


def test_a_master_is_laid_out_like_its_variable():
    with precision("keras", policy="bfloat16"):
        model = make("model", "LAMB", dtypes={"masters": "float32"})
        model.optimizer.build(model.trainable_variables)
    stored = zip(model.optimizer._storage.slots, model.optimizer._storage.masters, strict=True)
    for variable, (slots, master) in zip(model.trainable_variables, stored, strict=True):
        slots = [*slots, master]
        assert [slot.dtype for slot in slots] == ["float32"] * 3
        for slot in slots:
            assert shards_of(slot) == shards_of(variable)
