"""Fixtures of several folders."""

import keras
import pytest


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
