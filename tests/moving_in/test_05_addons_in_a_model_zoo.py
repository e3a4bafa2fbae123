"""A zoo of vision models that took TensorFlow Addons' LAMB, with regexes of slashes.

A callback sets the rate in every batch, under mixed precision, on several replicas.
"""

import contextlib
import inspect
import math
import re

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend, on_tensorflow, precision

NO_DECAY = ["/gamma", "/beta", "/bias", "/positional_embedding", "/no_weight_decay"]
rng = np.random.default_rng(0)
PICTURES = rng.normal(size=(32, 6, 6, 2)).astype("float32")
LABELS = (PICTURES.mean((1, 2, 3)) > 0).astype("float32")[:, None]
RATES = [0.05 * (1 + math.cos(math.pi * step / 12)) / 2 for step in range(12)]

pytestmark = [
    pytest.mark.usefixtures("quickly_compiled"),
    pytest.mark.filterwarnings("ignore:No variable matches the pattern"),
]


def network(host, name="zoo"):
    layers = host.layers
    inputs = layers.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, use_bias=False, name="stem_conv")(inputs)
    x = layers.BatchNormalization(name="stem_bn")(x)
    x = layers.Activation("relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(1, name="predictions", dtype="float32")(x)
    return host.Model(inputs, outputs, name=name)


def lamb(frontend, **own):
    return FRONTENDS[frontend][1].LAMB(
        0.01, weight_decay=0.02, exclude_from_weight_decay=NO_DECAY, global_clipnorm=1.0, **own
    )


def setting(host, left):
    class SetsTheRate(host.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = left.pop(0)

    return SetsTheRate()


def loss_of(host, traced):
    """A loss that notes when it is traced."""

    class Loss(host.losses.BinaryCrossentropy):
        def call(self, true, predicted):
            traced.append(1)
            return super().call(true, predicted)

    return Loss(from_logits=True)


def compiled(frontend, optimizer, traced, strategy=None, **how):
    host, _ = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = network(host)
        model.compile(optimizer(), loss_of(host, traced), **how)
    return model


def fit(model, *callbacks, epochs=3):
    model.fit(
        PICTURES, LABELS, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks),
    )  # fmt: skip
    return model


def inner(model):
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@every_frontend
@pytest.mark.once
def test_the_call_of_addons_is_answered_with_ours_and_that_one_works(frontend):
    lamb_class = FRONTENDS[frontend][1].LAMB
    with pytest.raises(TypeError) as caught:
        lamb_class(
            0.01, weight_decay_rate=0.02, exclude_from_weight_decay=NO_DECAY, global_clipnorm=1.0
        )
    call = re.search(r"write (LAMB\(.*\))\.", str(caught.value)).group(1)
    made = eval(call, {"LAMB": lamb_class})
    assert made.get_config() == lamb(frontend).get_config()


@every_frontend
@pytest.mark.once
def test_a_slash_before_a_name_excludes_that_variable_of_every_layer(frontend):
    optimizer = lamb(frontend)
    optimizer.build(network(FRONTENDS[frontend][0]).trainable_variables)
    plan = dict(zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True))
    decayed = {"/".join(path.split("/")[-2:]) for path, each in plan.items() if each.decay}
    assert decayed == {"stem_conv/kernel", "predictions/kernel"}
    assert {path for path, each in plan.items() if each.adapt} == {
        path for path, each in plan.items() if each.decay
    }


@every_frontend
@pytest.mark.once
@pytest.mark.filterwarnings("default:No variable matches the pattern")
def test_a_name_that_this_model_lacks_is_told_of_and_does_no_harm(frontend):
    optimizer = lamb(frontend)
    with pytest.warns(UserWarning, match="No variable matches") as caught:
        optimizer.build(network(FRONTENDS[frontend][0]).trainable_variables)
    (told,) = caught
    patterns, _, _ = str(told.message).partition("Patterns are searched")
    assert "\n  '/positional_embedding'\n  '/no_weight_decay'\n" in patterns
    assert "'/bias'" not in patterns


@every_frontend
@pytest.mark.once
def test_names_that_are_excluded_by_the_method_are_excluded_alike(frontend):
    """For optimizers without the argument the zoo looks at the signature, and calls this."""
    ours = FRONTENDS[frontend][1]
    assert "exclude_from_weight_decay" in inspect.signature(ours.LAMB).parameters
    optimizer = ours.LAMB(0.01, weight_decay=0.02, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=NO_DECAY)
    variables = network(FRONTENDS[frontend][0]).trainable_variables
    optimizer.build(variables)
    (expected := lamb(frontend)).build(variables)
    assert optimizer.plan == expected.plan


@every_frontend
@pytest.mark.skipif(BACKEND == "torch", reason="torch's steps are not compiled")
def test_a_rate_that_is_set_in_every_batch_compiles_nothing_anew(frontend, monkeypatch):
    if BACKEND == "tensorflow":  # a stack of layers is no `tf.function` that counts its tracings
        from tf_lamb.tensorflow import namespace

        monkeypatch.setattr(namespace, "STACK_MAX_ELEMENTS", 0)
    traced, seen = [], []
    model = compiled(frontend, lambda: lamb(frontend), traced)
    host = FRONTENDS[frontend][0]
    note = host.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(len(traced)))
    fit(model, setting(host, [*RATES]), note)
    assert seen[0] > 0 and len(set(seen)) == 1
    if BACKEND == "tensorflow":
        programs = inner(model)._update._programs.values()
        assert {each.experimental_get_tracing_count() for each in programs} == {1}


@every_frontend
def test_a_rate_that_is_set_in_every_batch_is_that_of_the_step(frontend):
    """As a schedule of the same numbers."""
    host, ours = FRONTENDS[frontend]
    by_callback = fit(compiled(frontend, lambda: lamb(frontend), []), setting(host, [*RATES]))

    def scheduled():
        cosine = host.optimizers.schedules.CosineDecay(0.05, 12)
        return ours.LAMB.from_config({**lamb(frontend).get_config(), "learning_rate": cosine})

    by_schedule = fit(compiled(frontend, scheduled, []))
    assert float(array(by_callback.optimizer.learning_rate)) == pytest.approx(RATES[-1])
    for a, b in zip(by_callback.get_weights(), by_schedule.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@every_frontend
def test_in_mixed_precision_the_rate_reaches_the_inner_optimizer(frontend):
    """`compile` puts a loss scale around ours; 65,504 is the largest number of float16."""
    host, ours = FRONTENDS[frontend]
    traced, left = [], [*RATES]
    # To compile in float16 takes long on TensorFlow; on JAX no compilation is no trace.
    how = {} if BACKEND == "jax" else {"jit_compile": False}
    with precision(frontend, policy="mixed_float16"):
        model = compiled(frontend, lambda: lamb(frontend), traced, **how)
        start = model.get_weights()
        fit(model, setting(host, left), epochs=1)
        first = len(traced)
        fit(model, setting(host, left), epochs=2)
    assert type(model.optimizer.inner_optimizer) is ours.LAMB
    assert float(array(inner(model).learning_rate)) == pytest.approx(RATES[-1])
    assert int(array(inner(model).iterations)) == 12 - inner(model).skipped_steps > 0
    assert len(traced) == first or BACKEND == "torch"  # whose steps are not compiled
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
    assert any((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))


@on_tensorflow
@every_frontend
def test_on_replicas_too_the_rate_that_is_set_compiles_nothing_anew(frontend):
    from support.clusters import mirrored

    host, traced = FRONTENDS[frontend][0], []
    left = [*RATES]
    on_two = compiled(frontend, lambda: lamb(frontend), traced, mirrored(2))
    fit(on_two, setting(host, left), epochs=1)
    first = len(traced)
    fit(on_two, setting(host, left), epochs=2)
    assert len(traced) == first
    assert float(array(on_two.optimizer.learning_rate)) == pytest.approx(RATES[-1])
