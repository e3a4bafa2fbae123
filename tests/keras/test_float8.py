"""Optimizers on float8 layers: Keras overwrites scales and histories with their "gradients"."""

import functools

import keras
import numpy as np
import pytest
from keras import distribution
from support.cases import assert_same
from support.frontends import BACKEND, array, on_jax, on_tensorflow, uncompiled
from support.references import NAMES

import tf_lamb.keras as ours
from tf_lamb.api.variables import is_overwritten

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undistributed")


def variables():
    """A weight, a scale and a history of two entries, the last two overwritten."""
    made = [
        keras.Variable(np.float32(value), name=name)
        for name, value in (("kernel", [[1, 2], [3, 4]]), ("scale", 1), ("amax_history", [0, 0]))
    ]
    for variable in made[1:]:
        variable.overwrite_with_gradient = True
    return made


def gradients(n, seed=1):
    random = np.random.default_rng(seed)
    return [
        [random.normal(size=(2, 2)), random.uniform(1, 2), random.uniform(size=2)] for _ in range(n)
    ]


def after(optimizer, steps, made=None):
    """The variables after every step."""
    made, seen = made or variables(), []
    with uncompiled():
        optimizer.build(made)
        for step in steps:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in step], made)
            seen.append([array(v) for v in made])
    return seen


INNER = {
    **{
        name: functools.partial(getattr(ours, name), 0.1, gradient_accumulation_steps=2)
        for name in NAMES
    },
    "LAMB clipped": lambda: ours.LAMB(0.1, gradient_accumulation_steps=2, clipnorm=1.0),
    "LAMB averaged": lambda: ours.LAMB(
        0.1, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=1
    ),
    "Adam": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
}
AROUND_ADASCALE = [name for name in INNER if getattr(ours, name, ours.LAMB).rule.takes_gain]


@pytest.mark.parametrize("inner", INNER)
def test_what_is_overwritten_is_what_keras_makes_of_it(inner):
    """Of the micro-batches of an update the largest, and neither clipped nor scaled."""
    steps = gradients(4)
    expected = after(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), steps)
    alone = after(INNER[inner](), steps)
    measured = after(ours.MeasureNoise(INNER[inner]()), steps)
    others = [alone, measured]
    if inner in AROUND_ADASCALE:
        others.append(after(ours.AdaScale(INNER[inner](), scale=2.0), steps))
    for found in others:
        for one, other in zip(found, expected, strict=True):
            assert_same(one[1:], other[1:])
    for one, other in zip(measured, alone, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_the_weights_are_those_of_a_model_without_float8(options):
    """Neither norms nor clipping, neither decay nor noise see what is overwritten."""
    options = {"global_clipnorm": 0.1, "on_spike": [4, 2.0], "weight_decay": 0.1, **options}
    steps = gradients(6)
    alone = after(ours.LAMB(0.1, **options), [step[:1] for step in steps], variables()[:1])
    among = after(ours.LAMB(0.1, **options), [[g, 1e6 * s, 1e6 * h] for g, s, h in steps])
    assert_same([one[0] for one in among], [other[0] for other in alone])


def test_what_is_overwritten_is_not_measured():
    steps = gradients(6)
    other = [[step[0], 100 * step[1], 1000 * step[2]] for step in steps]
    noise = []
    for each in (steps, other):
        optimizer = ours.MeasureNoise(ours.LAMB(0.1, gradient_accumulation_steps=2))
        after(optimizer, each)
        noise.append(optimizer.averages())
    assert noise[0] == noise[1] and noise[0].variance > 0


@pytest.mark.parametrize("micro_batches", [None, 2])
def test_an_update_that_is_skipped_overwrites_nothing(micro_batches):
    """As in Keras's loss scale, which drops the whole step."""
    optimizer = ours.LAMB(
        0.1, gradient_accumulation_steps=micro_batches, on_nonfinite="skip", weight_decay=0.1
    )
    first, *_ = steps = gradients(3 * (micro_batches or 1))
    first[0] = np.full((2, 2), np.inf)
    first[2] = np.full(2, np.inf)
    one, *_, last = after(optimizer, steps)[(micro_batches or 1) - 1 :]
    assert_same(one, [array(v) for v in variables()])
    assert optimizer.skipped_steps == 1 and np.isfinite(last[2]).all()
    largest = np.max([step[2] for step in steps[-(micro_batches or 1) :]], axis=0)
    np.testing.assert_allclose(last[2], largest, rtol=1e-6)


@pytest.mark.parametrize("how", ["loss_scale_factor", "LossScaleOptimizer"])
def test_a_loss_scale_leaves_what_is_overwritten(how):
    steps, made = gradients(2), []
    plain = after(ours.LAMB(0.1), steps)
    if how == "LossScaleOptimizer":
        optimizer = keras.optimizers.LossScaleOptimizer(ours.LAMB(0.1), initial_scale=64.0)
    else:
        optimizer = ours.LAMB(0.1, loss_scale_factor=64.0)
    made = after(optimizer, [[64 * step[0], *step[1:]] for step in steps])
    for one, other in zip(made, plain, strict=True):
        assert_same(one, other)


def test_only_what_is_overwritten_may_come():
    _, scale, _ = made = variables()
    optimizer = ours.LAMB(0.1)
    optimizer.build(made)
    optimizer.apply([keras.ops.convert_to_tensor(3.0)], [scale])
    assert array(scale) == 3.0 and int(array(optimizer.iterations)) == 1
    np.testing.assert_array_equal(array(made[0]), array(variables()[0]))


def test_what_is_overwritten_has_no_slots_and_no_average():
    optimizer = ours.LAMB(0.1, use_ema=True, dtypes={"slots": "bfloat16", "masters": "float32"})
    kernel, *others = made = variables()
    after(optimizer, gradients(2), made)
    assert set(optimizer.state_of(0)) == {"m", "v", "average"}
    assert optimizer.state_of(1) == optimizer.state_of(2) == {}
    before = [array(v) for v in others]
    optimizer.finalize_variable_values(made)
    assert_same([array(v) for v in others], before)
    np.testing.assert_array_equal(array(kernel), array(optimizer.state_of(0)["average"]))
    with pytest.raises(ValueError, match="SwapEMAWeights swaps every variable, and .*scale"):
        _ = optimizer._model_variables_moving_average  # which the callback reads


def network(optimizer, policy="float32", **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, "relu", dtype=policy, name="first")]
    layers.append(keras.layers.Dense(2, dtype=policy, name="last"))
    model = keras.Sequential([keras.Input((8,)), *layers], name="net")
    for layer in layers:
        layer.quantize("float8")
    options = {"jit_compile": False if BACKEND == "tensorflow" else "auto", **options}
    model.compile(optimizer, keras.losses.MeanSquaredError(), **options)
    return model


X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = np.tanh(X[:, :2] + X[:, 2:4])


def fit(model, epochs=1, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, **options)


def histories(model):
    return {v.path: array(v) for v in model.trainable_variables if is_overwritten(v)}


def state(model):
    """All that a run goes on from, by name without the model's."""
    kept = {v.path: v for v in model.trainable_variables}
    held = model.optimizer._named_state()
    kept |= held.scalars | {
        f"{p.name} {slot}": v for p in held.parts for slot, v in p.arrays.items()
    }
    return {name.removeprefix("net/"): array(variable) for name, variable in kept.items()}


def assert_same_run(found, expected):
    found, expected = state(found), state(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# Arguments of the optimizers on this network; tuned over a few rates, but for SGDP's and AdamP's.
TRAINED = {
    "LAMB": {"learning_rate": 0.02},
    "LANS": {"learning_rate": 0.05},
    "LARS": {
        "learning_rate": 0.2, "trust_coefficient": 0.05, "exclude_from_weight_decay": ["bias"],
    },
    "AdamP": {"learning_rate": 0.02},
    "SGDP": {"learning_rate": 0.1},
    "Muon": {"learning_rate": 0.1},
    "SOAP": {"learning_rate": 0.02},
}  # fmt: skip


@functools.cache
def loss_of_adam():
    model = network(keras.optimizers.Adam(0.02, gradient_accumulation_steps=2))
    fit(model, 12)
    return model.evaluate(X, Y, verbose=0)


@pytest.mark.parametrize("name", TRAINED)
def test_a_float8_model_is_trained_as_with_keras_adam(name):
    model = network(getattr(ours, name)(**TRAINED[name], gradient_accumulation_steps=2))
    before = model.evaluate(X, Y, verbose=0)
    fit(model, 12)
    loss = model.evaluate(X, Y, verbose=0)
    print(f"{BACKEND} {name}: {before:.4f} -> {loss:.4f}, Adam {loss_of_adam():.4f}")
    assert loss < 2 * loss_of_adam() < before / 4


@pytest.mark.parametrize(
    "wrap", [ours.MeasureNoise, lambda o: ours.AdaScale(o, 2.0)], ids=["MeasureNoise", "AdaScale"]
)
def test_a_float8_model_is_measured(wrap):
    model = network(wrap(ours.LAMB(0.01, gradient_accumulation_steps=2)))
    fit(model)
    found = histories(model)
    assert len(found) == 12 and all(np.isfinite(each).all() for each in found.values())
    (inputs,) = (h for path, h in found.items() if path.endswith("first/inputs_amax_history"))
    assert inputs.max() == pytest.approx(np.abs(X).max())
    assert np.isfinite(model.evaluate(X, Y, verbose=0))


@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5"])
def test_it_goes_on_in_the_middle_of_an_update(file, tmp_path):
    """Three of eight batches, two of an update: to the last bit.

    A layer that is loaded has its scales before its kernel, and one that `quantize` changed after
    it; where the order decides, Keras's own optimizers cannot load their state.
    """
    options = {
        "gradient_accumulation_steps": 2, "use_ema": True, "weight_decay": 0.1,
        "dtypes": {"slots": "bfloat16"},
    }  # fmt: skip
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 64, 8)]
    model = network(ours.LAMB(0.05, **options))
    for batch in batches[:3]:
        model.train_on_batch(*batch)
    if file == "model.weights.h5":
        model.save_weights(tmp_path / file)
        other = network(ours.LAMB(0.05, **options))
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / file)
    else:
        model.save(tmp_path / file)
        other = keras.models.load_model(tmp_path / file)
    for batch in batches[3:]:
        for each in (model, other):
            each.train_on_batch(*batch)
    assert_same_run(other, model)


def test_a_file_of_no_accumulation_is_loaded(tmp_path):
    """It has nothing of what is overwritten; and layers that are made again have other names."""
    model = network(ours.LAMB(0.05))
    fit(model)
    model.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    assert_same_run(other, model)
    fit(model)
    fit(other)
    assert_same_run(other, model)


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="came with Keras 3.15")
def test_a_float8_layer_has_an_optimizer_of_its_own():
    others = {"net/last/.*|last/.*": keras.optimizers.Adam(0.02)}
    table = keras.optimizers.OptimizerMap(ours.LAMB(0.05), others)
    model = network(keras.optimizers.MultiOptimizer(table))
    before = model.evaluate(X, Y, verbose=0)
    fit(model, 3)
    assert model.evaluate(X, Y, verbose=0) < before / 2
    assert all(each.any() for each in histories(model).values())


def test_float16_layers_find_their_loss_scale():
    """The first scale overflows: no history has an infinite entry."""
    optimizer = keras.optimizers.LossScaleOptimizer(ours.LAMB(0.05), initial_scale=2.0**40)
    model = network(optimizer, "mixed_float16")
    before = model.evaluate(X, Y, verbose=0)
    fit(model, 8)
    assert optimizer.inner_optimizer.skipped_steps > 0
    assert all(np.isfinite(each).all() for each in histories(model).values())
    assert model.evaluate(X, Y, verbose=0) < before / 2


@pytest.mark.once
def test_what_a_layer_sets_is_in_the_plan():
    model, lines = network(ours.LAMB(0.05, weight_decay=0.1)), []
    ours.describe(model, lines.append)
    table = "\n".join(lines).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in table if "first/" in line}
    assert rows["net/first/inputs_scale"] == ["1", "-", "no", "set", "by", "its", "layer"]
    assert rows["net/first/kernel"] == ["128", "0.1", "yes"]


@on_tensorflow
def test_replicas_overwrite_with_what_is_largest_of_all():
    """Keras's own optimizers raise there: its variables say not how to put replicas together."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        made = variables()
        optimizer = ours.MeasureNoise(ours.LAMB(0.1, gradient_accumulation_steps=2))
        optimizer.build(made)

    @tf.function
    def step(history):
        def of_replica(history):
            kernel = 1.0 + tf.reduce_sum(history) * tf.ones((2, 2))
            optimizer.apply([kernel, tf.reduce_max(history), history], made)

        strategy.run(of_replica, args=(history,))

    for micro_batch in range(2):
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, micro_batch=micro_batch: tf.constant(
                    [[[1.0, 8.0], [3.0, 4.0]], [[2.0, 6.0], [5.0, 1.0]]][micro_batch][
                        context.replica_id_in_sync_group
                    ]
                )
            )
        )
        if not micro_batch:
            assert array(made[1]) == 1.0
    for v, expected in zip(made[1:], (8.0, [5.0, 8.0]), strict=True):
        for copy in strategy.experimental_local_results(v.value):
            np.testing.assert_array_equal(copy.numpy(), expected)


def spread(devices):
    devices = distribution.list_devices()[:devices]
    distribution.set_distribution(distribution.DataParallel(devices=devices))


@on_jax
@pytest.mark.parametrize("apart", [False, True], ids=["whole", "per_replica"])
def test_on_devices_it_is_the_training_of_one(apart):
    """Gradients of outputs are those of a replica's mean, and quantized by scales of their own."""
    found = []
    for devices in (0, 4):
        if devices:
            spread(devices)
        model = network(
            ours.LAMB(0.05, gradient_accumulation_steps=2, shard_update=bool(devices), epsilon=0.1)
        )
        if apart and devices:
            ours.per_replica(model)
        fit(model, 2)
        found.append([array(v) for v in model.trainable_variables])
        paths = [v.path for v in model.trainable_variables]
    for path, one, other in zip(paths, *found, strict=True):
        if not (apart and "outputs_grad" in path):
            # A value between two of float8 is rounded to the other one by a last bit of a sum.
            np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02, err_msg=path)
