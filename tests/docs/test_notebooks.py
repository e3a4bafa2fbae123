"""The notebooks: each runs, small, from first cell to last, and is kept with its outputs."""

import importlib.metadata
import re
import shlex
import tomllib

import matplotlib
import nbclient
import nbformat
import pytest
from packaging.requirements import Requirement
from support import notebooks
from support.pages import ROOT

from tf_lamb.model_garden.common import yamls

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDER = ROOT / "colab"
# The extra of this package that a notebook installs, and what it imports beside the package.
INSTALLS = {
    "carry_a_learning_rate": ("tensorflow", ["tensorflow", "sklearn", "matplotlib"]),
    "keras_jax_bert": ("jax", ["jax", "keras_hub", "libtpu", "matplotlib"]),
    "tpu_strategy": (None, ["tensorflow", "tf_keras", "sklearn", "matplotlib"]),
    "updates_left": ("jax", ["jax", "sklearn", "matplotlib"]),
}
# What shows pictures.
PICTURES = {
    "carry_a_learning_rate": {"digits", "plot", "result"}, "keras_jax_bert": {"plot", "adascale"},
    "tpu_strategy": {"result"}, "updates_left": {"pictures", "plot"},
}  # fmt: skip
every_notebook = pytest.mark.parametrize("name", PICTURES)


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook):
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def source(notebook, name):
    (text,) = [cell.source for cell in notebook.cells if cell.id == name]
    return text


def text(notebook, cell):
    return "".join(output.get("text", "") for output in code(notebook)[cell].outputs)


def printed(notebook, cell):
    """The lines that a cell printed, without those that frameworks log."""
    outputs = code(notebook)[cell].outputs
    lines = "".join(o["text"] for o in outputs if o.get("name") == "stdout").splitlines()
    return [line for line in lines if not re.match(r"[A-Z]+:\w+:", line)]


def table(notebook, cell="sweep"):
    """The rows of the sweep, a list of words each."""
    return [line.split() for line in text(notebook, cell).splitlines()]


def runs(notebook):
    """Name of a run -> its updates, its examples and its loss, as the last table has them."""
    row = r"^(\S.*?) +([\d,]+) +([\d,]+) +(\d+\.\d+)$"
    rows = re.findall(row, text(notebook, "result"), re.MULTILINE)
    return {name: tuple(float(n.replace(",", "")) for n in numbers) for name, *numbers in rows}


def pictures(notebook):
    return {
        name
        for name, cell in code(notebook).items()
        if any("image/png" in output.get("data", {}) for output in cell.outputs)
    }


@every_notebook
def test_it_can_be_read_where_nothing_runs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code(notebook).values()]
    assert counts == list(range(1, len(counts) + 1))
    assert pictures(notebook) == PICTURES[name]
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 200_000


def test_what_the_notebook_of_digits_quotes_came_out():
    notebook = read("carry_a_learning_rate")
    rows = [*table(notebook), *table(notebook, "finder")]
    quoted = set(re.findall(r"(\d+\.\d) ?%", source(notebook, "reading")))
    assert quoted and quoted <= {word.rstrip("%") for row in rows for word in row}


def test_what_the_bert_quotes_came_out():
    notebook = read("keras_jax_bert")
    quoted = set(re.findall(r"\d+\.\d+|\b\d{2,}\b", source(notebook, "reading"))) - {"32", "128"}
    came_out = {f"{n:g}" for numbers in runs(notebook).values() for n in numbers}
    came_out |= {f"{loss:.3f}" for *_, loss in runs(notebook).values()}
    assert quoted and quoted <= came_out


def test_what_the_notebook_of_updates_left_quotes_came_out():
    notebook = read("updates_left")
    quoted = set(re.findall(r"[+-]\d+\.\d%", source(notebook, "reading")))
    assert len(quoted) == 4 and quoted == {row[-1] for row in table(notebook, "result")[1:]}


def test_the_configs_that_it_names_are_shipped():
    configs = re.findall(r"[\w/]+\.yaml", source(read("carry_a_learning_rate"), "garden"))
    assert len(configs) == 2 and all(map(yamls.found, configs))


@every_notebook
def test_its_links_lead_somewhere_without_a_clone(name):
    texts = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(texts))
    assert [link for link in links if not link.startswith("https://")] == []
    pages = re.findall(r"`((?:docs|colab)/[^`]+)`", "\n".join(texts))
    assert all((ROOT / page).is_file() for page in pages)


@every_notebook
def test_the_address_is_the_one_of_pyproject(name):
    (address,) = re.findall(r'^REPOSITORY = "(.+?)"', source(read(name), "install"), re.MULTILINE)
    assert address == PROJECT["urls"]["Repository"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder without a clone around it, in which the cell runs."""
    folder = tmp_path / "content"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def install_cell(name, address="https://example.org/someone/tf_lamb"):
    """The first cell with another address of the repository."""
    return source(read(name), "install").replace(PROJECT["urls"]["Repository"], address)


def installed(name, cell, folder, absent=("tf_lamb",)):
    """What the cell has pip install where packages are absent, a requirement each."""
    (line,), error = notebooks.pip_lines(cell, folder, absent)
    assert error is None
    *words, requirements = line.partition("install --quiet ")
    assert words == ["", "install --quiet "]
    return shlex.split(requirements)


def with_extra(ours, name):
    extra, _ = INSTALLS[name]
    return f"{ours}[{extra}]" if extra else str(ours)


@every_notebook
def test_from_an_address_pip_installs_the_repository(name, elsewhere):
    address = "https://example.org/someone/tf_lamb"
    (ours,) = installed(name, install_cell(name, address), elsewhere)
    requirement = Requirement(ours)
    assert (requirement.name, requirement.url) == ("tf_lamb", f"git+{address}")
    assert requirement.extras == {*filter(None, INSTALLS[name][:1])}
    assert requirement.extras <= set(PROJECT["optional-dependencies"])


@every_notebook
def test_in_a_clone_pip_installs_the_clone(name, elsewhere, monkeypatch):
    clone = elsewhere / "my clone"
    (clone / "tf_lamb").mkdir(parents=True)
    (clone / "tf_lamb" / "py.typed").touch()
    (clone / "colab").mkdir()
    monkeypatch.chdir(clone / "colab")
    cell = source(read(name), "install")
    assert installed(name, cell, elsewhere) == [with_extra(clone, name)]


@every_notebook
def test_without_an_address_it_says_what_to_do(name, elsewhere):
    cell = install_cell(name, "https://github.com/OWNER/tf_lamb")
    lines, error = notebooks.pip_lines(cell, elsewhere)
    assert not lines
    assert str(error) == (
        "tf_lamb is not installed. Put a wheel of tf_lamb beside this notebook, or the address "
        "of your copy of the repository into REPOSITORY, above."
    )


@every_notebook
def test_beside_a_wheel_pip_installs_the_wheel(name, elsewhere):
    wheel = elsewhere / "tf_lamb-0.1.0-py3-none-any.whl"
    wheel.touch()
    cell = install_cell(name, "https://github.com/OWNER/tf_lamb")
    assert installed(name, cell, elsewhere) == [with_extra(wheel, name)]


@every_notebook
def test_where_tf_lamb_is_installed_pip_installs_only_what_is_missing(name, elsewhere, capsys):
    """A backend as pyproject bounds it. No wheel is asked for."""
    extras = PROJECT["optional-dependencies"]
    bounded = {*extras["tensorflow"], *extras["jax"], *extras["tf-keras"]}
    distributions = importlib.metadata.packages_distributions()
    _, companions = INSTALLS[name]
    cell = install_cell(name, "https://github.com/OWNER/tf_lamb")
    assert notebooks.pip_lines(cell, elsewhere, absent=()) == ([], None)
    assert capsys.readouterr().out == ""  # as the kept outputs have it
    for absent in [*([module] for module in companions), companions]:
        requirements = installed(name, cell, elsewhere, absent)
        assert f"Not installed yet: {', '.join(absent)}\n" in capsys.readouterr().out
        for module, text in zip(absent, requirements, strict=True):
            assert re.split("[<>=]", text)[0].replace("-", "_") in {
                distribution.replace("-", "_") for distribution in distributions[module]
            }
            assert text in bounded or module in ("keras_hub", "libtpu", "sklearn", "matplotlib")


@every_notebook
def test_what_pip_did_not_install_is_named(name, elsewhere):
    (_,), error = notebooks.pip_lines(install_cell(name), elsewhere, installs=False)
    assert str(error).startswith("Not installed: tf_lamb.")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a notebook small, whose pictures the kernel's own backend shows."""
    # matplotlib's fonts are not to be searched anew, and no earlier run is to answer.
    monkeypatch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)

    def run(name, **environment):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        notebook = read(name)
        for cell in code(notebook).values():
            cell.outputs, cell.execution_count = [], None
        nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
        assert pictures(notebook) == PICTURES[name]
        outputs = [output for cell in code(notebook).values() for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "error"]
        return notebook

    return run


@pytest.mark.slow
def test_the_notebook_of_digits_runs(run):
    notebook = run("carry_a_learning_rate", TF_LAMB_EPOCHS="2", TF_LAMB_SEEDS="1")
    batches, steps, *accuracies = table(notebook)
    assert batches == ["batch", "32", "128", "512"] and steps == ["steps", "64", "16", "4"]
    assert len(accuracies) == 4


@pytest.mark.slow
def test_the_bert_runs(run):
    notebook = run("keras_jax_bert", TF_LAMB_BERT_ROWS="128")
    assert text(notebook, "imports") == "8 devices, (8,)\n"  # and no warning
    plan = text(notebook, "train").split("\n")
    assert any(re.fullmatch(r"\S+query/bias +\d+ +- +no *", line) for line in plan)
    one, larger, measured = runs(notebook).values()
    assert (one[0], larger[0]) == (16, 4)
    assert larger[0] <= measured[0] <= one[0]
    report = text(notebook, "preflight")
    assert "v5e:8x8: 64 chips" in report and "all-reduce" in report


@pytest.mark.slow
def test_the_notebook_of_the_tpu_runs_on_two_replicas_of_a_cpu(run):
    notebook = run("tpu_strategy", TF_LAMB_EXAMPLES="2048")
    assert printed(notebook, "strategy") == ["MirroredStrategy with 2 replicas"]
    small, large = (line.split() for line in printed(notebook, "train"))
    assert [small[1:3], large[1:3]] == [["64", "256"], ["1,024", "16"]]
    assert printed(notebook, "backup") == ["stopped after epoch 2", "went on to update 8"]


@pytest.mark.slow
def test_the_notebook_of_updates_left_runs(run):
    notebook = run("updates_left", TF_LAMB_LENGTHS="4096,16384")
    head, *rows = table(notebook, "result")
    assert head[:2] == ["task", "examples"]
    batches_16, batches_512 = [row[2] for row in rows], [row[4] for row in rows]
    assert batches_16 == ["256:", "1,024:"] * 2 and batches_512 == ["8:", "32:"] * 2
