"""Door 1 on JAX in several processes, each with devices of its own: one training, as in one."""

import functools

import keras
import numpy as np
import pytest
from support import clusters, hosts

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution trains on JAX alone", allow_module_level=True)

DEVICES = 8


@pytest.fixture(autouse=True)
def undistributed():
    """Each test ends as it began."""
    yield
    keras.distribution.set_distribution(None)


def in_two(function, *arguments, timeout=300):
    """What it returns in each of two processes of four devices."""
    return clusters.results(
        functools.partial(function, *arguments), clusters.jax_processes(2, DEVICES), timeout
    )


def assert_close(found, expected):
    assert len(found) == len(expected)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("cases", [
    ("apart",),
    pytest.param(tuple(case for case in hosts.CASES if case != "apart"), marks=pytest.mark.slow),
])  # fmt: skip
def test_two_processes_are_one(cases, tmp_path):
    """Their backup is the chief's, and whole: it is one process's."""
    found = in_two(hosts.trained, cases, str(tmp_path / "two"))
    assert found[0] == found[1]  # to the last bit
    expected = hosts.trained(cases, str(tmp_path / "one"))
    for case in cases:
        assert found[0][case]["epochs"] == expected[case]["epochs"] == [*range(hosts.EPOCHS)]
        assert_close(found[0][case]["state"], expected[case]["state"])
    again = hosts.trained(cases, str(tmp_path / "two"))
    for case in cases:
        assert again[case] == {"epochs": [], "state": found[0][case]["state"]}
