"""The suite kills mutants: of each slip in `support/mutants.txt`, the test named there must fail.

A mutant is the package with one passage of one definition changed. It is imported by a process of
its own, forked from one that has loaded the frameworks (`support/killing.py`), and dies if pytest
runs and says that a test failed: exit code 1, and not one of an error in collecting, or of no test.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from support import killing
from support.mutants import MUTANTS

from tf_lamb.core import rules

TESTS = pathlib.Path(__file__).parent
# What the process loads, and its environment.
HOSTS = {
    "core": (["numpy"], {"KERAS_BACKEND": "tensorflow"}),
    "tensorflow": (["tensorflow", "keras", "tf_keras"], {"KERAS_BACKEND": "tensorflow"}),
    "jax": (["jax", "keras"], {"KERAS_BACKEND": "jax"}),
}


def job(tests, change=None):
    return json.dumps({"tests": [str(TESTS / test) for test in tests], "change": change})


def verdicts(host, jobs):
    """(exit code of pytest, the end of its output) of each job."""
    frameworks, env = HOSTS[host]
    done = subprocess.run(
        [sys.executable, killing.__file__, *frameworks], input="\n".join(jobs), text=True,
        stdout=subprocess.PIPE, cwd=TESTS.parent, check=True,
        env={**os.environ, **env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def change_of(mutant):
    return mutant.definition, mutant.before, mutant.after


def assert_dead(host, mutants):
    killers = dict.fromkeys(mutant.test for mutant in mutants)
    jobs = [job([mutant.test], change_of(mutant)) for mutant in mutants]
    (code, end), *mutated = verdicts(host, [job(killers), *jobs])
    assert code == 0, f"The package as it is fails:\n{end}"
    survivors = [
        f"{mutant.definition}, {mutant.name}: pytest ended with {code}, not 1:\n{end}"
        for mutant, (code, end) in zip(mutants, mutated, strict=True)
        if code != pytest.ExitCode.TESTS_FAILED
    ]
    assert not survivors, "\n".join(survivors)


@pytest.mark.parametrize("host", MUTANTS)
def test_every_mutant_is_another_program(host):
    broken = []
    for mutant in MUTANTS[host]:
        try:
            killing.edited(*change_of(mutant))
        except (LookupError, ValueError) as error:  # there is nothing to edit
            broken.append(f"{mutant.definition}, {mutant.name}: {error}")
    assert broken == []


def test_a_mutant_of_each_rule_dies():
    first = {mutant.definition: mutant for mutant in reversed(MUTANTS["core"])}
    assert_dead("core", [first[name.lower()] for name in rules.OURS])


@pytest.mark.slow
@pytest.mark.parametrize("host", MUTANTS)
def test_every_mutant_dies(host):
    assert_dead(host, MUTANTS[host])
