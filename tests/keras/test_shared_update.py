"""Keras 3 on JAX: `shard_update` and `per_replica`, each by what they promise and refuse.

That training is that of one device is `test_sharded.py`'s.
"""

import collections
import math
import re

import keras
import numpy as np
import pytest
from keras import distribution

import tf_lamb.keras

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution trains on JAX alone", allow_module_level=True)

import jax
from support.cases import assert_same
from support.frontends import precision

from tf_lamb_extras.preflight.tpu import programs

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undistributed")
DEVICES = distribution.list_devices()
layers = keras.layers


def spread(devices):
    """Data parallelism over so many devices; over none, no distribution."""
    chosen = distribution.DataParallel(devices=DEVICES[:devices]) if devices else None
    distribution.set_distribution(chosen)


def network(*extra):
    model = keras.Sequential([
        keras.Input((16,)), layers.Dense(32, activation="tanh", name="up"), *extra,
        layers.Dense(8, name="down"),
    ], name="model")  # fmt: skip
    rng = np.random.default_rng(0)
    model.set_weights(
        [rng.normal(size=w.shape) if "float" in str(w.dtype) else w for w in model.get_weights()]
    )
    return model


def compiled(model, apart=False, inner=None, **arguments):
    arguments = {"weight_decay": 0.1, "epsilon": 0.1, **arguments}
    optimizer = tf_lamb.keras.LAMB(0.05, **arguments)
    model.compile(inner(optimizer) if inner else optimizer, "mse")
    return tf_lamb.keras.per_replica(model) if apart else model


def data(rows=64):
    rng = np.random.default_rng(1)
    return (rng.normal(size=(rows, n)).astype("float32") for n in (16, 8))


def fit(model, epochs=1, **options):
    x, y = data()
    return model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **options)


def exchanged(model):
    """What the devices exchange in a step of a model that has trained."""
    return programs.Text(program(model)).exchanges()


def program(model):
    """The compiled step of a model that has trained, as text."""
    parts = dict.fromkeys(
        ("trainable_variables", "non_trainable_variables", "optimizer_variables",
         "metrics_variables"), True,
    )  # fmt: skip
    mesh = distribution.distribution().device_mesh.backend_mesh
    split = jax.NamedSharding(mesh, jax.P("batch"))
    batch = tuple(jax.device_put(each[:16], split) for each in data())
    state, shardings = model._get_jax_state(**parts), model._get_state_sharding_spec()
    step = jax.jit(model.train_step, out_shardings=(None, shardings))
    return step.lower(state, batch).compile().as_text()


PARAMETERS = 16 * 32 + 32 + 32 * 8 + 8


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_gradients_cross_the_network_once_an_update(apart, shared):
    """Eight micro-batches: apart, their sums cross in the branch of the update alone."""
    spread(8)
    model = compiled(
        network(), apart, gradient_accumulation_steps=8, shard_update=shared, jit_compile=True
    )
    fit(model)
    step = exchanged(model)
    each, update = (
        programs.reduced(step, 8, in_branches=where).get(8, 0) for where in (False, True)
    )
    gathered = 0.5 * 4 * PARAMETERS if shared else 0  # the new weights
    slack = 4 * 24  # the loss, and sums of whether gradients are finite and of norms
    if apart:
        assert each <= slack
        assert 4 * PARAMETERS + gathered <= update <= 4 * PARAMETERS + gathered + slack
    else:
        assert 4 * PARAMETERS <= each <= 4 * PARAMETERS + slack
        assert gathered <= update <= gathered + slack


@pytest.mark.parametrize("shared", [False, True])
def test_a_device_orthogonalizes_its_matrices_whole(shared):
    """Five of one shape and one of another: a device has at most one of each to work on.

    Newton and Schulz have 3 products a step and 5 steps.
    """
    spread(8)
    squares = [layers.Dense(16, activation="tanh", name=f"square_{i}") for i in range(5)]
    model = keras.Sequential([keras.Input((16,)), *squares, layers.Dense(8, name="down")])
    model.compile(tf_lamb.keras.Muon(0.01, shard_update=shared), "mse")
    fit(model)
    text = program(model)
    products = collections.Counter(re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text))
    gradients = {"16,16": 5, "16,8": 1}  # each device makes those of its examples
    assert products["16,16"] == 15 + gradients["16,16"]
    assert products["8,8"] == 10 and products["8,16"] + products["16,8"] == 5 + gradients["16,8"]
    if not shared:  # orthogonalized, five and three that fill up, and one and seven
        gathered = re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", text)
        sizes = [math.prod(map(int, shape.split(","))) for shape in gathered]
        assert sorted(sizes) == [8 * 16 * 8, 8 * 16 * 16]


def bytes_of(variables):
    """On one device."""
    return sum(v.value.addressable_shards[0].data.nbytes for v in variables)


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("float32", {}),
        ("float32", {"dtypes": {"slots": "bfloat16"}}),
        ("float32", {"use_ema": True, "gradient_accumulation_steps": 2}),
        ("bfloat16", {"dtypes": {"masters": "float32"}}),
    ],
)
def test_each_device_keeps_its_share(policy, arguments):
    held = []
    for shared in (False, True):
        spread(8)
        with precision("keras", policy=policy):
            model = compiled(network(), shard_update=shared, **arguments)
            model.optimizer.build(model.trainable_variables)
        beside = [v for v in model.optimizer.variables if v.path.startswith("LAMB/model_")]
        masters = [master for master in model.optimizer._storage.masters if master is not None]
        held.append([bytes_of([v]) for v in (*beside, *masters)])
        assert bytes_of(model.trainable_variables) == (2 if masters else 4) * PARAMETERS
    whole, shares = held
    assert shares == [size // 8 for size in whole]


@pytest.mark.parametrize("arguments", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_masters_take_their_averages(arguments):
    """Each device has its share of both, and the whole weight."""
    spread(8)
    with precision("keras", policy="bfloat16"):
        model = compiled(
            network(), shard_update=True, dtypes={"masters": "float32"}, use_ema=True,
            ema_momentum=0.5, ema_overwrite_frequency=2, **arguments,
        )  # fmt: skip
        x, y = data()
        for _ in range(2 * arguments.get("gradient_accumulation_steps", 1)):
            model.train_on_batch(x[:16], y[:16], np.ones(16))  # Keras 3.12 needs weights here
    for i, weight in enumerate(model.trainable_variables):
        master = model.optimizer._storage.masters[i]
        average = model.optimizer.state_of(i)["average"]
        np.testing.assert_array_equal(master, average)
        rounded = np.asarray(master).astype("bfloat16")
        np.testing.assert_array_equal(weight, rounded)
        assert (np.asarray(master) != rounded.astype("float32")).any()


ACCUMULATED = {"gradient_accumulation_steps": 8, "use_ema": True, "ema_momentum": 0.5}


def weights_of(model):
    return [np.asarray(v.value) for v in model.trainable_variables]


def states(model):
    return [*weights_of(model), *(np.asarray(v.value) for v in model.optimizer.variables)]


@pytest.mark.parametrize(("devices", "apart"), [(8, True), (4, True), (8, False), (0, False)])
def test_interrupted_in_the_middle_of_an_update(devices, apart, tmp_path, unbroken):
    """Four of eight micro-batches in: bit for bit on as many devices, else to rounding."""
    expected, path = unbroken
    spread(devices)
    model = compiled(network(), apart, shard_update=devices > 0, **ACCUMULATED)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    fit(model)
    same = (devices, apart) == (8, True)
    for value, other in zip(states(model), expected, strict=True):
        if value.shape != other.shape:  # an accumulator, which is nothing after an update
            assert not value.any() and not other.any()
            continue
        np.testing.assert_allclose(value, other, rtol=0 if same else 1e-6, atol=0 if same else 1e-6)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The states after two epochs of eight devices, and what was saved after the first."""
    spread(8)
    model = compiled(network(), True, shard_update=True, **ACCUMULATED)
    path = str(tmp_path_factory.mktemp("saved") / "model.weights.h5")
    fit(model)
    model.save_weights(path)
    fit(model)
    found = states(model)
    distribution.set_distribution(None)
    return found, path


def test_a_model_of_a_mesh_loads_where_there_is_none(tmp_path):
    spread(8)
    model = compiled(network(), shard_update=True)
    fit(model)
    model.save(path := str(tmp_path / "model.keras"))
    x, _ = data()
    expected, weights = model.predict(x, verbose=0), model.get_weights()
    spread(0)
    loaded = keras.saving.load_model(path)
    for here, there in zip(loaded.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(here, there)
    # One device rounds products that cancel otherwise than eight: 3e-6 of values up to 5.
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="shard_update=True .* there is no distribution: call"):
        fit(loaded)


def test_where_nothing_divides_it_is_refused():
    spread(8)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(5)])
    with pytest.raises(ValueError, match="nothing to share out: no axis .* by the 8 devices"):
        compiled(model, shard_update=True).optimizer.build(model.trainable_variables)


def test_what_is_large_and_does_not_divide_is_named():
    spread(8)
    model = keras.Sequential([keras.Input((9,)), layers.Dense(9, name="odd"), layers.Dense(8)])
    with pytest.warns(UserWarning, match=r"odd/kernel \(81 parameters\).* whole on each of the 8"):
        compiled(model, shard_update=True).optimizer.build(model.trainable_variables)


def test_a_replica_is_for_itself():
    """Dropout draws for each; moving averages are those of all; metrics are of the whole batch."""
    spread(8)
    dropped = []

    class Watched(layers.Layer):
        def call(self, x):
            jax.debug.callback(lambda x: dropped.append(np.asarray(x) == 0), x)
            return x

    extra = [layers.BatchNormalization(momentum=0.0), layers.Dropout(0.5, seed=1), Watched()]
    model = compiled(network(*extra), apart=True)
    x, y = (each[:16] for each in data())
    up = model.layers[0]
    before = np.tanh(x @ np.asarray(up.kernel) + np.asarray(up.bias))
    seed = np.asarray(model.layers[2].seed_generator.state.value)
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    jax.effects_barrier()
    np.testing.assert_allclose(
        model.layers[1].moving_variance,
        before.reshape(8, 2, -1).var(axis=1).mean(axis=0),
        rtol=1e-4,
        atol=1e-6,
    )
    assert len(dropped) == 8 and len({each.tobytes() for each in dropped}) == 8
    after = model.layers[2].seed_generator.state.value
    for of_device in after.addressable_shards:  # each goes on from the same
        np.testing.assert_array_equal(of_device.data, [seed[0], seed[1] + 1])


def test_a_loss_scale_is_one_for_all():
    found = []
    for devices in (0, 8):
        spread(devices)
        model = compiled(network(), devices > 0, keras.optimizers.LossScaleOptimizer,
                         gradient_accumulation_steps=2)  # fmt: skip
        fit(model)
        found.append(weights_of(model))
    assert_same(*found, tolerance=1e-6)


@pytest.mark.parametrize("kind", ["AdaScale", "MeasureNoise"])
def test_replicas_are_parts_of_the_batch(kind):
    """Eight parts of two examples: of eight devices, or of four in two turns, or all in turn."""
    found = []
    for devices, micro_batches in ((0, 8), (4, 2), (8, 1)):
        spread(devices)
        around = {
            "AdaScale": lambda own: tf_lamb.keras.AdaScale(own, scale=8),
            "MeasureNoise": tf_lamb.keras.MeasureNoise,
        }[kind]
        model = compiled(network(), devices > 0, around, gradient_accumulation_steps=micro_batches)
        x, y = data(128)
        model.fit(x, y, batch_size=16 // micro_batches, epochs=2, shuffle=False, verbose=0)
        own = model.optimizer
        measured = [own._meter.state[name] for name in ("variance", "signal", "count")]
        gain = [own.gain] if kind == "AdaScale" else []
        found.append([np.asarray(v) for v in (*measured, *gain, *model.trainable_variables)])
        assert own.parts == 8 and found[-1][0] > 0
    for each in found[1:]:
        assert_same(each, found[0], 1e-4)


class OwnStep(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


def test_what_per_replica_refuses():
    def refused(model, message):
        with pytest.raises(ValueError, match=message):
            tf_lamb.keras.per_replica(model)

    spread(8)
    refused(model := network(), "is not compiled")
    model.compile("adam", "mse")
    refused(model, "adam takes gradients that are summed")
    around = {"inner": tf_lamb.keras.MeasureNoise, "gradient_accumulation_steps": 2}
    compiled(model, **around).optimizer.build(model.trainable_variables)
    refused(model, "measured is built, for 1 replicas: call per_replica")
    refused(compiled(OwnStep(network().layers)), "OwnStep has a train_step of its own")


@pytest.mark.parametrize("how", ["compile", "compile and call", "load"])
def test_it_goes_on_after_a_second_compile_and_a_load(how, tmp_path, unbroken):
    """In the middle of an update: after four of eight micro-batches."""
    expected, _ = unbroken
    spread(8)
    model = compiled(network(), True, shard_update=True, **ACCUMULATED)
    fit(model)
    if how == "load":
        model.save(path := str(tmp_path / "model.keras"))
        model = tf_lamb.keras.per_replica(keras.saving.load_model(path))
        assert [v.shape for v in model.optimizer.variables] == [
            v.shape for v in expected[-len(model.optimizer.variables) :]
        ]
    else:
        model.compile(model.optimizer, "mse")
    if how == "compile and call":
        tf_lamb.keras.per_replica(model)
    fit(model)
    tolerance = 1e-6 if how == "load" else 0  # there the first part has the sum
    assert_same(states(model), expected, tolerance)


@pytest.mark.parametrize("name", ["LAMB", "Adam"])
def test_another_optimizer_is_warned_of_and_trains_right(name):
    """Gradients are summed for it; until per_replica() is called again, which Adam refuses."""
    found = []
    for devices in (0, 8):
        spread(devices)
        model = compiled(network(), devices > 0)
        own = getattr(tf_lamb.keras if name == "LAMB" else keras.optimizers, name)
        model.compile(own(0.05, epsilon=0.1, gradient_accumulation_steps=2), "mse")
        if devices:
            with pytest.warns(UserWarning, match="another optimizer since per_replica.*again"):
                fit(model)
        else:
            fit(model)
        found.append(weights_of(model))
    assert_same(*found, tolerance=1e-5)
    if name == "LAMB":
        fit(tf_lamb.keras.per_replica(model))


def test_an_optimizer_that_a_search_lends_is_not_warned_of(recwarn):
    """`find_rate` has its own in the place of the model's, without a compile."""
    spread(8)
    model = compiled(network(), apart=True)
    model.optimizer = tf_lamb.keras.LAMB(0.05, epsilon=0.1)
    fit(model)
    assert not [each for each in recwarn if "per_replica" in str(each.message)]


def test_it_needs_a_distribution():
    with pytest.raises(ValueError, match="per_replica.. needs .* there is no distribution"):
        compiled(network(), apart=True)


def test_it_needs_a_batch_that_divides():
    spread(8)
    model, (x, y) = compiled(network(), apart=True), data(12)
    with pytest.raises(ValueError, match="12"):
        model.fit(x, y, batch_size=12, verbose=0)
