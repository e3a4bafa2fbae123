"""The notebook on JAX: it runs, small, from first cell to last, and is kept with its outputs."""

import re

import matplotlib
import nbclient
import nbformat
import pytest
from support.pages import ROOT

PATH = ROOT / "colab" / "keras_jax_bert.ipynb"
PICTURES = {"plot", "adascale"}


@pytest.fixture
def notebook():
    return nbformat.read(PATH, as_version=4)


def code(notebook):
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def text(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def pictures(notebook):
    return {
        name
        for name, cell in code(notebook).items()
        if any("image/png" in output.get("data", {}) for output in cell.outputs)
    }


def runs(notebook):
    """Name of a run -> its updates, its examples and its loss, as the last table has them."""
    rows = re.findall(
        r"^(\S.*?) +([\d,]+) +([\d,]+) +(\d+\.\d+)$", text(code(notebook)["result"]), re.M
    )
    return {name: tuple(float(n.replace(",", "")) for n in numbers) for name, *numbers in rows}


def test_it_can_be_read_where_nothing_runs(notebook):
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 25
    counts = [cell.execution_count for cell in code(notebook).values()]
    assert counts == list(range(1, len(counts) + 1))
    assert pictures(notebook) == PICTURES
    assert PATH.stat().st_size < 200_000


def test_what_is_quoted_is_what_came_out(notebook):
    (reading,) = [cell.source for cell in notebook.cells if cell.id == "reading"]
    quoted = set(re.findall(r"\d+\.\d+|\b\d{2,}\b", reading)) - {"32", "128"}
    came_out = {f"{n:g}" for numbers in runs(notebook).values() for n in numbers}
    came_out |= {f"{loss:.3f}" for *_, loss in runs(notebook).values()}
    assert quoted and quoted <= came_out


def test_it_installs_as_the_other_does(notebook):
    other = nbformat.read(ROOT / "colab" / "quickstart.ipynb", as_version=4)
    shared = [
        code(each)["install"].source.partition("if missing()")[0] for each in (notebook, other)
    ]
    shared = [source.partition("\n\n\n")[2] for source in shared]
    assert shared[0] and shared[0] == shared[1]


@pytest.mark.slow
def test_it_runs(notebook, monkeypatch, tmp_path):
    # But for matplotlib's fonts, which it would search anew, and say so.
    monkeypatch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # so that no earlier run answers
    monkeypatch.setenv("TF_LAMB_BERT_ROWS", "128")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # so that the kernel's own shows pictures
    for cell in code(notebook).values():
        cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    assert pictures(notebook) == PICTURES
    assert text(code(notebook)["imports"]) == "8 devices, (8,)\n"  # and no warning
    plan = text(code(notebook)["train"]).split("\n")
    assert any(re.fullmatch(r"\S+query/bias +\d+ +- +no *", line) for line in plan)
    one, larger, measured = runs(notebook).values()
    assert (one[0], larger[0]) == (16, 4)
    assert larger[0] <= measured[0] <= one[0]
    report = text(code(notebook)["preflight"])
    assert "v5e:8x8: 64 chips" in report and "all-reduce" in report
