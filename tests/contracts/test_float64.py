"""Every optimizer, option and schedule in float64, in a traced step: as one that is not traced.

TensorFlow makes a Python number float32 where it traces, and takes no two dtypes together.
"""

import numpy as np
import pytest
from support.feeding import Feed, gradients
from support.frontends import BACKEND, FRONTENDS, every_frontend, on_tensorflow, precision

# Values that are not the default: options of the rule, and of what is done for every rule alike.
CASES = [
    ("LAMB", {}),
    ("LAMB", {"weight_decay": 0.1, "clipnorm": 0.5, "use_ema": True, "ema_overwrite_frequency": 2}),
    ("LAMB", {"global_clipnorm": 0.5, "gradient_accumulation_steps": 2, "on_spike": (4, 2.0)}),
    ("LAMB", {"clipvalue": 0.5, "treatments": {"bias": {"rate": 0.5}},
              "on_nonfinite": "propagate"}),
    ("LAMB", {"gradient_accumulation_steps": {0: 1, 1: 2}, "bias_correction": False,
              "exclude_from_layer_adaptation": ["bias"], "on_nonfinite": "raise"}),
    ("LAMB", {"weight_decay": 0.1, "weight_decay_mode": "decoupled",
              "bounds": {"weight_norm": (0.1, 1.0), "trust_ratio": (0.01, 0.02)},
              "treatments": {".*": {"join": True}}}),
    ("LANS", {"weight_decay": 0.1, "treatments": {"kernel": {"slices": -1}}}),
    ("LARS", {"weight_decay": 0.1, "form": {"clip": True}}),
    ("LARS", {"form": {"clip": True, "denominator": "norm_of_sum", "momentum": "mixed"}}),
    ("LARS", {"form": {"clip": True, "denominator": "norm_of_update", "momentum": "outside"}}),
    ("LARS", {"nesterov": True, "weight_decay": 0.1, "bounds": {"trust_ratio": (0.01, 0.02)},
              "treatments": {".*": {"join": True}}, "exclude_from_weight_decay": ["bias"]}),
    ("AdamP", {"nesterov": True, "weight_decay": 0.1, "delta": 10.0, "wd_ratio": 0.5}),
    ("SGDP", {"nesterov": True, "weight_decay": 0.1, "delta": 10.0, "wd_ratio": 0.5}),
    ("Muon", {"weight_decay": 0.1}),
    ("Muon", {"nesterov": False, "form": {"update_scale": "shape", "newton_schulz_steps": 3}}),
    ("SOAP", {"weight_decay": 0.1, "precondition_frequency": 1}),
    ("SOAP", {"max_precond_dim": 2, "form": {"one_sided": True}}),
]  # fmt: skip


def weights(frontend, name, options, traced, rate=lambda: 0.1, around=None):
    ours = FRONTENDS[frontend][1]

    def make():
        own = getattr(ours, name)(rate(), **options)
        if own.has_trust_ratios():
            own.observe_trust_ratios()
        return {
            None: lambda own: own, "MeasureNoise": ours.MeasureNoise,
            "AdaScale": lambda own: ours.AdaScale(own, 2.0),
        }[around](own)  # fmt: skip

    run = Feed(frontend, make, dtype="float64", traced=traced)
    for parts in gradients(4, 1):
        run.step(parts)
    assert all(v.dtype == "float64" for v in run.variables)
    return run.weights()


@on_tensorflow
@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{list(o)}" for n, o in CASES])
@every_frontend
def test_a_traced_step_is_the_step(frontend, name, options):
    found = (weights(frontend, name, options, traced) for traced in (True, False))
    for traced, eager in zip(*found, strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-9, atol=1e-12)


DECAYS = {
    "ExponentialDecay": (0.1, 4, 0.5), "PiecewiseConstantDecay": ([2, 4], [0.1, 0.05, 0.01]),
    "PolynomialDecay": (0.1, 8, 0.01), "InverseTimeDecay": (0.1, 4, 0.5), "CosineDecay": (0.1, 8),
    "CosineDecayRestarts": (0.1, 4),
}  # fmt: skip
AROUND = {
    "linear": lambda s, decay: s.Warmup(2, decay),
    "polynomial": lambda s, decay: s.Warmup(2, decay, kind="polynomial", power=2.0),
    "exponential": lambda s, decay: s.Warmup(2, decay, kind="exponential", start=1e-3),
    "constant": lambda s, decay: s.Warmup(2, decay, kind="constant", start=0.02),
    "dropping": lambda s, decay: s.Warmup(2, decay, handover="drop"),
    "stages": lambda s, decay: s.Stages((2, 8), (decay, s.Warmup(1, decay))),
}
OURS = {
    "_Constant": (0.1,), "_Polynomial": (0.1, 8, 0.01, 0.5), "_Cosine": (0.1, 8),
    "_Exponential": (0.1, 4, 0.5, True), "_MultiStep": ((2, 4), (0.1, 0.05, 0.01)),
}  # fmt: skip
STEPS = (0, 1, 2, 3, 6, 12)


def rates(frontend, name):
    """By step, of a schedule inside each of ours, as a traced step reads them."""
    host, ours = FRONTENDS[frontend]
    if name in OURS:
        inside = getattr(ours.schedules, name)(*OURS[name])
    else:
        inside = getattr(host.optimizers.schedules, name)(*DECAYS[name])
    every = [around(ours.schedules, inside) for around in AROUND.values()]

    def read(step):
        return [schedule(step) for schedule in every]

    if BACKEND == "tensorflow":
        import tensorflow as tf

        read, steps = tf.function(read), [tf.constant(step, tf.int64) for step in STEPS]
    else:
        import jax

        read, steps = jax.jit(read), STEPS
    return [[float(rate) for rate in read(step)] for step in steps]


@pytest.mark.parametrize("name", [*DECAYS, *OURS])
@every_frontend
def test_a_schedule_is_that_of_float32(frontend, name):
    expected = rates(frontend, name)
    with precision(frontend, "float64"):
        np.testing.assert_allclose(rates(frontend, name), expected, rtol=1e-6, atol=1e-8)
