"""The choice of `make test`: a new test runs, and one whose cheapest case is dear does not."""

import pytest
from support import quick

pytestmark = pytest.mark.once
TABLE = {
    "tests/api/test_a.py::test_cheap": (0.1, "tests/api/test_a.py::test_cheap[2]"),
    "tests/api/test_a.py::test_dear": (2.1, "tests/api/test_a.py::test_dear[1]"),
}


@pytest.mark.parametrize(
    ("collected", "expected"),
    [
        (["api/test_a.py::test_cheap[1]", "api/test_a.py::test_cheap[2]"], [1]),
        (["api/test_a.py::test_cheap[3]", "api/test_a.py::test_cheap[4]"], [0]),  # renamed cases
        (["api/test_a.py::test_dear[1]"], []),
        (["api/test_a.py::test_new[1]", "api/test_a.py::test_new[2]"], [0]),
        (["core/test_b.py::test_rule[1]", "core/test_b.py::test_rule[2]"], [0, 1]),
    ],
    ids=["cheapest", "renamed", "dear", "new", "core"],
)
def test_what_make_test_runs(collected, expected):
    collected = [f"tests/{node_id}" for node_id in collected]
    assert quick.quick(collected, TABLE) == {collected[i] for i in expected}


def test_a_log_becomes_the_table():
    log = """
[gw0] [ 50%] PASSED tests/api/test_a.py::test_cheap[1] 
[gw1] [ 90%] PASSED tests/api/test_a.py::test_cheap[2] 
[gw1] [100%] PASSED tests/core/test_b.py::test_rule 
0.31s call     tests/api/test_a.py::test_cheap[1]
0.20s setup    tests/api/test_a.py::test_cheap[2]
0.02s call     tests/api/test_a.py::test_cheap[2]
"""
    assert quick.table_of(log) == ["0.2 tests/api/test_a.py::test_cheap[2]"]


def test_the_files_of_the_table_are_there():
    files = {
        line.split(" ", 1)[1].partition("::")[0] for line in quick.TABLE.read_text().splitlines()
    }
    root = quick.TABLE.parents[2]
    assert len(files) > 50 and [file for file in files if not (root / file).exists()] == []
