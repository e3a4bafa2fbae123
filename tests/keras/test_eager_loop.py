"""A user's own eager loop on JAX: the steady state compiles nothing."""

import keras
import numpy as np
import pytest

import tf_lamb.keras

if keras.backend.backend() != "jax":
    pytest.skip("JAX compiles each eager operation", allow_module_level=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf_lamb.keras.LAMB(0.1),
        lambda: tf_lamb.keras.LAMB(0.1, gradient_accumulation_steps=2, use_ema=True),
        lambda: tf_lamb.keras.LARS(0.1, on_nonfinite="raise"),
        lambda: tf_lamb.keras.AdaScale(tf_lamb.keras.LARS(0.1, gradient_accumulation_steps=2), 2),
        lambda: tf_lamb.keras.SOAP(0.1, precondition_frequency=2),
    ],
    ids=["skip", "accumulated", "raise", "AdaScale", "SOAP"],
)
def test_an_eager_loop_compiles_nothing(make):
    from jax import monitoring

    optimizer, w = make(), keras.Variable(np.ones((3, 2)))
    gradient = keras.ops.ones((3, 2))
    for _ in range(4):
        optimizer.apply([gradient], [w])
    compiled = []

    def listen(event, duration, **_):
        if "compile" in event:
            compiled.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(4):
            optimizer.apply([gradient], [w])
    finally:
        monitoring.clear_event_listeners()
    assert not compiled
