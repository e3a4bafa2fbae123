"""Two variables of one path are two: towers that one function builds have layers of one name."""

import numpy as np
import pytest
from support.frontends import FRONTENDS, apply, array, every_frontend, uncompiled


def towers(frontend, bias=True):
    """Two towers with a `dense` each, and what they see."""
    host, _ = FRONTENDS[frontend]
    x = host.Input((2,))

    def tower(bias):
        inputs = host.Input((2,))
        return host.Model(inputs, host.layers.Dense(2, use_bias=bias, name="dense")(inputs))

    outputs = [tower(True)(x), tower(bias)(x)]
    return host.Model(x, host.layers.Concatenate()(outputs))


def built(frontend, model=None, **arguments):
    optimizer = FRONTENDS[frontend][1].LAMB(0.1, **arguments)
    model = model or towers(frontend)
    optimizer.build(model.trainable_variables)
    return optimizer, model


@every_frontend
@uncompiled()
def test_two_layers_of_one_path_are_two_layers(frontend):
    """The steps of a kernel and a bias that are joined, one tower 100 times as large."""
    arguments = {"treatments": {"dense": {"join": True}}, "exclude_from_layer_adaptation": []}
    optimizer, model = built(frontend, **arguments)
    variables = model.trainable_variables
    assert [v.path if frontend == "keras" else v.name[:-2] for v in variables] == [
        "dense/kernel", "dense/bias", "dense/kernel", "dense/bias",
    ]  # fmt: skip
    for i, variable in enumerate(variables):
        variable.assign(np.full(variable.shape, (1.0, 100.0)[i // 2]))
    before = [np.array(array(v)) for v in variables]
    apply(optimizer, [np.ones(v.shape, "float32") for v in variables], variables)
    steps = [np.linalg.norm(array(v) - w) for v, w in zip(variables, before, strict=True)]
    # lr |w|, shared out evenly: each layer has a kernel of 4 and a bias of 2.
    expected = 0.1 * np.array([2, 2**0.5, 200, 2**0.5 * 100])
    np.testing.assert_allclose(steps, expected, rtol=1e-4)


@every_frontend
def test_a_config_excludes_the_variable_that_was_excluded(frontend):
    optimizer, model = FRONTENDS[frontend][1].LAMB(0.1, weight_decay=0.5), towers(frontend)
    variables = model.trainable_variables
    optimizer.exclude_from_weight_decay(var_list=[variables[2]])
    unbuilt = optimizer.get_config()
    optimizer.build(variables)
    assert [t.decay for t in optimizer.plan.treatments] == [0.5, 0.5, 0.0, 0.5]
    again = type(optimizer).from_config(optimizer.get_config())
    again.build(towers(frontend).trainable_variables)
    assert again.plan.treatments == optimizer.plan.treatments
    # Before the build nobody knows of the other: the config says that it is the only one.
    with pytest.raises(ValueError, match="number 1 of 1 .* dense/kernel#1of2, dense/kernel#2of2"):
        type(optimizer).from_config(unbuilt).build(towers(frontend).trainable_variables)
    alone = type(optimizer).from_config(unbuilt)
    alone.build(variables[:2])
    assert [t.decay for t in alone.plan.treatments] == [0.0, 0.5]


@every_frontend
@uncompiled()
def test_reports_name_both(frontend, capsys):
    optimizer, model = built(frontend, exclude_from_layer_adaptation=["bias"])
    optimizer.describe()
    assert "dense/kernel#2of2" in capsys.readouterr().out
    optimizer.observe_trust_ratios()
    assert len({seen.path for seen in optimizer.trust_ratios()}) == 4
    model.trainable_variables[2].assign(np.full((2, 2), np.nan))
    assert optimizer.nonfinite_weights(model) == ["dense/kernel#2of2"]
    model.layers[1].trainable = False  # the tower that is left has the path alone
    optimizer, _ = built(frontend, model)
    assert optimizer.nonfinite_weights(model) == ["dense/kernel"]


@every_frontend
def test_layers_of_one_name_are_refused(frontend):
    with pytest.raises(ValueError, match="'dense/kernel' and 1 'dense/bias'"):
        built(
            frontend,
            towers(frontend, bias=False),
            treatments={"dense": {"join": True}},
            exclude_from_layer_adaptation=[],
        )
