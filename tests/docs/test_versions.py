"""The page of versions, the files that the environments are made from, and what is declared."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from support.pages import ROOT

COLUMNS = ("keras", "tensorflow", "tf-keras", "jax", "torch")
PAGE = (ROOT / "docs/versions.md").read_text()
ROWS = {
    link: cells.split("|")
    for link, cells in re.findall(r"^\| \[\w+\]\(\.\./(\S+)\) \|(.*)\|$", PAGE, re.MULTILINE)
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file):
    lines = (ROOT / file).read_text().splitlines()
    found = dict(re.findall(r"^([\w.-]+)==([\w.]+)", "\n".join(lines), re.MULTILINE))
    return {name.lower().replace("_", "-"): version for name, version in found.items()}


@pytest.mark.parametrize("file", ROWS)
def test_a_row_is_what_its_environment_installs(file):
    _, *versions = (cell.strip() for cell in ROWS[file])
    cells = zip(COLUMNS, versions, strict=True)
    shown = {name: version for name, version in cells if version}
    assert {name: pins(file)[name] for name in shown} == shown


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_declared_is_what_the_oldest_environment_has(name):
    extras = PROJECT["optional-dependencies"].values()
    declared = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    bounds = {r.name: r.specifier for r in map(Requirement, declared) if r.specifier}
    oldest = {"torch": pins("tests/hosts/torch.txt")["torch"], **pins("tests/hosts/oldest.txt")}
    (bound,) = bounds[name]
    assert bound.operator == ">="
    assert Version(bound.version).release == Version(oldest[name]).release[:2]


def test_the_pythons_that_are_declared_have_a_row():
    pythons = {cells[0].strip() for cells in ROWS.values()}
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(named) == pythons
    assert PROJECT["requires-python"] == ">=" + min(pythons, key=Version)


def test_the_hook_of_a_commit_has_the_version_of_make_check():
    """Else the one formats what the other refuses."""
    hook = re.search(r"rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())[1]
    assert hook == pins("constraints.txt")["ruff"]


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "colab/carry_a_learning_rate.ipynb",
        "colab/keras_jax_bert.ipynb",
        "colab/tpu_strategy.ipynb",
        "colab/updates_left.ipynb",
    ],
)
def test_a_page_names_the_repository_that_the_project_declares(file):
    repository = PROJECT["urls"]["Repository"]
    owner_and_name = repository.removeprefix("https://github.com/")
    text = (ROOT / file).read_text()
    assert repository in text
    assert set(re.findall(r"github\.com/([\w-]+/tf_lamb)\b", text)) == {owner_and_name}


def test_every_address_of_the_project_is_of_its_repository():
    urls = PROJECT["urls"]
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
