"""Any optimizer and options, any sequence of what users do: `support/stateful.py` draws them.

The same few every day; `benchmarks/stateful.py` draws others for hours.
"""

import pathlib
import subprocess
import sys

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test
from support import stateful
from support.doors import BACKEND, every_door
from support.planted import PLANTS

import tf_lamb

RUNS = hypothesis.settings(
    max_examples=4, stateful_step_count=8, derandomize=True, deadline=None, database=None,
    phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip


@every_door
def test_every_training_is_as_promised(door):
    run_state_machine_as_test(stateful.MACHINES[door], settings=RUNS)


@pytest.mark.slow
@every_door
def test_many_trainings_are_as_promised(door):
    many = hypothesis.settings(RUNS, max_examples=40, stateful_step_count=15)
    run_state_machine_as_test(stateful.MACHINES[door], settings=many)


def test_every_plant_is_of_a_passage_that_is_there_once():
    for hosts, changes in PLANTS.values():
        assert hosts
        for file, before, after in changes:
            source = (pathlib.Path(tf_lamb.__file__).parent / file).read_text()
            assert source.count(before) == 1, (file, before)
            assert before != after


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_within_a_hundred_runs(name, tmp_path):
    hosts, _ = PLANTS[name]
    if BACKEND not in hosts:
        pytest.skip(f"no fault on {BACKEND}")
    script = pathlib.Path(__file__).parents[2] / "benchmarks" / "stateful.py"
    found = subprocess.run(
        [sys.executable, script, f"--host={BACKEND}", f"--plant={name}", f"--log={tmp_path}/log"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert f"{name}: found in run" in found.stdout
