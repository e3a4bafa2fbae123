"""The Model Garden's page: its commands name what exists, its figures and YAML are right."""

import re
import shlex

import pytest
import yaml
from official.modeling import optimization
from support.pages import LOGS, ROOT, blocks, number, table, words

from tf_lamb import model_garden, recipes
from tf_lamb.model_garden import train
from tf_lamb.model_garden.common import yamls

PAGE = ROOT / "docs" / "start" / "model_garden.md"
COMMANDS = [
    dict(part[2:].split("=", 1) for part in parts if part.startswith("--"))
    for _, text in blocks(PAGE, "")
    for line in text.replace("\\\n", " ").splitlines()
    if (parts := shlex.split(line))[:1] == ["python"] and "--experiment" in line
]


@pytest.mark.parametrize("flags", COMMANDS, ids=lambda flags: flags["config_file"])
def test_what_a_command_names_exists(flags):
    assert flags["experiment"] in train.OURS
    assert yamls.found(flags["config_file"])


@pytest.mark.parametrize("flags", COMMANDS, ids=lambda flags: flags["config_file"])
def test_a_config_of_the_page_belongs_to_its_experiment(flags):
    """The header of the file begins with the experiment that the command names."""
    header = (ROOT / "model_garden_configs" / flags["config_file"]).read_text()
    assert header.startswith(f"# {flags['experiment']}: ")


def test_the_small_resnet_printed_what_the_page_shows():
    (shown,) = [text for _, text in blocks(PAGE, "") if text.startswith("steps  ")]
    log = (LOGS / "start_resnet.log").read_text()
    assert shown in log
    (flags,) = [each for each in COMMANDS if each["config_file"] == "resnet_small_lamb_cpu.yaml"]
    (command,) = [line for line in log.splitlines() if "--experiment" in line]
    assert all(f"--{name}={value}" in command.split() for name, value in flags.items())
    pictures = re.search(r"(\d+) training and (\d+) validation", log)
    assert f"{int(pictures[1]):,} pictures and is evaluated on {pictures[2]} others" in words(PAGE)


@pytest.mark.parametrize("column", [1, 2], ids=["LAMB", "LARS"])
def test_the_table_at_32k_is_the_published_recipe(column):
    header, *rows = table(PAGE, "Train a small ResNet")
    cells = {row[0]: row[column] if row[column] != "the same" else row[1] for row in rows}
    recipe = recipes.published(cells["recipe"].strip("`"), 32768)
    assert recipe.optimizer == header[column]
    assert float(cells["peak rate"]) == pytest.approx(recipe.learning_rate)
    assert cells["warmup"] == f"{recipe.warmup_epochs:g} epochs"
    assert cells["updates"] == f"{recipe.train_steps:,}, which is {recipe.epochs:g} epochs"
    examples, replicas = map(number, re.findall(r"[\d,]+", cells["batch"]))
    assert examples * replicas == recipe.batch_size
    name = re.match(r"\[(.+?)\]", cells["file"])[1]
    assert (
        f"{examples} examples x {replicas} replicas"
        in (ROOT / "model_garden_configs" / name).read_text()
    )
    assert any(flags["config_file"] == name for flags in COMMANDS)


def test_the_yaml_is_a_config():
    """Both: the section, and what a reader adds to the optimizer's."""
    section, added = (yaml.safe_load(text) for _, text in blocks(PAGE, "yaml"))
    optimizer = section["trainer"]["optimizer_config"]["optimizer"]
    model_garden.register()
    assert optimization.OptimizerConfig(optimizer).get().weight_decay == 0.01
    optimizer["tf_lamb"] |= added
    assert optimization.OptimizerConfig(optimizer).get().adascale.scale == 4
