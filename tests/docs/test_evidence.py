"""The page of evidence: its figures are those of the logs, and its scripts go on where they stopped."""

import json
import math
import os
import re
import statistics
import subprocess
import sys

import pytest
from support.pages import ROOT

LOGS = ROOT / "benchmarks" / "logs"
SMALL = {
    "legw": ["legw.py", "--batches=16,64", "--epochs=1", "--units=8", "--seeds=2"],
    "pictures": [
        "steps.py", "--task=pictures", "--batches=8,32", "--target=0.8", "--limit=8000",
        "--seeds=2", "--rivals=lamb,momentum",
    ],
    "text": [
        "steps.py", "--task=text", "--batches=16,32", "--target=2.95", "--limit=4000", "--seeds=1",
        "--rivals=lamb",
    ],
}  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_script_interrupted_goes_on_and_says_the_same(name, tmp_path):
    pytest.importorskip("jax")
    script, *flags = SMALL[name]
    log, picture = tmp_path / "log.jsonl", tmp_path / "picture.png"

    def said():
        return subprocess.run(
            [sys.executable, ROOT / "benchmarks" / script, *flags, "--data=", f"--log={log}",
             f"--draw={picture}"],
            env=os.environ | {"KERAS_BACKEND": "jax", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    first, made = said(), log.read_text().splitlines()
    assert picture.stat().st_size > 10_000
    log.write_text("\n".join(made[:-2]) + "\n")
    assert said() == first
    assert log.read_text().splitlines() == made


def rows(heading):
    """The first table below a heading, as lists of cells."""
    text = (ROOT / "docs" / "evidence.md").read_text().split(f"## {heading}\n")[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (table[0], *table[2:])]
