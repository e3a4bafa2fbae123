"""README's blocks run as they stand, in the order in which a reader pastes them."""

import importlib.util
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
import warnings

import keras
import pytest
import yaml
from official.modeling import optimization
from support import cpus_as_tpu
from support.figures import of_pictures_at
from support.pages import ROOT, blocks, number, runs, seeds_of_letters, table

import tf_lamb
from tf_lamb import model_garden
from tf_lamb.model_garden import train
from tf_lamb.model_garden.common import yamls

README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
PYTHON = [text for _, text in blocks(README, "python")]
SHELL = [text for _, text in blocks(README, "")]
COMMANDS = [
    words
    for text in SHELL
    if not text.startswith(("variable", "Transfer", " "))  # what is printed
    for line in re.sub(r"\\\n( *)", lambda end: end[1] and " ", text).splitlines()  # as a shell
    if (words := shlex.split(line, comments=True))
]


def test_its_python_runs_from_top_to_bottom(monkeypatch, capsys):
    cpus_as_tpu.install(monkeypatch)
    keras.utils.clear_session()  # the names of layers are counted anew, as in a new process
    keras.utils.set_random_seed(0)
    names = {}
    first, addons, on_a_tpu, larger, batches, own_rule = PYTHON
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(first, names)
        assert type(names["model"].optimizer) is tf_lamb.LAMB
        assert names["model"].optimizer.iterations == 5 * 8
        (described,) = [text for text in SHELL if text.startswith("variable")]
        assert capsys.readouterr().out.endswith(f"\n{described}\n")  # whole
        accuracy = names["model"].evaluate(names["x"], names["y"], verbose=0)[1]
        assert accuracy > 0.9

        exec(addons, names)
        assert names["optimizer"].weight_decay == 0.01

        exec(on_a_tpu, names)
        assert names["strategy"].num_replicas_in_sync == 2
        assert type(names["on_tpu"].optimizer) is tf_lamb.tf_keras.LAMB
        assert names["on_tpu"].optimizer.iterations == 8  # of 2 x 128 examples

        exec(larger, names)
        assert type(names["model"].optimizer) is tf_lamb.LAMB
        assert names["recipe"].learning_rate == 1e-2 * 8**0.5

        # Without the short runs, which take a minute: what they came to is in the log.
        exec(batches.replace("labels), ", "labels), noise_scale=1000, "), names)
        assert names["which"].batch_size == 1024

        exec(own_rule, names)
        names["model"].fit(names["x"], names["y"], batch_size=256, verbose=0)
        assert type(names["model"].optimizer) is names["LayerwiseLion"]
        assert names["model"].optimizer.iterations == 8
    (shown,) = [text for text in SHELL if text.startswith("Transfer")]
    assert shown == str(names["recipe"])


@pytest.mark.once
def test_its_answer_of_find_batch_is_in_the_log():
    (shown,) = [text for text in SHELL if "kept over the same examples" in text]
    (line,) = runs("find_batch_readme")
    printed = " ".join(" ".join(line["print"]).split())
    assert all(" ".join(part.split()) in printed for part in shown.split("..."))


def test_the_first_code_begins_within_a_dozen_lines():
    text = README.read_text()
    first = text.split("\n```python\n")[0]
    assert len(first.splitlines()) < 12
    assert "optimizer=tf_lamb.LAMB(" in PYTHON[0]


def test_the_index_begins_with_the_code_of_readme():
    assert blocks(INDEX, "python")[0][1] == PYTHON[0]


def test_no_line_is_wrapped_by_an_editor():
    assert [line for line in README.read_text().splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_names_what_exists(words):
    if words[:2] == ["git", "clone"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words[2:] == [project["urls"]["Repository"], "&&", "cd", "tf_lamb"]
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = re.findall(r'"\.\[([\w-]+)\]"', "\n".join(SHELL))
        assert len(extras) == 6 and set(extras) <= set(project["optional-dependencies"])
    else:
        assert words[:2] == ["python", "-m"] and importlib.util.find_spec(words[2])
        flags = dict(word[2:].split("=", 1) for word in words[3:] if word.startswith("--"))
        if "experiment" in flags:
            assert flags["experiment"] in train.OURS and yamls.found(flags["config_file"])
        if "tpu" in flags:  # its file has no data
            assert flags["mode"] == "train_and_eval"
            for data in ("train_data", "validation_data"):
                assert f"task.{data}.input_path=" in flags["params_override"]


def test_its_yaml_is_a_config():
    ((_, text),) = blocks(README, "yaml")
    model_garden.register()
    optimizer = yaml.safe_load(text)["trainer"]["optimizer_config"]["optimizer"]
    assert optimization.OptimizerConfig(optimizer).get().weight_decay == 0.01


@pytest.mark.slow
def test_the_commands_of_the_model_garden_train_and_evaluate(tmp_path):
    """As they stand, in an empty folder: two data sets, a BERT and a ResNet."""
    text, _ = (text for text in SHELL if "--experiment" in text)  # the second is of a pod
    script = f'set -e\npython() {{ "{sys.executable}" "$@"; }}\n{text}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for trained in ("readme_bert", "readme_resnet"):
        assert list((tmp_path / ".build" / trained).glob("ckpt-*.index"))
    accuracy = float(re.search(r"top-1 accuracy +([\d.]+)%", done.stdout)[1])
    assert accuracy > 95


def test_its_versions_are_those_of_the_page():
    """From the oldest to the newest that the hosts have."""
    text = " ".join(README.read_text().split())
    lines = (ROOT / "docs" / "versions.md").read_text().splitlines()
    rows = [re.findall(r"\| ([\d.]*) ?(?=\|)", line) for line in lines if "../tests/hosts/" in line]
    columns = list(zip(*rows, strict=True))[1:]
    missing = []
    for name, versions in zip(("Keras", "TensorFlow", "", "JAX"), columns, strict=False):
        numbers = sorted({tuple(map(int, v.split(".")[:2])) for v in versions if v})
        oldest, newest = (".".join(map(str, numbers[i])) for i in (0, -1))
        if name and f"{name} {oldest} to {newest}" not in text:
            missing.append((name, oldest, newest))
    assert missing == []


@pytest.mark.once
def test_the_table_of_large_batch_is_in_the_log():
    """Its row of a batch has the mean losses of LAMB and AdamW, and LAMB's median seconds."""
    _, *rows = table(ROOT / "docs" / "large_batch.md", "What comes out")
    base, found, counts = {}, [], set()
    for batch, *_ in rows:
        made = {name: seeds_of_letters(name, number(batch)) for name in ("LAMB", "AdamW")}
        (updates,) = {f"{run['updates']:,}" for seeds in made.values() for run in seeds}
        losses = []
        for name, seeds in made.items():
            counts.add(len(seeds))
            mean = sum(run["loss"] for run in seeds) / 3
            change = 100 * (mean / base.setdefault(name, mean) - 1)
            losses.append(f"{mean:.3f}" + (f" ({change:+.1f}%)" if batch != "16" else ""))
        seconds = sorted(run["seconds"] for run in made["LAMB"])[1]
        found.append([batch, updates, *losses, f"{seconds:.0f} s"])
    assert rows == found
    assert counts == {3}


@pytest.mark.once
def test_the_table_of_pictures_is_in_the_log():
    """Its row of a batch has LAMB's mean share of errors, and its median seconds."""
    _, *rows = table(ROOT / "docs" / "large_batch.md", "On pictures")
    found = []
    for batch, *_ in rows:
        lines = runs("large_batch", task="pictures", name="LAMB", batch=number(batch))
        errors, base = of_pictures_at(number(batch)), of_pictures_at(16)
        change = f" ({100 * (errors / base - 1):+.1f}%)" if batch != "16" else ""
        seconds = statistics.median(line["seconds"] for line in lines)
        updates = f"{lines[0]['updates']:,}"
        found.append([batch, updates, f"{100 * errors:.2f}%{change}", f"{seconds:.0f} s"])
    assert rows == found
