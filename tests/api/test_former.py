"""Arguments of before: a config with them goes on."""

import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend, new_variable

pytestmark = pytest.mark.once
# Of a class: arguments of before, and those of today that do the same.
FORMER = [
    ("LAMB",
     {"learning_rate_multipliers": {"a": 0.5, "b": 0}, "layer_slices": {"b": 0, "a": [-1, 2]},
      "layer_groups": ["c"]},
     {"treatments": {"a": {"rate": 0.5}, "b": {"rate": 0, "slices": 0},
                     "a(?:)": {"slices": [-1, 2]}, "c": {"join": True}}}),
    ("LAMB",
     {"slot_dtype": "bfloat16", "master_weights": True, "phi_bounds": (0, 9),
      "ratio_bounds": [0.1, 2]},
     {"dtypes": {"slots": "bfloat16", "masters": "float32"},
      "bounds": {"weight_norm": (0, 9), "trust_ratio": (0.1, 2)}}),
    ("LARS", {"momentum_form": "mixed", "denominator": "norm_of_sum", "clip": True,
              "master_weights": False, "ratio_bounds": None},
     {"form": {"momentum": "mixed", "denominator": "norm_of_sum", "clip": True}}),
    ("Muon", {"fallback_lr_scale": 0.5, "newton_schulz_steps": 3, "update_scale": "shape",
              "product_dtype": "bfloat16", "slot_dtype": "float32"},
     {"form": {"fallback_lr_scale": 0.5, "newton_schulz_steps": 3, "update_scale": "shape"},
      "dtypes": {"products": "bfloat16"}}),
    ("Muon", {"matrix_rows": {"a": None, "b": [1]}},
     {"treatments": {"a": {"rows": None}, "b": {"rows": 1}}}),
    ("SGDP", {"depthwise": ["dw"]},
     {"treatments": {"dw": {"depthwise": True}, ".": {"depthwise": False}}}),
    ("AdamP", {"depthwise": None, "learning_rate_multipliers": None}, {}),
]  # fmt: skip


@every_frontend
@pytest.mark.parametrize(("name", "before", "today"), FORMER)
def test_a_config_of_before_goes_on(frontend, name, before, today):
    cls = getattr(FRONTENDS[frontend][1], name)
    config = cls().get_config()
    taken = {key: value for key, value in config.items() if key not in today}
    assert cls.from_config({**taken, **before}).get_config() == cls(**today).get_config()


@every_frontend
def test_the_order_of_patterns_is_as_it_was(frontend):
    """Of each key: b's slices come before a's, and a's rate before b's."""
    _, before, _ = FORMER[0]
    optimizer = FRONTENDS[frontend][1].LAMB.from_config(before)
    paths = ("stem/ab", "stem/c")
    optimizer.build([new_variable(frontend, np.ones((4, 6)), path=path) for path in paths])
    assert optimizer.plan.multipliers == (0.5, 1.0)
    assert optimizer.plan.treatments[0].words == "4 slices along axis 0"
