"""The study of cautious decay and KL factors: its two changes, and what it decides."""

import sys

import numpy as np
import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.study import cautious_and_kl as study

pytestmark = pytest.mark.once


def lines_of(excess):
    """Returns made-up runs: `excess(change, task, optimizer)` is what a change adds to the loss."""
    noise = np.random.default_rng(0).normal(0, 1e-3, len(study.SEEDS))
    return [
        {
            "task": task, "optimizer": optimizer, "change": arm, "seed": seed,
            "test": 1 + 0.1 * noise[i] + (noise[-i] + excess(change, task, optimizer)) * bool(arm),
        }
        for change, optimizers in study.CHANGES.items()
        for task in study.TASKS
        for optimizer in optimizers
        for arm in ("", change)
        for i, seed in enumerate(study.SEEDS)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("winners", "enters"),
    [
        ([], False),
        ([("letters", "LAMB"), ("flights", "LAMB")], True),
        ([("letters", "Muon"), ("flights", "Muon")], False),
        ([(task, name) for task in study.TASKS for name in ("Muon", "AdamW")], True),
        ([("letters", "LAMB"), ("flights", "Muon"), ("pictures", "AdamW")], False),
    ],
)
def test_cautious_decay_enters_by_two_tasks_of_lamb_or_of_two_optimizers(winners, enters):
    found = study.comparisons(lines_of(lambda change, *arm: -0.01 if arm in winners else 0.0))
    assert {key[1:] for key, (_, _, gains) in found.items() if gains} == set(winners)
    assert study.verdict(found, "cautious decay") is enters
    assert study.verdict(found, "KL factors") is False


def test_a_change_that_loses_does_not_gain():
    found = study.comparisons(lines_of(lambda *arm: 0.01))
    assert not any(gains for _, _, gains in found.values())


def test_nothing_is_decided_before_the_last_run():
    found = study.comparisons(lines_of(lambda *arm: -0.01)[:-1])
    assert study.verdict(found, "cautious decay") is True
    assert study.verdict(found, "KL factors") is None


def test_kl_factors_are_those_of_the_inverse():
    """With the eigenvectors of a factor as its basis, as numpy.linalg.inv has it."""
    draw = np.random.default_rng(1)
    g = draw.normal(size=(5, 3))
    factors = [(x := draw.normal(size=(n, 2 * n))) @ x.T for n in g.shape]
    bases = [np.linalg.eigh(factor)[1] for factor in factors]
    left, right = study.kl_squares(np, g, *factors, *bases, sides=(0, 1))
    np.testing.assert_allclose(left, g @ np.linalg.inv(factors[1]) @ g.T / 3)
    np.testing.assert_allclose(right, g.T @ np.linalg.inv(factors[0]) @ g / 5)


def test_before_a_factor_is_known_the_plain_product_is_taken():
    g = np.random.default_rng(1).normal(size=(5, 3))
    zeros = [np.zeros((n, n)) for n in g.shape]
    left, right = study.kl_squares(np, g, *zeros, *zeros, sides=(0, 1))
    np.testing.assert_allclose(left, g @ g.T)
    np.testing.assert_allclose(right, g.T @ g)


def test_the_page_has_the_table_of_the_log_and_its_verdict():
    lines = study.runs_of(ROOT / "benchmarks/logs/cautious_and_kl.jsonl", study.PROTOCOL)
    rows, verdicts = study.table(lines).split("\n\n")
    assert rows.strip() in (ROOT / "docs/measured_cautious.md").read_text()
    assert verdicts.count("it stays out") == len(study.CHANGES)
