"""Every public name is in the reference, once."""

import collections
import dataclasses
import importlib
import inspect
import pkgutil
import re
import runpy

import keras
import pytest
from support.pages import ROOT, table
from support.signatures import signature_of

import tf_lamb
from tf_lamb.api.optimizers import settings
from tf_lamb.core import recipes, rules, schedules
from tf_lamb.find.rate import start_rate_of
from tf_lamb.model_garden import train
from tf_lamb.model_garden.experiments import optimizers, schedule_configs

REFERENCE = {path.stem: path.read_text() for path in ROOT.glob("docs/reference/*.md")}
ROOMS = tf_lamb._SUBPACKAGES | {"recipes", "rules", "schedules"}
COMMANDS = [
    path.stem
    for path in sorted(ROOT.glob("tf_lamb/model_garden/*.py"))
    if path.stem not in ("__init__", "tasks")
]


EXTRAS = [
    f"tf_lamb_extras.{path.parent.name}"
    for path in sorted(ROOT.glob("tf_lamb_extras/*/__init__.py"))
]


def thing(name):
    """What a public name means; a folder may have the name of a function."""
    owner, _, last = name.rpartition(".")
    return getattr(pkgutil.resolve_name(owner), last)


def documented():
    directive = r"^\.\. (?:autoclass|autofunction|automodule|py:module):: (\S+)$"
    return collections.Counter(re.findall(directive, "\n".join(REFERENCE.values()), re.MULTILINE))


def public():
    names = [f"tf_lamb.{name}" for name in tf_lamb.__all__ if name not in ROOMS]
    names += [f"tf_lamb.keras.{name}" for name in tf_lamb._KERAS_3_NAMES]
    names += [
        f"{extra}.{name}" for extra in EXTRAS for name in importlib.import_module(extra).__all__
    ]
    names += ["tf_lamb_extras.preflight.model_garden"]  # a command
    names += [f"tf_lamb.recipes.{name}" for name in recipes.__all__]
    names += [
        f"tf_lamb.schedules.{name}"
        for name, value in vars(schedules).items()
        if dataclasses.is_dataclass(value) and name[0] != "_"
    ]
    names += [f"tf_lamb.rules.{name}" for name in rules.PARTS]
    calls = ["register", "register_optimizer", "require"]
    names += [f"tf_lamb.model_garden.{name}" for name in [*calls, *COMMANDS]]
    names += [f"tf_lamb.model_garden.{name}.write" for name in ("sample_data", "sample_pictures")]
    return names


# Of an argument, or of several, in a docstring.
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:,\s+\w+)*): \S", re.MULTILINE)


def test_every_public_name_and_every_argument_of_a_class_is_explained():
    """In the docstring as `help` and the site show it; with its type, which mypy checks."""
    unexplained = []
    for name in public():
        if ".model_garden" in name:  # commands
            continue
        value = thing(name)
        text = inspect.getdoc(value) or ""
        if not text or "{{" in text:
            unexplained.append(name)
        if inspect.isclass(value):
            entries = re.findall(r"\w+", " ".join(ENTRY.findall(text)))
            arguments = (n for n in signature_of(value).parameters if n not in entries)
            unexplained += [f"{name}({argument})" for argument in arguments]
        parameters = signature_of(value).parameters.values()
        unexplained += [f"{name}({p.name})" for p in parameters if p.annotation is p.empty]
    assert not unexplained


@pytest.fixture(scope="module")
def site():
    """The names of the site's configuration."""
    pytest.importorskip("sphinx", reason="of `make docs`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", keras.config.backend())  # the configuration sets another
        return runpy.run_path(str(ROOT / "docs" / "conf.py"))


@pytest.mark.parametrize("name", rules.OURS)
def test_what_all_optimizers_share_is_said_once(name, site):
    """On the page of all; the page of each has its own arguments, and the names of the others."""
    value = getattr(tf_lamb, name)
    lines = inspect.getdoc(value).splitlines()
    site["without_shared_arguments"](None, "class", name, value, None, lines)
    text = "\n".join(lines).partition("\nRaises:\n")[0]
    own = re.findall(r"\w+", " ".join(ENTRY.findall(text)))
    (told,) = re.findall(r"^And :ref:.*$", text, re.MULTILINE)
    named = [word for word in re.findall(r"`(\w+)`", told) if word != "treatments"]
    assert {*own, *named, "treatments"} == {*inspect.signature(value).parameters}
    assert not {*own} & {*named} and {*named} <= {*settings._DOCS_BY_ARGUMENT}
    assert all(f'"{key}"' in told for key in value.settings_class.keys)
    assert {*settings.DEFAULTS} - {"treatments"} <= {*named}


def test_the_page_of_all_has_what_they_share():
    assert ".. shared-arguments::" in REFERENCE["optimizers"]


def test_the_rates_to_start_from_are_those_of_a_search():
    _, *rows = table(ROOT / "docs" / "reference" / "optimizers.md", "Rates to start from")

    def default_of(name):
        return inspect.signature(getattr(tf_lamb, name)).parameters["learning_rate"].default

    assert {name: (float(default), float(begin)) for name, default, begin in rows} == {
        name: (default_of(name), start_rate_of(name)) for name in rules.OURS
    }


def test_every_public_name_is_there_and_no_other():
    assert documented() == collections.Counter(public())


@pytest.mark.parametrize("place", [*(f"tf_lamb.{room}" for room in sorted(ROOMS)), *EXTRAS])
def test_every_room_and_every_extra_is_named(place):
    assert f"`{place}`" in REFERENCE["index"]


@pytest.mark.parametrize(
    "command",
    [
        "tf_lamb/model_garden/train.py",
        "tf_lamb/model_garden/train_stages.py",
        "tf_lamb/model_garden/find.py",
        "tf_lamb/model_garden/export.py",
        "tf_lamb_extras/preflight/model_garden.py",
    ],
)
def test_every_flag_of_ours_is_there(command):
    source = (ROOT / command).read_text()
    flags = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)
    page = REFERENCE["model_garden"] + source.split('"""')[1]  # which the page includes
    assert flags
    assert [flag for flag in flags if not re.search(rf"--(no)?{flag}\b", page)] == []


def test_every_name_in_a_yaml_is_there():
    names = [*train.OURS, *schedule_configs._LEARNING_RATES]
    names += optimizers.OPTIMIZERS
    assert [name for name in names if f"`{name}`" not in REFERENCE["model_garden"]] == []
