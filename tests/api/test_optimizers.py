"""Door 1 on whichever backend Keras runs: TensorFlow, JAX or torch."""

import os
import warnings

import keras
import numpy as np
import pytest
from oracle import Lamb
from support.cases import LAMB_CASES, case_id, oracle_arguments, random_problem
from support.worked import ROWS

import tf_lamb.keras

BACKEND = keras.backend.backend()
needs_float64 = pytest.mark.skipif(
    BACKEND == "jax" and not os.environ.get("JAX_ENABLE_X64"), reason="JAX_ENABLE_X64 is not set"
)


@pytest.fixture(autouse=True)
def float32():
    """Each test begins with Keras's own defaults."""
    yield
    keras.config.set_floatx("float32")
    keras.mixed_precision.set_dtype_policy("float32")


def train(optimizer, start, gradients, dtype="float32", rates=()):
    """Applies fixed gradients, or those of a function, to variables that begin at `start`."""
    variables = [keras.Variable(w, dtype=dtype, name=name) for name, w in start.items()]
    for t in range(3 if callable(gradients) else len(gradients)):
        if rates:
            optimizer.learning_rate = rates[t]
        if callable(gradients):
            step = gradients({v.name: keras.ops.convert_to_numpy(v.value) for v in variables})
        else:
            step = gradients[t]
        tensors = [keras.ops.convert_to_tensor(step[v.name], dtype) for v in variables]
        optimizer.apply(tensors, variables)
        yield {v.name: keras.ops.convert_to_numpy(v.value) for v in variables}


@pytest.mark.parametrize("case", LAMB_CASES, ids=case_id)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), pytest.param("float64", 1e-12, marks=needs_float64)]
)
def test_lamb_is_the_oracle(case, dtype, tolerance):
    keras.config.set_floatx(dtype)
    start, gradients = random_problem()
    reference = Lamb(start, lr=0.125, **oracle_arguments(case))
    for ours, step in zip(
        train(tf_lamb.keras.LAMB(0.125, **case), start, gradients, dtype), gradients, strict=True
    ):
        expected = reference.step(step)
        for key in start:
            assert ours[key].dtype == dtype
            np.testing.assert_allclose(ours[key], expected[key], rtol=tolerance, atol=tolerance)


@needs_float64
@pytest.mark.parametrize("name", ROWS)
def test_the_worked_examples(name):
    keras.config.set_floatx("float64")
    row = ROWS[name].begin()
    optimizer = getattr(tf_lamb.keras, row.optimizer)(row.rates[0], **row.arguments)
    trained = train(optimizer, row.start, row.gradients, "float64", row.rates)
    for ours, expected in zip(trained, row.expected, strict=True):
        for key, value in expected.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-8, atol=1e-9)


# What a user does with a model.


class Block(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4, name="dense")
        self.norm = keras.layers.LayerNormalization(name="LayerNorm")
        self.scale = self.add_weight(name="scale", shape=(4,), initializer="ones")

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build((*input_shape[:-1], 4))

    def call(self, x):
        return self.norm(self.dense(x)) * self.scale


def layers():
    return [
        Block(name="encoder"),
        keras.layers.LayerNormalization(name="final_layer_norm"),
        keras.layers.Dense(2, name="head"),
    ]


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = layers()

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def functional():
    x = inputs = keras.Input((3,))
    for part in layers():
        x = part(x)
    return keras.Model(inputs, x)


def subclassed():
    model = Subclassed(name="my_model")
    model(np.ones((2, 3), "float32"))
    return model


def data(rows=64):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :2] * 2 + 1


PLANS = {
    "bias$": {"dense/bias", "head/bias"},
    "LayerNorm": {"LayerNorm/gamma", "LayerNorm/beta"},
    "layer_norm": {"final_layer_norm/gamma", "final_layer_norm/beta"},
    "^encoder/.*/kernel$": {"dense/kernel"},
}


@pytest.mark.parametrize("pattern", PLANS)
@pytest.mark.parametrize("make", [functional, subclassed])
def test_the_same_patterns_exclude_the_same_variables(make, pattern):
    optimizer = tf_lamb.keras.LAMB(weight_decay=0.1, exclude_from_weight_decay=[pattern])
    optimizer.build(make().trainable_variables)
    plan = optimizer._plan
    excluded = {
        "/".join(path.split("/")[-2:])
        for path, treatment in zip(plan.paths, plan.treatments, strict=True)
        if not treatment.decay and not treatment.adapt
    }
    assert excluded == PLANS[pattern]


def fit(optimizer, seed=0, epochs=2, x=None, y=None, batch_size=16, **compile_arguments):
    keras.utils.set_random_seed(seed)
    model = functional()
    if x is None:
        x, y = data()
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(), **compile_arguments)
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


def weights_of(model):
    return [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]


def assert_same_weights(one, other, tolerance=0.0):
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_fit_lowers_the_loss():
    _, losses = fit(tf_lamb.keras.LAMB(0.02), epochs=10)
    assert losses[-1] < 0.5 * losses[0]


def test_a_saved_model_goes_on_where_it_stopped(tmp_path):
    def optimizer():
        return tf_lamb.keras.LAMB(
            0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"],
            exclude_from_layer_adaptation=[], global_clipnorm=1.0, name="mine",
        )  # fmt: skip

    x, y = data()
    unbroken, _ = fit(optimizer(), epochs=2)
    saved, _ = fit(optimizer(), epochs=1)
    saved.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Block": Block})
    assert restored.optimizer.get_config() == saved.optimizer.get_config()
    assert int(restored.optimizer.iterations) == 4
    restored.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(unbroken, restored)
    assert restored.optimizer._plan.treatments == unbroken.optimizer._plan.treatments


def test_weights_files_keep_the_slots(tmp_path):
    x, y = data()
    unbroken, _ = fit(tf_lamb.keras.LAMB(0.01), epochs=2)
    saved, _ = fit(tf_lamb.keras.LAMB(0.01), epochs=1)
    saved.save(tmp_path / "model.h5")
    restored = keras.models.load_model(tmp_path / "model.h5", custom_objects={"Block": Block})
    restored.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(unbroken, restored)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.train.Checkpoint is TensorFlow's")
@pytest.mark.parametrize("built", [True, False])
def test_a_tensorflow_checkpoint_keeps_the_slots(tmp_path, built):
    import tensorflow as tf

    x, y = data()
    unbroken, _ = fit(tf_lamb.keras.LAMB(0.01), epochs=2)
    saved, _ = fit(tf_lamb.keras.LAMB(0.01), epochs=1)
    path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(tmp_path / "ckpt")
    restored = functional()
    restored.compile(optimizer=tf_lamb.keras.LAMB(0.5), loss=keras.losses.MeanSquaredError())
    if built:
        restored.optimizer.build(restored.trainable_variables)
    tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)
    assert int(restored.optimizer.iterations) == 4
    restored.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(unbroken, restored)


def test_the_config_rebuilds_the_optimizer():
    optimizer = tf_lamb.keras.LAMB(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), beta_1=0.8, beta_2=0.99,
        epsilon=1e-4, weight_decay=0.2, exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=["gamma"], bias_correction=False, clipvalue=2.0, use_ema=True,
        ema_momentum=0.5, ema_overwrite_frequency=3, gradient_accumulation_steps=4,
        jit_compile=False, name="other",
    )  # fmt: skip
    again = keras.optimizers.get(keras.optimizers.serialize(optimizer))
    assert type(again) is tf_lamb.keras.LAMB
    assert again.get_config() == optimizer.get_config()
    assert keras.optimizers.serialize(optimizer)["registered_name"] == "tf_lamb>LAMB"


def test_a_schedule_is_read_at_every_step():
    start, gradients = random_problem()
    schedule = keras.optimizers.schedules.PolynomialDecay(0.125, 5, 0.025)
    reference = Lamb(start, lr=lambda t: 0.125 + (0.025 - 0.125) * (t - 1) / 5)
    optimizer = tf_lamb.keras.LAMB(schedule)
    for ours, step in zip(train(optimizer, start, gradients), gradients, strict=True):
        expected = reference.step(step)
        np.testing.assert_allclose(ours["kernel"], expected["kernel"], rtol=1e-5)


def test_a_callable_is_called_at_every_step():
    start, gradients = random_problem()
    rates = iter([0.1, 0.2, 0.3, 0.4, 0.5])
    latest = [None]

    def rate():
        return latest[0]

    reference = Lamb(start, lr=lambda t: t / 10)
    optimizer = tf_lamb.keras.LAMB(rate)
    latest[0] = next(rates)
    for ours, step in zip(train(optimizer, start, gradients), gradients, strict=True):
        expected = reference.step(step)
        np.testing.assert_allclose(ours["kernel"], expected["kernel"], rtol=1e-5)
        latest[0] = next(rates, None)


def test_the_learning_rate_can_be_set_during_training():
    start, gradients = random_problem()
    reference = Lamb(start, lr=lambda t: 0.1 if t < 3 else 0.01)
    optimizer = tf_lamb.keras.LAMB(0.1)
    for t, (ours, step) in enumerate(
        zip(train(optimizer, start, gradients), gradients, strict=True), 1
    ):
        expected = reference.step(step)
        np.testing.assert_allclose(ours["kernel"], expected["kernel"], rtol=1e-5)
        if t == 2:
            optimizer.learning_rate = 0.01


@pytest.mark.parametrize(
    ("clip", "limit"),
    [
        (
            {"clipnorm": 0.5},
            lambda g: {k: x * min(1, 0.5 / np.linalg.norm(x)) for k, x in g.items()},
        ),
        ({"clipvalue": 0.5}, lambda g: {k: np.clip(x, -0.5, 0.5) for k, x in g.items()}),
        (
            {"global_clipnorm": 0.5},
            lambda g: {
                k: x * min(1, 0.5 / np.sqrt(sum(np.sum(y**2) for y in g.values())))
                for k, x in g.items()
            },
        ),
    ],
)
def test_gradients_are_clipped(clip, limit):
    start, gradients = random_problem()
    gradients = [{k: g * 3**i for k, g in step.items()} for i, step in enumerate(gradients)]
    reference = Lamb(start, lr=0.1)
    for ours, step in zip(
        train(tf_lamb.keras.LAMB(0.1, **clip), start, gradients), gradients, strict=True
    ):
        expected = reference.step(limit(step))
        np.testing.assert_allclose(ours["kernel"], expected["kernel"], rtol=1e-5)


@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 0.1}])
def test_accumulated_micro_batches_are_one_large_batch(clip):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.05, 4, 0.01)
    one, _ = fit(tf_lamb.keras.LAMB(schedule, use_ema=True, **clip), batch_size=32)
    many_optimizer = tf_lamb.keras.LAMB(
        schedule, use_ema=True, gradient_accumulation_steps=4, **clip
    )
    many, _ = fit(many_optimizer, batch_size=8)
    assert int(many_optimizer.iterations) == 4
    assert_same_weights(one, many, 1e-6)


def test_between_updates_nothing_moves():
    start, gradients = random_problem()
    optimizer = tf_lamb.keras.LAMB(0.1, gradient_accumulation_steps=2, use_ema=True,
                                   ema_overwrite_frequency=1)  # fmt: skip
    states = list(train(optimizer, start, gradients[:3]))
    np.testing.assert_array_equal(states[0]["kernel"], start["kernel"].astype("float32"))
    np.testing.assert_array_equal(states[1]["kernel"], states[2]["kernel"])
    assert np.any(states[1]["kernel"] != states[0]["kernel"])


@pytest.mark.parametrize("frequency", [None, 2])
def test_averages_follow_the_weights(frequency):
    start, gradients = random_problem()
    start = {"kernel": start["kernel"]}
    gradients = [{"kernel": step["kernel"]} for step in gradients]
    optimizer = tf_lamb.keras.LAMB(
        0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=frequency
    )
    reference, average = Lamb(start, lr=0.1), None
    trained = train(optimizer, start, gradients)
    for t, (ours, step) in enumerate(zip(trained, gradients, strict=True), 1):
        w = reference.step(step)["kernel"]
        average = w if average is None else 0.9 * average + 0.1 * w
        if frequency and t % frequency == 0:
            reference.w["kernel"] = average
        np.testing.assert_allclose(ours["kernel"], reference.w["kernel"], rtol=1e-5, atol=1e-6)
    optimizer.finalize_variable_values(optimizer._trainable_variables)
    final = keras.ops.convert_to_numpy(optimizer._trainable_variables[0].value)
    np.testing.assert_allclose(final, average, rtol=1e-5)


def regression_losses(policy):
    """First and last loss, in float64, of a model whose variables have the policy's dtype."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 8)).astype("float32")
    y = x[:, :1] * 2 + 1
    keras.mixed_precision.set_dtype_policy(policy)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.set_weights([rng.normal(size=v.shape) / 4 for v in model.trainable_variables])
    model.compile(optimizer=tf_lamb.keras.LAMB(0.02, weight_decay=0.01), loss="mse")

    def loss():
        return float(np.mean((np.float64(model.predict(x, verbose=0)) - y) ** 2))

    first = loss()
    model.fit(x, y, batch_size=64, epochs=30, shuffle=False, verbose=0)
    return first, loss()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_variables_train(dtype):
    first, last = regression_losses("float32")
    assert last < 0.1 * first
    half_first, half_last = regression_losses(dtype)
    assert (half_first - half_last) / (first - last) == pytest.approx(1, abs=0.05)


def test_slots_of_half_precision_variables_are_float32():
    optimizer = tf_lamb.keras.LAMB(use_ema=True, gradient_accumulation_steps=2)
    optimizer.build([keras.Variable(np.ones(3), dtype="bfloat16")])
    floats = [v for v in optimizer.variables if "int" not in v.dtype]
    assert {v.dtype for v in floats} == {"float32"}


def test_norms_of_large_float16_variables_stay_finite():
    variable = keras.Variable(np.full(4_000_000, 0.3), dtype="float16")
    optimizer = tf_lamb.keras.LAMB(0.1)
    optimizer.apply([keras.ops.full((4_000_000,), 0.3, "float16")], [variable])
    value = keras.ops.convert_to_numpy(variable.value)
    np.testing.assert_allclose(value, np.float16(0.27), rtol=1e-3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_policies_train(policy):
    keras.mixed_precision.set_dtype_policy(policy)
    model, losses = fit(tf_lamb.keras.LAMB(0.02), epochs=10)
    assert losses[-1] < 0.5 * losses[0]
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")


def test_embeddings_train():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(10, 4),
                              keras.layers.Flatten(), keras.layers.Dense(1)])  # fmt: skip
    model.compile(optimizer=tf_lamb.keras.LAMB(0.05), loss="mse")
    x = np.random.default_rng(0).integers(0, 10, size=(64, 3))
    y = x[:, :1].astype("float32") / 10
    losses = model.fit(x, y, batch_size=32, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_pattern_that_matches_nothing_is_warned_of_once():
    optimizer = tf_lamb.keras.LAMB(exclude_from_weight_decay=["bias", "LayerNrom"])
    with pytest.warns(UserWarning, match="LayerNrom") as caught:
        optimizer.build(functional().trainable_variables)
    assert len(caught) == 1


def test_a_pattern_that_matches_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tf_lamb.keras.LAMB(exclude_from_weight_decay=["bias"]).build(
            functional().trainable_variables
        )


def test_describe_prints_the_plan(capsys):
    optimizer = tf_lamb.keras.LAMB(weight_decay=0.1, exclude_from_weight_decay=["bias"])
    with pytest.raises(ValueError, match="build"):
        optimizer.describe()
    optimizer.build(functional().trainable_variables)
    optimizer.describe()
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["head/bias", "2", "-", "no"] in table
    assert ["head/kernel", "8", "0.1", "yes"] in table


def test_the_method_of_keras_excludes_too():
    model = functional()
    kernel = next(v for v in model.trainable_variables if v.path == "head/kernel")
    optimizer = tf_lamb.keras.LAMB(weight_decay=0.1, exclude_from_weight_decay=["gamma"])
    optimizer.exclude_from_weight_decay(var_list=[kernel], var_names=["bias"])
    optimizer.build(model.trainable_variables)
    undecayed = {
        p for p, t in zip(optimizer._plan.paths, optimizer._plan.treatments, strict=True)
        if not t.decay
    }  # fmt: skip
    assert undecayed == {
        "encoder/dense/bias", "encoder/LayerNorm/gamma", "final_layer_norm/gamma", "head/kernel",
        "head/bias",
    }  # fmt: skip
    again = tf_lamb.keras.LAMB.from_config(optimizer.get_config())
    again.build(model.trainable_variables)
    assert again._plan == optimizer._plan
    with pytest.raises(ValueError, match="built already"):
        optimizer.exclude_from_weight_decay(var_names=["beta"])


def test_an_optimizer_belongs_to_its_model():
    optimizer = tf_lamb.keras.LAMB()
    optimizer.build(functional().trainable_variables)
    with pytest.raises(ValueError, match="built for other variables"):
        optimizer.build(functional().trainable_variables)


@pytest.mark.parametrize("name", ["LAMB", "LARS", "SGDP", "AdamP"])
@pytest.mark.parametrize(
    "memory", [{"slot_dtype": "bfloat16"}, {"gradient_accumulation_steps": 2}], ids=str
)
def test_every_optimizer_fits(name, memory):
    if name == "LARS":
        memory = {**memory, "trust_coefficient": 0.2}
    optimizer = getattr(tf_lamb.keras, name)(
        0.02 if name != "LARS" else 0.1, weight_decay=1e-4,
        exclude_from_weight_decay=["bias", "gamma", "beta", "scale"],
        exclude_from_layer_adaptation=[], **memory,
    )  # fmt: skip
    _, losses = fit(optimizer, epochs=10)
    assert losses[-1] < 0.7 * losses[0]


def test_bfloat16_slots_follow_float32_ones():
    one, _ = fit(tf_lamb.keras.LAMB(0.01), epochs=3)
    other, _ = fit(tf_lamb.keras.LAMB(0.01, slot_dtype="bfloat16"), epochs=3)
    assert_same_weights(one, other, 0.03)
    assert {v.dtype for v in other.optimizer.variables if v.path.endswith("_m")} == {"bfloat16"}


def test_a_master_keeps_what_half_precision_cannot():
    def final(dtype, **arguments):
        optimizer = tf_lamb.keras.LAMB(1e-4, exclude_from_layer_adaptation=[""], **arguments)
        *_, last = train(optimizer, {"w": np.ones(4)}, [{"w": np.ones(4)}] * 40, dtype)
        return np.float32(last["w"][0])

    assert final("bfloat16") == 1.0  # 1e-4 is less than half a unit
    assert final("bfloat16", master_weights=True) == pytest.approx(final("float32"), abs=2**-8)
    assert final("bfloat16", master_weights=True) < 1.0


def test_layers_can_be_joined_and_sliced():
    rng = np.random.default_rng(0)
    kernel, bias, stacked = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=(2, 5))
    with keras.name_scope("dense"):
        variables = [keras.Variable(kernel, name="kernel"), keras.Variable(bias, name="bias")]
    variables.append(keras.Variable(stacked, name="stacked"))
    gradients = [rng.normal(size=v.shape) for v in variables]
    optimizer = tf_lamb.keras.LAMB(
        0.1, epsilon=0.0, layer_groups=["dense/"], layer_slices={"stacked": 0}
    )
    optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradients], variables)
    # The first direction is the sign of the gradient; its norm is the root of the size.
    joined = np.sqrt((np.sum(kernel**2) + np.sum(bias**2)) / 15)
    slices = np.sqrt(np.sum(stacked**2, axis=1, keepdims=True) / 5)
    for variable, start, gradient, ratio in zip(
        variables, (kernel, bias, stacked), gradients, (joined, joined, slices), strict=True
    ):
        value = keras.ops.convert_to_numpy(variable.value)
        np.testing.assert_allclose(value, start - 0.1 * ratio * np.sign(gradient), rtol=1e-5)
