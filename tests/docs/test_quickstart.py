"""The notebook: it runs, small, from its first cell to its last, and is kept with its outputs."""

import pathlib
import re
import sys

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PATH = ROOT / "colab" / "quickstart.ipynb"
PICTURES = {"digits", "plot", "result"}


@pytest.fixture
def notebook():
    return nbformat.read(PATH, as_version=4)


def code(notebook):
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def pictures(notebook):
    return {
        name
        for name, cell in code(notebook).items()
        if any("image/png" in output.get("data", {}) for output in cell.outputs)
    }


def table(notebook, cell="sweep"):
    """The rows of the sweep, a list of words each."""
    text = "".join(output.get("text", "") for output in code(notebook)[cell].outputs)
    return [line.split() for line in text.splitlines()]


def test_it_can_be_read_where_nothing_runs(notebook):
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code(notebook).values()]
    assert counts == list(range(1, len(counts) + 1))
    assert pictures(notebook) == PICTURES
    assert PATH.stat().st_size < 200_000


def test_what_is_quoted_is_what_came_out(notebook):
    rows = [*table(notebook), *table(notebook, "finder")]
    came_out = {word.rstrip("%") for row in rows for word in row}
    (text,) = [cell.source for cell in notebook.cells if cell.id == "reading"]
    quoted = set(re.findall(r"(\d+\.\d) ?%", text))
    assert quoted and quoted <= came_out


def test_the_files_that_it_names_exist(notebook):
    (text,) = [cell.source for cell in notebook.cells if cell.id == "garden"]
    configs = re.findall(r"model_garden_configs/\w+\.yaml", text)
    assert configs and all((ROOT / config).is_file() for config in configs)


@pytest.fixture
def installing(notebook, monkeypatch):
    """The cell that installs, on a machine without scikit-learn; and what it gives to pip."""
    asked = []
    cell = re.sub(r"%pip (.*)", r"asked.append(f'\1')", code(notebook)["install"].source)
    monkeypatch.setitem(sys.modules, "sklearn", None)

    def run():
        with pytest.raises(ModuleNotFoundError, match="sklearn could not.*pip install"):
            exec(cell, {"asked": asked})
        return asked

    return run


def test_a_wheel_beside_it_is_installed(installing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wheel = tmp_path / "tf_lamb-0.1.0-py3-none-any.whl"
    wheel.touch()
    (asked,) = installing()
    assert asked.endswith(f'"{wheel}[tensorflow,pictures]"')


def test_else_the_clone_that_it_lies_in(installing, monkeypatch):
    monkeypatch.chdir(PATH.parent)
    (asked,) = installing()
    assert asked.endswith(f'"{ROOT}[tensorflow,pictures]"')


def test_without_either_it_asks_nobody(installing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not installing()


@pytest.mark.slow
def test_it_runs(notebook, monkeypatch):
    monkeypatch.setenv("TF_LAMB_QUICKSTART_EPOCHS", "2")
    monkeypatch.setenv("TF_LAMB_QUICKSTART_SEEDS", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # so that the kernel's own shows pictures
    for cell in code(notebook).values():
        cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    assert pictures(notebook) == PICTURES
    batches, steps, *accuracies = table(notebook)
    assert batches == ["batch", "32", "128", "512"]
    assert steps == ["steps", "64", "16", "4"]
    assert len(accuracies) == 4
    outputs = [output for cell in code(notebook).values() for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
