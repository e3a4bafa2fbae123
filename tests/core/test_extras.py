"""The extras that pages and errors tell users to install."""

import pathlib

import pytest

tomllib = pytest.importorskip("tomllib")
PROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"


def extras():
    return tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("name", "brings"),
    [("tensorflow", "tensorflow"), ("jax", "jax"), ("torch", "torch"), ("tf-keras", "tf-keras")],
)
def test_each_backend_has_one(name, brings):
    assert any(requirement.startswith(brings) for requirement in extras()[name])


def test_preflight_brings_what_its_command_imports():
    assert {"tf_lamb[model-garden]", "jax[tpu]"} <= set(extras()["preflight"])
