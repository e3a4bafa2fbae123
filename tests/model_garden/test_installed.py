"""Model Garden's commands where the package is installed, without a clone beside it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support.pages import ROOT

BUILD = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
# What the package is built from, by `MANIFEST.in` and pyproject.toml.
SOURCES = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
           "constraints.txt", "pyproject.toml", "setup.py")  # fmt: skip
FOUND = """
from tf_lamb.model_garden.common import yamls
print(*yamls.shipped())
print(yamls.found("bert_small_cpu.yaml"))
"""


def built(kind, source, folder):
    """The file that setuptools makes of these sources: a wheel, or an sdist."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind, str(folder))],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy: setuptools writes into the folder that it builds from."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("tf_lamb", "tf_lamb_extras", "model_garden_configs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    return source


@pytest.mark.slow
def test_a_wheel_of_an_sdist_has_the_configs_and_finds_them_by_name(source, tmp_path):
    with tarfile.open(built("sdist", source, tmp_path)) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    folder = tmp_path / "installed"
    with zipfile.ZipFile(built("wheel", unpacked, tmp_path)) as file:
        file.extractall(folder)
        names = file.namelist()
    assert "tf_lamb/py.typed" in names and "tf_lamb/core/rules/lamb.py" in names
    assert {"tf_lamb_extras/py.typed", "tf_lamb_extras/preflight/tpu/compiler.py"} < set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tf_lamb", "tf_lamb_extras"}
    done = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=folder, check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    shipped, path = done.stdout.splitlines()
    assert set(shipped.split()) == {p.name for p in ROOT.glob("model_garden_configs/*.yaml")}
    assert path == str(folder / "tf_lamb" / "model_garden" / "configs" / "bert_small_cpu.yaml")
