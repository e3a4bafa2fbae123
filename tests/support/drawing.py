"""Figures of tests: drawn in memory, and closed behind each test of a file that imports this."""

import matplotlib
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")
