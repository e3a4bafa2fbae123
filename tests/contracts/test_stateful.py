"""Any optimizer and options, any sequence of what users do: `support/stateful.py` draws them.

The same few every day; `benchmarks/fuzz/stateful.py` draws others for hours.
"""

import json
import subprocess
import sys

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test
from support import killing, stateful
from support.frontends import BACKEND, FRONTENDS, every_frontend
from support.pages import ROOT
from support.planted import PLANTS

RUNS = hypothesis.settings(
    max_examples=4, stateful_step_count=8, derandomize=True, deadline=None, database=None,
    phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip


@every_frontend
def test_every_training_is_as_promised(frontend):
    run_state_machine_as_test(stateful.MACHINES[frontend], settings=RUNS)


@pytest.mark.slow
@every_frontend
def test_many_trainings_are_as_promised(frontend):
    many = hypothesis.settings(RUNS, max_examples=12, stateful_step_count=15)
    run_state_machine_as_test(stateful.MACHINES[frontend], settings=many)


@pytest.mark.parametrize("plant", PLANTS)
def test_every_plant_is_another_program(plant):
    hosts, changes = PLANTS[plant]
    assert hosts
    for change in changes:
        killing.edited(*change)


def rows():
    """Of each plant that was found, and of its host, the row of the log."""
    log = ROOT / "benchmarks" / "logs" / "stateful_planted.jsonl"
    every = map(json.loads, log.read_text().splitlines())
    return [row for row in every if row["planted"] in PLANTS]


def test_every_plant_was_found_within_a_hundred_runs():
    assert {row["planted"] for row in rows()} == PLANTS.keys()
    assert all(row["found_in_run"] <= 100 for row in rows())


def found():
    """Of each host the plant that was found first."""
    return {
        row["host"]: row for row in sorted(rows(), key=lambda row: -row["found_in_run"])
    }.values()


@pytest.mark.slow
@pytest.mark.parametrize("row", found(), ids=lambda row: f"{row['host']}-{row['planted']}")
def test_a_planted_fault_is_found_again(row, tmp_path):
    host = row["host"]
    if host != BACKEND and host not in FRONTENDS:
        pytest.skip(f"of {host}")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz.stateful", f"--host={host}",
         f"--plant={row['planted']}", f"--log={tmp_path}/log"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert f"{row['planted']}: found in run" in run.stdout
