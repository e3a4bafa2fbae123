"""Every optimizer, option and schedule in float64, in a traced step: as one that is not traced.

TensorFlow makes a Python number float32 where it traces, and takes no two dtypes together.
"""

import numpy as np
import pytest
from support.feeding import Feed, gradients
from support.frontends import FRONTENDS, every_frontend, on_tensorflow, precision

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
    ("LARS", {"form": {"clip": True, "denominator": "norm_of_update", "momentum": "outside"}}),
    ("LARS", {"nesterov": True, "weight_decay": 0.1, "bounds": {"trust_ratio": (0.01, 0.02)},
              "treatments": {".*": {"join": True}}, "exclude_from_weight_decay": ["bias"]}),
    ("AdamP", {"nesterov": True, "weight_decay": 0.1, "delta": 10.0, "wd_ratio": 0.5}),
    ("SGDP", {"nesterov": True, "weight_decay": 0.1, "delta": 10.0, "wd_ratio": 0.5}),
    ("Muon", {"nesterov": False, "form": {"update_scale": "shape", "newton_schulz_steps": 3}}),
    ("SOAP", {"weight_decay": 0.1, "precondition_frequency": 1}),
    ("SOAP", {"max_precond_dim": 2, "form": {"one_sided": True}}),
]  # fmt: skip


def weights(frontend, name, options, traced, rate=lambda: 0.1):
    ours = FRONTENDS[frontend][1]

    def make():
        own = getattr(ours, name)(rate(), **options)
        if own.has_trust_ratios():
            own.observe_trust_ratios()
        return own

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


@on_tensorflow
@every_frontend
def test_a_traced_step_on_a_schedule(frontend):
    """Where the default dtype is float64, as that of the variables."""
    host, ours = FRONTENDS[frontend]

    def rate():
        return ours.schedules.Warmup(2, host.optimizers.schedules.CosineDecay(0.1, 4))

    expected = weights(frontend, "LAMB", {}, False, rate)
    with precision(frontend, "float64"):
        found = weights(frontend, "LAMB", {}, True, rate)
    for traced, eager in zip(found, expected, strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-6)
