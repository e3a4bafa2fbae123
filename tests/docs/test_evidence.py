"""Tables of several pages: their figures are those of the logs."""

import itertools
import math
import re
import statistics

import pytest
from support.pages import ROOT, blocks, number, runs, span, steps_of, table, words

from tf_lamb import recipes

pytestmark = pytest.mark.once
STEPS_SAVED, GROWING, GROWN, RUNS, TRUST_RATIOS = (
    ROOT / "docs" / f"{name}.md"
    for name in ("steps_saved", "growing", "measured_growing", "measured_runs", "trust_ratios")
)


def test_the_accuracies_of_the_lstm_are_those_of_the_log():
    header, *rows = table(STEPS_SAVED, "An LSTM that reads MNIST")
    made, wrong = [run for run in runs("legw") if "rate" in run], {}
    for label, *cells in rows:
        method = re.search(r"`(\w+)`", label)[1]
        for batch, cell in zip(map(number, header[1:]), cells, strict=True):
            if cell == "as LEGW":
                continue
            rate = float(re.search(r"rate (\S+?)\)", cell)[1])
            seeds = [
                run["test"] for run in made
                if (run["method"], run["batch"]) == (method, batch)
                and math.isclose(run["rate"], rate, rel_tol=1e-3)
            ]  # fmt: skip
            expected = f"{statistics.mean(seeds):.2f} ± {statistics.stdev(seeds):.2f}"
            if len(seeds) != 3 or not cell.startswith(expected):
                wrong[label, batch] = cell, expected
    assert wrong == {}


@pytest.mark.parametrize(
    ("heading", "task"),
    [
        ("A convolutional network on Fashion-MNIST", "pictures"),
        ("A BERT on letters", "text"),
        ("A network on flights", "flights"),
    ],
)
def test_the_steps_of_a_table_are_those_of_the_log(heading, task):
    header, *rows = table(STEPS_SAVED, heading)
    small, large = map(number, header[-1].split(" to "))
    wrong = {}
    for label, *cells in rows:
        medians = {}
        for batch, cell in zip(header[1:-1], cells[:-1], strict=True):
            if cell == "-":
                continue
            steps, rate = re.fullmatch(r"([\d,]+)(?: \(([\d.]+)\))?", cell).groups()
            of = {"rival": re.search(r"`(\w+)`", label)[1], "batch": number(batch)}
            of |= {"rate": float(rate)} if rate else {}
            made = steps_of(task, **of)
            median = medians[number(batch)] = statistics.median(made.values())
            if len(made) != 3 or number(steps) != round(median):
                wrong[label, batch] = cell, median
        if cells[-1] != "-" and cells[-1] != f"{medians[small] / medians[large]:.1f}":
            wrong[label] = cells[-1], medians
    assert wrong == {}


def test_what_starts_near_zero_ends_as_the_log_has_it():
    (_, *kinds), *rows = table(TRUST_RATIOS, "Layers that start at or near zero")

    def ended(label, kind):
        made = [run["accuracy"] for run in runs("near_zero", optimizer=label, start=kind)]
        return f"{statistics.mean(made):.3f}"

    assert rows == [[label, *(ended(label, kind) for kind in kinds)] for label, *_ in rows]


def test_the_skipped_steps_of_spikes_are_those_of_the_log():
    bad, rows = 800, table(RUNS, "Spikes")[1:]  # the step, of benchmarks/study/spikes.py
    every = [run for run in runs("spikes") if "case" in run]
    assert {row[0].partition(":")[0] for row in rows} == {run["case"] for run in every}
    assert all(run["steps"] + len(run["skipped"]) == 1000 for run in every)
    found = []
    for label, *_ in rows:
        made = runs("spikes", case=label.partition(":")[0])
        is_bad = "bad batch" in label
        hit = f"{sum(bad in run['skipped'] for run in made)} of {len(made)}"
        others = [len(set(run["skipped"]) - ({bad} if is_bad else set())) for run in made]
        found.append([label, str(len(made)), hit if is_bad else "-", span(others)])
    assert rows == found


# -- a batch that grows ---------------------------------------------------------------------------

STUDENT = 2.132  # 95% of its t, 4 degrees of freedom
NO_DECAY = "no decay"
OPTIMIZERS = ("adamw", "muon", "lamb", "lans")


def test_what_growing_prints_is_what_the_recipe_prints():
    (_, printed), *_ = blocks(GROWING, "")
    recipe = recipes.transfer(64, 64, 0.01, examples=4096, epochs=8)
    assert printed == str(recipes.growing(recipe, largest_batch=1024))


def of_seeds(task, optimizer, batch, arm):
    """The runs of an arm, at the rate that was tuned."""
    of = {"task": task, "optimizer": optimizer, "batch": batch}
    (rate,) = {run["rate"] for run in runs("growing", **of, arm=NO_DECAY)}
    return runs("growing", **of, arm=arm, rate=rate)


def difference(task, optimizer, batch, arm):
    """How much higher the loss is, in %: its mean, half of its interval; and the updates saved."""
    if not (made := of_seeds(task, optimizer, batch, arm)):
        return None
    base = of_seeds(task, optimizer, batch, 1)
    losses = {run["seed"]: run["loss"] for run in base}
    each = [100 * (run["loss"] / losses[run["seed"]] - 1) for run in made]
    assert len(each) == 5
    half = STUDENT * statistics.stdev(each) / math.sqrt(5)
    return statistics.mean(each), half, 100 * (1 - made[0]["updates"] / base[0]["updates"])


def test_the_table_of_growing_is_in_the_log():
    _, *rows = table(GROWN, "Four optimizers on three tasks")
    assert len(rows) == 12
    tasks = {"flights": "flights", "Fashion-MNIST": "pictures", "letters": "text"}
    found = []
    for task, name, batch, *_ in rows:
        of = tasks[task], name.lower(), number(batch)
        each = [difference(*of, arm) for arm in (4, 16, NO_DECAY)]
        found.append([task, name, batch, *(f"{mean:+.2f} ± {half:.2f}" for mean, half, _ in each)])
    assert rows == found


def test_what_is_lost_on_pictures_is_in_the_log():
    keys = list(itertools.product(OPTIMIZERS, (4, 16)))
    lost = {(name, arm): difference("pictures", name, 64, arm) for name, arm in keys}
    means = [[lost[name, arm][0] for name in ("adamw", "muon")] for arm in (4, 16)]
    told = ["{:.1f} and {:.1f}%".format(*each) for each in means]
    assert [each for each in told if each not in words(GROWN)] == []
    decided = {key for key, (mean, half, _) in lost.items() if mean - half > 0}
    assert decided == {(name, arm) for name, arm in keys if name in ("adamw", "muon")}
    assert all(sum(lost[key][:2]) > 0.5 for key in lost)


def test_what_is_lost_on_letters_is_in_the_log():
    keys = itertools.product(OPTIMIZERS, (4, 16, NO_DECAY))
    made = {(name, arm): difference("text", name, 16, arm) for name, arm in keys}
    assert [f"{made['muon', arm][0]:.1f}" for arm in (4, 16)] == ["0.5", "1.0"]
    assert [f"{made['muon', arm][2]:.1f}" for arm in (4, 16)] == ["29.7", "31.5"]
    within = {key for key, (mean, half, _) in made.items() if abs(mean) + half <= 0.5}
    assert within == {("lamb", 4)}
    ends = [run["loss"] for run in of_seeds("text", "adamw", 16, 1)]
    assert f"between {min(ends):.2f} and {max(ends):.2f}" in words(GROWN)
    of_lamb = {arm: of_seeds("text", "lamb", 16, arm) for arm in (1, 4, 16)}
    stay = {arm: sum(f"{run['loss']:.2f}" == "2.88" for run in of_lamb[arm]) for arm in of_lamb}
    assert stay == dict.fromkeys(of_lamb, 3)


def test_what_stays_on_flights_is_in_the_log():
    keys = [("flights", *of) for of in itertools.product(OPTIMIZERS, (64, 256, 1024))]
    grown = {arm: [each for key in keys if (each := difference(*key, arm))] for arm in (4, 16)}
    every = grown[4] + grown[16]
    assert len(every) == 20 and all(abs(mean) + half <= 0.5 for mean, half, _ in every)
    assert max(mean for mean, *_ in every) <= 0.2
    undecayed = [difference(*key, NO_DECAY)[0] for key in keys]
    spans = [undecayed, *([saved for *_, saved in of] for of in grown.values())]
    assert all(f"{span(each, '.1f')}%" in words(GROWN) for each in spans)


def test_every_benchmark_has_its_line():
    """A package has one line for all; every other script says in its docstring how it is run."""
    folder = ROOT / "benchmarks"
    packages = {path.parent for path in folder.glob("*/__init__.py")}
    scripts = [path for path in folder.rglob("*.py") if path.parent not in packages]
    said = set(re.findall(r"\]\((\S+?)\)", (folder / "README.md").read_text()))
    assert said == {f"{path.name}/" for path in packages} | {
        path.relative_to(folder).as_posix() for path in scripts
    }
    silent = []
    for path in scripts:
        code = path.read_text()
        name = f"benchmarks.{path.parent.name}.{path.stem}"
        if f"python -m {name}" not in code and "__main__" in code:
            silent.append(name)
    assert silent == []
