"""What the claims of tests/docs/claims.txt name: figures of the pages, from the logs."""

import collections
import contextlib
import functools
import itertools
import math
import re
import statistics
import sys
import types
import warnings

import numpy as np
import pytest
from support.pages import ROOT, number, runs, seeds_of_letters, table

from tf_lamb.core import recipes

sys.path.insert(0, str(ROOT))
from benchmarks.equivalence import against, experiment, to_the_loss
from benchmarks.equivalence import statistics as tests
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.report import unit
from benchmarks.language_model import report
from benchmarks.updates_left import analysis
from benchmarks.updates_left import report as updates_left_report
from benchmarks.updates_left import runs as updates_left_runs

LOG_OF_UPDATES_LEFT = ROOT / "benchmarks" / "logs" / "updates_left.jsonl"
# Of each line "PAGE: CLAIM", and of those that infer " <- CHECK: ROWS" after it.
LINES = (ROOT / "tests" / "docs" / "claims.txt").read_text().splitlines()
CLAIMS = [line.partition(" <- ")[0].split(": ", 1) for line in LINES]


def page_of(name):
    """Its text, one space between words."""
    return re.sub(r"\s+", " ", (ROOT / "docs" / name).read_text())


def tuned(task, heading):
    """(rival, batch) -> its preferred rate, and the steps of each seed: of a table of the page."""
    header, *rows = table(ROOT / "docs" / "steps_saved.md", heading)
    found = {}
    for label, *cells in rows:
        rival = re.search(r"`(\w+)`", label)[1]
        for batch, cell in zip(header[1:-1], cells[:-1], strict=True):
            of = {"rival": rival, "batch": number(batch)}
            if rate := re.search(r"\((.+)\)", cell):
                of["rate"] = float(rate[1])
            elif not re.search(r"\d", cell):
                continue
            steps = collections.defaultdict(lambda: math.inf)
            for run in runs(f"steps_{task}", **of):
                steps[run["seed"]] = min(steps[run["seed"]], run["steps"] or math.inf)
            found[rival, of["batch"]] = of.get("rate"), list(steps.values())
    return found


def lost(log):
    """Of AutoWarmup's runs: how many, and how many did not arrive."""
    seeds = [run["steps"] for run in runs(log, rival="autowarmup")]
    return seeds.count(None), len(seeds)


def of_pictures():
    """The convolutional network on Fashion-MNIST."""
    results = tuned("pictures", "A convolutional network on Fashion-MNIST")
    median = {key: statistics.median(steps) for key, (_, steps) in results.items()}
    rivals = ("momentum", "adamw", "lamb", "lans", "muon")
    fewer = {rival: median[rival, 256] / median[rival, 2048] for rival in rivals}
    assert sorted(fewer, key=fewer.get)[:: len(fewer) - 1] == ["momentum", "lamb"]
    batches = sorted({batch for _, batch in results})
    assert all(median["adamw", batch] < median["lamb", batch] for batch in (16, 64, 256))
    share = [
        100 * median["muon", b] / min(median[rival, b] for rival in rivals[:-1]) for b in batches
    ]
    automatic = [steps / median["lamb", b] for (r, b), steps in median.items() if r == "autowarmup"]
    spread = [
        statistics.variance(map(math.log, steps))
        for rate, steps in results.values()
        if rate and math.inf not in steps
    ]
    watched = {r["batch"]: r["noise_scale"] for r in runs("steps_pictures") if "noise_at" in r}
    return {
        "fewer": fewer, "more": {rival: 8 / times for rival, times in fewer.items()},
        "last": {rival: median[rival, 2048] for rival in rivals}, "muon": (min(share), max(share)),
        "automatic": (min(automatic), max(automatic), *lost("steps_pictures")),
        "spread": 100 * math.sqrt(statistics.mean(spread)), "noise": watched[16],
        "noise_512": watched[512], "need": {b: round(median["lamb", b] * b, -3) for b in batches},
        "rates": rates(results),
    }  # fmt: skip


def rates(results):
    """The lowest and the highest that was preferred."""
    found = collections.defaultdict(list)
    for (rival, _), (rate, _) in results.items():
        found[rival] += [rate] if rate else []
    return found


def of_text():
    """The BERT on letters."""
    results = tuned("text", "A BERT on letters")
    median = {key: statistics.median(steps) for key, (_, steps) in results.items()}
    rivals = ("adamw", "lamb", "lans", "muon")
    fewer = {rival: median[rival, 64] / median[rival, 256] for rival in rivals}
    assert sorted(fewer, key=fewer.get)[:: len(fewer) - 1] == ["lamb", "lans"]
    share = [
        100 * median["muon", b] / min(median[rival, b] for rival in rivals[:-1])
        for b in (16, 64, 256)
    ]
    at_16 = runs("steps_text", rival="lars", batch=16)
    lars = {run["rate"]: run["steps"] for run in at_16 if run["steps"]}
    momentum = sorted({run["rate"] for run in runs("steps_text", rival="momentum")})
    ends = {run["batch"]: run["noise_scale"][-1] for run in runs("steps_text") if "noise_at" in run}
    assert list(lars) == [1.024] and len(momentum) == 5
    return {
        "fewer_text": fewer, "muon_text": (min(share), max(share)), "lars": round(lars[1.024], -2),
        "lars_rates": {8: "eight"}[len({run["rate"] for run in at_16})],
        "momentum_text": (momentum[0], momentum[-1]),
        "automatic_text": (median["autowarmup", 16] / median["lamb", 16], *lost("steps_text")),
        "noise_text": (ends[16], ends[64]),
        "need_text": {b: median["lamb", b] * b / (median["lamb", 16] * 16) for b in (64, 256)},
        "foretold": {b: (1 + b / ends[16]) / (1 + 16 / ends[16]) for b in (64, 256)},
        "rates_text": rates(results),
    }  # fmt: skip


def of_flights():
    """The network on flights, to the largest batch at which AdamW arrives."""
    results = tuned("flights", "A network on flights")
    median = {key: statistics.median(steps) for key, (_, steps) in results.items()}
    over = {
        rival: [median[rival, b] / median["adamw", b] for b in (64, 256, 1024)]
        for rival in ("lamb", "lans", "muon")
    }
    return {
        "muon_flights": (100 * min(over["muon"]), 100 * max(over["muon"])),
        "lamb_flights": (min(over["lamb"]), max(over["lamb"])),
        "lans_flights": (min(over["lans"]), max(over["lans"])),
        "fewer_flights": median["muon", 64] / median["muon", 1024],
        "rates_flights": rates(results),
    }


def of_lstm():
    """What a rule loses, against where it began."""
    test = collections.defaultdict(list)
    for run in runs("legw", data="mnist", units=64):
        test[run["method"], run["batch"], run["rate"]].append(run["test"])
    mean = {key: statistics.mean(seeds) for key, seeds in test.items() if len(seeds) == 3}
    rate = {"legw": 0.025, "linear": 0.025, "sqrt": 0.025, "published": 0.1, "lamb": 0.00125}
    start = {rule: mean.get((rule, 128, r), mean["legw", 128, 0.025]) for rule, r in rate.items()}
    small, large = (
        {rule: start[rule] - mean[rule, batch, r] for rule, r in rate.items()}
        for batch in (1024, 8192)
    )
    assert small["lamb"] < 0 and sorted(large, key=large.get)[::4] == ["linear", "published"]
    (steps,) = {run["steps"] for run in runs("legw", batch=8192, data="mnist")}
    changes: dict = collections.defaultdict(dict)
    for run in runs("legw_changes"):
        changes[run["change"]].setdefault(str(run["rate"]), []).append(run["test"])
    assert {len(made) for of in changes.values() for made in of.values()} == {5}
    won = {
        change: {rate: (statistics.mean(m), statistics.stdev(m)) for rate, m in of.items()}
        for change, of in changes.items()
    }
    best = max(mean for of in won.values() for mean, _ in of.values())
    assert best == won["projected"]["0.1"][0] and sorted(changes["projected"]["0.2"])[1] > 97
    return {
        "small": small, "large": large, "small_most": math.ceil(20 * max(small.values())) / 20,
        "adam": (mean["adam", 128, 0.002], mean["adam", 8192, 0.008]), "changes": won,
        "lstm_steps": steps,
    }  # fmt: skip


def of_bert():
    """The small one of Model Garden."""
    losses = collections.defaultdict(list)
    for log in ("batch", "batch_from_32"):
        for run in runs(log):
            key = log, run["optimizer"], run["batch"], run["base_learning_rate"]
            losses[key].append(run["validation_loss"])
    cells, times = {}, {}
    for name, optimizer, rate in (("LAMB", "tf_lamb", 0.01), ("AdamW", "adamw", 0.002)):
        seeds = [losses["batch", optimizer, batch, rate] for batch in (8, 32, 64, 128)]
        mean = [statistics.mean(each) for each in seeds]
        times[name] = [math.exp(loss - mean[0]) for loss in mean]
        cells[name] = " | ".join(
            f"{m:.3f} ± {statistics.stdev(each):.3f}" for m, each in zip(mean, seeds, strict=True)
        )
    gone = [
        statistics.mean(losses["batch_from_32", optimizer, 128, rate])
        - statistics.mean(losses["batch_from_32", optimizer, 32, rate])
        for optimizer, rate in (("tf_lamb", 0.02), ("adamw", 0.004))
    ]
    return {"bert": cells, "perplexity": times, "from_32": gone}


def of_adascale():
    """Its steps and examples, and what its rivals come to."""
    tests, steps = collections.defaultdict(list), collections.defaultdict(list)
    for run in runs("adascale"):
        key = run["method"], run["scale"], run["learning_rate"], run["base_steps"]
        tests[key].append(run["test"])
        steps[key].append(run["steps"])
    full = [key for key, seeds in tests.items() if len(seeds) == 3]
    gains, noises = collections.defaultdict(list), []
    for run in runs("adascale", method="adascale"):
        gains[run["scale"]].append(run["gain"])
        noises += [run["noise_scale"]] if run["scale"] == 8 else []
    least = [min(curve) for curves in gains.values() for curve in curves]
    ends = sorted(round(curve[-1], -2) for curve in noises)

    def cell(key):
        return f"{statistics.mean(tests[key]):.2f} ± {statistics.stdev(tests[key]):.2f}"

    base, of, better, over = ("base", 1, 0.04, 4800), {}, [], {}
    for scale in (8, 16, 32):
        (searched,) = (key for key in full if key[:2] == ("searched", scale))
        adascale, linear = ((method, scale, 0.04, 4800) for method in ("adascale", "linear"))
        taken, over[scale] = statistics.mean(steps[adascale]), 0.04 * scale / searched[2]
        cells = [
            text
            for key in (adascale, searched, linear)
            for text in (f"{statistics.mean(steps[key]):,.0f}", cell(key))
        ]
        cells.append(cell(("examples", 1, 0.04, searched[-1])))
        of[scale] = types.SimpleNamespace(
            fewer=4800 / taken, more=taken * scale / 4800, row=" | ".join(cells)
        )
        longer = statistics.mean(tests["examples", 1, 0.04, searched[-1]])
        better.append(longer - statistics.mean(tests[adascale]))
    linear = statistics.mean(tests["linear", 8, 0.04, 4800])
    return {
        "adascale": of, "base": cell(base),
        "gain": {s: statistics.mean(curve[-1] for curve in curves) for s, curves in gains.items()},
        "gain_least": (min(least), max(least)),
        "noise_8": (round(statistics.mean(min(c) for c in noises), -1), ends[0], ends[-1]),
        "examples": (min(better), max(better)), "linear_8": statistics.mean(tests[base]) - linear,
        "linear_over": over, "searched_least": min(tests[searched]),
    }  # fmt: skip


def of_autowarmup():
    """Its rows, and where it is farthest from the best peak."""
    made, gaps, scored = {}, [], {}
    for batch in (256, 2048, 8192):
        mine = runs("autowarmup", data="fashion_mnist", batch=batch)
        peaks = {run["test"]: run["peak"] for run in mine if run["peak"]}
        own = [run for run in mine if not run["peak"]]
        scored[batch] = [run["test"] for run in sorted(own, key=lambda run: run["seed"])]
        at = sorted({f"{100 * run['switch'] / run['steps']:.0f}" for run in own})
        to = sorted(run["switch_to"] for run in own)
        gaps += [max(peaks) - run["test"] for run in own]
        made[batch] = (
            f"{mine[0]['steps']:,} | {min(peaks):.1f} to {max(peaks):.2f} | "
            f"{peaks[max(peaks)]:.3g} | {', '.join(str(run['test']) for run in own)} | "
            f"{' to '.join(at)}% | {to[0]:.2g} to {to[-1]:.2g}"
        )
    plain = {"autowarmup": made, "autowarmup_most": max(gaps)}
    lost = {b: report.interval(np.subtract(scored[256], of)) for b, of in scored.items() if b > 256}
    plain["autowarmup_lost"], plain["autowarmup_gained"] = lost[8192][0], -lost[2048][0]
    plain["autowarmup_within"] = {batch: mean - low for batch, (mean, low, _) in lost.items()}
    for kind in ("shallow", "deep"):
        every = runs("autowarmup", data=f"digits, {kind} network")
        mine = sorted(every, key=lambda run: run["seed"])
        plain[kind] = {
            name: ", ".join(
                f"{run['test']:g}" for run in mine
                if not run["peak"] and run["watched"] == (name == "watched")
            )
            for name in ("watched", "unwatched")
        }  # fmt: skip
        plain[kind]["best"] = max(run["test"] for run in mine if run["peak"])
    base = {
        run["seed"]: run["test"] for run in runs("equivalence_flights", arm="tuned lamb", ratio=1)
    }
    lost = collections.defaultdict(list)
    for run in runs("equivalence_autowarmups"):
        for given, loss in run["test"].items():
            lost[given, run["ratio"]].append(math.inf if loss is None else loss - base[run["seed"]])
    median = {key: 1000 * statistics.median(each) for key, each in lost.items()}
    given = dict.fromkeys(given for given, _ in median)
    return plain | {"given": {k: f"{median[k, 8]:+.1f} | {median[k, 32]:+.1f}" for k in given}}


def of_transfer():
    """Losses on flights above the tuned baseline's, an arm a row."""
    losses = collections.defaultdict(dict)
    for run in runs("transfer"):
        names = "optimizer", "batch", "rate", "weight_decay", "beta_2", "epsilon", "warmup"
        key = tuple(run[name] for name in names)
        losses[key][run["seed"]] = run["loss"] or math.inf
    three = {key: list(seeds.values()) for key, seeds in losses.items() if len(seeds) == 3}
    cells, mean = moved(losses, three, ("lamb", "adamw", "muon"))
    others, _ = moved(losses, three, ("lans", "adamp"))
    both = {
        arm: " | ".join([*row[:3], *others[arm][:2], *row[3:], *others[arm][2:]])
        for arm, row in cells.items()
    }
    (base,) = (key for key in three if key[:2] == ("lars", 64))
    _, _, rate, *settings = base
    lars = {
        batch: three["lars", batch, rate * math.sqrt(batch / 64), *settings]
        for batch in (64, 512, 2048)
    }
    saved = zip(mean["sqrt", 32], mean["transfer", 32], strict=True)
    return {
        "both": both,
        "lars_lost": {batch: sum(loss > 0.54 for loss in of) for batch, of in lars.items()},
        "beta_2": statistics.mean(rate - both for rate, both in saved),
        "least_32": min(min(lost) for (arm, k), lost in mean.items() if k == 32),
    }


def moved(losses, three, optimizers):
    """The rows of a table, and the mean losses by arm and ratio; `three` are those of all seeds."""
    cells, mean = collections.defaultdict(list), collections.defaultdict(list)
    for k in (8, 32):
        for optimizer in optimizers:
            (base,) = (key for key in three if key[:2] == (optimizer, 64))
            _, _, rate, decay, beta, epsilon, warmup = base
            root, near, least = math.sqrt(k), rate * math.sqrt(k), max(beta**k, 0.95)
            arms = {
                "kept": (rate, decay, beta, epsilon, warmup),
                "linear": (rate * k, decay, beta, epsilon, warmup),
                "sqrt": (near, decay, beta, epsilon, warmup),
                "transfer": (near, decay * root, least, epsilon, warmup),
                "all": (near, decay * root, least, epsilon / root, warmup),
                "legw": (near, decay, beta, epsilon, warmup * k),
            }
            around = [(near * factor, decay, beta, epsilon, warmup) for factor in (0.5, 1, 2, 4)]
            found = {arm: (optimizer, 64 * k, *settings) for arm, settings in arms.items()}
            found["searched"] = min(
                ((optimizer, 64 * k, *settings) for settings in around),
                key=lambda each: losses[each][1],
            )
            for arm, key in found.items():
                seeds = three.get(key)
                above = [1000 * (loss - statistics.mean(three[base])) for loss in seeds or ()]
                lost = sum(loss > 0.54 for loss in seeds or ())
                text = f"{lost} of 3 lost" if lost else "-"
                if above and not lost:
                    text = f"{statistics.mean(above):.1f} ± {statistics.stdev(above):.1f}"
                cells[arm].append(text)
                if above and not lost:
                    mean[arm, k].append(statistics.mean(above) / 1000)
    return cells, mean


def of_larger():
    """Held-out loss, which chose the rates, and errors: Adam at 256, Adam and Muon at 2,048."""
    ends = collections.defaultdict(list)
    for run in runs("larger", epochs=12):
        ends[run["batch"], round(run["rate"], 5)].append((run["loss"], 100 - run["accuracy"]))
    keys = {"base": (256, 0.004), "adam": (2048, 0.01131), "muon": (2048, 0.0391)}
    return {"larger": {name: np.mean(ends[key], 0).tolist() for name, key in keys.items()}}


SHORT = {
    "at the small batch": "base", "by `transfer`": "transfer", "by `find_rate`": "find_rate",
    "tuned again": "again", "AutoWarmup": "autowarmup", "by LEGW": "legw", "unchanged": "unchanged",
}  # fmt: skip


def short(label):
    """A way in two words."""
    name, _, how = label.replace(" in AdaScale", ", adascale").partition(", ")
    return f"{name.lower()} {SHORT.get(how, how)}"


@functools.cache
def logs():
    """Of the tasks that are counted."""
    return {name: runs(f"equivalence_{name}") for name in against.TASKS}


@functools.cache
def outcomes(ratio):
    """Of each way and task."""
    with contextlib.chdir(ROOT):  # where the logs are
        return against.outcomes(logs(), ratio)


def of_equivalence():
    """What the registered experiment decides, counts and times."""
    kept, own, ends, share = {}, {}, {}, []
    for label, ratio in itertools.product(against.WAYS, FROZEN["ratios"]):
        for into, base in (kept, "AdamW"), (own, "own"):
            found = against.count(outcomes(ratio), label, base)
            into[f"{short(label)} {ratio}"] = f"{found['keeps']} of {sum(found.values())}"
        for (of, name), (_, cell) in outcomes(ratio).items():
            if of == label:
                ends[f"{name} {short(label)} {ratio}"] = unit(name)[0] * cell.worse
    whole = {name: lines for name, lines in logs().items() if name != against.PERCEPTRON}
    for name, lines in whole.items():
        examples = FROZEN["workloads"][name]["examples"]
        of = (x["search"] for x in lines if "search" in x and x["horizon"] == 1)
        share += [100 * each / examples for each in of]
    grown = {name: against.grown(name, lines) for name, lines in whole.items()}
    fewer = [100 * (1 - each["updates"] / each["whole"]) for each in grown.values()]
    at_8 = [100 * each["at_8"] for each in grown.values()]
    keeping, undecided, worse = (
        sum(each["cell"].outcome == outcome for each in grown.values())
        for outcome in (against.KEEPS, against.UNDECIDED, against.WORSE)
    )
    return {
        "kept": kept, "own": own, "ends": ends, "below": {key: -x for key, x in ends.items()},
        "below_letters": -ends["letters muon find_rate 8"] / 1000,
        "share": (min(share), max(share)),
        "grown_fewer": (min(fewer), max(fewer)), "grown_at_8": (min(at_8), max(at_8)),
        "grown_kept": f"{keeping} of {len(grown)}", "grown_others": (undecided, worse),
        "grown_told": f"{keeping} kept their result, {undecided} is undecided and {worse} worse",
        "grown_loss": 100 * grown["fashion"]["loss"], **of_seconds(), **of_bases(),
        **of_registered(),
    }  # fmt: skip


def of_seconds():
    """To the loss of the tuned AdamW, over its own."""
    with contextlib.chdir(ROOT):
        found = to_the_loss.every()
    every = {
        (label, name, ratio): times
        for name, of in found.items()
        for label, ratio in itertools.product(to_the_loss.WAYS, to_the_loss.RATIOS)
        if (times := of.times(to_the_loss.WAYS[label], 1 if "small" in label else ratio))
    }
    searched, small, tuned = (
        {spec: sorted(getattr(every[f"{spec}, {how}", task, 8], of)[0] for task in found)
         for spec in ("Muon", "SOAP")}
        for how, of in (
            ("by `find_rate`", "with_search"), ("at the small batch", "alone"),
            ("at the small batch", "with_search"),
        )
    )  # fmt: skip
    return {
        "searched": (min(map(min, searched.values())), max(map(max, searched.values()))),
        "searched_by": searched, "seconds": every,
        "tuned_seconds": (min(map(min, tuned.values())), max(map(max, tuned.values()))),
        "fastest": (fastest := every["AdamW, by `transfer`", "diamonds", 8]),
        "fastest_again": fastest.of - fastest.at_first,
        "again_later": (again := every["AdamW, tuned again", "flights", 8]).of - again.at_first,
        "base_arrives": int(np.isfinite(found["diamonds"].base).sum()),
        "muon_seconds": small["Muon"], "soap_seconds": small["SOAP"],
        "longer": {spec: sorted(of.step(arm, 8) / of.step(arm, 1) for of in found.values()) for
                   spec, arm in (("AdamW", "tuned adamw"), ("Muon", "tuned muon"),
                                 ("SOAP", f"tuned {against.SOAP}"))},
        "grown_seconds": sorted(every["AdamW, growing", task, 32].alone[0] for task in found),
        "grown_faster": 100 - 100 * every["AdamW, growing", "diamonds", 8].alone[0],
    }  # fmt: skip


def of_bases():
    """How the bases vary, where what was chosen by loss stands by error, and what it is now."""
    power, margins, rank = {}, {}, {}
    with contextlib.chdir(ROOT):
        found = {n: against.found(n, lines)["tuned adamw", 1] for n, lines in logs().items()}
        again = against.by_errors("fashion")
    for name, base in found.items():
        of = tests.margin(name, base)
        margins[name] = of / statistics.stdev(base)
        power[name] = 100 * tests.power(base, of, len(base))
        power[f"{name} 8"] = 100 * tests.power(base, of, 8)
    bases = (("fashion", of, 1) for of in ("adamw", "lamb", "muon", "tf_lamb:LANS"))
    for name, spec, ratio in (("perceptron", "adamw", 1), ("perceptron", "adamw", 8), *bases):
        tried = runs(f"equivalence_{name}", arm=f"tuned {spec}", ratio=ratio, seed=0)
        best = min(tried, key=lambda line: line["valid"][-1] or math.inf)
        place = 1 + sum((line["test"] or 1) < best["test"] for line in tried)
        rank[f"{name} {spec} {ratio}"] = place
    ends = {of: 100 * statistics.mean(scores) for of, scores in again.items()}
    by_error = {of: ends[f"{of} muon", 8] - ends["tuned muon", 1] for of in ("tuned", "transfer")}
    tried = runs("equivalence_letters", arm="tuned adamw", ratio=1, seed=0)
    stuck = sum(line["valid"][-1] > 2.8 for line in tried)
    return {
        "power": power, "margins": margins, "rank": rank, "by_error": by_error,
        "tried": len(tried), "stuck": stuck,
    }  # fmt: skip


def of_registered():
    """On flights by the rule as it was registered, and what was expected of others."""
    found = {name: against.scores(logs()[name]) for name in ("flights", "diamonds")}

    def lost(arm, base):
        return 1000 * statistics.mean(found["flights"][arm, 8]) - 1000 * statistics.mean(
            found["flights"][base, 1]
        )

    def mean(name, arm):
        return 1000 * statistics.mean(found[name][arm, 8][:8])

    base = [line for line in logs()["flights"] if line["arm"] == "tuned adamw" and line["seed"]]
    target = experiment.target_of([x for x in base if (x["ratio"], x["horizon"]) == (1, 1)])
    arrived: dict = {}
    for line in base:
        if line["ratio"] == 8 and line["seed"] <= 8:
            came = experiment.arrived(line, target) or math.inf
            arrived[line["seed"]] = min(came, arrived.get(line["seed"], math.inf))
    more = {}
    for name, whole in (("flights", 4608), ("diamonds", 12544)):
        made = runs(f"equivalence_{name}", arm="adascale momentum", ratio=8)
        more[name] = 8 * statistics.mean(line["updates"][-1] for line in made) / whole
    specs, own = ("adamw", "lamb", "muon"), ("lamb", "muon")
    old = found["flights"]  # by `transfer` as it was registered
    apart = {spec: (old[f"find_rate {spec}", 8], old[f"transfer {spec}", 8][:8]) for spec in own}
    return {
        "registered": {spec: lost(f"transfer {spec}", f"tuned {spec}") for spec in specs},
        "apart": {
            spec: mean("diamonds", f"find_rate {spec}") - mean("diamonds", f"transfer {spec}")
            for spec in own
        },
        "apart_on_flights": {
            spec: [1000 * x for x in tests.worse_by(*apart[spec], 0.0025)[:2]] for spec in apart
        },
        "fewer_again": statistics.median(4608 / updates for updates in arrived.values()),
        "adascale_more": more,
    }


def of_language_model():
    """Test losses over AdamW's base or the own one, and the microseconds of an example."""
    found = report.Found(runs("language_model"))

    def mean(arm, batch):
        return statistics.mean(found.scores(arm, batch).values())

    base = {name: mean(f"tuned {name}", 256) for name in ("adamw", "muon")}
    lost = {key: mean(*key) - base[key[0].split()[-1]] for key in found.runs if key[1] > 256}
    each = {key: 1e6 * line["seconds_a_step"] / key[1] for key, line in found.steps.items()}
    own = report.seconds(found, "tuned muon", 256)
    grown = found.runs["growing adamw", 2048][0]
    whole = found.decided["examples"] // 256
    last = [loss for seed, loss in found.scores("transfer muon", 32768).items()]
    adamw = found.runs["tuned adamw", 256]
    pairs = [found.scores(f"{arm} adamw", 2048) for arm in ("unchanged", "transfer")]
    gained, low, _ = report.interval(report.paired(*pairs))
    pairs = [found.scores("growing adamw", 2048), found.scores("tuned adamw", 256)]
    _, *grown_within = report.interval(report.paired(*pairs))
    points = {
        name: sorted(line["validation"] for line in lines) for name, lines in found.searched.items()
    }
    return {
        "lm": {f"{arm} {batch}": loss for (arm, batch), loss in lost.items()},
        "lm_over_adamw": mean("transfer muon", 2048) - base["adamw"],
        "lm_grown_fewer": 100 * (1 - grown["updates"][-1] / whole),
        "lm_grown_within": grown_within, "lm_muon": base["adamw"] - base["muon"],
        "lm_gained": (gained, gained - low),
        "lm_missed": max(line["looks"][-1] for line in adamw) - found.target,
        "lm_second": {name: second - best for name, (best, second, *_) in points.items()},
        "lm_less": 100 * (1 - each["adamw", 2048] / each["adamw", 256]),
        "lm_last": (min(last), max(last)),
        "lm_each": {batch: each["adamw", batch] for batch in (256, 2048)},
        "lm_most": max(each["adamw", batch] for batch in (2048, 8192, 32768)),
        "lm_step": {
            b: each["adamw", b] * b / each["adamw", a] / a for a, b in ((16, 64), (64, 256))
        },
        "lm_seconds": (own["to"], own["run"]), "lm_reached": own["reached"],
        "lm_search": own["search"],
        "lm_adamw_seconds": report.seconds(found, "tuned adamw", 256)["run"],
        "lm_updates": found.decided["examples"] // 32768, "lm_margin": found.margin,
        "lm_examples": found.decided["examples"],
    }  # fmt: skip


def of_large_batch():
    """Letters at batch 16 and above: mean loss, its change in %, seconds."""
    keys = itertools.product(("LAMB", "AdamW"), (16, 128, 2048, 16384))
    seeds = {key: seeds_of_letters(*key) for key in keys}
    assert {len(lines) for lines in seeds.values()} == {3}
    mean = {key: statistics.mean(run["loss"] for run in lines) for key, lines in seeds.items()}
    seconds = {
        key: statistics.median(run["seconds"] for run in lines) for key, lines in seeds.items()
    }
    change = {
        (name, batch): 100 * (loss / mean[name, 16] - 1) for (name, batch), loss in mean.items()
    }

    def by_text(values):
        return {f"{name} {batch}": value for (name, batch), value in values.items()}

    return {
        "letters_loss": by_text(mean), "letters_change": by_text(change),
        "letters_seconds": by_text(seconds),
        "letters_step": seconds["LAMB", 128] / seconds["LAMB", 16] * 8,
        "letters_updates": {batch: lines[0]["updates"] for (_, batch), lines in seeds.items()},
        "pictures_change": {
            batch: 100 * (of_pictures_at(batch) / of_pictures_at(16) - 1) for batch in (2048, 16384)
        },
    }  # fmt: skip


def of_pictures_at(batch):
    """Returns the mean share of errors of LAMB at a batch, over the seeds."""
    lines = runs("large_batch", task="pictures", name="LAMB", batch=batch)
    assert len(lines) == 3
    return statistics.mean(run["errors"] for run in lines)


def of_updates_left():
    """The fewest and the most updates at a ratio: of the registered tasks and of all runs."""
    tasks = [FROZEN["workloads"][name] for name in against.TASKS]
    left = {
        ratio: [task["examples"] // (task["base"] * ratio) for task in tasks]
        for ratio in FROZEN["ratios"]
    }
    found = report.Found(runs("language_model"))
    examples = found.decided["examples"]
    beyond_8 = [*left[32], *left[128], examples // 8192, examples // 32768]
    return {
        "left": {ratio: (min(of), max(of)) for ratio, of in left.items()},
        "left_of_lm": {batch: examples // batch for batch in (2048, 8192, 32768)},
        "left_beyond_8": (min(beyond_8), max(beyond_8)),
        "kept_with_2048": kept_with_2048(),
        "from_256": from_256_to_32768(),
    }


def cells_of_pages():
    """Returns the cells of the study on updates left, of the optimizers that the pages tell of."""
    cells = analysis.cells_of(updates_left_runs.runs_of(LOG_OF_UPDATES_LEFT))
    return [cell for cell in cells if cell.optimizer in updates_left_report.PRINTED]


def from_256_to_32768():
    """Returns optimizer -> the least and the greatest change over the seeds: "0.1 to 0.3"."""
    return {
        own.optimizer: f"{100 * min(own.excess):.1f} to {100 * max(own.excess):.1f}"
        for own in analysis.own_numbers_of(updates_left_runs.runs_of(LOG_OF_UPDATES_LEFT))
    }


def kept_with_2048():
    """Returns optimizer -> results that were kept with 2,048 updates left or more: "8 of 9"."""
    kept, counts = collections.Counter(), collections.Counter()
    for updates, by_optimizer in analysis.outcomes(cells_of_pages()).items():
        for optimizer, seen in by_optimizer.items():
            if updates >= 2048:
                kept[optimizer] += seen.kept
                counts[optimizer] += seen.count
    return {optimizer: f"{kept[optimizer]} of {counts[optimizer]}" for optimizer in counts}


def of_recipes():
    """The example that is refused at 32,768."""
    asked = {"examples": 60000, "epochs": 40}
    legw = functools.partial(recipes.scale, rule="legw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused = pytest.raises(ValueError, legw, 32768, 256, 1e-2, 1.0, **asked)
        warmup, training = re.search(r"(\d+) > (\d+) steps", str(refused.value)).groups()
        sqrt = recipes.scale(32768, 256, 1e-2, 1.0, **asked)
    large = types.SimpleNamespace(warmup_steps=warmup, train_steps=training)
    return {"legw": {32768: large, 2048: legw(2048, 256, 1e-2, 1.0, **asked)}, "sqrt": sqrt}


@functools.cache
def figures():
    """What the claims name."""
    made = {}
    for source in (
        of_pictures, of_text, of_flights, of_lstm, of_bert, of_adascale, of_autowarmup, of_transfer,
        of_larger, of_equivalence, of_language_model, of_recipes, of_large_batch, of_updates_left,
    ):  # fmt: skip
        made |= source()
    every = [made.pop(name) for name in ("rates", "rates_text", "rates_flights")]
    made["rates"] = {
        rival: (min(found), max(found))
        for rival in every[0]
        if (found := [rate for of in every for rate in of.get(rival, [])])
    }
    made["automatic_lost"], made["automatic_runs"] = (
        made["automatic"][i] + made["automatic_text"][i - 1] for i in (2, 3)
    )
    return made
