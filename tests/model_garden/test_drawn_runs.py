"""Whole runs of the Model Garden, drawn with a seed; `benchmarks/garden_fuzz.py` draws more."""

import pytest

pytest.importorskip("official")

from support import garden_runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return garden_runs.write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_a_drawn_run_is_as_promised(seed, data, tmp_path):
    garden_runs.check(garden_runs.draw(seed, data), tmp_path)
