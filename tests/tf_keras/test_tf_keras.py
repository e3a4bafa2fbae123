"""Door 2: tf_keras."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from oracle import Lamb
from support.cases import LAMB_CASES, case_id, oracle_arguments, random_problem
from support.worked import ROWS

import tf_lamb.tf_keras


@pytest.fixture(autouse=True)
def float32():
    """Each test begins with tf_keras's own defaults."""
    yield
    tf_keras.backend.set_floatx("float32")
    tf_keras.mixed_precision.set_global_policy("float32")


def train(optimizer, start, gradients, dtype="float32", rates=()):
    """Applies fixed gradients, or those of a function, to variables that begin at `start`."""
    variables = {name: tf.Variable(w, dtype=dtype, name=name) for name, w in start.items()}
    for t in range(3 if callable(gradients) else len(gradients)):
        if rates:
            optimizer.learning_rate = rates[t]
        if callable(gradients):
            step = gradients({name: v.numpy() for name, v in variables.items()})
        else:
            step = gradients[t]
        optimizer.apply_gradients(
            [(tf.constant(step[name], dtype), v) for name, v in variables.items()]
        )
        yield {name: v.numpy() for name, v in variables.items()}


@pytest.mark.parametrize("case", LAMB_CASES, ids=case_id)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_lamb_is_the_oracle(case, dtype, tolerance):
    tf_keras.backend.set_floatx(dtype)
    start, gradients = random_problem()
    reference = Lamb(start, lr=0.125, **oracle_arguments(case))
    trained = train(tf_lamb.tf_keras.LAMB(0.125, **case), start, gradients, dtype)
    for ours, step in zip(trained, gradients, strict=True):
        expected = reference.step(step)
        for key in start:
            assert ours[key].dtype == dtype
            np.testing.assert_allclose(ours[key], expected[key], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ROWS)
def test_the_worked_examples(name):
    tf_keras.backend.set_floatx("float64")
    row = ROWS[name].begin()
    optimizer = getattr(tf_lamb.tf_keras, row.optimizer)(row.rates[0], **row.arguments)
    trained = train(optimizer, row.start, row.gradients, "float64", row.rates)
    for ours, expected in zip(trained, row.expected, strict=True):
        for key, value in expected.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-8, atol=1e-9)


class Block(tf_keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = tf_keras.layers.Dense(4, name="dense")
        self.norm = tf_keras.layers.LayerNormalization(name="LayerNorm")

    def call(self, x):
        return self.norm(self.dense(x))


def layers():
    return [
        Block(name="encoder"),
        tf_keras.layers.LayerNormalization(name="final_layer_norm"),
        tf_keras.layers.Dense(2, name="head"),
    ]


class Subclassed(tf_keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = layers()

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def functional():
    x = inputs = tf_keras.Input((3,))
    for part in layers():
        x = part(x)
    return tf_keras.Model(inputs, x)


def subclassed():
    model = Subclassed(name="my_model")
    model(np.ones((2, 3), "float32"))
    return model


def data(rows=64):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :2] * 2 + 1


# As in test_keras.py: the same patterns, the same plan.
PLANS = {
    "bias$": {"dense/bias", "head/bias"},
    "LayerNorm": {"LayerNorm/gamma", "LayerNorm/beta"},
    "layer_norm": {"final_layer_norm/gamma", "final_layer_norm/beta"},
    "^encoder/.*/kernel$": {"dense/kernel"},
}


@pytest.mark.parametrize("pattern", PLANS)
@pytest.mark.parametrize("make", [functional, subclassed])
@pytest.mark.parametrize("replicas", [None, 2])
def test_the_same_patterns_exclude_the_same_variables(make, pattern, replicas):
    optimizer = tf_lamb.tf_keras.LAMB(weight_decay=0.1, exclude_from_weight_decay=[pattern])
    if replicas:
        # On replica 1 a variable is called `dense/bias/replica_1:0`.
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        with strategy.scope():
            model = make()
        strategy.run(lambda: optimizer.build(model.trainable_variables))
    else:
        optimizer.build(make().trainable_variables)
    plan = optimizer._plan
    excluded = {
        "/".join(path.split("/")[-2:])
        for path, treatment in zip(plan.paths, plan.treatments, strict=True)
        if not treatment.decay and not treatment.adapt
    }
    assert excluded == PLANS[pattern]


def fit(optimizer, epochs=2, batch_size=16):
    tf_keras.utils.set_random_seed(0)
    model = functional()
    model.compile(optimizer=optimizer, loss="mse")
    x, y = data()
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


def assert_same_weights(one, other, tolerance=0.0):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_fit_lowers_the_loss():
    _, losses = fit(tf_lamb.tf_keras.LAMB(0.02), epochs=10)
    assert losses[-1] < 0.5 * losses[0]


def optimizer():
    return tf_lamb.tf_keras.LAMB(
        0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=[], global_clipnorm=1.0, name="mine",
    )  # fmt: skip


@pytest.mark.parametrize("form", ["model.keras", "model.h5", "checkpoint"])
def test_a_saved_model_goes_on_where_it_stopped(tmp_path, form):
    x, y = data()
    unbroken, _ = fit(optimizer(), epochs=2)
    saved, _ = fit(optimizer(), epochs=1)
    if form == "checkpoint":
        path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(tmp_path / form)
        restored = functional()
        restored.compile(optimizer=optimizer(), loss="mse")
        # Restored before the slots exist, as a training program does.
        status = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)
    else:
        saved.save(tmp_path / form)
        restored = tf_keras.models.load_model(tmp_path / form, custom_objects={"Block": Block})
        assert restored.optimizer.get_config() == saved.optimizer.get_config()
    assert int(restored.optimizer.iterations) == 4
    restored.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    if form == "checkpoint":
        status.assert_existing_objects_matched()
    assert_same_weights(unbroken, restored)
    assert restored.optimizer._plan.treatments == unbroken.optimizer._plan.treatments


def test_the_config_rebuilds_the_optimizer():
    first = tf_lamb.tf_keras.LAMB(
        tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), beta_1=0.8, beta_2=0.99,
        epsilon=1e-4, weight_decay=0.2, exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=["gamma"], bias_correction=False, clipvalue=2.0, use_ema=True,
        ema_momentum=0.5, ema_overwrite_frequency=3, gradient_accumulation_steps=4,
        jit_compile=False, name="other",
    )  # fmt: skip
    again = tf_keras.optimizers.get(tf_keras.optimizers.serialize(first))
    assert type(again) is tf_lamb.tf_keras.LAMB
    assert again.get_config() == first.get_config()


def test_schedules_callables_and_assignments_set_the_learning_rate():
    start, gradients = random_problem()
    step = [0]
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.1, 5, 0.05)
    for make, rate in [
        (lambda: schedule, lambda t: 0.1 - 0.05 * (t - 1) / 5),
        (lambda: lambda: 0.1 * (1 + step[0]), lambda t: 0.1 * t),
        (lambda: 0.1, lambda t: 0.1 if t < 3 else 0.01),
    ]:
        reference, ours = Lamb(start, lr=rate), tf_lamb.tf_keras.LAMB(make())
        trained = train(ours, start, gradients)
        for t, gradient in enumerate(gradients, 1):
            step[0] = t - 1
            if t == 3 and isinstance(make(), float):
                ours.learning_rate = 0.01
            assert float(ours.learning_rate) == pytest.approx(rate(t), rel=1e-6)
            weights, expected = next(trained), reference.step(gradient)
            np.testing.assert_allclose(weights["kernel"], expected["kernel"], rtol=1e-5, atol=1e-6)
        assert isinstance(ours.get_config()["learning_rate"], (float, dict))


@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}])
def test_accumulated_micro_batches_are_one_large_batch(clip):
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.05, 4, 0.01)
    one, _ = fit(tf_lamb.tf_keras.LAMB(schedule, use_ema=True, **clip), batch_size=32)
    many_optimizer = tf_lamb.tf_keras.LAMB(
        schedule, use_ema=True, gradient_accumulation_steps=4, **clip
    )
    many, _ = fit(many_optimizer, batch_size=8)
    assert int(many_optimizer.iterations) == 4
    assert_same_weights(one, many, 1e-6)


@pytest.mark.parametrize("frequency", [None, 2])
def test_averages_follow_the_weights(frequency):
    start, gradients = random_problem()
    start = {"kernel": start["kernel"]}
    gradients = [{"kernel": step["kernel"]} for step in gradients]
    ours = tf_lamb.tf_keras.LAMB(
        0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=frequency
    )
    reference, average = Lamb(start, lr=0.1), start["kernel"]
    for t, (weights, step) in enumerate(
        zip(train(ours, start, gradients), gradients, strict=True), 1
    ):
        average = 0.9 * average + 0.1 * reference.step(step)["kernel"]
        if frequency and t % frequency == 0:
            reference.w["kernel"] = average
        np.testing.assert_allclose(weights["kernel"], reference.w["kernel"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_variables_train(dtype):
    def loss_drop(dtype):
        rng = np.random.default_rng(0)
        x = tf.constant(rng.normal(size=(256, 8)), tf.float32)
        y = x[:, :1] * 2 + 1
        shapes = [(8, 16), (16,), (16, 1), (1,)]
        v = [tf.Variable(rng.normal(size=s) / 4, dtype=dtype) for s in shapes]
        ours = tf_lamb.tf_keras.LAMB(0.02, weight_decay=0.01)
        losses = []
        for _ in range(120):
            with tf.GradientTape() as tape:
                w = [tf.cast(a, tf.float32) for a in v]
                loss = tf.reduce_mean((tf.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2)
            ours.apply_gradients(zip(tape.gradient(loss, v), v, strict=True))
            losses.append(float(loss))
        return losses[0], losses[-1]

    first, last = loss_drop("float32")
    assert last < 0.1 * first
    half_first, half_last = loss_drop(dtype)
    assert (half_first - half_last) / (first - last) == pytest.approx(1, abs=0.05)


def test_slots_of_half_precision_variables_are_float32():
    ours = tf_lamb.tf_keras.LAMB(use_ema=True, gradient_accumulation_steps=2)
    ours.build([tf.Variable(np.ones(3), dtype=tf.bfloat16)])
    assert {v.dtype for v in ours.variables if v.dtype.is_floating} == {tf.float32}


def test_norms_of_large_float16_variables_stay_finite():
    variable = tf.Variable(tf.fill([4_000_000], tf.constant(0.3, tf.float16)))
    tf_lamb.tf_keras.LAMB(0.1).apply_gradients(
        [(tf.fill([4_000_000], tf.constant(0.3, tf.float16)), variable)]
    )
    np.testing.assert_allclose(variable.numpy(), np.float16(0.27), rtol=1e-3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_policies_train(policy):
    tf_keras.mixed_precision.set_global_policy(policy)
    model, losses = fit(tf_lamb.tf_keras.LAMB(0.02), epochs=10)
    assert losses[-1] < 0.5 * losses[0]
    scaled = isinstance(model.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")


def test_sparse_gradients_are_dense_ones():
    dense = np.zeros((5, 2), "float32")
    np.add.at(dense, [1, 3, 1], np.array([[1, 2], [3, 4], [5, 6]], "float32"))
    sparse = tf.IndexedSlices(
        tf.constant([[1.0, 2], [3, 4], [5, 6]]), tf.constant([1, 3, 1]), (5, 2)
    )
    results = []
    for gradient in (tf.constant(dense), sparse):
        variable = tf.Variable(tf.ones((5, 2)))
        ours = tf_lamb.tf_keras.LAMB(0.1, weight_decay=0.1)
        for _ in range(3):
            ours.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)


def test_the_method_of_tf_keras_excludes_by_identity():
    one, other = tf.Variable([2.0]), tf.Variable([2.0])  # both are called `Variable:0`
    ours = tf_lamb.tf_keras.LAMB(weight_decay=0.5)
    ours.exclude_from_weight_decay(var_list=[other])
    ours.build([one, other])
    assert [t.decay for t in ours._plan.treatments] == [0.5, 0.0]


def test_an_optimizer_belongs_to_its_model():
    ours = tf_lamb.tf_keras.LAMB()
    ours.build(functional().trainable_variables)
    stranger = tf.Variable([1.0], name="stranger")
    with pytest.raises(ValueError, match="built for other variables than 'stranger'"):
        ours.apply_gradients([(tf.ones(1), stranger)])
