"""Any optimizer and options, any sequence of what users do: `support/stateful.py` draws them.

The same few every day; `benchmarks/stateful.py` draws others for hours.
"""

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test
from support import stateful
from support.doors import every_door

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
