"""The Model Garden's pages: their commands name what exists, their figures and YAML are right."""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from official.modeling import optimization
from support.pages import LOGS, ROOT, blocks, number, table, words

from tf_lamb import model_garden, recipes
from tf_lamb.model_garden import train
from tf_lamb.model_garden.common import yamls

START = ROOT / "docs" / "start"
PAGE, BERT, RESNET = (START / f"{name}.md" for name in ("model_garden", "bert", "resnet"))
COMMANDS = [
    (parts[2], [part[2:].split("=", 1) for part in parts[3:] if part.startswith("--")])
    for page in (PAGE, BERT, RESNET)
    for _, text in blocks(page, "")
    for line in text.replace("\\\n", " ").splitlines()
    if (parts := shlex.split(line))[:2] == ["python", "-m"]
    and parts[2].startswith("tf_lamb.model_garden.")
]
# The flags of a training, of the commands and of each stage.
TRAINED = [dict(flags) for _, flags in COMMANDS if "experiment" in dict(flags)] + [
    dict(zip(("experiment", "config_file"), value.split(",")[0].split(":"), strict=True))
    for _, flags in COMMANDS
    for name, value in flags
    if name == "stage"
]
every_training = pytest.mark.parametrize("flags", TRAINED, ids=lambda flags: flags["config_file"])


def test_the_commands_exist():
    names = {name.rpartition(".")[2] for name, _ in COMMANDS}
    assert names == {"sample_data", "sample_pictures", "train", "train_stages", "find", "export"}
    assert all(importlib.util.find_spec(name) for name, _ in COMMANDS)


@every_training
def test_what_a_command_names_exists(flags):
    assert flags["experiment"] in train.OURS
    assert yamls.found(flags["config_file"])


@every_training
def test_a_config_of_the_page_belongs_to_its_experiment(flags):
    """The header of the file begins with the experiment that the command names."""
    header = (ROOT / "model_garden_configs" / flags["config_file"]).read_text()
    assert header.startswith(f"# {flags['experiment']}: ")


def printed(page):
    (shown,) = [text for _, text in blocks(page, "") if text.startswith("steps  ")]
    return shown


def test_the_small_resnet_printed_what_the_page_shows():
    log = (LOGS / "start_resnet.log").read_text()
    assert printed(RESNET) in log
    (flags, *again) = [
        each for each in TRAINED if each["config_file"] == "resnet_small_lamb_cpu.yaml"
    ]
    assert all(each == flags for each in again)
    (command,) = [line for line in log.splitlines() if "--experiment" in line]
    assert all(f"--{name}={value}" in command.split() for name, value in flags.items())
    pictures = re.search(r"(\d+) training and (\d+) validation", log)
    evaluated = f"{int(pictures[1]):,} pictures, and evaluates it twice on {pictures[2]} others"
    assert evaluated in words(RESNET)


def test_the_small_bert_printed_what_the_page_shows():
    log = (LOGS / "make_train.log").read_text()
    assert printed(BERT) in log
    examples = int(re.search(r"(\d+) training and", log)[1])
    assert f"{examples:,} examples" in words(BERT)


@pytest.mark.slow
@pytest.mark.parametrize("page", [BERT, RESNET], ids=lambda page: page.stem)
def test_from_nothing_to_a_served_model(page, tmp_path, monkeypatch):
    """The page's commands as they stand, in an empty folder, and then its Python."""
    shell = [text for _, text in blocks(page, "") if "python -m" in text and "gs://" not in text]
    script = f'set -e\npython() {{ "{sys.executable}" "$@"; }}\n' + "\n".join(shell)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks(page, "python")
    with contextlib.redirect_stdout(io.StringIO()) as answer:
        exec(code, {})
    right, of = map(int, re.fullmatch(r"(\d+) of (\d+) right\n", answer.getvalue()).groups())
    assert of == (64 if page == BERT else 360)
    assert right > (0 if page == BERT else 0.95 * of)  # the next sentence is hard for it


@pytest.mark.parametrize("column", [1, 2], ids=["LAMB", "LARS"])
def test_the_table_at_32k_is_the_published_recipe(column):
    header, *rows = table(RESNET, "ResNet-50 at batch 32,768, on a pod")
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
    assert any(flags["config_file"] == name for flags in TRAINED)


@pytest.mark.parametrize(
    ("column", "batch"), [(1, 32768), (2, None)], ids=["one stage", "two stages"]
)
def test_the_table_of_bert_is_the_published_recipes(column, batch):
    """A column is a recipe, in one stage or in two; a cell has what each stage has."""
    _, *rows = table(BERT, "BERT-large at batch 32,768, on a pod")
    cells = {row[0]: row[column] for row in rows}
    recipe = recipes.published(cells["recipe"].strip("`"), *([batch] if batch else []))
    stages = [recipe] if batch else list(recipe)
    wanted = {
        "updates": [stage.train_steps for stage in stages],
        "peak rate": [stage.learning_rate for stage in stages],
        "warmup": [stage.warmup_steps for stage in stages],
    }
    shown = {row: re.findall(r"[\d.,]*\d", cells[row]) for row in wanted}
    assert {row: [float(each.replace(",", "")) for each in shown[row]] for row in shown} == wanted
    (cores,) = re.findall(r"([\d,]+) cores", cells["TPU"])
    a_core = map(int, re.findall(r"\d+", cells["batch per core"]))
    assert [n * number(cores) for n in a_core] == [stage.batch_size for stage in stages]


def test_the_yaml_is_a_config():
    """Both: the section, and what a reader adds to the optimizer's."""
    section, added = (yaml.safe_load(text) for _, text in blocks(PAGE, "yaml"))
    optimizer = section["trainer"]["optimizer_config"]["optimizer"]
    model_garden.register()
    assert optimization.OptimizerConfig(optimizer).get().weight_decay == 0.01
    optimizer["tf_lamb"] |= added
    assert optimization.OptimizerConfig(optimizer).get().adascale.scale == 4


def test_the_main_program_registers_and_runs_model_gardens(monkeypatch):
    from absl import app
    from official.common import flags
    from official.nlp import train

    ((_, text),) = blocks(PAGE, "python")
    called: list = []
    monkeypatch.setattr(model_garden, "register", lambda: called.append("register"))
    monkeypatch.setattr(flags, "define_flags", lambda: called.append("flags"))
    monkeypatch.setattr(app, "run", called.append)
    exec(text, {})
    assert called == ["register", "flags", train.main]
