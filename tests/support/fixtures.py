"""Fixtures of several folders."""

import contextlib

import keras
import pytest
from support.frontends import uncompiled


@pytest.fixture(scope="module")
def quickly_compiled():
    """Programs that nobody times: without LLVM's optimizations, which take longer than the rest."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def undistributed():
    """Each test ends as it began."""
    yield
    keras.distribution.set_distribution(None)


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    from support import garden

    return garden.write_records(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    from support import garden

    return garden.write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def uncompiled_fits():
    """On TensorFlow, where compiling a step takes longer than the few steps of a fit."""
    with uncompiled(fits=True):
        yield


@pytest.fixture
def eager(request):
    """Tracing a step takes as long as fifty steps: only what is slow traces its own."""
    with contextlib.nullcontext() if request.node.get_closest_marker("slow") else uncompiled():
        yield
