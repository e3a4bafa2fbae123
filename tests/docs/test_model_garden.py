"""The Model Garden's page: its commands name what exists, and its YAML is a config."""

import shlex

import pytest
import yaml
from official.modeling import optimization
from support.pages import ROOT, blocks

from tf_lamb import model_garden
from tf_lamb.model_garden import train
from tf_lamb.model_garden.common import yamls

PAGE = ROOT / "docs" / "start" / "model_garden.md"
COMMANDS = [
    words
    for _, text in blocks(PAGE, "")
    for line in text.replace("\\\n", " ").splitlines()
    if (words := shlex.split(line))[:1] == ["python"] and "--experiment" in line
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_what_a_command_names_exists(words):
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    assert flags["experiment"] in train.OURS
    assert yamls.found(flags["config_file"])


def test_the_yaml_is_a_config():
    """Both: the section, and what a reader adds to the optimizer's."""
    section, added = (yaml.safe_load(text) for _, text in blocks(PAGE, "yaml"))
    optimizer = section["trainer"]["optimizer_config"]["optimizer"]
    model_garden.register()
    assert optimization.OptimizerConfig(optimizer).get().weight_decay == 0.01
    optimizer["tf_lamb"] |= added
    assert optimization.OptimizerConfig(optimizer).get().adascale.scale == 4
