"""Muon and SOAP with a trust ratio or a constant norm, in every frontend."""

import json

import numpy as np
import oracle
import pytest
from support.cases import random_steps
from support.frontends import FRONTENDS, array, every_frontend, new_variable, train, uncompiled

NAMES = ("Muon", "SOAP")
FLOOR = {"bounds": {"trust_ratio": (0.35, None)}}
START, GRADIENTS = random_steps((4, 4), steps=3)  # of which one spans both sides
BIAS, OF_BIAS = random_steps((4,), steps=3, seed=1)


def trained(frontend, optimizer):
    """The weights of a matrix and of a bias after three steps."""
    gradients = [
        {"a/kernel": g, "a/bias": h} for g, h in zip(GRADIENTS, OF_BIAS, strict=True)
    ]  # fmt: skip
    *_, last = train(frontend, optimizer, {"a/kernel": START, "a/bias": BIAS}, gradients)
    return last


@every_frontend
@pytest.mark.parametrize("name", NAMES)
@uncompiled()
def test_bounds_are_saved_and_step_as_the_oracle_does(frontend, name):
    """An excluded variable, AdamW's, moves as it does without."""
    ours = getattr(FRONTENDS[frontend][1], name)
    treated = {"kernel": {"slices": -1}}
    optimizer = ours(0.1, weight_decay=0.1, **FLOOR, treatments=treated)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["bounds"] == {"weight_norm": None, "trust_ratio": [0.35, None]}
    again, plain = ours.from_config(config), ours(0.1, weight_decay=0.1)
    assert again.get_config() == optimizer.get_config()
    assert again.observe_trust_ratios() and not plain.has_trust_ratios()
    found, without = trained(frontend, again), trained(frontend, plain)
    make = oracle.Muon if name == "Muon" else oracle.Soap
    reference = make(START, lr=0.1, wd=0.1, by="columns", bounds=(0.35, np.inf))
    for g in GRADIENTS:
        expected = reference.step(g)
    np.testing.assert_allclose(found["a/kernel"], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found["a/bias"], without["a/bias"])
    assert np.abs(found["a/kernel"] - without["a/kernel"]).max() > 1e-3
    kernel, bias = again.trust_ratios()
    assert (kernel.ratios, bias.ratios, bias.trust_ratio) == (4, 0, None)
    np.testing.assert_allclose(kernel.trust_ratio, np.mean(reference.ratios), rtol=1e-3)


@every_frontend
@pytest.mark.parametrize("name", NAMES)
@uncompiled()
def test_a_constant_norm_stays_and_is_shown(frontend, name):
    optimizer = getattr(FRONTENDS[frontend][1], name)(
        0.1, form={"norm": "constant"}, bounds={"trust_ratio": (None, None)}
    )
    last = trained(frontend, optimizer)
    before, after = (np.linalg.norm(w) for w in (START, last["a/kernel"]))
    np.testing.assert_allclose(after, before, rtol=1e-5)
    assert np.abs(last["a/kernel"] - START).max() > 1e-2
    tables = []
    optimizer.describe(tables.append)
    assert "matrix of 4 x 4, trust ratio, constant norm" in tables[0]


@every_frontend
@pytest.mark.once
def test_a_matrix_without_a_basis_is_named_by_its_shape_alone(frontend):
    optimizer = FRONTENDS[frontend][1].SOAP(max_precond_dim=3, **FLOOR)
    with pytest.raises(ValueError, match="a/kernel is a matrix of 4 x 4: put 'a/kernel' into"):
        optimizer.build([new_variable(frontend, START, path="a/kernel")])


@every_frontend
@pytest.mark.parametrize("name", NAMES)
def test_without_bounds_there_are_no_ratios_to_show(frontend, name):
    ours = getattr(FRONTENDS[frontend][1], name)
    with pytest.raises(TypeError, match="no trust ratios to show: give it bounds"):
        ours().observe_trust_ratios()


@every_frontend
@pytest.mark.parametrize("name", NAMES)
def test_without_bounds_slices_are_refused(frontend, name):
    ours = getattr(FRONTENDS[frontend][1], name)
    with pytest.raises(ValueError, match=r"treatments\['a'\] asks for slices.* give bounds"):
        ours(treatments={"a": {"slices": 0}})


@every_frontend
@pytest.mark.parametrize("name", NAMES)
def test_decay_of_what_keeps_its_norm_is_refused(frontend, name):
    ours = getattr(FRONTENDS[frontend][1], name)
    variables = [new_variable(frontend, w, path=p) for p, w in
                 (("a/kernel", START), ("a/bias", BIAS))]  # fmt: skip
    kept = {"form": {"norm": "constant"}, "weight_decay": 0.1}
    with pytest.raises(ValueError, match="'constant'} leaves a/kernel as long as it is"):
        ours(**kept).build(variables)
    ours(**kept, treatments={"kernel": {"rate": 0.0}}).build(variables)  # which changes nothing
    optimizer = ours(**kept, exclude_from_weight_decay=["kernel"])
    optimizer.build(variables)
    assert [array(v).shape for v in variables] == [(4, 4), (4,)]
    assert [t.decay for t in optimizer.plan.treatments] == [0.0, 0.1]
