"""The page of evidence: its figures are those of the logs."""

import math
import re
import statistics

import pytest
from support.pages import ROOT, number, runs, steps_of, table

PAGE = ROOT / "docs" / "evidence.md"


def test_the_accuracies_of_the_lstm_are_those_of_the_log():
    header, *rows = table(PAGE, "An LSTM that reads MNIST")
    made = [run for run in runs("legw") if "rate" in run]
    for label, *cells in rows:
        for batch, cell in zip(map(number, header[1:]), cells, strict=True):
            if cell == "as LEGW":
                continue
            method, rate = (
                re.search(r"`(\w+)`", label)[1],
                float(re.search(r"rate (\S+?)\)", cell)[1]),
            )
            seeds = [
                run["test"] for run in made
                if (run["method"], run["batch"]) == (method, batch)
                and math.isclose(run["rate"], rate, rel_tol=1e-3)
            ]  # fmt: skip
            assert len(seeds) == 3, (label, batch)
            expected = f"{statistics.mean(seeds):.2f} ± {statistics.stdev(seeds):.2f}"
            assert cell.startswith(expected), (label, batch, expected)


@pytest.mark.parametrize(
    ("heading", "task"),
    [
        ("A convolutional network on Fashion-MNIST", "pictures"),
        ("A BERT on letters", "text"),
        ("A network on flights", "flights"),
    ],
)
def test_the_steps_of_a_table_are_those_of_the_log(heading, task):
    header, *rows = table(PAGE, heading)
    small, large = map(number, header[-1].split(" to "))
    for label, *cells in rows:
        medians = {}
        for batch, cell in zip(header[1:-1], cells[:-1], strict=True):
            if cell == "-":
                continue
            steps, rate = re.fullmatch(r"([\d,]+)(?: \(([\d.]+)\))?", cell).groups()
            of = {"rival": re.search(r"`(\w+)`", label)[1], "batch": number(batch)}
            of |= {"rate": float(rate)} if rate else {}
            made = steps_of(task, **of)
            median = statistics.median(made.values())
            assert len(made) == 3 and number(steps) == round(median), (label, batch, median)
            medians[number(batch)] = median
        if cells[-1] != "-":
            assert cells[-1] == f"{medians[small] / medians[large]:.1f}", label


def test_what_starts_near_zero_ends_as_the_log_has_it():
    (_, *kinds), *rows = table(
        PAGE.with_name("trust_ratios.md"), "Layers that start at or near zero"
    )
    for label, *cells in rows:
        for kind, cell in zip(kinds, cells, strict=True):
            made = [run["accuracy"] for run in runs("near_zero", optimizer=label, start=kind)]
            assert cell == f"{statistics.mean(made):.3f}", (label, kind)
