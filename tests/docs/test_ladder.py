"""The study of updates by batch size: its analysis finds what made-up runs were made from."""

import dataclasses
import functools
import itertools
import json
import math
import re
import sys

import matplotlib
import numpy as np
import pytest
from support.pages import ROOT, number, table, words

sys.path.insert(0, str(ROOT))
from benchmarks.ladder import analysis, climb, hours, report, runs
from benchmarks.ladder.protocol import FROZEN, HASH, Run, batches_of, key, optimizers_of

pytestmark = pytest.mark.once
PAGE = ROOT / "docs" / "protocol_ladder.md"
RESULTS, LOG = ROOT / "docs" / "ladder.md", ROOT / "benchmarks" / "logs" / "ladder.jsonl"
TARGET, TASK = 2.0, "letters"
SEEDS, EVALUATIONS = FROZEN["seeds"], FROZEN["evaluations"]
ALLOWANCE = FROZEN["target_allowance"]
# Shares of a whole run after which the made-up runs come to the target.
SHARES = {"AdamW": 0.8, "LAMB": 0.8, "Muon": 0.4, "SOAP": 0.79, "Muon, floor": math.inf}


def line(optimizer, batch_size, seed, losses, learning_rate=0.01, task=TASK):
    run = Run(task, optimizer, batch_size, batches_of(task)[batch_size], learning_rate, seed)
    return run.line | {"validation": losses[-1], "test_losses": losses, "seconds": 32.0}


def losses_of(share, loss=TARGET):
    """Losses that fall by a straight line, and come to this loss after a share of the run."""
    at = np.linspace(0, 1, EVALUATIONS + 1)
    return [*map(float, loss + 0.5 - 0.5 * at / min(share, 2.0))]


def made_up(shares=SHARES, noise=0.03, baseline=1.0):
    """Lines of all batch sizes, of which the target is `TARGET`."""
    rng = np.random.default_rng(0)
    for optimizer, batch_size in itertools.product(shares, batches_of(TASK)):
        share, loss = shares[optimizer], TARGET
        if optimizer == "AdamW" and batch_size == min(batches_of(TASK)):
            share, loss = baseline, TARGET / (1 + ALLOWANCE)
        for seed in SEEDS:
            # The mean of the losses at the end is the target whatever the noise is.
            own = share if share == baseline else share * math.exp(noise * rng.normal())
            yield line(optimizer, batch_size, seed, losses_of(own, loss))


def comparisons(lines):
    found = analysis.comparisons_of(analysis.cells_of(lines), TASK)
    return {(each.cell.optimizer, each.cell.batch_size): each for each in found}


# -- the protocol ---------------------------------------------------------------------------------


def test_the_page_has_the_frozen_numbers_and_their_hash():
    said = PAGE.read_text()
    assert f"`{HASH}`" in said
    _, *rows = table(PAGE, "What is trained")
    lengths = {row[0]: [number(cell) for cell in row[3:] if cell != "-"] for row in rows}
    assert lengths == {task: [*batches_of(task).values()] for task in FROZEN["updates"]}
    _, *rows = table(PAGE, "The optimizers")
    assert {row[0]: float(row[2]) for row in rows} == {
        name: about["learning_rate"] for name, about in FROZEN["optimizers"].items()
    }


def test_the_page_has_the_estimate_of_the_hours():
    with open(ROOT / hours.LOGGED) as file:
        logged = hours.seconds_of_updates(map(json.loads, file))
    seconds = {
        task: sum(
            hours.seconds_of_cell(logged, task, optimizer, batch_size)
            for optimizer, batch_size in itertools.product(optimizers_of(task), batches_of(task))
        )
        for task in FROZEN["updates"]
    }
    # The log of the other study grows, and a median with it.
    _, *rows = table(PAGE, "How long it takes")
    assert {row[0]: number(row[2]) for row in rows} == pytest.approx(seconds, rel=0.1)
    assert sum(seconds.values()) < 2 * 4 * 3600


def test_a_run_is_divided_by_the_evaluations():
    lengths = [n for task in FROZEN["updates"] for n in batches_of(task).values()]
    assert [n for n in lengths if n % EVALUATIONS] == []


def test_only_a_task_with_heads_has_the_optimizer_with_heads():
    with_heads = [task for task in FROZEN["updates"] if "Muon, heads" in optimizers_of(task)]
    assert with_heads == ["hidden letters"]
    assert {optimizers_of(task)[0] for task in FROZEN["updates"]} == {FROZEN["baseline"]}


def test_the_rehearsal_has_the_keys_of_the_protocol():
    rehearsal = json.loads((ROOT / "benchmarks" / "ladder" / "rehearsal.json").read_text())
    assert rehearsal.keys() == FROZEN.keys()
    for name, about in rehearsal["optimizers"].items():
        assert FROZEN["optimizers"][name]["arguments"] == about["arguments"]


# -- the runs -------------------------------------------------------------------------------------


def climbed(best, optimizer="AdamW"):
    """The runs of a task whose validation loss is least at a rate, by batch size and seed."""
    made = []

    def make(run):
        made.append(run)
        far = abs(math.log2(run.learning_rate / best(run.batch_size)))
        return {"validation": None if far > 3.5 else far}

    climb.Climb(TASK, optimizer, make).all()
    return made


@pytest.mark.parametrize("factor", [0.25, 0.5, 1, 2, 4])
def test_every_search_has_as_many_points_and_finds_the_rate(factor):
    made = climbed(lambda batch_size: factor * 0.004 * math.sqrt(batch_size / 64))
    for batch_size, updates in batches_of(TASK).items():
        own = [run for run in made if run.batch_size == batch_size]
        searched = [run.learning_rate for run in own if run.is_of_search]
        assert len(searched) == len(set(searched)) == FROZEN["search"]["points"]
        scored = [(run.seed, run.learning_rate) for run in own if not run.is_of_search]
        rate = pytest.approx(factor * 0.004 * math.sqrt(batch_size / 64), rel=1e-3)
        assert scored == [(seed, rate) for seed in SEEDS]
        assert {run.updates for run in own} == {updates}


def test_a_search_in_which_every_run_is_lost_goes_down():
    made = climbed(lambda batch_size: 1e-9)
    first = [run.learning_rate for run in made if run.batch_size == 64 and run.is_of_search]
    assert first == sorted(first, reverse=True) == [0.004, 0.002, 0.001, 0.0005, 0.00025]


def test_the_next_search_starts_at_the_root_of_four_times_the_rate():
    made = climbed(lambda batch_size: 0.016)
    started = {}
    for run in made:
        started.setdefault(run.batch_size, run.learning_rate)
    assert started == {64: 0.004, 256: 0.032, 1024: 0.032, 4096: 0.032}


def test_a_run_that_the_log_has_is_not_made_again(tmp_path, monkeypatch):
    path, asked = tmp_path / "log.jsonl", []

    def result_of(run):
        asked.append(run)
        return {"validation": 1.0, "seconds": 1.0}

    monkeypatch.setattr(runs.Runs, "result_of", staticmethod(result_of))
    run = Run(TASK, "AdamW", 64, 4096, 0.004, 0)
    for _ in range(2):
        assert runs.Runs(path, math.inf).make(run)["validation"] == 1.0
    assert asked == [run]
    (logged,) = runs.runs_of(path)
    assert logged["protocol"] == HASH
    assert key(logged) == key(run.line) != key(dataclasses.replace(run, seed=1).line)


def test_no_run_begins_after_the_hours(tmp_path):
    assert runs.one(tmp_path / "log.jsonl", 0.0, TASK, "AdamW") == "the hours were over"


# -- updates to the target ------------------------------------------------------------------------


def test_the_target_is_just_above_the_mean_end_of_the_baseline_at_the_smallest_batch():
    lines = [line("AdamW", 64, seed, losses_of(1.0, TARGET + 0.1 * seed)) for seed in SEEDS]
    others = [line("Muon", 64, seed, losses_of(1.0, 1.0)) for seed in SEEDS]
    larger = [line("AdamW", 256, seed, losses_of(1.0, 1.0)) for seed in SEEDS]
    targets = analysis.targets_of([*lines, *others, *larger])
    assert targets == pytest.approx({TASK: 1.002 * (TARGET + 0.1 * np.mean(SEEDS))})
    assert analysis.targets_of(lines[1:]) == {}
    lost = lines[0] | {"test_losses": [*lines[0]["test_losses"][:-1], None]}
    assert analysis.targets_of([lost, *lines[1:]]) == {}


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.987])
def test_updates_between_two_evaluations_are_interpolated(share):
    made = line("Muon", 64, 1, losses_of(share))
    assert analysis.updates_to(made, TARGET) == pytest.approx(share * 4096)


def test_the_first_time_at_the_target_counts():
    losses = [3.0, 2.5, 1.5, 2.5, 1.0] + [1.0] * (EVALUATIONS - 4)
    made = line("Muon", 4096, 1, losses)
    assert analysis.updates_to(made, TARGET) == 1.5 * 512 / EVALUATIONS
    assert analysis.updates_to(made, 0.9) == math.inf
    lost = made | {"test_losses": [3.0, None, 1.5] + [None] * (EVALUATIONS - 2)}
    assert analysis.updates_to(lost, TARGET) == 2 * 512 / EVALUATIONS


def test_a_cell_has_updates_and_seconds_to_the_target():
    cells = analysis.cells_of(made_up(noise=0.0))
    assert len(cells) == len(SHARES) * len(batches_of(TASK))
    for cell in cells:
        if cell.optimizer == "Muon":
            assert cell.geometric_mean == pytest.approx(0.4 * cell.updates)
            assert cell.seconds_to_target == pytest.approx(0.4 * 32)
        if cell.optimizer == "Muon, floor":
            assert cell.reached == 0 and cell.geometric_mean == pytest.approx(cell.updates)


def test_a_rate_at_the_edge_of_its_search_is_seen():
    searched = [line("Muon", 64, 0, [1.0], rate) | {"seed": 0} for rate in (0.005, 0.01)]
    for each in searched:
        del each["test_losses"]
    cells = {(c.optimizer, c.batch_size): c for c in analysis.cells_of([*searched, *made_up()])}
    assert cells["Muon", 64].is_at_edge
    wider = searched[0] | {"learning_rate": 0.02}
    cells = analysis.cells_of([*searched, wider, *made_up()])
    assert not next(c for c in cells if (c.optimizer, c.batch_size) == ("Muon", 64)).is_at_edge


# -- against the baseline -------------------------------------------------------------------------


def test_what_needs_half_of_the_updates_is_found_and_nothing_else():
    # At the smallest batch the baseline's share is another one.
    found = {own: each for own, each in comparisons(made_up()).items() if own[1] > 64}
    assert {own for own, each in found.items() if each.outcome == "fewer"} == {
        ("Muon", batch_size) for batch_size in (256, 1024, 4096)
    }
    assert {own for own, each in found.items() if each.outcome == "more"} == {
        ("Muon, floor", batch_size) for batch_size in (256, 1024, 4096)
    }
    assert found["Muon", 256].ratio == pytest.approx(0.5, rel=0.1)


def test_p_is_that_of_a_z_test():
    cells = analysis.cells_of(made_up())
    soap, adamw = (
        next(c for c in cells if (c.optimizer, c.batch_size) == (name, 256))
        for name in ("SOAP", "AdamW")
    )
    of_soap, of_adamw = (np.mean(np.log(c.updates_to_target)) for c in (soap, adamw))
    difference = of_soap - of_adamw
    z = abs(difference) / (0.05 * math.sqrt(2 / len(SEEDS)))
    # The tail of a normal distribution, by the trapezoidal rule.
    x = np.linspace(z, z + 12, 200_001)
    tail = np.trapezoid(np.exp(-(x**2) / 2), x) / math.sqrt(2 * math.pi)
    assert analysis.p_value(soap, adamw, 0.05) == pytest.approx(2 * tail, rel=1e-6)
    assert analysis.p_value(adamw, soap, 0.05) == pytest.approx(2 * tail, rel=1e-6)


def test_the_deviation_is_that_of_the_seeds_and_needs_enough_cells():
    shares = {name: 0.5 for name in optimizers_of(TASK)}
    cells = analysis.cells_of(made_up(shares, noise=0.03))
    assert analysis.pooled_deviation(cells) == pytest.approx(0.03, rel=0.25)
    few = cells[: FROZEN["least_cells"] - 1]
    assert math.isnan(analysis.pooled_deviation(few))
    assert analysis.p_value(few[1], few[0], math.nan) == 1.0


def test_of_equal_optimizers_holm_seldom_decides():
    rng, wrong = np.random.default_rng(1), 0
    batches = batches_of(TASK)
    for _ in range(200):
        cells = [
            analysis.Cell(
                TASK, name, batch_size, updates, 0.01, False,
                tuple(0.5 * updates * np.exp(0.03 * rng.normal(size=len(SEEDS)))), 1.0,
            )
            for name, (batch_size, updates) in itertools.product(
                optimizers_of(TASK), batches.items()
            )
        ]  # fmt: skip
        wrong += any(each.is_decided for each in analysis.comparisons_of(cells, TASK))
    assert wrong / 200 < 0.11


@pytest.mark.parametrize(
    ("optimizer", "baseline", "outcome"),
    [
        ((100, 100, 100), (math.inf, math.inf, math.inf), "fewer"),
        ((math.inf, math.inf, math.inf), (100, 100, 100), "more"),
        ((100, 100, math.inf), (math.inf, math.inf, math.inf), "undecided"),
        ((300, 300, 300), (100, 100, math.inf), "undecided"),  # the baseline may need still more
        ((math.inf, 100, 100), (300, 300, 300), "undecided"),
    ],
)
def test_a_bound_supports_one_direction_alone(optimizer, baseline, outcome):
    def cell(name, updates):
        return analysis.Cell(TASK, name, 4096, 512, 0.01, False, updates, 1.0)

    found = analysis.p_value(cell("Muon", optimizer), cell("AdamW", baseline), 0.03)
    assert (found < 1e-6) == (outcome != "undecided")
    assert (found == 1.0) == (outcome == "undecided")


# -- the report -----------------------------------------------------------------------------------


def test_a_table_has_a_row_of_each_optimizer():
    found = report.table(analysis.cells_of(made_up(noise=0.01)), TASK).splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in found[2:]] == optimizers_of(TASK)
    rows = {row.split(" | ")[0].strip("| "): row for row in found}
    assert re.search(r"\*\*8\d\d \(0\.\d\d\), 1\d\.\d s\*\*", rows["Muon"])
    assert "**not reached in 2,048**" in rows["Muon, floor"]
    assert rows["SOAP, floor"].count("| -") == len(batches_of(TASK))


def test_the_summary_says_what_is_decided_of_each_task():
    header, _, *rows = report.summary(analysis.cells_of(made_up())).splitlines()
    assert header == f"| optimizer | {TASK} |"
    texts = dict(re.fullmatch(r"\| (.+) \| (.+) \|", row).groups() for row in rows)
    assert texts.keys() == FROZEN["optimizers"].keys() - {FROZEN["baseline"]}
    assert re.fullmatch(r"fewer at 4 of 4 batches: 0\.\d\d to 0\.\d\d", texts["Muon"])
    assert re.fullmatch(r"more at 3 of 4 batches: 1\.\d\d to 1\.\d\d", texts["Muon, floor"])
    assert texts["SOAP, floor"] == "-"


def test_a_heading_names_the_target_and_the_cells():
    text = report.heading(analysis.cells_of(made_up()), TASK, TARGET)
    count = len(optimizers_of(TASK)) * len(batches_of(TASK))
    assert f"2.0000 nats; {len(SHARES) * len(batches_of(TASK))} of {count} cells" in text


def test_every_optimizer_has_a_line_of_its_own_in_the_figure():
    assert report.STYLES.keys() == FROZEN["optimizers"].keys()
    looks = [(style["color"], style["marker"], style["ls"]) for style in report.STYLES.values()]
    assert len(set(looks)) == len(looks)


def test_the_figure_is_drawn(tmp_path):
    with matplotlib.rc_context():  # the style of the figures would stay for later tests
        report.figure(analysis.cells_of(made_up()), tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 10_000


def test_of_a_run_that_was_made_twice_the_first_counts(tmp_path):
    lines = list(made_up())
    again = lines[0] | {"test_losses": [9.0] * (EVALUATIONS + 1)}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [*lines, again]))
    assert runs.runs_of(path) == lines


def test_a_ratio_is_an_upper_bound_where_the_baseline_misses_the_target():
    found = comparisons(made_up(SHARES | {"AdamW": math.inf}))
    assert found["Muon", 256].ratio_text.startswith("under 0.")
    assert not comparisons(made_up())["Muon", 256].ratio_text.startswith("under")


# -- the page of the results ----------------------------------------------------------------------


@functools.cache
def results():
    """(cells, targets) of the log."""
    lines = runs.runs_of(LOG)
    return analysis.cells_of(lines), analysis.targets_of(lines)


def ratios(optimizer, reference, tasks=tuple(FROZEN["updates"]), *, reached=False):
    """The updates of an optimizer over those of another, in each cell that both have.

    If `reached`, without cells in which a seed ends above the target.
    """
    cells, _ = results()
    means = {
        (c.task, c.optimizer, c.batch_size): c.geometric_mean
        for c in cells
        if c.is_reached or not reached
    }
    return [
        mean / means[task, reference, batch_size]
        for (task, name, batch_size), mean in means.items()
        if name == optimizer and task in tasks and (task, reference, batch_size) in means
    ]


def ratios_of_floors():
    """The updates with a floor of the trust ratio over those without, where all seeds arrive."""
    return [
        ratio for name in ("Muon", "SOAP") for ratio in ratios(f"{name}, floor", name, reached=True)
    ]


def outcome_of(expectation):
    """What came out, in the row of an expectation."""
    return dict(table(RESULTS, "What was expected"))[expectation]


def test_the_log_is_whole():
    cells, _ = results()
    assert len(cells) == sum(
        len(batches_of(task)) * len(optimizers_of(task)) for task in FROZEN["updates"]
    )


def test_the_page_has_the_tables_of_the_log():
    cells, targets = results()
    text, in_one_line = RESULTS.read_text(), words(RESULTS)
    assert report.summary(cells) in text
    for task, target in targets.items():
        assert report.table(cells, task) in text
        assert f"{target:.4f} nats" in in_one_line
    deviation = analysis.pooled_deviation([cell for cell in cells if cell.task == "flights"])
    assert f"over seeds is {deviation:.2f}" in in_one_line
    edges = [f"{c.optimizer} at {c.batch_size:,} ({c.task})" for c in cells if c.is_at_edge]
    assert f"in these cells: {', '.join(edges)}." in in_one_line


def test_the_first_sentence_has_the_ratios_of_the_log():
    for name in ("Muon", "SOAP"):
        of_adamw = ratios(name, "AdamW", ("letters", "pictures", "hidden letters"))
        assert f"{name} needed {min(of_adamw):.2f} to {max(of_adamw):.2f} of" in words(RESULTS)


def test_what_was_expected_is_judged_by_the_log():
    cells, _ = results()
    compared = [c for task in FROZEN["updates"] for c in analysis.comparisons_of(cells, task)]
    muon = ratios("Muon", "AdamW", ["hidden letters"])
    expected = "On hidden letters Muon needs at most half of AdamW's updates at every batch"
    assert outcome_of(expected) == f"No: {min(muon):.2f} to {max(muon):.2f}"
    decided = [c.is_decided for c in compared if c.cell.optimizer == "LAMB"]
    expected = "LAMB is not decided against AdamW in most cells"
    assert outcome_of(expected) == f"Yes: {decided.count(False)} of {len(decided)} are not"
    floors = ratios_of_floors()
    small = [ratio for ratio in floors if abs(ratio - 1) < 0.1]
    expected = "The floor changes Muon's and SOAP's updates by less than a tenth in most cells"
    assert outcome_of(expected).startswith(f"Just: in {len(small)} of the {len(floors)} cells")
    heads = [ratio for ratio in ratios("Muon, heads", "Muon") if abs(ratio - 1) < 0.1]
    expected = "Heads change Muon's updates on hidden letters by less than a tenth"
    assert outcome_of(expected) == f"At {len(heads)} of 3 batches"
    flights = [c.is_decided for c in compared if c.cell.task == "flights"]
    expected = "On flights nothing is decided but a few cells"
    assert outcome_of(expected) == f"Yes: {flights.count(True)} of {len(flights)} are decided"
    first, _, last, *_ = ratios("Muon", "AdamW", ["letters"])
    expected = (
        "From 64 to 1,024 Muon's ratio to AdamW's updates falls on letters and hidden letters"
    )
    rise = f"No: on letters it rises from {first:.2f} to {last:.2f}."
    assert outcome_of(expected).startswith(rise)


def test_what_the_variants_raise_is_in_the_log():
    text, floors = words(RESULTS), ratios_of_floors()
    assert f"in {sum(ratio > 1 for ratio in floors)} of the {len(floors)} cells" in text
    constant = ratios("Muon, constant norm", "Muon", reached=True)
    assert f"in {sum(ratio > 1 for ratio in constant)} of {len(constant)} such cells" in text
    heads = [100 * (ratio - 1) for ratio in ratios("Muon, heads", "Muon")]
    assert f"by {min(heads):.0f} to {max(heads):+.0f}%" in text
