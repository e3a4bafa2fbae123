"""The tests of `make test`: the mathematics whole, and elsewhere the cheapest case of quick tests.

A line of `quick.txt` is a test: the seconds of its cheapest case, and the node id of that case. A
test without a line is new, and its first case runs. To write the file anew, from a run of all:

    .venv/bin/python -m pytest -vv -n 2 -m "not slow" --durations=0 > .build/durations.txt
    .venv/bin/python tests/support/quick.py .build/durations.txt
"""

import collections
import pathlib
import re
import sys

TABLE = pathlib.Path(__file__).with_suffix(".txt")
WHOLE = "tests/core/"  # of these every case runs
LONGEST = 2.0  # seconds; a test without a cheaper case is left to `make test-all`


def _by_test(node_ids):
    """Test -> the node ids of its cases, in their order."""
    cases = collections.defaultdict(list)
    for node_id in node_ids:
        cases[node_id.partition("[")[0]].append(node_id)
    return cases


def quick(node_ids, table=None):
    """The set of node ids that `make test` runs, of all that were collected."""
    table = _read() if table is None else table
    chosen = set()
    for test, cases in _by_test(node_ids).items():
        seconds, cheapest = table.get(test, (0.0, cases[0]))
        if test.startswith(WHOLE):
            chosen.update(cases)
        elif seconds <= LONGEST:
            chosen.add(cheapest if cheapest in cases else cases[0])
    return chosen


def _read():
    lines = (line.split(" ", 1) for line in TABLE.read_text().splitlines())
    return {node_id.partition("[")[0]: (float(seconds), node_id) for seconds, node_id in lines}


def table_of(log):
    """The lines of the table, from what pytest has printed with `-vv --durations=0`."""
    seconds = collections.Counter()
    for time, node_id in re.findall(r"^([\d.]+)s \w+ +(tests/.*?) *$", log, re.MULTILINE):
        seconds[node_id] += float(time)
    passed = re.findall(r"^\[gw\d+\] \[ *\d+%\] PASSED (tests/.*?) *$", log, re.MULTILINE)
    cheapest = (
        min(cases, key=lambda node_id: seconds[node_id])
        for test, cases in _by_test(sorted(passed)).items()
        if not test.startswith(WHOLE)
    )
    return [f"{seconds[node_id]:.1f} {node_id}" for node_id in cheapest]


if __name__ == "__main__":
    text = pathlib.Path(sys.argv[1]).read_text()
    TABLE.write_text("".join(f"{line}\n" for line in table_of(text)))
