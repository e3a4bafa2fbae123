"""The data of the smallest models, written once, and steps that nobody traces."""

import contextlib

import pytest
from support.frontends import uncompiled


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    from support import garden

    return garden.write_records(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    from support import garden

    return garden.write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def eager(request):
    """Tracing a step takes as long as fifty steps: only what is slow traces its own."""
    with contextlib.nullcontext() if request.node.get_closest_marker("slow") else uncompiled():
        yield
