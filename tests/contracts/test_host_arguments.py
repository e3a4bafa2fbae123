"""What every optimizer of Keras takes, ours take: and what they cannot do they say."""

import inspect
import re

import keras
import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend

import tf_lamb.keras
from tf_lamb.core import rules


def variable(dtype="float32", name="v"):
    return keras.Variable(np.ones(3), dtype=dtype, name=name)


def native(frontend, dtype="float32"):
    if frontend == "keras":
        return variable(dtype)
    import tensorflow as tf

    return tf.Variable(tf.ones(3, tf.as_dtype(dtype)), name="v")


@every_frontend
@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_what_is_no_real_number_is_refused_by_name(frontend, dtype):
    if (BACKEND, dtype) == ("torch", "int32"):
        pytest.skip("torch has no trainable variables of whole numbers")
    with pytest.raises(TypeError, match=f"v is {dtype}"):
        FRONTENDS[frontend][1].LAMB().build([native(frontend, dtype)])


@every_frontend
@pytest.mark.parametrize(
    "name", ["weight_decay", "beta_1", "gradient_accumulation_steps", "on_spike", "treatments"]
)
@pytest.mark.once
def test_what_the_plan_was_made_of_cannot_be_set_afterwards(frontend, name):
    optimizer = FRONTENDS[frontend][1].LAMB()
    with pytest.raises(AttributeError, match=f"{name} of LAMB was read when it was made.*config"):
        setattr(optimizer, name, 0.5)


@every_frontend
@pytest.mark.parametrize("name", ["clipnorm", "ema_momentum"])
@pytest.mark.once
def test_what_a_host_lets_be_set_is_in_the_config(frontend, name):
    optimizer = FRONTENDS[frontend][1].LAMB(clipnorm=1.0, use_ema=True)
    setattr(optimizer, name, 0.5)
    assert getattr(type(optimizer).from_config(optimizer.get_config()), name) == 0.5


MISSPELT = {  # with words in capitals for what depends on the optimizer and on its Keras
    "weight_deacy": " (did you mean weight_decay?): write NAME(weight_decay=0.01).",
    "global_clipnrm": " (did you mean global_clipnorm?): write NAME(global_clipnorm=0.01).",
    "weight_decay_rate": " (TensorFlow Addons, Model Garden): write NAME(weight_decay=0.01).",
    "lr": "): write NAME(learning_rate=0.01SHAPE).",
    "decay": " (TensorFlow Addons, old Keras): write NAME(learning_rate=SCHEDULE).",
    "colour": ": it takes ARGUMENTS.",
}


@pytest.mark.parametrize("given", MISSPELT)
@every_frontend
@pytest.mark.parametrize("name", rules.OURS)
@pytest.mark.once
def test_a_misspelt_argument_is_answered_with_the_one_that_was_meant(frontend, name, given):
    cls, way_out = getattr(FRONTENDS[frontend][1], name), MISSPELT[given]
    for word, own in {
        "NAME": name,
        "SHAPE": ", form={'update_scale': 'shape'}" if name == "Muon" else "",
        "SCHEDULE": f"{frontend}.optimizers.schedules.InverseTimeDecay(0.001, 1, 0.01)",
        "ARGUMENTS": ", ".join(inspect.signature(cls).parameters),
    }.items():
        way_out = way_out.replace(word, own)
    answer = f"^{name} has no argument {given!r}.*{re.escape(way_out)}"
    with pytest.raises(TypeError, match=answer):
        cls(**{given: 0.01})
    with pytest.raises(TypeError, match=f"{answer}.* If the config is of another"):
        cls.from_config({given: 0.01})


@every_frontend
@pytest.mark.once
def test_a_subclass_may_name_its_arguments_as_it_likes(frontend):
    class Mine(FRONTENDS[frontend][1].LAMB):
        def __init__(self, lr=0.1, **arguments):
            super().__init__(lr, **arguments)

    assert Mine(lr=0.5).get_config()["learning_rate"] == 0.5
    with pytest.raises(TypeError, match="^Mine has no argument 'eps' .*: write epsilon=1e-08"):
        Mine(eps=1e-8)


@every_frontend
@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [("MeasureNoise", "smothing", "smoothing"), ("AdaScale", "preconditoned", "preconditioned")],
)
@pytest.mark.once
def test_what_measures_answers_a_misspelt_argument_too(frontend, name, given, meant):
    cls, inner = getattr(FRONTENDS[frontend][1], name), FRONTENDS[frontend][1].LAMB()
    answer = (
        rf"^{name} has no argument '{given}' \(did you mean {meant}\?\): write {name}\(\.\.\., "
    )
    with pytest.raises(TypeError, match=rf"{answer}{meant}=0\.5\)\.$"):
        cls(inner, **{given: 0.5})


@every_frontend
@pytest.mark.once
def test_automatic_names_are_the_hosts(frontend):
    names = [FRONTENDS[frontend][1].LARS(name=None).name for _ in range(2)]
    assert names[0].startswith("lars") and names[1].startswith("lars_")
    assert names[0] != names[1]


@pytest.mark.once
def test_the_config_of_keras_makes_one_of_ours():
    config = keras.optimizers.Lamb(0.5, loss_scale_factor=8.0).get_config()
    ours = tf_lamb.keras.LAMB.from_config(config)
    assert ours.get_config()["loss_scale_factor"] == ours.loss_scale_factor == 8.0


def test_gradients_are_unscaled_before_anyone_looks_at_them():
    """Scaled, their squares are more than float32 holds."""
    plain, scaled = variable(), variable()
    gradient = np.array([1e15, -2e15, 3e15], "float32")
    one = tf_lamb.keras.LAMB(0.1, on_nonfinite="raise")
    other = tf_lamb.keras.LAMB(0.1, on_nonfinite="raise", loss_scale_factor=2.0**20)
    one.apply([keras.ops.convert_to_tensor(gradient)], [plain])
    other.apply([keras.ops.convert_to_tensor(gradient * 2.0**20)], [scaled])
    np.testing.assert_array_equal(array(plain), array(scaled))
    assert array(plain)[0] != 1


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf_keras is TensorFlow's")
def test_tf_keras_scales_by_a_wrapper():
    with pytest.raises(ValueError, match="LossScaleOptimizer"):
        FRONTENDS["tf_keras"][1].LAMB(loss_scale_factor=8.0)


def test_a_float64_gradient_is_looked_at_in_float64():
    big = keras.Variable(np.ones(2), dtype="float64", name="big")
    if big.dtype != "float64":
        pytest.skip("JAX_ENABLE_X64 is not set")
    optimizer = tf_lamb.keras.LAMB(0.1)
    optimizer.apply([keras.ops.convert_to_tensor(np.full(2, 1e25), "float64")], [big])
    assert optimizer.skipped_steps == 0
    np.testing.assert_allclose(array(big), 0.9)


@every_frontend
def test_a_ratio_beyond_1e35_is_a_ratio_in_float64(frontend):
    w = native(frontend, "float64")
    if keras.backend.standardize_dtype(w.dtype) != "float64":
        pytest.skip("JAX_ENABLE_X64 is not set")
    optimizer = FRONTENDS[frontend][1].LAMB(0.5, on_nonfinite="propagate")
    gradient = keras.ops.convert_to_tensor(np.full(3, 1e-43), "float64")
    optimizer.apply_gradients([(gradient, w)])
    np.testing.assert_allclose(array(w), 0.5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the update of keras.ops assigns by it anyway")
def test_a_subclass_may_assign_for_itself():
    seen = []

    class Counting(tf_lamb.keras.LAMB):
        def assign(self, variable, value):
            seen.append(variable.name)
            super().assign(variable, value)

    v = variable()
    Counting(0.1).apply([keras.ops.ones(3)], [v])
    assert len(seen) == 3  # the weight and two moments
    assert array(v)[0] != 1


@pytest.mark.parametrize(
    "make",
    [
        lambda ours: ours.AdaScale(ours.LAMB(0.01, gradient_accumulation_steps=2, use_ema=True), 2),
        lambda ours: ours.MeasureNoise(
            keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)
        ),
        lambda ours: ours.LAMB(0.01, dtypes={"slots": "bfloat16"}),
    ],
    ids=["AdaScale", "MeasureNoise", "bfloat16 slots"],
)
def test_hdf5_keeps_all_of_a_wrapped_optimizer(make, tmp_path):
    model = keras.Sequential([keras.layers.InputLayer((3,)), keras.layers.Dense(2)])
    model.compile(make(tf_lamb.keras), keras.losses.MeanSquaredError())
    model.fit(np.eye(3), np.ones((3, 2)), batch_size=1, epochs=4, verbose=0)
    model.save(tmp_path / "model.h5")
    loaded = keras.models.load_model(tmp_path / "model.h5")
    loaded.optimizer.build(loaded.trainable_variables)
    for kept, restored in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert array(kept).tobytes() == array(restored).tobytes(), kept.path
