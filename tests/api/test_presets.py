"""norm_and_bias: the exclusions of every recipe of the field, in one word."""

import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend, new_variable

pytestmark = pytest.mark.once

LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")


def model_of(host):
    """A model whose layers bear the names that a user likes."""
    layers = host.layers
    return host.Sequential([
        host.layers.InputLayer((4, 4, 1)), layers.Conv2D(2, 2, name="first"),
        layers.BatchNormalization(name="bn1"), layers.LayerNormalization((1, 2, 3), name="ln"),
        layers.Flatten(), layers.Dense(2, name="normal"),
    ])  # fmt: skip


@every_frontend
def test_the_preset_is_every_bias_and_all_of_normalization(frontend):
    host, ours = FRONTENDS[frontend]
    optimizer = ours.LAMB(weight_decay=0.1, exclude_from_weight_decay="norm_and_bias")
    optimizer.build(model_of(host).trainable_variables)
    plan = optimizer.plan
    kept = {
        path.rpartition("/")[2]
        for path, treatment in zip(plan.paths, plan.treatments, strict=True)
        if treatment.decay and treatment.adapt
    }
    assert kept == {"kernel"}
    assert sum(bool(t.decay) for t in plan.treatments) == 2


@every_frontend
@pytest.mark.parametrize(
    "given",
    ["norm_and_bias", ["norm_and_bias", "embedding"]],
    ids=["alone", "among patterns"],
)
def test_it_is_serialized_as_what_it_is(frontend, given):
    _, ours = FRONTENDS[frontend]
    config = ours.LAMB(exclude_from_weight_decay=given).get_config()
    assert config[LISTS[0]] == ([given] if isinstance(given, str) else given)
    assert ours.LAMB.from_config(config).get_config() == config


@every_frontend
def test_a_preset_that_stands_for_nothing_is_no_mistake_and_a_pattern_is(frontend, recwarn):
    _, ours = FRONTENDS[frontend]
    kernel = new_variable(frontend, np.ones((2, 2)), path="kernel")
    ours.LAMB(exclude_from_weight_decay="norm_and_bias").build([kernel])
    assert not recwarn.list
    ours.LAMB(exclude_from_weight_decay=["bias"]).build([kernel])
    (warning,) = recwarn.list
    assert "No variable matches the pattern 'bias'" in str(warning.message)
    assert warning.filename == __file__  # the user's line, not ours


@pytest.mark.parametrize("argument", LISTS)
@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("bias_and_norm", "'norm_and_bias'"), ("norm_and_biases", "'norm_and_bias'"),
        ("norm_bias", "'norm_and_bias'"), ("Biases and norms", "'norm_and_bias'"),
        ("bias", "['bias']"), ("layer_norm/bias", "['layer_norm/bias']"),
    ],
)  # fmt: skip
def test_a_string_is_answered_with_what_is_accepted(argument, value, accepted):
    lamb = FRONTENDS["keras"][1].LAMB
    with pytest.raises(TypeError) as caught:
        lamb(**{argument: value})
    assert str(caught.value).endswith(f"not {value!r}. Did you mean {accepted}?")
    lamb(**{argument: eval(accepted)})


def test_what_is_neither_a_string_nor_a_list_is_not_put_into_a_list():
    with pytest.raises(TypeError, match=r"takes a list of regexes such as .*, not True\.$"):
        FRONTENDS["keras"][1].LAMB(exclude_from_weight_decay=True)
