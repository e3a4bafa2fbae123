"""The registered experiment: its page has the frozen numbers, its statistics are what they say."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.pages import LOGS, ROOT, number, table

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence import arms, experiment, protocol, report, statistics
from benchmarks.equivalence.runs import Runs
from benchmarks.equivalence.workloads import Workload

pytestmark = pytest.mark.once
PAGE = ROOT / "docs" / "protocol.md"
SEED = 0


def workload(base=8, examples=1024):
    return Workload("", (), None, None, base, examples, "loss", 0.005, 3, 2)


def test_the_page_has_the_frozen_numbers():
    _, *rows = table(PAGE, "What is trained")
    frozen = {name: each for name, each in protocol.FROZEN["workloads"].items() if name != "digits"}
    assert {row[0]: (number(row[3]), number(row[4])) for row in rows} == {
        name: (each["base"], each["examples"]) for name, each in frozen.items()
    }
    said = PAGE.read_text()
    assert all(f"`{arm}`" in said for arm in protocol.FROZEN["arms"])


def test_the_points_lie_in_the_box_and_fill_it():
    box, points = protocol.FROZEN["search"], protocol.points()
    rates = np.log10([point.rate for point in points])
    low, high = box["log10_rate"]
    # A Sobol sequence has one point in each sixteenth of every axis.
    assert sorted(((rates - low) / (high - low) * 16).astype(int)) == list(range(16))
    assert sum(point.weight_decay == 0 for point in points) == 4
    assert all(point.warmup in box["warmup"] for point in points)
    assert all(0.7 <= point.beta_1 <= 0.98 for point in points)


def test_the_bound_is_that_of_a_paired_t_test():
    from scipy import stats

    rng = np.random.default_rng(SEED)
    base, scores = rng.normal(0.5, 0.01, 8), rng.normal(0.501, 0.01, 8)
    mean, bound, p = statistics.worse_by(scores, base, 0.02)
    test = stats.ttest_rel(scores - 0.02, base, alternative="less")
    assert (mean, p) == pytest.approx((np.mean(scores - base), test.pvalue))
    at_bound = stats.ttest_rel(scores - bound, base, alternative="less")
    assert at_bound.pvalue == pytest.approx(0.05)
    assert statistics.worse_by([*scores[1:], math.inf], base, 0.02)[2] == 1.0  # a lost run


def test_holm_stops_at_the_first_that_is_not_rejected():
    assert statistics.holm([0.01, 0.02, 0.03]) == [True, True, True]
    assert statistics.holm([0.04, 0.012, 0.03]) == [False, True, False]
    assert statistics.holm([0.5, 0.06, 0.02]) == [False, False, False]


def test_a_run_that_does_not_arrive_saves_nothing():
    assert statistics.saving([10.0] * 4, [80.0] * 4) == (8.0, 8.0, 8.0)
    median, low, high = statistics.saving([10, 20, math.inf], [80] * 3)
    assert (median, low, high) == (4.0, 0.0, 8.0)


@pytest.mark.filterwarnings("ignore:LEGW. warmup takes")
def test_the_arms_are_what_the_page_says():
    settings = protocol.Settings(0.01, 0.9, 0.1, 0.01, None)
    _, unchanged = arms.arm("unchanged adamw", workload(), settings, 8, 1)
    moved, transfer = arms.arm("transfer lamb", workload(), settings, 8, 2)
    assert (unchanged.learning_rate, unchanged.train_steps) == (0.01, 16)
    assert transfer.learning_rate == moved.rate == pytest.approx(0.01 * math.sqrt(8))
    assert transfer.train_steps == 32 and moved.beta_2 == pytest.approx(0.999**8)
    assert arms.arm("legw lamb", workload(), settings, 8, 1)[1].warmup_steps == 13
    with pytest.raises(ValueError, match="warmup is longer than training"):
        arms.arm("legw lamb", workload(), settings, 16, 1)
    assert arms.arm("growing adamw", workload(), settings, 8, 1)[1].stages[-1].batch_size == 32


def decided(name):
    """What a log decides of the arms that it has; a run that is missing fails the test."""
    log = Runs(str(LOGS / f"equivalence_{name}.jsonl"), 1, SimpleNamespace(total=0))
    log._made = lambda groups: [pytest.fail(f"the log has no run of {each[0]}") for each in groups]
    begun = {line["arm"] for line in log.known.values()}
    arms = {arm: spec for arm, spec in protocol.FROZEN["arms"].items() if arm in begun}
    found = experiment.compare(log, name, protocol.FROZEN["optimizers"], arms)
    experiment.reference(log, name, protocol.FROZEN["optimizers"], found)
    return found


def test_the_page_has_what_the_log_decides():
    made = report.table("flights", decided("flights")).splitlines()
    assert "\n".join(made) in (ROOT / "docs" / "evidence.md").read_text()


_SMALL = """
import sys
from benchmarks.equivalence import protocol, __main__ as main
protocol.FROZEN["search"]["points"], protocol.FROZEN["ratios"][:] = 2, [8]
protocol.FROZEN["horizons"][:], protocol.FROZEN["looks"] = [1], 4
main.define()
main.app.run(main.main)
"""


@pytest.mark.slow
def test_it_goes_on_where_it_was_interrupted_and_says_the_same(tmp_path):
    pytest.importorskip("jax")
    log = tmp_path / "log.jsonl"

    def said():
        return subprocess.run(
            [sys.executable, "-c", _SMALL, "--workload=digits", "--processes=1",
             "--optimizer=keras.optimizers:AdamW", f"--log={log}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
            env=os.environ | {"KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)},
        ).stdout  # fmt: skip

    first, made = said(), log.read_text().splitlines()
    assert "| `transfer keras.optimizers:AdamW` | 3 |" in first
    assert all(protocol.HASH in line for line in made[1:])
    log.write_text("\n".join(made[: len(made) // 2]) + "\n")
    assert said() == first
    assert sorted(log.read_text().splitlines()) == sorted(made)
