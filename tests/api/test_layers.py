"""What a layer is, through every frontend; `core/test_layer_groups.py` has the numbers."""

import warnings

import numpy as np
import pytest
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    train,
    uncompiled,
)
from support.layouts import PATHS, RULES, plan, problem, step


@every_frontend
@pytest.mark.once
def test_a_refused_plan_leaves_the_variables_alone(frontend):
    variable = new_variable(frontend, np.ones((6, 2)), path="kernel")
    optimizer = FRONTENDS[frontend][1].LAMB(treatments={"kernel": {"slices": 5}})
    with pytest.raises(ValueError, match="axis 5 of kernel"):
        apply(optimizer, [np.ones((6, 2))], [variable])
    np.testing.assert_array_equal(array(variable), 1)
    assert int(optimizer.iterations) == 0


TREATMENTS = {
    "dense": {"join": True}, "stacked": {"slices": 0}, "head": {"slices": [0, 3]},
}  # fmt: skip
REFUSED = [
    ({"bounds": {"weight_norm": (2, 1)}}, ValueError, r"bounds\['weight_norm'\].*low <= high"),
    ({"bounds": {"trust_ratio": 3}}, TypeError, r"bounds\['trust_ratio'\].*\(0.01, 10.0\)"),
    ({"weight_decay_mode": "gradient"}, ValueError, "'update'.*'decoupled'.*'gradient'"),
    ({"dtypes": {"slots": "int8"}}, ValueError, r"dtypes\['slots'\].*'int8'"),
    ({"treatments": {"qkv": {"slices": "last"}}}, TypeError, r"treatments\['qkv'\]\['slices'\]"),
    ({"treatments": {"((": {"slices": 0}}}, ValueError, r"treatments.*'\(\('"),
    ({"treatments": {"a": {"rows": 0}}}, ValueError, r"treatments\['a'\] has no 'rows'"),
    ({"treatments": {"dense": {"join": 1}}}, TypeError, r"treatments\['dense'\]\['join'\].*1"),
]


@every_frontend
@pytest.mark.parametrize(("arguments", "error", "words"), REFUSED, ids=str)
@pytest.mark.once
def test_contradictions_are_refused(frontend, arguments, error, words):
    with pytest.raises(error, match=words):
        FRONTENDS[frontend][1].LAMB(**arguments)


@every_frontend
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"form": {"clip": True}, "bounds": {"trust_ratio": (0, 50)}},
            r"clip of form.* trust_ratio, \(0.0, 50.0\)",
        ),
        (
            {"form": {"denominator": "norm_of_update"}},
            "norm_of_update.*needs the momentum 'outside'",
        ),
    ],
    ids=["clip and bounds", "denominator and momentum"],
)
@pytest.mark.once
def test_contradictions_of_lars_are_refused(frontend, arguments, words):
    with pytest.raises(ValueError, match=words):
        FRONTENDS[frontend][1].LARS(**arguments)


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@uncompiled()
def test_the_frontends_step_layers_as_numpy_does(frontend, name):
    weights, gradients = problem()
    optimizer = getattr(FRONTENDS[frontend][1], name)(
        0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"], treatments=TREATMENTS,
        **({"trust_coefficient": 0.1} if name == "LARS" else {}),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        (got,) = train(
            frontend,
            optimizer,
            dict(zip(PATHS, weights, strict=True)),
            [dict(zip(PATHS, gradients, strict=True))],
        )
    treatments = optimizer._settings.treatments
    expected = step(
        plan(undecayed=("bias",), treatments=treatments), *RULES[name.lower()], weights, gradients
    )
    for one, other in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@every_frontend
@uncompiled()
def test_a_missing_gradient_leaves_the_rest_of_its_layer(frontend):
    weights, gradients = problem()
    variables = [new_variable(frontend, w, path=p) for w, p in zip(weights, PATHS, strict=True)]
    optimizer = FRONTENDS[frontend][1].LAMB(0.1, treatments={"dense": {"join": True}})
    optimizer.build(variables)
    gradients[1] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the host warns of the missing gradient
        apply(optimizer, gradients, variables)
    np.testing.assert_array_equal(array(variables[1]), weights[1].astype("float32"))
    assert np.any(array(variables[0]) != weights[0].astype("float32"))


@every_frontend
@uncompiled()
def test_the_first_ratios_of_joined_and_sliced_layers(frontend):
    """Written out: the first direction is the sign of the gradient, its norm the root of the size.

    On all backends, with no epsilon and no decay.
    """
    random = np.random.default_rng(0)
    shapes = {"dense/kernel": (4, 3), "dense/bias": (3,), "stacked": (2, 5)}
    start = {path: random.normal(size=shape) for path, shape in shapes.items()}
    gradients = {path: random.normal(size=shape) for path, shape in shapes.items()}
    optimizer = FRONTENDS[frontend][1].LAMB(
        0.1, epsilon=0.0, treatments={"dense/": {"join": True}, "stacked": {"slices": 0}}
    )
    (got,) = train(frontend, optimizer, start, [gradients])
    kernel, bias, stacked = start.values()
    joined = np.sqrt((np.sum(kernel**2) + np.sum(bias**2)) / 15)
    slices = np.sqrt(np.sum(stacked**2, axis=1, keepdims=True) / 5)
    for path, ratio in zip(shapes, (joined, joined, slices), strict=True):
        expected = start[path] - 0.1 * ratio * np.sign(gradients[path])
        np.testing.assert_allclose(got[path], expected, rtol=1e-5)
