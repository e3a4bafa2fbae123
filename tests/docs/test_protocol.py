"""The registered experiment: its page has the frozen numbers, its statistics are what they say."""

import functools
import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import pages
from support.pages import LOGS, ROOT, number, runs, span, table

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence import (
    again,
    against,
    arms,
    experiment,
    protocol,
    report,
    statistics,
    warmups,
)  # fmt: skip
from benchmarks.equivalence.runs import Runs
from benchmarks.equivalence.workloads import Workload

pytestmark = pytest.mark.once
PAGE, RESULTS = (ROOT / "docs" / f"{name}.md" for name in ("protocol", "results"))
SEED = 0


@functools.cache
def words(page):
    return pages.words(ROOT / "docs" / f"{page}.md")


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


def test_a_profile_counts_where_an_arm_is_near_the_best():
    def rows(**saved):
        return [{"arm": arm, "ratio": ratio, "saved": (best, 0, 0)} for arm, each in saved.items()
                for ratio, best in zip((8, 32), each, strict=True)]  # fmt: skip

    of = {"one": rows(a=(8, 0), b=(4, 0)), "two": rows(a=(0, 10), b=(6, 8))}
    _, _, a, b = [line.split(" | ")[1:] for line in report.profile(of).splitlines()]
    assert a == ["2 of 3"] * 4 + ["2 of 3 |"]  # nothing arrives in the fourth place
    assert b == ["1 of 3", "2 of 3", "2 of 3", "3 of 3", "3 of 3 |"]


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


@pytest.mark.parametrize("side", [28, 7])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_convolution_in_slices_is_that_of_keras(side, size, stride):
    keras = pytest.importorskip("keras")
    from benchmarks import sliced

    layer = sliced.Conv2D(4, size, strides=stride, padding="same")
    x = np.random.default_rng(SEED).normal(size=(2, side, side, 3)).astype("float32")
    kernel = np.random.default_rng(SEED).normal(size=(size, size, 3, 4)).astype("float32")
    found = layer.convolution_op(keras.ops.convert_to_tensor(x), kernel)
    wanted = keras.ops.conv(x, kernel, strides=stride, padding="same")
    np.testing.assert_allclose(found, wanted, atol=1e-5)


# What was tuned; of it, what again at each batch (None: all); whether the base was run longer.
HOW = {
    "flights": {}, "diamonds": {}, "perceptron": {"longer": False},
    "letters": {"specs": ("adamw", "lamb"), "again": (), "longer": False},
    "fashion": {"specs": ("adamw", "lamb", "muon"), "longer": False},
}  # fmt: skip


@functools.cache
def decided(name):
    """What a log decides of the arms that it has; a run that is missing fails the test."""
    how = {
        "specs": tuple(protocol.FROZEN["optimizers"]),
        "again": None,
        "longer": True,
        **HOW[name],
    }
    log = Runs(str(LOGS / f"equivalence_{name}.jsonl"), 1, SimpleNamespace(total=0))
    log._made = lambda groups: [pytest.fail(f"the log has no run of {each[0]}") for each in groups]
    made = {(line["arm"], line["ratio"]) for line in log.known.values()}
    arms = {
        arm: of for arm, of in protocol.FROZEN["arms"].items()
        if of in how["specs"]
        and made.issuperset((arm, ratio) for ratio in protocol.FROZEN["ratios"])
    }  # fmt: skip
    found = experiment.compare(log, name, how["specs"], arms, how["longer"])
    again = how["specs"] if how["again"] is None else how["again"]
    experiment.reference(log, name, again, found, how["longer"])
    return found


def rows_of(name):
    """By arm and ratio."""
    return {(row["arm"], row["ratio"]): row for row in report.rows(name, decided(name))}


@pytest.mark.parametrize("name", HOW)
def test_the_page_has_what_the_log_decides(name):
    assert report.table(name, decided(name)) in RESULTS.read_text()


def of_fresh_seeds(name, spec, ratio):
    """The test scores of what was tuned, but for that of the seed that it was tuned on."""
    lines = runs(f"equivalence_{name}", arm=f"tuned {spec}", ratio=ratio)
    return [line["test"] for line in lines if line["seed"]]


def test_the_page_says_of_the_perceptron_what_is_in_its_log():
    rows = rows_of("perceptron")
    upto = {arm: report.largest(of_arm(arm, rows)) for arm, _ in rows}
    far = {arm for arm, ratio in upto.items() if ratio == 32}
    assert far == {"find_rate lamb", "autowarmup lamb"}
    assert {arm for arm, ratio in upto.items() if ratio == 8} == {"unchanged adamw", "tuned lamb"}
    assert max(row["worse"] for row in of_arm("growing adamw", rows)) < 0.00105
    at_128 = {arm: row["worse"] for (arm, ratio), row in rows.items() if ratio == 128}
    constant = sorted(at_128.keys() - {"growing adamw"}, key=at_128.get)
    assert constant[:2] == ["tuned lamb", "tuned muon"]

    tests = against.scores(runs("equivalence_perceptron"))
    base, said = tests["tuned adamw", 1], words("results")
    for arm in ("find_rate muon", "transfer muon"):
        mean, bound, _ = statistics.worse_by(tests[arm, 8], base, 0.003)
        assert f"{100 * mean:.1f}" == "0.3" and bound > 0.003
    ada = [statistics.worse_by(tests["adascale momentum", k], base, 0.003) for k in (8, 32)]
    told = [f"{100 * mean:+.2f} ({100 * bound:+.2f})" for mean, bound, _ in ada]
    times = [ratio * rows["adascale momentum", ratio]["updates"] / 23_936 for ratio in (8, 32)]
    assert (
        f"for {times[0]:.1f} and {times[1]:.1f} times the examples: {' and '.join(told)}." in said
    )
    assert statistics.holm([*(p for *_, p in ada), 1.0]) == [True, True, False]
    fewer = 100 * (np.mean(base) - np.mean(tests["tuned momentum", 1]))
    assert f"its base, makes {fewer:.2f} points fewer errors than that AdamW" in said


def test_the_page_says_of_letters_what_is_in_its_log():
    rows, said = rows_of("letters"), words("results")
    assert {cell for cell, row in rows.items() if row["holds"]} == {("find_rate muon", 8)}
    grown = of_arm("growing adamw", rows)
    margin = grown[0]["margin"]
    assert f"of a margin of {1000 * margin:.1f}" in said
    above = span((1000 * row["worse"] for row in grown), ".0f")
    fewer = span((row["updates"] for row in grown), ",.0f")
    assert f"{above} thousandths above, in {fewer} of {grown[0]['whole']:,} updates" in said
    higher = span((100 * row["worse"] / (margin / 0.005) for row in grown), ".1f")
    assert f"ends {higher}% higher" in words("growing")

    muon, lamb, tuned, adamw, base = (
        of_fresh_seeds("letters", spec, ratio)
        for spec, ratio in (("muon", 8), ("lamb", 8), ("adamw", 1), ("adamw", 8), ("lamb", 1))
    )
    assert (
        f"Muon ends at {span(muon, '.2f')} and LAMB at {span(lamb, '.2f')}**, both below the AdamW "
        f"that was tuned at 16, at {span(tuned, '.2f')}. AdamW ends at {span(adamw, '.2f')} there. "
        f"LAMB's own base ends at {span(base, '.2f')}"
    ) in said
    searched = {ratio: decided("letters")["find_rate muon", ratio][0] for ratio in (8, 32)}
    ends = [[line["test"] for line in lines] for lines in searched.values()]
    shares = [
        100 * line["search"] / protocol.FROZEN["workloads"]["letters"]["examples"]
        for lines in searched.values() for line in lines
    ]  # fmt: skip
    at_8, at_32 = (span(each, ".2f") for each in ends)
    assert f"it ends at {at_8}, far below" in said
    assert f"for {min(shares):.0f}% of the examples" in said
    assert f"too, at {at_32}, for {max(shares):.0f}%" in said
    assert max(ends[1]) < min(tuned)
    below = [np.mean(tuned) - np.mean(each) for each in ends]
    assert all(f"ended {below[0]:.2f} nats below" in words(of) for of in ("evidence", "should_i"))
    assert f"it ended {below[1]:.2f} nats below" in words("should_i")
    tried = runs("equivalence_letters", arm="tuned adamw", ratio=1, seed=0)
    stuck = sum(line["valid"][-1] > 2.8 for line in tried)
    assert f"Of the {len(tried)} points of AdamW at 16, {stuck} do not leave" in said
    assert statistics.worse_by(lamb, base, 0.005 * np.mean(base))[2] > 0.05


def test_the_page_says_of_fashion_what_is_in_its_log():
    found, rows = decided("fashion"), rows_of("fashion")
    upto = {arm: report.largest(of_arm(arm, rows)) for arm, _ in rows}
    assert {arm for arm in upto if arm.startswith("transfer")} <= {
        a for a, k in upto.items() if k > 1
    }
    assert upto["transfer lamb"] == 32
    assert {upto[arm] for arm in upto if arm.startswith("tuned")} == {1}
    said = words("results")
    unchanged = [100 * rows["unchanged adamw", ratio]["worse"] for ratio in (8, 32)]
    assert "AdamW loses {:.2f} and {:.2f} points at 8 and 32 times".format(*unchanged) in said
    searched = found["find_rate muon", 8][0] + found["find_rate muon", 32][0]
    of = protocol.FROZEN["workloads"]["fashion"]["examples"]
    shares = [100 * line["search"] / of for line in searched]
    assert f"for {span(shares, '.0f')}% of the examples" in said
    more = 100 * rows["find_rate muon", 8]["worse"]
    assert all(f"{more:.1f} points more" in words(page) for page in ("evidence", "should_i"))
    assert upto["find_rate muon"] == 1 and rows["find_rate muon", 128]["refused"] == 8
    grown = of_arm("growing adamw", rows)
    ends = [100 * row["worse"] for row in grown]
    assert f"{span(ends, '.2f')} points above at every ratio" in said
    assert f"in {span((row['updates'] for row in grown), ',.0f')} of 23,936 updates" in said
    assert max(row["bound"] for row in grown) < 0.003
    final = {
        cell: np.mean([line["valid"][-1] for line in found[cell][0]])
        for cell in [("tuned adamw", 1), *(("growing adamw", k) for k in protocol.FROZEN["ratios"])]
    }
    higher = [100 * (loss / final["tuned adamw", 1] - 1) for loss in final.values()][1:]
    said_of_loss = f"held-out loss ends {span(higher, '.0f')}% higher"
    growing = words("growing")
    assert said_of_loss in said and said_of_loss in growing
    own = 100 * np.mean([line["test"] for line in found["tuned adamw", 1][0]])
    assert f"within {max(ends):.1f} points of {own:.1f}%" in growing
    base = [line["test"] for line in found["tuned adamw", 1][0]]
    moved = ([line["test"] for line in found["transfer muon", ratio][0]] for ratio in (8, 32))
    (mean, high), (then, most) = (
        100 * np.array(statistics.worse_by(own, base, 0.003)[:2]) for own in moved
    )
    assert f"{-mean:.2f} ({-high:.2f}) points fewer at 8 times" in said
    assert f"at 32 times {then:+.2f} ({most:+.2f})" in said
    assert f"made {-mean:.2f} points fewer errors" in words("evidence")


def test_the_pages_have_what_autowarmup_did_on_fashion():
    now, before = (
        [100 * line["test"] for line in runs(log, arm="autowarmup lamb", ratio=8)]
        for log in ("equivalence_fashion", "equivalence_fashion_before")
    )
    assert [len(now), len(before), sum(error == 90 for error in before)] == [8, 8, 2]
    base = 100 * np.mean(of_fresh_seeds("fashion", "adamw", 1))
    said = f"{span(now, '.1f')}% errors"
    page = words("automatic_warmup")
    assert f"make {said}, where the AdamW that was tuned at 64 makes {base:.1f}." in page
    assert f"at 8 times eight seeds make {said}. Before" in words("results")


# Besides what is tuned again at the large batch.
HOLD = {"growing adamw", "find_rate muon", "adascale momentum"}


def of_arm(arm, rows):
    return [row for (name, _), row in rows.items() if name == arm]


def holding_beyond(rows):
    """The arms that hold somewhere beyond 8 times."""
    return {arm for (arm, ratio), row in rows.items() if ratio > 8 and row["holds"]}


def apart_from_transfer(name, rows):
    """How much higher `find_rate` ends than `transfer` of the same optimizer, in thousandths."""

    def mean(arm):
        seeds = range(1, rows["find_rate muon", 8]["n"] + 1)
        lines = runs(f"equivalence_{name}", arm=arm, ratio=8, horizon=1)
        return np.mean([line["test"] for line in lines if line["seed"] in seeds])

    return {
        spec: 1000 * (mean(f"find_rate {spec}") - mean(f"transfer {spec}"))
        for spec in ("lamb", "muon")
    }


def test_the_page_says_of_the_log_what_is_in_it():
    page, evidence, advice = map(words, ("results", "evidence", "should_i"))
    rows = rows_of("flights")
    muon, adamw = rows["tuned muon", 32], rows["tuned adamw", 8]
    fewer = muon["saved"][0]
    assert f"ended {1000 * muon['worse']:.1f} thousandths of a nat higher" in evidence
    assert (
        f"in {fewer:.0f} times fewer updates, for {32 / fewer:.1f} times the examples" in evidence
    )
    lost = [1000 * rows[f"transfer {spec}", 8]["worse"] for spec in ("adamw", "lamb", "muon")]
    assert "It lost {:.1f}, {:.1f} and {:.1f}, of a margin of 2.5".format(*lost) in page
    assert {f"{1000 * row['margin']:.1f}" for row in rows.values()} == {"2.5"}
    untuned = [arm for arm, _ in rows if arm.split()[0] in ("unchanged", "transfer", "legw")]
    lost = {f"{1000 * rows[arm, 8]['worse']:.0f}" for arm in untuned}
    assert f"lost {min(lost)} to {max(lost)} thousandths of a nat" in advice
    updates = [rows["growing adamw", ratio]["updates"] for ratio in (32, 8)]
    assert "takes {:,.0f} to {:,.0f} of 4,608 updates".format(*updates) in page
    assert f"tuned again takes {adamw['saved'][0]:.1f} times fewer updates at 8 times" in page
    muon, lamb = (1000 * rows[f"find_rate {spec}", 8]["worse"] for spec in ("muon", "lamb"))
    assert f"Muon** ends {muon:.1f} above the base of AdamW, with LAMB {lamb:.1f}" in page
    assert f"no run, and ends {1000 * rows['autowarmup lamb', 8]['worse']:.0f} above" in page
    ada, more = rows["adascale momentum", 8], rows["adascale momentum", 32]["saved"][0]
    below, times = -1000 * ada["worse"], 8 * ada["updates"] / ada["whole"]
    assert f"AdaScale** ends {below:.1f} below its base, for {times:.1f} times the exa" in page
    assert f"reaches the loss of its base in {more:.0f} times fewer updates" in page
    assert {row["lost"] for row in of_arm("autowarmup lamb", rows)} == {0}
    apart = apart_from_transfer("flights", rows)
    assert max(apart.values()) < 2.5 and "`find_rate` ends within the margin of `transfer`" in page
    held = {arm for arm, ratio in rows if ratio == 8 and rows[arm, ratio]["holds"]}
    assert held == {"tuned adamw", "tuned lamb", "tuned muon", *HOLD}
    assert holding_beyond(rows) == {"growing adamw"}


def test_the_searches_cost_what_the_page_says():
    shares = [
        100 * line["search"] / protocol.FROZEN["workloads"][name]["examples"]
        for name in ("flights", "diamonds")
        for spec in ("muon", "lamb")
        for line in runs(f"equivalence_{name}", arm=f"find_rate {spec}", horizon=1)
        if "search" in line
    ]
    assert len(shares) == 48
    share = f"for {span(shares, '.0f')}% of the examples"
    assert share in words("results")
    assert all(f"{share} of a run" in words(page) for page in ("evidence", "should_i"))
    rows = [rows_of(name)["adascale momentum", 8] for name in ("flights", "diamonds")]
    said = (
        f"for {span((8 * row['updates'] / row['whole'] for row in rows), '.1f')} times the examples"
    )
    assert said in words("results") and said in words("should_i")


def test_the_pages_say_of_diamonds_what_is_in_its_log():
    page, evidence, advice = map(words, ("results", "evidence", "should_i"))
    rows = rows_of("diamonds")
    lost = {arm: 1000 * rows[arm, 8]["worse"] for arm, _ in rows}
    assert {f"{1000 * row['margin']:.1f}"[:3] for row in rows.values()} <= {"2.4", "2.5"}
    updates = [rows["growing adamw", ratio]["updates"] for ratio in (32, 8)]
    assert "takes {:,.0f} to {:,.0f} of 12,544 updates".format(*updates) in page
    transfer, unchanged = lost["transfer adamw"], lost["unchanged adamw"]
    assert f"loses {transfer:.1f}, where an unchanged AdamW loses {unchanged:.1f}" in page
    assert f"points tuned again, which lose {lost['tuned adamw']:.1f}" in page
    assert f"LAMB loses {lost['transfer lamb']:.1f} by `transfer`" in page
    assert f"and {lost['legw lamb']:.1f} by LEGW" in page
    assert f"Muon's rate times √k loses {lost['transfer muon']:.1f}" in page
    assert [round(rows["transfer adamw", ratio]["saved"][0]) for ratio in (8, 32)] == [8, 16]
    assert f"on diamonds it ended {1000 * rows['tuned muon', 32]['worse']:.1f} higher" in evidence
    assert f"Else {transfer:.0f} (AdamW by `transfer`) to {unchanged:.0f} (AdamW unch" in advice
    muon, beyond, lamb = (
        1000 * rows[f"find_rate {spec}", ratio]["worse"]
        for spec, ratio in (("muon", 8), ("muon", 32), ("lamb", 8))
    )
    assert f"Muon** ends {-muon:.1f} below the base of AdamW at 8 times, and {beyond:.1f} a" in page
    assert f"at 32; with LAMB {lamb:.1f} above it at 8 times" in page
    ada = rows["adascale momentum", 8]
    below, times = -1000 * ada["worse"], 8 * ada["updates"] / ada["whole"]
    assert f"AdaScale** ends {below:.1f} below its base, for {times:.1f} times the exa" in page
    assert {row["lost"] for row in of_arm("autowarmup lamb", rows)} == {0}
    automatic = 1000 * rows["autowarmup lamb", 8]["worse"]
    assert f"it loses none, and ends {automatic:.1f} above" in page
    apart = apart_from_transfer("diamonds", rows)
    assert f"It ends {apart['lamb']:.1f} higher with LAMB and {apart['muon']:.1f} with Muon" in page
    assert {arm for arm, ratio in rows if rows[arm, ratio]["holds"]} == {"tuned muon", *HOLD}
    assert holding_beyond(rows) == {"growing adamw"}


def test_the_cells_that_were_run_again_are_on_the_page():
    cells = again.drawn(lambda name: runs(f"equivalence_{name}"))
    _, *shown = table(RESULTS, "Run again")
    for ((name, arm, ratio), lines), row in zip(cells.items(), shown, strict=True):
        low, high = again.interval([line["test"] for line in lines])
        made = runs("equivalence_again", workload=name, arm=arm, ratio=ratio)
        assert {line["seed"] for line in made} == {line["seed"] + len(lines) for line in lines}
        mean = np.mean([line["test"] for line in made])
        assert row == [name, f"`{arm}`", str(ratio), f"{low:.4f} to {high:.4f}", f"{mean:.4f}"]
        assert low < mean < high


def test_the_tables_of_warmups_are_in_the_log():
    columns = [(spec, ratio) for ratio in (8, 32) for spec in warmups.SPECS]
    _, registered, *flights = table(RESULTS, "Why `transfer` lost on flights")
    after = RESULTS.read_text().split("Diamonds, which had no part in that choice")[1]
    diamonds = [row.strip("| ").split(" | ") for row in re.findall(r"^\|.+", after, re.MULTILINE)]
    nats = {}
    for workload, shown in ("flights", flights), ("diamonds", diamonds[2:]):
        bases = against.scores(runs(f"equivalence_{workload}"))
        lost = {
            (line["power"], line["warmup"], line["spec"], line["ratio"]):
            1000 * (np.mean(line["test"]) - np.mean(bases[f"tuned {line['spec']}", 1]))
            for line in runs("equivalence_warmups", workload=workload)
        }  # fmt: skip
        nats[workload] = [
            span((lost[0.5, 0.1, spec, ratio] / 1000 for spec in warmups.SPECS), ".3f")
            for ratio in warmups.RATIOS
        ]
        varied = [(power, each) for power in warmups.POWERS for each in warmups.WARMUPS[workload]]
        assert [row[1:] for row in shown] == [
            [f"{lost[(*each, *column)]:+.1f}" for column in columns] for each in varied
        ]
    (at_8, at_32), (diamonds_at_8, diamonds_at_32) = nats.values()
    assert (
        f"at k = 8: {at_8} nats lost (flights), {diamonds_at_8} (diamonds); at 32: {at_32}, "
        f"{diamonds_at_32} (" in words("choosing_a_batch")
    )
    made = [rows_of("flights").get((f"transfer {spec}", ratio)) for spec, ratio in columns]
    assert registered[1:] == [f"{1000 * row['worse']:+.1f}" if row else "not run" for row in made]


def test_the_table_of_recipes_has_what_they_lost_at_8_times():
    lost = {}
    for name in ("flights", "diamonds", "perceptron", "letters"):
        found = against.scores(runs(f"equivalence_{name}"))
        for (arm, ratio), scores in found.items():
            if ratio == 8 and arm.split()[0] in ("transfer", "legw"):
                base = found[f"tuned {arm.split()[1]}", 1]
                lost[name, arm] = np.subtract(scores, base).mean()

    def between(name, form, times=1.0):
        every = (times * x for (of, arm), x in lost.items() if of == name and "transfer" in arm)
        return span(every, form)

    said = words("choosing_a_batch")
    assert f"{between('perceptron', '.1f', 100)} points on a perceptron" in said
    assert f"{between('letters', '.2f')} nats on letters" in said
    legw = [lost[name, "legw lamb"] for name in ("flights", "diamonds", "letters", "perceptron")]
    assert (
        "{:.3f} and {:.3f} nats (flights, diamonds), {:.2f} nats (letters), {:.1f} points (per"
    ).format(*legw[:3], 100 * legw[3]) in said


def test_the_page_has_the_losses_and_the_milliseconds_of_soap():
    times = {line["batch"]: line["ms"] for line in runs("equivalence_seconds", workload="flights")}
    _, *shown = table(RESULTS, "SOAP and its kin")
    specs = [row[0].split("(`")[1].removesuffix("`)") for row in shown]
    assert {*specs, "momentum"} == set(times[64])
    for spec, row in zip(specs, shown, strict=True):
        found = runs("equivalence_flights", arm=f"tuned {spec}", horizon=1)
        losses = [
            np.mean([line["test"] for line in found if line["seed"] and line["ratio"] == ratio])
            for ratio in (1, 8, 32, 128)
        ]
        least = [min(times[batch][spec]) for batch in (64, 2048)]
        assert row[1:] == [*(f"{x:.4f}" for x in losses), *(f"{x:.2f}" for x in least)]


def test_the_pages_say_on_how_many_tasks_a_way_keeps_the_result():
    shown = against.kept({name: runs(f"equivalence_{name}") for name in against.IN_ALL})
    assert shown in RESULTS.read_text()
    rows = shown.splitlines()
    readme = (ROOT / "README.md").read_text()
    short = re.findall(r"^\| (?:Muon|SOAP|AdamW), .+$", readme, re.MULTILINE)
    assert len(short) == 6 and set(short) <= set(rows)
    cells = {way: own for way, *own in (row.strip("| ").split(" | ") for row in rows[2:])}
    say = {"1": "one", "2": "two", "3": "three", "4": "four", "5": "five"}
    muon, searched, adamw = (
        " ".join(say.get(word, word) for word in cells[f"{way}`"][0].split())
        for way in ("Muon, by `transfer", "Muon, by `find_rate", "AdamW, by `transfer")
    )
    said = words("evidence")
    assert f"Muon by `transfer` on {muon} at 8 times, by `find_rate` on {searched}; " in said
    assert f"AdamW by `transfer` on {adamw}." in said
    kept_at_128 = {way for way, own in cells.items() if own[2][0] in "12345"}
    assert kept_at_128 == {"AdamW, a batch that grows"}


def lost_in(cell):
    """The number at the front of a cell."""
    return float(cell.split()[0].strip("*"))


def test_the_page_has_what_is_lost_against_the_tuned_adamw():
    lines = {name: runs(f"equivalence_{name}") for name in against.WORKLOADS}
    shown = against.table(lines)
    assert shown in RESULTS.read_text()
    rows = (row.strip("| ").split(" | ") for row in shown.splitlines())
    cells = {label: each for label, *each in rows}
    held = {label: ["**" in cell for cell in each] for label, each in cells.items()}
    assert held["SOAP"] == [True, True, False, True, True, False]
    assert held["Muon"] == [True, True, False, True, False, False]
    by_search = {label: each for label, each in held.items() if "find_rate" in label}
    assert len(by_search) == 2
    by_transfer = {label: each for label, each in held.items() if "transfer" in label}
    at_8 = (True, False, False, True, False, False)
    assert {*map(tuple, by_search.values()), tuple(by_transfer["Muon, by `transfer`"])} == {at_8}
    assert by_transfer["SOAP, by `transfer`"] == [True, False, False, True, True, False]
    assert by_transfer["AdamW, by `transfer`"] == [True] + 5 * [False]
    less = {
        (label, i) for label in ("AdamW", "LAMB", "Muon", "SOAP") for i in (2, 5)
        if lost_in(cells[f"{label}, by `transfer`"][i]) < lost_in(cells[label][i])
    }  # fmt: skip
    assert less == {("SOAP", 5)}  # diamonds, 128 times
    loses = f"{lost_in(cells['AdamW, by `transfer`'][3]):.1f}"
    thirty = 1000 * rows_of("diamonds")["transfer adamw", 8]["worse"]
    assert f"it loses {loses} by these 8 seeds, and {thirty:.1f} by the 30" in words("results")
    above = {}
    for name, own in lines.items():
        found = against.scores(own)
        ada = found["adascale momentum", 8]
        above[name] = 1000 * np.subtract(ada, found["tuned adamw", 1][: len(ada)]).mean()
    said = "{:.1f} above the tuned AdamW on flights, {:.1f} below it on diamonds"
    assert said.format(above["flights"], -above["diamonds"]) in words("results")
    lower = [f"{-lost_in(cells[of][i]):.1f}" for of, i in (
        ("SOAP", 4), ("SOAP, by `find_rate`", 0), ("SOAP, by `find_rate`", 3)
    )]  # fmt: skip
    assert f"On diamonds SOAP ends {lower[0]} below it" in words("results")
    assert f"with SOAP it ends {lower[1]} and {lower[2]} below" in words("results")


def test_the_page_has_the_losses_of_soap_on_diamonds():
    found = against.scores(runs("equivalence_diamonds"))
    found = {(arm.removeprefix("tuned "), k): each for (arm, k), each in found.items()}
    text = RESULTS.read_text().split("On diamonds, which had no part in the choice:")[1]
    rows = re.findall(r"^\| .* \(`(.+)`\) \| (.+) \|$", text, re.MULTILINE)
    specs = {arm[6:] for arm in against.ARMS if arm.startswith("tuned ")}
    assert {spec for spec, _ in rows} == specs
    for spec, cells in rows:
        losses = [f"{np.mean(found[spec, ratio]):.4f}" for ratio in (1, 8, 32, 128)]
        assert cells.split(" | ") == losses
    lost = {
        (spec, ratio): 1000 * np.subtract(found[spec, ratio], found[spec, 1]).mean()
        for spec in specs for ratio in (8, 32)
    }  # fmt: skip
    soap, lans = "benchmarks.soap:OfPackage", "tf_lamb:LANS"
    said = words("results")
    assert f"it loses {lost[soap, 8]:.1f} at 8 times, which holds, and {lost[soap, 32]:.1f}" in said
    assert f"at 32, where Muon loses {lost['muon', 32]:.1f}" in said
    assert f"it loses {lost[lans, 8]:.1f} at 8 times, {lost[lans, 32]:.1f} at 32" in said


def errors_shown(name, heading, ratios, seeds):
    """Of each ratio, label -> the mean error in percent, by the page's table, held to the log."""
    specs = {
        "AdamW": "adamw", "LAMB": "lamb", "Muon": "muon", "LANS": "tf_lamb:LANS",
        "SOAP": "benchmarks.soap:OfPackage", "momentum": "momentum",
    }  # fmt: skip
    means: dict = {ratio: {} for ratio in ratios}
    for label, *cells in table(RESULTS, heading)[1:]:
        optimizer, moved, _ = label.partition(", by")
        arm = f"{'transfer' if moved else 'tuned'} {specs[optimizer]}"
        for (ratio, own), cell in zip(means.items(), cells, strict=True):
            lines = runs(f"equivalence_{name}", arm=arm, ratio=ratio)
            tests = [100 * line["test"] for line in lines if line["seed"]]
            if not tests:
                assert cell == "-"
                continue
            assert cell == f"{np.mean(tests):.1f} ± {np.std(tests, ddof=1):.1f}"
            assert len(tests) == seeds
            own[label] = np.mean(tests)
    return means


def test_the_page_has_the_errors_on_fashion():
    heading = "Errors of five optimizers on Fashion-MNIST"
    means = errors_shown("fashion", heading, (1, *protocol.FROZEN["ratios"]), 8)
    fewest = [min(own, key=own.get) for own in means.values()]
    assert fewest == ["Muon", *["Muon, by `transfer`"] * 2, "SOAP"]


def test_the_page_has_the_errors_on_rows():
    means = errors_shown("rows", "Rows, in part", protocol.FROZEN["ratios"], 5)
    for ratio in (32, 128):
        assert min(means[ratio], key=means[ratio].get) == "LAMB"
        lamb, adamw = (of_fresh_seeds("rows", spec, ratio) for spec in ("lamb", "adamw"))
        assert max(lamb) <= min(adamw)
    frozen = protocol.FROZEN["workloads"]["rows"]
    updates = [frozen["examples"] // (frozen["base"] * k) for k in protocol.FROZEN["ratios"]]
    assert "in {:,}, {:,} and {:,} updates".format(*updates) in words("results")


def test_the_seconds_of_a_run_are_its_updates_times_those_of_an_update():
    _, *shown = table(RESULTS, "Seconds")
    lines = runs("equivalence_seconds")
    least = {(line["workload"], line["batch"], spec): min(each) / 1000
             for line in lines for spec, each in line["ms"].items()}  # fmt: skip
    taken = {}
    for row in shown:
        frozen = protocol.FROZEN["workloads"][row[0]]
        batches = [ratio * frozen["base"] for ratio in (1, *protocol.FROZEN["ratios"])]
        own = taken[row[0]] = {
            spec: [frozen["examples"] // batch * least[row[0], batch, spec] for batch in batches]
            for spec in ("adamw", "lamb", "muon")
        }
        assert row[1:] == [f"{x:.3g}" for x in own["adamw"] + own["muon"]]
    assert taken.keys() == protocol.FROZEN["workloads"].keys() - {"digits"}
    times = np.concatenate([np.divide(own["lamb"], own["adamw"]) for own in taken.values()])
    said = words("results")
    assert f"takes {span(times, '.1f')} times as long as AdamW" in said
    muon = taken["perceptron"]["muon"]
    assert f"{muon[0] / muon[2]:.0f} times at 32 times the batch" in said
    hours = {name: experiment.hours(name, lines) for name in taken}
    total = sum(hours.values())
    each = "{rows:.0f} for rows, {letters:.0f} for letters, {fashion:.0f} for Fashion-MNIST"
    assert f"{total:.0f} hours of these two cores: {each.format(**hours)}" in said


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
            env=os.environ | {"KERAS_BACKEND": "jax"},
        ).stdout  # fmt: skip

    first, made = said(), log.read_text().splitlines()
    assert "| `transfer keras.optimizers:AdamW` | 3 |" in first
    assert all(protocol.HASH in line for line in made[1:])
    log.write_text("\n".join(made[: len(made) // 2]) + "\n")
    assert said() == first
    assert sorted(log.read_text().splitlines()) == sorted(made)
