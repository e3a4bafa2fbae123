"""What the tests cost: wall and CPU seconds of each file, and the memory of the largest worker.

    python benchmarks/suite.py | tee benchmarks/logs/suite.log

Runs `make test-all` and `make test-slow` as they are, with this file as a plugin of pytest in every
worker. A test's CPU seconds are those of its worker and of the processes that it waited for; what
a command costs beyond its tests is importing and collecting.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def cpu_seconds():
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    wall, cpu = time.perf_counter(), cpu_seconds()
    result = yield
    row = {
        "backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        "test": item.nodeid,
        "wall": time.perf_counter() - wall,
        "cpu": cpu_seconds() - cpu,
        "worker": os.getpid(),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    with open(os.environ["SUITE_ROWS"], "a") as file:
        file.write(json.dumps(row) + "\n")
    return result


def run(command):
    """Wall and CPU seconds of a command, and a row of each of its tests."""
    with tempfile.NamedTemporaryFile() as rows:
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "SUITE_ROWS": rows.name, "PYTHONPATH": path}
        options = f"{env.get('PYTEST_ADDOPTS', '')} -p suite"
        began = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        outcome = subprocess.run(
            ["make", command], cwd=HERE.parent, env={**env, "PYTEST_ADDOPTS": options}, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.perf_counter() - began
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return outcome.returncode, wall, cpu, [json.loads(line) for line in open(rows.name)]


def by(rows, *keys):
    """Key -> (tests, wall, CPU seconds), the dearest first."""
    table = {}
    for row in rows:
        file, _, name = row["test"].partition("::")
        known = {**row, "file": file, "function": f"{file}::{name.partition('[')[0]}"}
        key = "  ".join(known[k] for k in keys)
        count, wall, cpu = table.get(key, (0, 0.0, 0.0))
        table[key] = count + 1, wall + row["wall"], cpu + row["cpu"]
    return sorted(table.items(), key=lambda item: -item[1][2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=["test-all", "test-slow"])
    parser.add_argument("--dearest", type=int, default=20, help="how many tests to name")
    arguments = parser.parse_args()
    failed = 0
    for command in arguments.commands:
        code, wall, cpu, rows = run(command)
        failed = failed or code
        largest = max((row["mib"] for row in rows), default=0)
        print(
            f"\nmake {command}: exit {code}, {len(rows):,} tests, {wall / 60:.1f} min wall, "
            f"{cpu / 60:.1f} CPU minutes, largest worker {largest / 1024:.1f} GiB"
        )
        for title, table in (
            ("backend and file", by(rows, "backend", "file")),
            ("test", by(rows, "backend", "function")[: arguments.dearest]),
        ):
            print(f"\n{'tests':>6} {'wall s':>8} {'CPU s':>8}  {title}")
            for key, (count, seconds, work) in table:
                print(f"{count:6,} {seconds:8.1f} {work:8.1f}  {key}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
