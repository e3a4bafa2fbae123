"""Both frontends: foreign files run no code, and malformed input is one clear error."""

import functools
import inspect
import itertools
import json
import pathlib
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import malformed
from support.cases import assert_same
from support.frontends import FRONTENDS, array, every_frontend, uncompiled
from support.malformed import PACKAGE, refused
from support.property_cases import cases
from support.references import NAMES

pytestmark = pytest.mark.once
LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")


def in_turn(rows, names=None):
    """A test for each row of a table, in one Keras and the other by turns: they share the check."""
    pairs = list(zip(itertools.cycle(FRONTENDS), rows, strict=False))
    return pytest.mark.parametrize(
        ("frontend", "row"), pairs, ids=names or map(str, range(len(rows)))
    )


# -- constructors ---------------------------------------------------------------------------------


def made(frontend, name, arguments):
    room = FRONTENDS[frontend][1]
    if name == "AdaScale":
        arguments = {"inner": room.LAMB(gradient_accumulation_steps=2), "scale": 2.0, **arguments}
    return getattr(room, name)(**arguments)


@in_turn(malformed.CONSTRUCTORS)
def test_a_malformed_argument(frontend, row):
    name, arguments, error, words = row
    refused(lambda: made(frontend, name, arguments), error, words)


@every_frontend
@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_config(frontend, name):
    """It is checked as the arguments are."""
    cls = getattr(FRONTENDS[frontend][1], name)
    config = {**cls().get_config(), "weight_decay": "0.1"}
    refused(lambda: cls.from_config(config), TypeError, "weight_decay .* '0.1'")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(10**309, 10**310),
    st.floats(width=32), st.complex_numbers(), st.text(max_size=3), st.binary(max_size=3),
    st.just(object()), st.just(np.ones(2)), st.sets(st.integers(), max_size=2),
    st.lists(st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=2), st.none() | st.integers() | st.lists(st.integers())),
)  # fmt: skip


@every_frontend
def test_any_argument_is_taken_or_refused_by_us(frontend):
    """What is taken can be saved, and makes the same optimizer again."""

    @cases(25)
    @given(st.data())
    def check(data):
        cls = getattr(FRONTENDS[frontend][1], data.draw(st.sampled_from(NAMES)))
        name = data.draw(st.sampled_from([*inspect.signature(cls).parameters]))
        value = data.draw(JUNK)
        try:
            config = cls(**{name: value}).get_config()
        except (TypeError, ValueError) as error:
            raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
            assert raised_in.is_relative_to(PACKAGE), (raised_in, error)
            assert name in str(error) and "\n" not in str(error)
        else:
            assert cls.from_config(json.loads(json.dumps(config))).get_config() == config

    check()


def given_pattern(frontend, argument, pattern):
    room = FRONTENDS[frontend][1]
    if argument == "var_names":
        room.LAMB().exclude_from_weight_decay(var_names=["bias", pattern])
    elif argument == "treatments":
        room.LAMB(treatments={pattern: {"rate": 0.5}})
    else:
        room.LAMB(**{argument: ["bias", pattern]})


@in_turn(malformed.PATTERNS)
def test_a_malformed_pattern(frontend, row):
    (pattern, error, words), argument = row, "exclude_from_weight_decay"
    refused(lambda: given_pattern(frontend, argument, pattern), error, f"^{argument}.*{words}")


@every_frontend
@pytest.mark.parametrize("argument", [*LISTS, "var_names", "treatments"])
def test_every_list_of_patterns_refuses_one(frontend, argument):
    pattern, error, words = malformed.PATTERNS[0]
    refused(lambda: given_pattern(frontend, argument, pattern), error, f"^{argument}.*{words}")


# -- files ----------------------------------------------------------------------------------------


@functools.cache
def model_of(host):
    return host.Sequential([host.Input((4,)), host.layers.Dense(3, name="dense")])


@in_turn(malformed.SOURCES, [row[0] for row in malformed.SOURCES])
def test_a_malformed_file(frontend, row, tmp_path, monkeypatch):
    (_, make, error, words), (host, room) = row, FRONTENDS[frontend]
    monkeypatch.chdir(tmp_path)
    source, model, optimizer = make(tmp_path), model_of(host), room.LAMB()
    weights, before = model.get_weights(), set(tmp_path.rglob("*"))
    refused(lambda: room.migrate(source, optimizer, model), error, words)
    assert optimizer.plan is None and set(tmp_path.rglob("*")) == before
    assert_same(model.get_weights(), weights)


@in_turn(malformed.ADDONS)
def test_a_malformed_serialized_optimizer(frontend, row, tmp_path, monkeypatch):
    (config, words), (_, room) = row, FRONTENDS[frontend]
    monkeypatch.chdir(tmp_path)
    refused(
        lambda: room.LAMB.from_addons(config), (TypeError, ValueError, FileNotFoundError), words
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*NAMES, "AdaScale", "MeasureNoise"])
@every_frontend
def test_a_saved_model_loads_in_safe_mode(frontend, name, tmp_path):
    host, room = FRONTENDS[frontend]
    model = host.Sequential([host.Input((4,)), host.layers.Dense(3)])
    optimizer = getattr(room, name if name in NAMES else "LAMB")(
        room.schedules.Warmup(10, 0.1),
        exclude_from_weight_decay=["bias"],
        gradient_accumulation_steps=2,
    )
    if name == "AdaScale":
        optimizer = room.AdaScale(optimizer, scale=2.0)
    elif name == "MeasureNoise":
        optimizer = room.MeasureNoise(optimizer)
    model.compile(optimizer, "mse")
    with uncompiled():
        model.fit(np.ones((4, 4)), np.ones((4, 3)), batch_size=2, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = host.models.load_model(path, safe_mode=True)
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        assert array(one).tobytes() == array(other).tobytes()
