"""The suite kills mutants: of each slip in `support/mutants.py`, the tests named there must fail.

A mutant is the package with one passage of one file changed. It is imported by a process of its
own, forked from one that has loaded the frameworks (`support/killing.py`), and dies if pytest runs
and says that a test failed: exit code 1, and not one of an error in collecting, or of no test.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from support import killing
from support.mutants import MUTANTS

import tf_lamb

PACKAGE = pathlib.Path(tf_lamb.__file__).parent
TESTS = pathlib.Path(__file__).parent
# What the process loads, and its environment.
HOSTS = {
    "core": (["numpy"], {}),
    "tensorflow": (["tensorflow", "keras", "tf_keras"], {}),
    "jax": (["jax", "keras"], {"KERAS_BACKEND": "jax"}),
}


def job(tests, file="", before="", after=""):
    change = {"file": str(PACKAGE / file), "before": before, "after": after} if file else {}
    return json.dumps({"tests": [str(TESTS / test) for test in tests], **change})


def verdicts(host, jobs):
    """(exit code of pytest, the end of its output) of each job."""
    frameworks, env = HOSTS[host]
    done = subprocess.run(
        [sys.executable, killing.__file__, *frameworks], input="\n".join(jobs), text=True,
        stdout=subprocess.PIPE, cwd=TESTS.parent, check=True,
        env={**os.environ, **env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_slip_is_of_a_passage_that_is_there_once():
    mutants = [mutant for table in MUTANTS.values() for mutant in table]
    for mutant in mutants:
        assert (PACKAGE / mutant.file).read_text().count(mutant.before) == 1, mutant
        assert mutant.before != mutant.after, mutant


@pytest.mark.parametrize(
    "host", ["core", "tensorflow", pytest.param("jax", marks=pytest.mark.slow)]
)
def test_every_mutant_dies(host):
    mutants = MUTANTS[host]
    killers = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    jobs = [job(mutant.tests, mutant.file, mutant.before, mutant.after) for mutant in mutants]
    (code, end), *mutated = verdicts(host, [job(killers), *jobs])
    assert code == 0, f"The package as it is fails:\n{end}"
    survivors = [
        f"{mutant.file}, {mutant.name}: pytest ended with {code}, not 1:\n{end}"
        for mutant, (code, end) in zip(mutants, mutated, strict=True)
        if code != pytest.ExitCode.TESTS_FAILED
    ]
    assert not survivors, "\n".join(survivors)
