"""Every public name is in the reference, once."""

import collections
import dataclasses
import re

import pytest
from support.pages import ROOT

import tf_lamb
from tf_lamb.core import recipes, schedules
from tf_lamb.model_garden.experiments import experiments, optimizers
from tf_lamb.model_garden.experiments import schedules as garden_schedules

REFERENCE = {path.stem: path.read_text() for path in ROOT.glob("docs/reference/*.md")}
ROOMS = tf_lamb._ROOMS | {"recipes", "schedules"}
COMMANDS = [
    path.stem for path in sorted(ROOT.glob("tf_lamb/model_garden/*.py")) if path.stem != "__init__"
]


def documented():
    directive = r"^\.\. (?:autoclass|autofunction|automodule|py:module):: (\S+)$"
    return collections.Counter(re.findall(directive, "\n".join(REFERENCE.values()), re.MULTILINE))


def public():
    names = [f"tf_lamb.{name}" for name in tf_lamb.__all__ if name not in ROOMS]
    names += [f"tf_lamb.keras.{name}" for name in tf_lamb._OF_ONE_DOOR]
    names += [f"tf_lamb.recipes.{name}" for name in recipes.__all__]
    names += [
        f"tf_lamb.schedules.{name}"
        for name, value in vars(schedules).items()
        if dataclasses.is_dataclass(value)
    ]
    names += [f"tf_lamb.model_garden.{name}" for name in ["register", "require", *COMMANDS]]
    names += [f"tf_lamb.model_garden.{name}.write" for name in ("sample_data", "sample_pictures")]
    return names


def test_every_public_name_is_there_and_no_other():
    assert documented() == collections.Counter(public())


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_every_room_is_named(room):
    assert f"`tf_lamb.{room}`" in REFERENCE["index"]


def test_every_flag_of_ours_is_there():
    pattern = r'DEFINE_\w+\(\s*"(\w+)"'
    for command in ("train", "train_stages", "preflight"):
        source = (ROOT / f"tf_lamb/model_garden/{command}.py").read_text()
        flags = re.findall(pattern, source)
        page = REFERENCE["model_garden"] + source.split('"""')[1]  # which the page includes
        assert flags
        for flag in flags:
            assert re.search(rf"--(no)?{flag}\b", page), flag


def test_every_name_in_a_yaml_is_there():
    names = [*experiments._EXPERIMENTS, *garden_schedules._LEARNING_RATES]
    names += optimizers._KINDS
    for name in names:
        assert f"`{name}`" in REFERENCE["model_garden"]
