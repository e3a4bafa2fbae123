"""Which batch: seconds of a step, steps at a batch, and the answer."""

import dataclasses
import doctest
import itertools
import math
import pathlib
import re
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tf_lamb.find.goodput import costs, growth
from tf_lamb.find.goodput import steps as counts

pytestmark = pytest.mark.filterwarnings("error")
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("module", [counts, costs, growth])
def test_the_examples_run(module):
    ran = doctest.testmod(module)
    assert ran.attempted and not ran.failed


# -- seconds of a step -----------------------------------------------------------------------------


def test_the_update_and_the_network_of_several_devices_are_counted_once():
    time = costs.fit_step_time(
        [16, 64, 256], [0.066 + 0.02, 0.114 + 0.02, 0.306 + 0.02], update_seconds=0.02
    )
    assert (time.micro_batch_seconds, time.example_seconds) == pytest.approx(
        (0.05, 0.001), rel=1e-9
    )
    assert time.residual < 1e-12
    assert time.step_seconds(64, 4) == pytest.approx(4 * 0.114 + 0.02)
    machine = costs.Machine(time, 64, (1, 8))
    assert (
        machine.step_seconds(8 * 256, 8) == machine.step_seconds(256, 1) == time.step_seconds(64, 4)
    )
    assert costs.Machine(time, 512, (16,)).step_seconds(256, 16) == time.step_seconds(16)
    wired = costs.Machine(time, 64, (1, 8), network_seconds={8: 0.03})
    assert wired.step_seconds(8 * 256, 8) == pytest.approx(4 * 0.114 + 0.05)
    assert wired.step_seconds(8 * 256, 8, 256) == pytest.approx(0.306 + 0.05)
    assert wired.step_seconds(256, 1) == time.step_seconds(64, 4)


def test_between_sizes_that_were_timed_the_seconds_are_on_the_line_through_them():
    time = costs.fit_step_time([4, 16, 8, 8], [0.05, 0.25, 0.08, 0.07], update_seconds=0.01)
    assert [time.step_seconds(at) for at in (4, 6, 8, 12, 16)] == pytest.approx(
        [0.05, 0.06, 0.07, 0.16, 0.25]
    )
    assert time.step_seconds(8, 3) == pytest.approx(3 * 0.06 + 0.01)
    assert time.micro_batch_seconds == 0  # the best line would be below it
    below, beyond = (time.call_seconds(at) for at in (2, 20))
    assert below == pytest.approx((time.micro_batch_seconds + 0.04) / 2)
    assert beyond == pytest.approx(0.24 + 4 * time.example_seconds)


positive = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(st.integers(1, 9), positive), min_size=2, max_size=6))
@settings(max_examples=50)
def test_the_fit_is_the_best_of_its_neighbourhood(pairs):
    sizes, seconds = zip(*pairs, strict=True)
    assume(len(set(sizes)) > 1)

    def squares(micro_batch, example):
        return sum(((micro_batch + example * b) / t - 1) ** 2 for b, t in pairs)

    time = costs.fit_step_time(sizes, seconds)
    assert time.micro_batch_seconds >= 0 and time.example_seconds >= 0
    least = squares(time.micro_batch_seconds, time.example_seconds)
    for a, b in itertools.product((0.0, 0.99, 1.01), repeat=2):
        assert squares(time.micro_batch_seconds * a, time.example_seconds * b) >= least * (1 - 1e-9)
    step = min(seconds) / 1e3  # away from a parameter that ended at 0
    assert squares(time.micro_batch_seconds + step, time.example_seconds) >= least * (1 - 1e-9)
    assert squares(time.micro_batch_seconds, time.example_seconds + step / 10) >= least * (1 - 1e-9)
    assert time.residual == pytest.approx(
        max(abs((time.micro_batch_seconds + time.example_seconds * b) / t - 1) for b, t in pairs),
        abs=1e-9,
    )


def test_no_seconds_are_negative():
    rising, falling = (
        costs.fit_step_time([1, 2], [0.1, 0.3]),
        costs.fit_step_time([1, 2], [0.3, 0.1]),
    )
    assert (rising.micro_batch_seconds, rising.example_seconds) == (0, pytest.approx(3 / 26))
    assert (falling.micro_batch_seconds, falling.example_seconds) == (pytest.approx(0.12), 0)


# -- steps at a batch ------------------------------------------------------------------------------


def test_two_runs_of_lamb():
    steps = counts.curve_from_runs([(16, 4825), (2048, 102)])
    assert round(steps.noise) == 1175 and steps.least_steps == pytest.approx(64.8, abs=0.05)
    assert steps.notes == () and steps.largest_batch == 8 * 2048
    weak, *_ = counts.curve_from_runs([(64, 1000), (256, 320)]).notes
    assert weak == "weak: the batches are 4 times apart; a sure answer needs 16"
    assert [steps.steps_at(b) for b in (16, 2048)] == pytest.approx([4825, 102])
    # 90 % of either end, by hand: rho times or over exp(1.645 x 0.17 x sqrt 2).
    factor = math.exp(1.645 * 0.17 * math.sqrt(2))
    ends = [counts.noise_of_two_runs((16, 4825 * f), (2048, 102)) for f in (1 / factor, factor)]
    assert steps.interval == pytest.approx(ends, rel=0.06)
    # Nothing else speaks of the steps at 16 than the run at 16.
    seed = math.exp(1.645 * 0.17)
    assert steps.steps_interval(16) == pytest.approx((4825 / seed, 4825 * seed), rel=0.02)


@given(positive, st.floats(1, 1e3), st.floats(1.5, 100), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_runs_on_a_hyperbola_give_it_back(noise_scale, least, ratio, more):
    batches = [16 * ratio**i for i in range(1 + more)]
    runs = [(b, least * (1 + noise_scale / b)) for b in batches]
    steps = counts.curve_from_runs(runs)
    if 1 < noise_scale / 16 < 50:  # farther off all are equal but for rounding
        assert steps.noise == pytest.approx(noise_scale, rel=1e-3)
    assert [steps.steps_at(b) for b, _ in runs] == pytest.approx([s for _, s in runs], rel=1e-3)
    low, high = steps.interval
    assert low <= steps.noise <= high
    assert all(
        steps.steps_interval(b)[0] <= steps.steps_at(b) <= steps.steps_interval(b)[1]
        for b in batches
    )


def test_more_seeds_narrow_the_interval_and_scatter_widens_it():
    def width(scatter, seeds):
        runs = [(b, s * math.exp(scatter * (-1) ** i)) for b, s in ((64, 1200), (1024, 147))
                for i in range(seeds)]  # fmt: skip
        low, high = counts.curve_from_runs(runs).interval
        return high / low

    assert width(0, 8) < width(0, 2) < width(0, 1)
    assert width(0.1, 4) < width(0.3, 4)


def test_where_there_is_no_bend():
    steps = counts.curve_from_runs([(64, 1000), (1024, 40)])
    assert steps.noise == math.inf and steps.least_steps == 0
    assert steps.steps_at(4096) == pytest.approx(steps.steps_at(1024) / 4)
    low, high = steps.interval
    assert 1024 < low < high == math.inf and f"the noise scale is {low:,.0f} at least" in str(steps)
    assert counts.noise_of_two_runs((64, 1600), (1024, 100)) == math.inf
    saved = counts.curve_from_runs([(64, 1000), (1024, 1000), (1024, 1100)])
    assert saved.noise == 0 and saved.steps_at(64) == saved.steps_at(8192)
    assert "no steps are saved" in str(saved)


@pytest.mark.parametrize(("batch", "end"), [(1024, "lower"), (64, "upper"), (32, "upper")])
def test_a_run_that_is_given_up_leaves_an_end_open(batch, end):
    """Its steps are no reading: the estimate stays as it is without it."""
    runs = [(64, 1200), (1024, 300)]
    whole, steps = counts.curve_from_runs(runs), counts.curve_from_runs(runs, [batch])
    assert steps.noise == whole.noise and steps.steps_at(256) == whole.steps_at(256)
    low, high = whole.interval
    assert steps.interval == ((0.0, high) if end == "lower" else (low, math.inf))
    assert steps.notes == (
        f"given up before the loss at batch {batch:,}: 1 run; the noise scale has no {end} end",
    )


def test_least_squares_over_six_batches():
    """Of LAMB's medians: 1,286 and 62."""
    seen = {16: 4825, 64: 1394, 256: 393, 512: 204, 1024: 144, 2048: 102}
    steps = counts.curve_from_runs(seen.items())
    assert steps.noise == pytest.approx(1286, rel=0.01)
    assert steps.least_steps == pytest.approx(62.5, rel=0.01)


def test_one_reading_holds_within_two():
    steps = counts.curve_from_noise(1000, batch=32, steps=4800)
    assert steps.steps_at(32) == pytest.approx(4800) and steps.interval == pytest.approx(
        (500, 2000)
    )
    assert (steps.least_steps, steps.least_examples) == pytest.approx((148.837, 148837), rel=1e-5)
    assert (
        steps.largest_batch == 8000 and counts.curve_from_noise(10, 32, 4800).largest_batch == 256
    )
    seed = math.exp(1.645 * 0.17)
    low, high = (4800 * (1 + n / 256) / (1 + n / 32) for n in (2000, 500))
    assert steps.steps_interval(256) == pytest.approx((low / seed, high * seed))


def test_what_the_logs_bear():
    """Two batches sixteen times apart, all seeds: 1.3 in the median, 1.6 at 90 %, at most."""
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.study.predicted_steps"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    line = r"^\w+ +(\(.*\)|reading) +(all|one) +(\d+) +\d+ +([\d.]+) +([\d.]+) +[\d.]+ +(\d+)%$"
    rows = re.findall(line, out, re.MULTILINE)
    far = [row for row in rows if row[:2] in {(f"(16, {b})", "all") for b in (256, 512, 1024)}]
    far += [row for row in rows if row[:2] == ("(64, 1024)", "all")]
    assert sum(int(cells) for _, _, cells, *_ in far) == 36
    assert all(float(median) <= 1.3 and float(most) <= 1.6 for *_, median, most, _ in far)
    read = [(int(cells), int(inside)) for source, _, cells, _, _, inside in rows
            if source == "reading"]  # fmt: skip
    assert read == [(25, 96), (8, 100)]
    assert "32 of 33" in " ".join(counts.curve_from_noise.__doc__.split())


# -- the answer ------------------------------------------------------------------------------------

TIME = costs.StepTime(0.05, 0.001)
STEPS = counts.curve_from_noise(1000, batch=32, steps=4800)


def plan(steps=STEPS, time=TIME, micro_batch=512, devices=(1,), price=None, network=None, **given):
    machine = costs.Machine(time, micro_batch, devices, price, network)
    return costs.plan(steps, machine, **{"baseline": 32, "examples": 60000, **given})


@pytest.mark.parametrize(
    ("batch", "micro", "k", "updates", "seconds", "minutes", "cost"),
    [
        (32, 32, 1, 4800, 0.082, 6.6, 1.05),
        (224, 224, 1, 813, 0.274, 3.7, 0.59),
        (512, 512, 1, 440, 0.562, 4.1, 0.66),
        (4096, 512, 8, 185, 4.15, 12.8, 2.05),
    ],
    ids=["32", "224", "512", "4096"],
)
def test_the_table_of_one_device(batch, micro, k, updates, seconds, minutes, cost):
    """Of a = 50 ms once an update; 8 devices' price on one."""
    once = costs.StepTime(0.0, 0.001, update_seconds=0.05)
    rows = {r.batch: r for r in plan(time=once, batches=[32, 224, 512, 4096], price=9.6).rows}
    row = rows[batch]
    assert (row.micro_batch, row.accumulation, row.steps) == (micro, k, updates)
    assert row.examples == updates * batch
    assert row.examples_ratio == row.examples / 153600
    assert row.step_seconds == pytest.approx(seconds, rel=2e-3)
    assert row.hours * 60 == pytest.approx(minutes, abs=0.05)
    assert row.cost == pytest.approx(cost, abs=0.006)


@given(st.floats(1e-3, 1), st.floats(1e-6, 1e-2), st.floats(1, 1e5))
def test_the_optimum_is_the_best_of_a_grid(alpha, beta, noise_scale):
    time = costs.StepTime(alpha, beta)
    best = costs.optimal_batch(time, noise_scale)

    def hours(batch):
        return (alpha + beta * batch) * (1 + noise_scale / batch)

    assert hours(best) <= min(hours(best * 1.01**i) for i in range(-300, 300)) * (1 + 1e-12)
    assert hours(best) == pytest.approx((alpha**0.5 + (beta * noise_scale) ** 0.5) ** 2)


def test_the_fastest_of_many_batches_is_the_optimum():
    assert costs.optimal_batch(TIME, 1000) == pytest.approx(223.6, abs=0.05)
    answer = plan(batches=[*range(16, 1000, 4)], micro_batch=1000)
    assert answer.fastest.batch == pytest.approx(224, abs=16)  # those within 0.1% are level


@pytest.mark.parametrize(
    ("truth", "lost"), [(250, 0.107), (500, 0.022), (2000, 0.014), (4000, 0.045)]
)
def test_the_regret_of_the_optimum(truth, lost):
    rows = plan(batches=[*range(16, 1000, 4)], micro_batch=1000).rows
    taken = next(row for row in rows if row.batch == 224)
    assert costs.regret(rows, taken, truth) == pytest.approx(lost, abs=6e-4)


def test_the_regret_goes_as_far_as_the_runs_scatter():
    """A factor of two, or farther: to the ends of the interval, which may be infinite."""
    assert list(plan().regret) == [500, 2000]
    answer = plan(counts.curve_from_runs([(32, 4800), (32, 2900), (512, 420), (512, 700)]))
    low, high = answer.curve.interval
    assert low < answer.curve.noise / 2 and high > 2 * answer.curve.noise
    assert list(answer.regret) == [low, high]
    answer = plan(counts.curve_from_runs([(256, 700), (512, 420)]))
    assert answer.curve.interval[1] == math.inf
    lost = answer.regret[math.inf]
    assert lost == pytest.approx(costs.regret(answer.rows, answer.fastest, 1e12)) and lost > 0
    assert " or inf, it takes " in str(answer)


@given(st.integers(1, 10**5), st.integers(1, 64), st.integers(1, 512))
def test_parts_are_as_few_as_memory_allows_and_equal(batch, devices, largest):
    micro, k = costs.split_batch(batch, devices, largest)
    assert micro <= largest and batch <= micro * k * devices < batch + k * devices
    assert (k - 1) * largest * devices < batch


def test_the_batches_that_are_named():
    answer = plan(network={8: 0.02}, devices=(1, 8), price=1.2, deadline_hours=0.025)
    by_hours = min(answer.rows, key=lambda row: row.hours)
    assert answer.fastest == by_hours and by_hours.devices == 8
    assert answer.cheapest.devices == 1 and answer.cheapest.cost < answer.fastest.cost
    later = [row.batch for row in answer.rows if row.hours <= 0.025]
    assert answer.by_deadline.batch == max(later) < max(row.batch for row in answer.rows)
    assert plan(deadline_hours=1e-6).by_deadline is None
    assert "no batch ends within 1e-06 hours" in str(plan(deadline_hours=1e-6))


def test_without_a_bend_a_larger_batch_is_always_faster():
    answer = plan(counts.curve_from_runs([(32, 4800), (512, 250)]), micro_batch=4096)
    assert answer.fastest == answer.rows[-1] and answer.fastest.batch == 4096
    assert answer.why_not_larger.startswith("at the edge: a fit of 2 runs")
    assert answer.optimum is None and list(answer.regret) == [answer.curve.interval[0]]
    assert "no bend seen up to 512" in str(answer) and "noise scale inf (" in str(answer)
    flat = plan(counts.curve_from_runs([(32, 4800), (512, 4800)]))
    assert flat.fastest.batch == 32 and flat.optimum is None and "unlimited" not in str(flat)


@pytest.mark.parametrize("largest", [32, 512])
def test_of_level_batches_the_smallest_is_named(largest):
    steps, time = counts.curve_from_runs([(32, 4800), (512, 300)]), costs.StepTime(0.0, 0.001)
    answer = plan(steps, time, micro_batch=largest)
    assert answer.fastest.batch == answer.cheapest.batch == 32
    assert answer.why_not_larger == "64 takes 1x as long"


def test_the_candidates():
    """Powers of two times the baseline and what fits, where every device has an example."""
    answer = plan(network={32: 0.02}, micro_batch=50, devices=(1, 32), max_batch=1700)
    found = {1: set(), 32: set()}
    for row in answer.rows:
        found[row.devices].add(row.batch)
    assert found[32] == {32, 64, 128, 256, 512, 1024, 1600}
    # 1,024 becomes 21 micro-batches of 49 examples.
    assert found[1] == {32, 50, 64, 129, 258, 517, 1029, 1600}
    assert "network 20 ms on 32" in str(answer) and f" on {answer.fastest.devices}: " in str(answer)
    assert "network not counted" in str(plan(devices=(8,))) and "network" not in str(plan())
    # 33 examples on two devices are 34, which the data does not have.
    assert [row.batch for row in plan(batches=[32, 33], devices=(2,), examples=33).rows] == [32]
    # As many devices as examples; what the limits name is still possible.
    (row,) = plan(batches=[32], devices=(32,), examples=32, max_batch=32).rows
    assert row.batch == 32


def test_a_batch_that_may_miss_the_deadline_is_told_of():
    text = str(plan(deadline_hours=0.1))
    assert "\n1,024 may miss the deadline: it takes up to 10.6 min" in text
    answer = plan(deadline_hours=9.9, max_batch=1024)
    assert answer.by_deadline.hours_interval[1] < 9.9 and "may miss" not in str(answer)


def test_the_text():
    lines = str(plan(deadline_hours=0.1)).splitlines()
    fastest = (
        "fastest to the same loss: batch 256: 2.57 min to 5.75 min, for 1.22x the examples; 128"
    )
    assert lines[0].startswith(fastest)
    assert lines[1].startswith("noise scale 1,000 (500 to 2,000) from one reading")
    assert lines[2] == "at any batch 149 steps and 148,837 examples at least"
    assert "50 ms a micro-batch + 1 ms an example (worst residual 0%)" in lines[3]
    assert [line.split()[0] for line in lines[5:13]] == [
        "32", "64", "128", "256", "512", "1,024", "2,048", "4,096",
    ]  # fmt: skip
    assert lines[5].endswith("6.56 min         0.109  baseline")
    assert lines[8].endswith("fastest, cheapest")
    assert lines[10].endswith("largest by the deadline")
    assert lines[14].startswith("if the noise scale is 500 or 2,000, it takes ")
    assert lines[-1] == "with unlimited memory one device is fastest at batch 224"


def test_the_text_of_many_steps_has_no_exponents():
    long = str(plan(counts.curve_from_noise(1000, 32, 480_000_000)))
    assert "e+0" not in long and "10,933 h" in long


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "512 takes 1.11x as long"),
        (
            {"micro_batch": 128},
            "256 would be faster in one micro-batch of 256 examples a device; "
            "128 is the largest here",
        ),
        ({"max_batch": 64}, "at the edge: 64 is the largest that is wanted"),
        ({"batches": [32, 64]}, "at the edge: 64 is the largest that was given"),
        ({"examples": 200}, "at the edge: the data has 200 examples to train on"),
        (
            {"steps": counts.curve_from_runs([(4, 40000), (64, 2500)])},
            "at the edge: a fit of 2 runs at 2 batches reaches to 512; run a larger batch first",
        ),
    ],
)
def test_why_not_larger(given, why):
    answer = plan(**given)
    assert answer.why_not_larger == why and f"why not larger: {why}" in str(answer)
    assert all(not why.startswith("at the edge") or row.batch <= answer.fastest.batch
               for row in answer.rows)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: costs.fit_step_time([16, 16], [1, 1]), "two different micro-batches at least"),
        (lambda: costs.fit_step_time([16, 32], [1, math.nan]), "seconds must be a number"),
        (
            lambda: costs.fit_step_time([16, 32], [1, 2], update_seconds=1),
            "update=1 s is no less than a step",
        ),
        (lambda: counts.curve_from_runs(5), "^runs must be pairs .*, not 5"),
        (lambda: counts.curve_from_runs([(64, 100, 0)]), "^runs must be pairs"),
        (
            lambda: counts.curve_from_runs([(64, "100"), (1024, 9)]),
            "^Steps in runs must be a number in",
        ),
        (
            lambda: counts.curve_from_runs([("64", 100), (1024, 9)]),
            "^A batch in runs must be a number",
        ),
        (lambda: counts.curve_from_noise(math.nan, 32, 100), "noise must be a number"),
        (lambda: plan(deadline_hours=-1), "deadline must be a number"),
        (
            lambda: counts.curve_from_runs([(64, 100)]),
            r"at two batches are needed, .*\[64.0\] alone",
        ),
        (
            lambda: counts.curve_from_runs([(64, 100), (1024, 0)]),
            r"Steps in runs must be .* it is 0\.",
        ),
        (
            lambda: counts.curve_from_runs([(64, 1000), (256, 320)]).steps_at(2049),
            "known of batch 2,049: a fit",
        ),
        (lambda: plan(devices=(1, 0)), "devices must be a whole number"),
        (lambda: plan(devices=()), "devices must name a number of devices at least"),
        (lambda: plan(batches=[]), "batches must name one at least"),
        (lambda: plan(baseline=9000), "Nothing is known of batch 9,000"),
        (lambda: plan(max_batch=16), "No batch can be planned for 1 devices: 16 is the largest"),
        (lambda: plan(devices=(64,), batches=[32]), "planned for 64 devices: 32 is the largest"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_longer_run_has_the_same_noise_scale():
    short = counts.curve_from_runs([(32, 200), (512, 20), (512, 24)])
    long = short.rescaled_to(32, 2000)
    assert long.steps_at(32) == pytest.approx(2000)
    assert long.noise == pytest.approx(short.noise)
    assert long.interval == pytest.approx(short.interval)
    assert long.steps_interval(512) == pytest.approx(
        [10 * each for each in short.steps_interval(512)]
    )
    assert long.largest_batch == short.largest_batch


def test_an_epoch_has_a_start_an_evaluation_and_a_smaller_last_call():
    """1,000 examples are four calls of 256, the last one smaller, which compiles once more."""
    epoch = costs.Epoch(
        1000,
        start_seconds=0.5,
        evaluation_coefficients=(0.1, 25.6),
        step_compile_seconds=3.0,
        evaluation_compile_seconds=1.0,
    )
    machine = costs.Machine(costs.StepTime(0.01, 0.001), 256, epoch=epoch)
    assert machine.step_seconds(256, 1) == pytest.approx(0.266 + (0.5 + 0.1 + 0.1) / 4)
    # Two calls an update: an update has twice the share.
    assert machine.step_seconds(512, 1) == pytest.approx(2 * machine.step_seconds(256, 1))
    assert machine.compile_seconds(256, 1) == 2 * 3.0 + 1.0
    assert machine.compile_seconds(250, 1) == machine.compile_seconds(1000, 8) == 3.0 + 1.0
    whole = dataclasses.replace(epoch, drop_remainder=True)
    assert (whole.calls(256), whole.compile_seconds(256)) == (3, 4.0)
    answer = costs.plan(
        counts.curve_from_noise(1000, batch=250, steps=40), machine, baseline=250, examples=1000,
        batches=[250],
    )  # fmt: skip
    (row,) = answer.rows
    of_epoch = 4 * 0.26 + 0.5 + 0.1 + 0.1024
    assert 3600 * row.hours == pytest.approx(4.0 + 10 * of_epoch)
    says = (
        "700 ms an epoch besides, 200 ms of it the evaluation, shared out among its steps; 7 s once"
    )
    assert says in str(answer)
