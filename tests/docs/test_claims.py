"""Every number in the prose of the pages of evidence is that of a log, or a setting of a run.

`claims.txt` has the sentences and rows, a line each, with names in place of the figures that the
logs bear. A page has to have each of its claims; what else it has may hold `SETTINGS` alone.
"""

import collections
import functools
import math
import re
import statistics
import sys
import types
import warnings

import pytest
from support.pages import ROOT, number, runs, steps_of, table, words

from tf_lamb.api.find.rate import STARTS
from tf_lamb.core import recipes

sys.path.insert(0, str(ROOT))
from benchmarks.language_model import report

TEXT = (ROOT / "tests" / "docs" / "claims.txt").read_text()
CLAIMS = [line.split(": ", 1) for line in TEXT.splitlines()]
SETTINGS = {  # batches, ratios, seeds, epochs, targets, budgets, and what a page quotes
    "evidence.md": "1 3 8 16 25 28 32 60 64 87 100 128 256 512 1,000 1,024 1,600 2,048 2,656 8,192 "
    "10,000 250,000 900,000 156 0.1 0.2 0.36 2,000 2.4 2.89 "
    "0.505 4,096 220 "
    "3.8 17 1.9 21.3 38 47 0.76 1.5 0.60",  # tests/docs/test_protocol.py has these
    "should_i.md": "1 2 2.8 3 4 8 16 32 50 64 128 256 2,048 4,096 8,192 32,768 0.5 0.3 "
    "1,024 13.8 200 "  # updates and weights of the language model, and its card
    "0.00125 0.01 0.002 0.003 0.00775 0.06841 "  # the last four have a test below
    "2.1 2.9 19 38 47 0.1 1.5 0.60 0.25",  # tests/docs/test_protocol.py has these
    "choosing_a_batch.md#Measured": "1 2 3 4 8 16 32 64 128 0.69 25,600",
    "noise.md#Measured": "1 2 3 5 8 16 32 100 1,024 5.5 "
    "0.01 0.02 0.04 0.08 0.9 4,800 27,000 0.32 1.28",
    "language_model.md": "1 6 8 11 16 64 95 128 256 1,024 2,048 8,192 32,768 13.8 4,608 576 9.0 "
    "200 208.4 262,144 0.0274 100 2.5980",  # tests/docs/test_language_model.py has these
    "automatic_warmup.md#Measured": "1 3 4 5 60 86 120 512 0.01 "
    "64 9.6 9.7 24.0",  # tests/docs/test_protocol.py has these
}


TABLES = ("evidence.md", "language_model.md")  # whose tables have tests of their own


def tuned(task, heading):
    """(rival, batch) -> its preferred rate, and the steps of each seed: of a table of the page."""
    header, *rows = table(ROOT / "docs" / "evidence.md", heading)
    found = {}
    for label, *cells in rows:
        rival = re.search(r"`(\w+)`", label)[1]
        for batch, cell in zip(header[1:-1], cells[:-1], strict=True):
            of = {"rival": rival, "batch": number(batch)}
            if rate := re.search(r"\((.+)\)", cell):
                of["rate"] = float(rate[1])
            elif not re.search(r"\d", cell):
                continue
            found[rival, of["batch"]] = of.get("rate"), list(steps_of(task, **of).values())
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
    best = {rival: results[rival, 2048][0] / results[rival, 256][0] for rival in rivals}
    assert best["momentum"] == best["adamw"] and best["lamb"] == best["lans"]
    batches = sorted({batch for _, batch in results})
    assert all(median["adamw", batch] < median["lamb", batch] for batch in (16, 64, 256))
    share = [
        100 * median["muon", b] / min(median[rival, b] for rival in rivals[:-1]) for b in batches
    ]
    automatic = [
        steps / median["lamb", b] for (rival, b), steps in median.items() if rival == "autowarmup"
    ]
    spread = [
        statistics.variance(map(math.log, steps))
        for rate, steps in results.values()
        if rate and math.inf not in steps
    ]
    watched = {
        run["batch"]: run["noise_scale"] for run in runs("steps_pictures") if "noise_at" in run
    }
    return {
        "fewer": fewer,
        "best": best,
        "more": {rival: 8 / times for rival, times in fewer.items()},
        "last": {rival: median[rival, 2048] for rival in rivals},
        "muon": (min(share), max(share)),
        "automatic": (min(automatic), max(automatic), *lost("steps_pictures")),
        "spread": 100 * math.sqrt(statistics.mean(spread)),
        "noise": watched[16],
        "noise_512": watched[512],
        "need": {b: round(median["lamb", b] * b, -3) for b in batches},
        "rates": rates(results),
    }


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
    before = {
        b: statistics.median(
            run["steps"]
            for run in runs("steps_text_muon_before", rival="muon", batch=b, rate=rate)[:3]
        )
        for b, rate in ((16, 0.004), (64, 0.008), (256, 0.008), (1600, 0.016))
    }
    gone = [100 - 100 * steps / median["muon", b] for b, steps in before.items()]
    at_16 = runs("steps_text", rival="lars", batch=16)
    lars = {run["rate"]: run["steps"] for run in at_16 if run["steps"]}
    momentum = sorted({run["rate"] for run in runs("steps_text", rival="momentum")})
    ends = {run["batch"]: run["noise_scale"][-1] for run in runs("steps_text") if "noise_at" in run}
    assert list(lars) == [1.024] and len(momentum) == 5
    return {
        "fewer_text": fewer,
        "muon_text": (min(share), max(share)),
        "before": before,
        "muon_before": (min(gone), max(gone)),
        "lars": round(lars[1.024], -2),
        "lars_rates": {8: "eight"}[len({run["rate"] for run in at_16})],
        "momentum_text": (momentum[0], momentum[-1]),
        "automatic_text": (median["autowarmup", 16] / median["lamb", 16], *lost("steps_text")),
        "noise_text": (ends[16], ends[64]),
        "need_text": {b: median["lamb", b] * b / (median["lamb", 16] * 16) for b in (64, 256)},
        "foretold": {b: (1 + b / ends[16]) / (1 + 16 / ends[16]) for b in (64, 256)},
        "rates_text": rates(results),
    }


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
        "small": small,
        "large": large,
        "small_most": math.ceil(20 * max(small.values())) / 20,
        "adam": (mean["adam", 128, 0.002], mean["adam", 8192, 0.008]),
        "published": test["published", 8192, 0.1],
        "changes": won,
        "won": won["clipped"]["0.1"][0] - mean["legw", 8192, 0.025],
        "won_by_width": won["wider"]["0.1"][0] - won["clipped"]["0.1"][0],
        "lstm_steps": steps,
    }


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
        "adascale": of,
        "base": cell(base),
        "gain": {s: statistics.mean(curve[-1] for curve in curves) for s, curves in gains.items()},
        "gain_least": (min(least), max(least)),
        "noise_8": (round(statistics.mean(min(c) for c in noises), -1), ends[0], ends[-1]),
        "examples": (min(better), max(better)),
        "linear_8": statistics.mean(tests[base]) - linear,
        "linear_over": over,
        "searched_least": min(tests[searched]),
    }


def of_autowarmup():
    """Its rows, and where it is farthest from the best peak."""
    made, gaps = {}, []
    for batch in (256, 2048, 8192):
        mine = runs("autowarmup", data="fashion_mnist", batch=batch)
        peaks = {run["test"]: run["peak"] for run in mine if run["peak"]}
        own = [run for run in mine if not run["peak"]]
        at = sorted({f"{100 * run['switch'] / run['steps']:.0f}" for run in own})
        to = sorted(run["switch_to"] for run in own)
        gaps += [max(peaks) - run["test"] for run in own]
        made[batch] = (
            f"{mine[0]['steps']:,} | {min(peaks):.1f} to {max(peaks):.2f} | "
            f"{peaks[max(peaks)]:.3g} | {', '.join(str(run['test']) for run in own)} | "
            f"{' to '.join(at)}% | {to[0]:.2g} to {to[-1]:.2g}"
        )
    plain = {"autowarmup": made, "autowarmup_most": max(gaps)}
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
    (base,) = (key for key in three if key[:2] == ("lars", 64))
    _, _, rate, *settings = base
    lars = {
        batch: three["lars", batch, rate * math.sqrt(batch / 64), *settings]
        for batch in (64, 512, 2048)
    }
    saved = zip(mean["sqrt", 32], mean["transfer", 32], strict=True)
    return {
        "moved": cells,
        "others": others,
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
    return {arm: " | ".join(row) for arm, row in cells.items()}, mean


def of_norm_noise():
    """Readings of the noise scale over that of single examples, and how far off they are."""
    found = {}
    for name in ("previous", "norms"):
        ratios = [run[name] / run["all"] for run in runs("norm_noise") if run[name] > 0]
        off = statistics.median(max(ratio, 1 / ratio) for ratio in ratios)
        found[name] = (min(ratios), max(ratios), off)
    assert [run["task"] for run in runs("norm_noise") if run["previous"] < 0] == ["flights"]
    return {"readings": found}


def of_larger():
    """Points that Adam loses at 8 times the batch, at the rate times the square root of 8."""
    accuracy = collections.defaultdict(list)
    for run in runs("larger", optimizer="Adam", epochs=12):
        accuracy[run["batch"], round(run["rate"], 5)].append(run["accuracy"])
    base, eight = (statistics.mean(accuracy[key]) for key in ((256, 0.004), (2048, 0.01131)))
    return {"larger_lost": base - eight}


def of_update():
    """Processor time over LAMB's, of BERT-base."""
    seen = collections.defaultdict(list)
    for run in runs("update_successors"):
        seen[run["name"].removeprefix("tf_lamb.tf_keras").strip().lower()].append(run["cpu"])
    lamb = statistics.median(seen[""])
    return {"update": {name: statistics.median(seen[name]) / lamb for name in ("lans", "muon")}}


def of_language_model():
    """Test losses over AdamW's base or the own one, and the microseconds of an example."""
    found = report.Found(runs("language_model"))

    def mean(arm, batch):
        return statistics.mean(found.scores(arm, batch).values())

    base = {name: mean(f"tuned {name}", 256) for name in ("adamw", "muon")}
    lost = {
        (arm, batch): mean(arm, batch) - base[arm.split()[-1]]
        for arm, batch in found.runs
        if batch > 256
    }
    each = {key: 1e6 * line["seconds_a_step"] / key[1] for key, line in found.steps.items()}
    own = report.seconds(found, "tuned muon", 256)
    last = [loss for seed, loss in found.scores("transfer muon", 32768).items()]
    return {
        "lm": {f"{arm} {batch}": loss for (arm, batch), loss in lost.items()},
        "lm_muon": base["adamw"] - base["muon"],
        "lm_gained": lost["unchanged adamw", 2048] - lost["transfer adamw", 2048],
        "lm_last": (min(last), max(last)),
        "lm_each": {batch: each["adamw", batch] for batch in (256, 2048)},
        "lm_most": max(each["adamw", batch] for batch in (2048, 8192, 32768)),
        "lm_step": {
            b: each["adamw", b] * b / each["adamw", a] / a for a, b in ((16, 64), (64, 256))
        },
        "lm_seconds": (own["to"], own["run"]),
        "lm_examples": found.decided["examples"],
    }


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
        of_pictures,
        of_text,
        of_flights,
        of_lstm,
        of_bert,
        of_adascale,
        of_autowarmup,
        of_transfer,
        of_norm_noise,
        of_larger,
        of_update,
        of_language_model,
        of_recipes,
    ):
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


@pytest.mark.once
def test_find_rate_begins_where_the_page_says():
    rows = table(ROOT / "docs" / "should_i.md", "LAMB's rate is not Adam's")[1:]
    said = {
        name: float(begin.split(",")[0])
        for names, _, begin in rows
        for name in re.findall(r"\w+", names)
        if name in STARTS
    }
    assert said == {name: STARTS[name] for name in said}
    assert {*said} == {"LAMB", "LANS", "Muon", "SOAP", "AdamW", "Adam", "LARS"}
    soap = {
        line["settings"]["rate"]
        for task in ("flights", "diamonds")
        for line in runs(f"equivalence_{task}", arm="tuned benchmarks.soap:OfPackage", ratio=1)
        if line["seed"]
    }
    assert f"| SOAP | {min(soap)} to {max(soap)}, tuned" in words(ROOT / "docs" / "should_i.md")


@pytest.mark.once
@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=range(len(CLAIMS)))
def test_a_claim_is_what_the_log_bears(page, claim):
    assert claim.format_map(figures()) in words(ROOT / "docs" / page)


@pytest.mark.once
@pytest.mark.parametrize("page", SETTINGS)
def test_a_number_is_a_claim_or_a_setting(page):
    """Of the prose; the tables of evidence.md have a test of their own."""
    allowed = set(SETTINGS[page].split())
    page, _, heading = page.partition("#")
    text = (ROOT / "docs" / page).read_text()
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE) if page in TABLES else text
    text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0] if heading else text
    text = re.sub(r"\s+", " ", text)
    for name, claim in CLAIMS:
        if name == page:
            text = text.replace(claim.format_map(figures()), "")
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|\[\^\w+\]", " ", text)
    found = set(re.findall(r"(?<!\d)\d(?:[\d,.]*\d)?", text))
    assert sorted(found - allowed) == []
