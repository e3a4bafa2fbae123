"""Muon and SOAP with a matrix for each head of attention, in every frontend."""

import json
import re

import numpy as np
import oracle
import pytest
from support.cases import random_steps
from support.frontends import (
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    on_jax,
    train,
    uncompiled,
)

NAMES = ("Muon", "SOAP")
EACH = {"form": {"heads": "each"}}
ORACLES = {"Muon": oracle.Muon, "SOAP": oracle.Soap}
# The first gradient spans both sides of a head, (4, 4), and of the output, (12, 12).
SHAPES = {"mha/query/kernel": (4, 3, 4), "mha/attention_output/kernel": (3, 4, 12),
          "mha/query/bias": (3, 4)}  # fmt: skip


def problem(steps=3):
    """Path -> where its variable begins, and by step its gradient."""
    drawn = [random_steps(shape, steps, seed=i) for i, shape in enumerate(SHAPES.values())]
    start, gradients = (dict(zip(SHAPES, of, strict=True)) for of in zip(*drawn, strict=True))
    return start, [{path: g[t] for path, g in gradients.items()} for t in range(steps)]


def built(frontend, optimizer):
    variables = [new_variable(frontend, w, path=path) for path, w in problem()[0].items()]
    optimizer.build(variables)
    return variables


@every_frontend
@pytest.mark.parametrize("name", NAMES)
@uncompiled()
def test_a_step_is_the_oracles_on_each_head_and_is_shown(frontend, name):
    optimizer = getattr(FRONTENDS[frontend][1], name)(
        0.1, weight_decay=0.1, bounds={"trust_ratio": (None, None)}, **EACH
    )
    assert optimizer.observe_trust_ratios()
    start, gradients = problem()
    *_, last = train(frontend, optimizer, start, gradients)
    ratios = []
    for i in range(3):
        reference = ORACLES[name](
            start["mha/query/kernel"][:, i], lr=0.1, wd=0.1, bounds=(0, np.inf)
        )
        for step in gradients:
            expected = reference.step(step["mha/query/kernel"][:, i])
        np.testing.assert_allclose(last["mha/query/kernel"][:, i], expected, rtol=1e-3, atol=1e-4)
        ratios += reference.ratios
    query, output, bias = optimizer.trust_ratios()
    assert (query.ratios, output.ratios, bias.ratios) == (3, 1, 0)
    np.testing.assert_allclose(query.trust_ratio, np.mean(ratios), rtol=1e-3)
    tables = []
    optimizer.describe(tables.append)
    # 3 heads of 4 x 4: two sides of a factor and a basis, of 4 bytes an element.
    bases = [f", {8 * n:,} bytes of bases" if name == "SOAP" else "" for n in (96, 288)]
    assert f"matrix of 4 x 4 for each of 3 heads, trust ratio{bases[0]}\n" in tables[0]
    assert f"matrix of 12 x 12, trust ratio{bases[1]}\n" in tables[0]


@every_frontend
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("Muon", {}), ("SOAP", {"form": {"renewal": "qr"}, "precondition_frequency": 2}),
     ("SOAP", {"form": {"renewal": "cholesky"}, "precondition_frequency": 2})],
    ids=["Muon", "SOAP by QR", "SOAP by Cholesky"],
)  # fmt: skip
@uncompiled()
def test_heads_of_kernels_in_a_stack_are_those_of_each_kernel(frontend, name, arguments):
    """Four axes: kernels, heads, rows and columns."""
    form = {**arguments.get("form", {}), **EACH["form"]}
    paths = [f"mha/{part}/kernel" for part in ("query", "key")]
    drawn = [random_steps((4, 3, 4), steps=4, seed=seed) for seed in range(2)]
    ends = []
    for stacks in (False, True):
        optimizer = getattr(FRONTENDS[frontend][1], name)(0.1, **{**arguments, "form": form})
        variables = [
            new_variable(frontend, w, path=path) for path, (w, _) in zip(paths, drawn, strict=True)
        ]
        optimizer.build(variables)
        optimizer._update.stacks_matrices = stacks
        for t in range(4):
            apply(optimizer, [gradients[t] for _, gradients in drawn], variables)
        ends.append([array(v) for v in (*variables, *optimizer.state_of(1).values())])
    for one_by_one, stacked in zip(*ends, strict=True):
        np.testing.assert_allclose(stacked, one_by_one, rtol=1e-4, atol=1e-5)
    assert np.abs(ends[0][0] - drawn[0][0]).max() > 0.01


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize("name", NAMES)
def test_configs_keep_it_and_those_of_before_mean_what_they_meant(frontend, name):
    ours = getattr(FRONTENDS[frontend][1], name)
    given = ours(0.1, treatments={"qkv/kernel": {"heads": [-1, 3]}, "v/": {"heads": None}}, **EACH)
    config = json.loads(json.dumps(given.get_config()))
    assert config["form"]["heads"] == "each"
    assert ours.from_config(config).get_config() == given.get_config()
    before = ours(0.1).get_config()
    del before["form"]["heads"]
    again = ours.from_config(before)
    assert again.get_config() == ours(0.1).get_config() and again.form.heads is None
    built(frontend, again)
    assert [treatment.view for treatment in again.plan.treatments] == [(4, 12), (12, 12), None]


def saved_of_all_heads(frontend, name):
    """An optimizer of whole kernels after its steps, what it saves, and one of each head."""
    ours = FRONTENDS[frontend][1]
    start, gradients = problem()
    first, second = getattr(ours, name)(0.1), getattr(ours, name)(0.1, **EACH)
    list(train(frontend, first, start, gradients))
    first.save_own_variables(store := {})
    built(frontend, second)
    return first, store, second


def load_what_it_saves(frontend, name, optimizer):
    """Into another one of each head."""
    optimizer.save_own_variables(store := {})
    another = getattr(FRONTENDS[frontend][1], name)(0.1, **EACH)
    built(frontend, another)
    another.load_own_variables(store)


@every_frontend
@uncompiled()
def test_what_was_saved_of_all_heads_goes_on_in_muon(frontend):
    """Its momentum is that of any form."""
    first, store, second = saved_of_all_heads(frontend, "Muon")
    second.load_own_variables(store)
    np.testing.assert_array_equal(array(second.state_of(0)["m"]), array(first.state_of(0)["m"]))
    load_what_it_saves(frontend, "Muon", second)


@every_frontend
@uncompiled()
def test_what_was_saved_of_all_heads_is_refused_by_soap(frontend):
    """Its bases are of other matrices."""
    _, store, second = saved_of_all_heads(frontend, "SOAP")
    before = array(second.state_of(0)["L"])
    with pytest.raises(ValueError, match=r"'L' of 'mha/query/kernel' has shape \(4, 4\)"):
        second.load_own_variables(store)
    np.testing.assert_array_equal(array(second.state_of(0)["L"]), before)
    load_what_it_saves(frontend, "SOAP", second)


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_has_heads_it_is_refused(frontend, name):
    optimizer = getattr(FRONTENDS[frontend][1], name)(0.1, **EACH)
    kernel = new_variable(frontend, np.eye(4), path="dense/kernel")
    with pytest.raises(ValueError, match=f"'each'}} changes no step of {name}: none of its 1 mat"):
        optimizer.build([kernel])


@on_jax
@pytest.mark.parametrize("stacks", [False, True])
def test_the_compiled_step_has_as_many_products_as_with_all_heads_in_one(stacks):
    """Three a step of Newton and Schulz, for each kernel, or for each stack of kernels."""
    import jax

    shapes = {f"mha/{part}/kernel": (6, 3, 4) for part in ("query", "key")}
    found = []
    for form in (None, EACH["form"]):
        optimizer = FRONTENDS["keras"][1].Muon(0.1, form=form)
        variables = [new_variable("keras", np.ones(of), path=path) for path, of in shapes.items()]
        optimizer.build(variables)
        optimizer._update.stacks_matrices = stacks
        values, slots = ([v.value for v in group] for group in (variables, optimizer.variables))
        step = jax.jit(lambda w, slots, own=optimizer: own.stateless_apply(slots, w, w))
        text = step.lower(values, slots).compile().as_text()
        found.append(re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text))
    joined, each = found
    assert len(joined) == len(each) == (15 if stacks else 30)
    # Behind the kernels of a stack, every product has the heads as its batch.
    batch = "2,3," if stacks else "3,"
    assert {product for product in each if product.startswith(batch)} == set(each)
