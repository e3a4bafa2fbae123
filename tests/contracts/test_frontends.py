"""What every frontend promises alike: signatures, words, examples, early refusals."""

import inspect
import pydoc
import re

import numpy as np
import pytest
from support import references
from support.cases import random_problem
from support.examples import run_example
from support.frontends import (
    FRONTENDS,
    every_frontend,
    new_variable,
    on_jax,
    on_tensorflow,
    train,
    uncompiled,
)
from support.pages import ROOT
from support.signatures import signature_of

import tf_lamb
from tf_lamb.api import callbacks, noise
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core import rules

OPTIMIZERS = [*rules.OURS]
FACES = [*OPTIMIZERS, *noise.__all__, *callbacks.__all__, "GhostBatchNormalization"]
FACES.remove("BackupAndRestore")


def faces_of(frontend):
    return {name: getattr(FRONTENDS[frontend][1], name) for name in FACES}


def arguments_of(cls):
    return set(signature_of(cls).parameters)


@pytest.mark.once
def test_the_citation_has_the_version():
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == tf_lamb.__version__


@on_tensorflow
def test_both_frontends_have_the_same_names():
    one, other = (ours for _, ours in FRONTENDS.values())
    assert one.__all__ == other.__all__
    assert set(FACES) <= set(one.__all__) <= set(tf_lamb.__all__)


@pytest.mark.once
def test_a_star_import_replaces_no_framework_of_the_user():
    assert not {"keras", "tf_keras", "tensorflow"} & set(tf_lamb.__all__)
    assert {"keras", "tf_keras", "model_garden"} <= set(dir(tf_lamb))


@every_frontend
def test_every_optimizer_of_ours_is_in_the_list_of_rules(frontend):
    """Else no test that takes `rules.OURS` for all of them would see it."""
    ours = FRONTENDS[frontend][1]
    values = {name: getattr(ours, name) for name in ours.__all__}
    optimizers = {
        name: value.rule
        for name, value in values.items()
        if isinstance(value, type) and issubclass(value, Layerwise)
    }
    assert optimizers == rules.OURS


@on_tensorflow
@pytest.mark.parametrize("read", [signature_of, inspect.getdoc])
def test_signatures_and_docstrings_are_equal(read):
    one, other = (
        {name: read(cls) for name, cls in faces_of(frontend).items()}
        for frontend in ("keras", "tf_keras")
    )
    assert one == other


@every_frontend
@pytest.mark.once
def test_help_shows_the_docstring_of_every_public_class(frontend):
    """`pydoc` takes no docstring of a class from its bases."""
    ours = FRONTENDS[frontend][1]
    for name in ours.__all__:
        if isinstance(value := getattr(ours, name), type):
            first_line = inspect.getdoc(value).splitlines()[0]
            shown = pydoc.render_doc(value, renderer=pydoc.plaintext)
            assert f" |  {first_line}\n" in shown, name
            assert (value.__doc__ or "").startswith(first_line), name


@pytest.mark.once
def test_the_oracles_know_every_optimizer():
    """What is drawn takes its optimizers from there: of another one no test would take a step."""
    assert set(references.NAMES) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
@every_frontend
@pytest.mark.once
def test_the_config_holds_every_argument(frontend, name):
    cls = getattr(FRONTENDS[frontend][1], name)
    assert set(cls().get_config()) == arguments_of(cls)


@every_frontend
@pytest.mark.once
def test_every_argument_is_documented(frontend):
    assert not [
        (name, argument)
        for name, cls in faces_of(frontend).items()
        for argument in arguments_of(cls)
        if not re.search(rf"^    {argument}: ", inspect.getdoc(cls), re.MULTILINE)
    ]


@on_tensorflow
@every_frontend
@pytest.mark.parametrize("name", FACES)
@uncompiled(fits=True)
def test_the_example_runs(frontend, name):
    run_example(getattr(FRONTENDS[frontend][1], name), least=4)


@on_jax
@pytest.mark.parametrize(
    ("name", "shape", "own"),
    [  # of a large matrix some quotients of SOAP's rotated gradients have few digits
        ("LAMB", (64, 32), {}),
        ("SOAP", (6, 4), {"form": {"one_sided": True}, "precondition_frequency": 3}),
    ],
)
def test_a_compiled_step_is_the_uncompiled_one(name, shape, own):
    import jax

    make = getattr(FRONTENDS["keras"][1], name)
    start, gradients = random_problem(shape=shape, steps=10)
    settings = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], **own}
    with uncompiled():
        *_, expected = train("keras", make(0.1, **settings), start, gradients)
    optimizer = make(0.1, **settings)
    variables = [new_variable("keras", w, path=path) for path, w in start.items()]
    optimizer.build(variables)
    state = [v.value for v in variables], [v.value for v in optimizer.variables]
    step = jax.jit(lambda state, g: optimizer.stateless_apply(state[1], g, state[0]))
    for gradient in gradients:
        state = step(state, [np.float32(gradient[path]) for path in start])
    assert step._cache_size() == 1
    for path, value in zip(start, state[0], strict=True):
        np.testing.assert_allclose(value, expected[path], rtol=1e-6, atol=1e-6)


@every_frontend
@pytest.mark.once
def test_the_method_refuses_a_bare_string(frontend):
    """Taken letter by letter, "bias" would exclude whatever has a b, an i, an a or an s in it."""
    optimizer = FRONTENDS[frontend][1].LAMB(weight_decay=0.1)
    with pytest.raises(TypeError, match=r"var_names .* Did you mean \['bias'\]"):
        optimizer.exclude_from_weight_decay(var_names="bias")
    assert optimizer.get_config()["exclude_from_weight_decay"] is None


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize(
    ("names", "written"), [(["bias"], r"\['bias'\]"), ("norm_and_bias", r"\['norm_and_bias'\]")]
)
def test_the_method_says_where_names_go(frontend, names, written):
    """Its first argument, as in Keras, is a list of variables."""
    optimizer = FRONTENDS[frontend][1].LAMB(weight_decay=0.1)
    with pytest.raises(TypeError, match=rf"write exclude_from_weight_decay\(var_names={written}"):
        optimizer.exclude_from_weight_decay(names)
    assert optimizer.get_config()["exclude_from_weight_decay"] is None


@every_frontend
@pytest.mark.once
def test_no_weight_decay_may_be_written_as_none(frontend):
    assert FRONTENDS[frontend][1].LAMB(weight_decay=None).get_config()["weight_decay"] == 0.0
