"""A sentence that infers names the rows that bear it, and a check that fails if they do not.

The sentences are those of `INFERRING`, with a word of `WORDS`. claims.txt has each, and after
`<-` the name of a function of this file and the rows; test_claims.py holds their numbers.
"""

import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
from support import figures as claims
from support.figures import CLAIMS, figures, logs, outcomes
from support.pages import ROOT, anchors, prose, runs

from benchmarks.equivalence import again, against, arms, by_error, tables, to_the_loss, warmups
from benchmarks.equivalence.against import PERCEPTRON
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.language_model import report

pytestmark = pytest.mark.once
WORDS = r"\b(keep|keeps|kept|every|no|none|nothing|all|held out|too few|faster|each)\b"
INFERRING = {  # page -> what is left out of it: definitions, links, what runs
    "../README.md": (
        r".*(?=## A larger batch)", r"The brackets count.*?examples\.", r"## A rule of your own.*",
    ),
    "should_i.md": (r'## What "kept" means.*',),
    "steps_saved.md": (
        r"\*\*These runs.*?(?=## What others)", r"LEGW's own experiment.*?(?=\n\n)",
        r"The table has.*?(?=\n\n)", r"An embedding.*?(?=\n\n)",
    ),
    "results.md": (r"## How to read them.*?(?=## At 32 times)", r"\[\^\w+\]: .*"),
}  # fmt: skip
BORNE = [
    (*claim, *said.partition(" <- ")[2].split(": ", 1))
    for claim, said in zip(CLAIMS, claims.LINES, strict=True)
    if " <- " in said
]


@pytest.fixture(autouse=True)
def where_the_logs_are(monkeypatch):
    monkeypatch.chdir(ROOT)


def nothing_is_kept_at_128_times():
    """No constant batch of any way, against either base; and the language model."""
    ways = [label for label, (_, base) in against.WAYS.items() if base]
    for label, base in itertools.product(ways, ("AdamW", "own")):
        assert against.count(outcomes(128), label, base)["keeps"] == 0, label
    assert len(outcomes(128)) > 30
    assert len({name for _, name in outcomes(128)} - {PERCEPTRON}) == 4
    lm = figures()["lm"]
    assert all(lost > 0.3 for key, lost in lm.items() if key.endswith(" 32768"))


def with_few_updates_left_results_are_lost():
    """The language model's, with 128 left; and those of every task with 187 or fewer."""
    assert figures()["lm"]["transfer adamw 2048"] > 1
    assert figures()["left"][128][1] == 187
    nothing_is_kept_at_128_times()


def letters_lose_little_with_1024_left():
    """LAMB and AdamW by `transfer` lose under half a percent there, with 128 left over five."""
    for name in ("LAMB", "AdamW"):
        at_2048, at_16384 = (
            figures()["letters_change"][f"{name} {batch}"] for batch in (2048, 16384)
        )
        assert -0.05 < at_2048 < 0.5 and at_16384 > 5
    assert figures()["pictures_change"][2048] < 0.5 and figures()["pictures_change"][16384] > 5
    seconds = figures()["letters_seconds"]
    assert 18 < seconds["LAMB 16"] / seconds["LAMB 2048"] < 22
    assert figures()["letters_updates"] == {16: 131072, 128: 16384, 2048: 1024, 16384: 128}


def lamb_keeps_no_more_than_adamw():
    """With 2,048 updates left or more, of as many results."""
    counts = figures()["kept_with_2048"]
    (lamb, of_lamb), (adamw, of_adamw) = (counts[name].split(" of ") for name in ("LAMB", "AdamW"))
    assert of_lamb == of_adamw and int(lamb) <= int(adamw)


def counts_are_of_all_that_is_finished():
    """A count's denominator is all tasks with a finished base and arm, but for what is void."""
    for (label, (arm, base)), ratio in itertools.product(against.WAYS.items(), (8, 32)):
        finished = {"AdamW": 0, "own": 0}
        for name, lines in logs().items():
            if name == PERCEPTRON or against.is_by_loss(name, label):
                begun = [x for x in lines if (name, x.get("arm")) == (PERCEPTRON, "transfer muon")]
                lines = begun + runs("equivalence_by_error", workload=name)
            made = Counter((x["arm"], x["ratio"]) for x in lines if x.get("seed"))
            made = {of for of, n in made.items() if n >= FROZEN["workloads"][name]["fewer_seeds"]}
            transfers = runs("equivalence_warmups", workload=name, power=0.5, warmup=0.1)
            made |= {(f"transfer {line['spec']}", line["ratio"]) for line in transfers}
            at = ratio if base else 1
            finished["AdamW"] += {(arm, at), ("tuned adamw", 1)} <= made
            finished["own"] += bool(base) and {(arm, at), (base, 1)} <= made
        for of, count in finished.items():
            assert sum(against.count(outcomes(ratio), label, of).values()) == count, (label, of)


def muon_is_below_at_the_small_batch():
    """Muon, but on the perceptron, and SOAP end below AdamW there, and keep its result moved."""
    for label, above in (("Muon", {PERCEPTRON}), ("SOAP", set())):
        small, moved = (
            {n: adamw for (of, n), (_, adamw) in outcomes(8).items() if of == f"{label}, {how}"}
            for how in ("at the small batch", "by `transfer`")
        )
        assert {name for name, cell in small.items() if cell.worse > 0} == above
        kept = [{n for n, x in cells.items() if x.outcome == "keeps"} for cells in (small, moved)]
        assert kept[0] == kept[1] == small.keys() - above == moved.keys() - above
    assert figures()["lm_muon"] > 0.2


def three_were_moved_to_2048():
    """Two lose by AdamW or Adam, and by Muon; the third ends no lower that is seen."""
    of = figures()
    assert of["lm"]["transfer adamw 2048"] > of["lm_over_adamw"] > 0.1
    assert np.all(np.array(of["larger"]["base"]) < [of["larger"][x] for x in ("adam", "muon")])
    assert of["autowarmup_gained"] < of["autowarmup_within"][2048]
    assert of["autowarmup_lost"] < of["autowarmup_within"][8192]


def the_batch_beside_the_optimizer():
    """What it costs a moved optimizer, and what that one wins of AdamW at the small batch."""
    for label, arm in (("Muon", "tuned muon"), ("SOAP", f"tuned {against.SOAP}")):
        for name, lines in logs().items():
            own = against.found(name, lines)
            if not (base := against.at_base(name, own, arm)):
                continue
            moved = against.compared(name, own, arm.replace("tuned", "transfer"), arm)
            assert bool(moved[8].worse < -base.worse) is (name != PERCEPTRON), (label, name)
            if label == "Muon":
                to = against.compared(name, own, "transfer muon", "tuned adamw")[32]
                assert bool(2 * to.worse > to.bound) is (name != "fashion") and to.worse > 0, name
    assert figures()["lm"]["transfer muon 2048"] > figures()["lm_muon"]


def transfer_keeps_none_on_diamonds():
    """Against the own base."""
    found = {
        label.partition(",")[0]: own.outcome for (label, name), (own, _) in outcomes(8).items()
        if name == "diamonds" and "`transfer`" in label
    }  # fmt: skip
    worse = dict.fromkeys(("Muon", "SOAP", "LAMB"), against.WORSE)
    assert found == {"AdamW": against.UNDECIDED} | worse


def the_arm_of_find_rate_differs():
    """From `transfer` with Muon on Fashion-MNIST, in each of the three."""
    (moved,) = runs("equivalence_fashion", arm="transfer muon", ratio=8, seed=1, horizon=1)
    rate, decay, beta_1 = (moved["settings"][x] for x in ("rate", "weight_decay", "beta_1"))
    for line in runs("equivalence_fashion", arm="find_rate muon", ratio=8):
        assert line["found"] < rate * math.sqrt(8) / 2
    code = (ROOT / "benchmarks" / "equivalence" / "fits.py").read_text()
    assert 'beta_1=0.95 if spec == "muon" else 0.9, weight_decay=0.0' in code
    assert decay > 0 and beta_1 != 0.95


def some_keep_by_a_hair():
    """What keeps AdamW's result, or Muon its own, and falls by another rule or correction."""
    ways = ("AdamW, by `transfer`", "Muon, by `find_rate`", "SOAP, by `find_rate`")
    kept = {key for key, (_, cell) in outcomes(8).items()
            if key[0] in ways and cell.outcome == against.KEEPS}  # fmt: skip
    falls = {cell[1:] for cell in against.only_alone(logs()) if cell[0] == 8}
    surely = {key for key in kept if (*key, 1) not in falls}
    assert surely == {(ways[0], "flights"), (ways[2], "flights"), (ways[2], "diamonds")}
    own = {key for key, cells in outcomes(8).items()
           if key[0] == "Muon, by `transfer`" and cells[0].outcome == against.KEEPS}  # fmt: skip
    assert own and all((*key, 0) in falls for key in own)
    registered = against.scores(logs()["flights"])
    cells = against.compared("flights", registered, "transfer adamw", "tuned adamw")
    assert cells[8].outcome == against.WORSE


def a_batch_that_grows_comes_to_what_is_said():
    """A growing run at a ratio contains a batch of that ratio; at 128 times none does."""
    of = {name: lines for name, lines in logs().items() if name != PERCEPTRON}
    for name, lines in of.items():
        base, told = FROZEN["workloads"][name]["base"], against.grown(name, lines)
        for ratio in (8, 32, 128):
            made = [x for x in lines if (x.get("arm"), x.get("ratio")) == ("growing adamw", ratio)]
            stages = arms.grown(name, Settings(**made[0]["settings"]), ratio)
            sizes = {stage.batch_size // base for stage in stages}
            assert (ratio in sizes) is (ratio < 128), (name, ratio)
            assert sum(stage.train_steps for stage in stages) == made[0]["updates"][-1]
        assert told["largest"] == max(sizes) * base < 128 * base
        assert told["whole"] == FROZEN["workloads"][name]["examples"] // base
    for ratio, (name, lines) in itertools.product((8, 32, 128), of.items()):
        cells = against.compared(name, against.found(name, lines), "growing adamw", "tuned adamw")
        assert (cells[ratio].outcome == against.KEEPS) is (name in tables.IN_FULL)
    low, high = figures()["lm_grown_within"]
    assert 0 < low < figures()["lm_margin"] < high  # what 5% fewer examples lose
    assert "it never came to 128" in claims.page_of("results.md").lower()


def seconds_have_the_search_in_them():
    """A comparison of seconds includes the search; only what needs none is faster."""
    found = figures()["seconds"]
    faster = {key for key, cell in found.items() if cell.with_search[0] < 1}
    grown = {("AdamW, growing", name, ratio) for name in to_the_loss.TASKS for ratio in (8, 32)}
    assert faster == {("AdamW, by `transfer`", "diamonds", 8), *grown}
    assert not [key for key in faster if found[key].with_search[2] < 1 - 1 / 20]  # by a look
    moved = outcomes(8)["AdamW, by `transfer`", "diamonds"][1]
    assert moved.outcome == against.UNDECIDED
    for name, of in to_the_loss.every().items():
        for label, arm in to_the_loss.WAYS.items():
            free = label in ("AdamW, unchanged", "AdamW, by `transfer`", "AdamW, growing")
            ratio = 1 if "small" in label else 8
            searched = of.spent(arm, ratio)[:, 1].min() > 0
            assert searched == ("find_rate" in label), (name, label)
            assert (of.search(arm, ratio) == 0 and not searched) is free, (name, label)
        for line in runs(f"equivalence_{name}", arm="find_rate muon", ratio=8, horizon=1):
            assert line["search"] > 0.3 * FROZEN["workloads"][name]["examples"]


def the_card_was_busy():
    """An example takes hardly less at 2,048 than at 256, so that 8 times saves no time."""
    each = figures()["lm_each"]
    assert each[256] / each[2048] < 1.2
    lm = figures()["lm"]
    assert lm["transfer adamw 2048"] > 0.3 and lm["transfer muon 2048"] > 0.3


def a_language_model_lost():
    """Each constant way that was run at 2,048 ended above its own base and AdamW's."""
    lm = figures()["lm"]
    constant = [lost for key, lost in lm.items() if key.endswith(" 2048") and "grow" not in key]
    assert len(constant) == 3 and min(constant) > figures()["lm_muon"]


def transfer_gained_nothing_that_is_seen():
    """Over AdamW unchanged at 2,048: the interval has 0 in it."""
    mean, half = figures()["lm_gained"]
    assert abs(mean) < half


def one_seed_misses_its_own_mark():
    """Of AdamW's base, the mark that its mean and deviation make."""
    found = report.Found(runs("language_model"))
    lines = found.runs["tuned adamw", 256]
    assert sum(min(line["looks"]) > found.target for line in lines) == 1


def only_these_keep_at_32_times():
    """What keeps AdamW's result there; and no other way keeps any."""
    made = outcomes(32)
    kept = {
        (label, name) for (label, name), (_, adamw) in made.items()
        if against.WAYS[label][1] and adamw.outcome == against.KEEPS
    }  # fmt: skip
    assert kept == {
        ("Muon, tuned again", "flights"), ("SOAP, tuned again", "flights"),
        ("SOAP, tuned again", "diamonds"), ("SOAP, by `transfer`", "diamonds"),
    }  # fmt: skip
    falls = {cell[1:3] for cell in against.only_alone(logs()) if cell[0] == 32 and cell[3]}
    assert kept & falls == {("SOAP, tuned again", "flights"), ("SOAP, by `transfer`", "diamonds")}
    shown = set(re.findall(r"^\| (\w[^|]+) \|", against.table(logs(), 32, kept=True), re.M))
    somewhere = {
        label for (label, _), cells in made.items()
        if against.WAYS[label][1] and any(c and c.outcome == against.KEEPS for c in cells)
    }  # fmt: skip
    assert shown == somewhere
    nothing_is_kept_at_128_times()


def choice_by_loss_is_no_choice_by_error():
    """On the perceptron; on Fashion-MNIST the bases are. And what was chosen again, by errors."""
    rank = figures()["rank"]
    assert {place for cell, place in rank.items() if cell.startswith("fashion")} == {1}
    assert rank["perceptron adamw 8"] > 8 and rank["perceptron adamw 1"] > 8
    made = {name: against.by_errors(name) for name in by_error.WORKLOADS}
    for name, spec in itertools.product((PERCEPTRON, "fashion"), ("adamw", "muon")):
        rules = ("tuned", "transfer", "unchanged")[: 3 if spec == "adamw" else 2]
        assert {(f"tuned {spec}", 1), *((f"{of} {spec}", 8) for of in rules)} <= made[name].keys()
    assert not [arm for arm, _ in made[PERCEPTRON] if arm.split()[1] not in ("adamw", "muon")]
    void = {f"{of}, tuned again" for of in ("LAMB", "LANS", "SOAP")}
    assert not void & {label for label, name in outcomes(8) if name == "fashion"}
    for name, arm, ratio in [(n, *x) for n, own in made.items() for x in own if "tuned" in x[0]]:
        of = {"workload": name, "arm": arm, "ratio": ratio}
        seeds, tried = ([x for x in runs("equivalence_by_error", **of) if bool(x["seed"]) is fresh]
                        for fresh in (True, False))  # fmt: skip
        (taken,) = (x for x in tried if x["settings"] == seeds[0]["settings"])
        assert {str(x["settings"]) for x in seeds} == {str(taken["settings"])} and len(tried) == 16
        ranked = [(x["valid_error"], x["valid"][-1]) for x in (taken, *tried) if x["test"]]
        (*_, first) = runs(f"equivalence_{name}", arm=arm, ratio=ratio, seed=1, horizon=1)
        assert ranked[0] == min(ranked)
        is_new = (name, arm) == (PERCEPTRON, "tuned adamw") or ratio == 8
        assert is_new or first["settings"] == taken["settings"]
    found, new = against.found("fashion", logs()["fashion"]), made["fashion"]
    for arm, base in (("unchanged", "adamw"), ("transfer", "adamw"), ("transfer", "muon")):
        for own in ("tuned adamw", f"tuned {base}"):
            cells = (against.compared("fashion", of, f"{arm} {base}", own) for of in (found, new))
            assert len({cell[8].outcome for cell in cells}) == 1
    assert min(new["tuned muon", 8]) > max(new["transfer muon", 8])


def held_out_is_diamonds_alone():
    """The networks of the other tasks are those on which a rule was tried before."""
    folders = (ROOT / "benchmarks" / name for name in ("study", "performance", "fuzz", "shared"))
    code = {path.stem: path.read_text() for folder in folders for path in folder.glob("*.py")}
    assert "return perceptron(shape)" in code["autowarmup"]
    assert "lambda x: text.bert" in code["steps_to_target"] and '"text": ((16,)' in code["growing"]
    assert not [name for name, text in code.items() if "diamonds" in text]
    late = {"find_rate lamb", "find_rate muon", "autowarmup lamb", "adascale momentum"}
    first = {*FROZEN["arms"], *(f"tuned {spec}" for spec in FROZEN["optimizers"])} - late
    made = [line["arm"] in first for line in logs()["diamonds"] if "arm" in line]
    assert made == sorted(made, reverse=True) and len(set(made)) == 2  # in the log's order


def what_varied_warmups_showed():
    """On flights a warmup gains AdamW more than a kept rate; LAMB needs the rate, diamonds too."""
    lost = {}
    for line in runs("equivalence_warmups"):
        base = against.scores(logs()[line["workload"]])[f"tuned {line['spec']}", 1]
        key = line["workload"], line["spec"], line["ratio"], line["power"], line["warmup"]
        lost[key] = np.mean(line["test"]) - np.mean(base)
    adamw = {key[3:]: x for key, x in lost.items() if key[:3] == ("flights", "adamw", 32)}
    warm, kept = adamw[0.5, 0.05] - adamw[0.5, 0.1], adamw[0.5, 0.1] - adamw[0.0, 0.1]
    assert 0 < kept < warm
    for ratio in warmups.RATIOS:
        assert lost["flights", "lamb", ratio, 0.0, 0.1] > lost["flights", "lamb", ratio, 0.5, 0.1]
        for spec in warmups.SPECS:
            of = "diamonds", spec, ratio
            assert lost[*of, 0.0, 0.1] > lost[*of, 0.5, 0.1]


def soap_is_below_at_each_batch():
    """Of flights and diamonds, below AdamW and LAMB."""
    for name, ratio in itertools.product(tables.IN_FULL, (1, *FROZEN["ratios"])):
        found = against.scores(logs()[name])
        soap, *rivals = (
            np.mean(found[f"tuned {spec}", ratio]) for spec in (against.SOAP, "adamw", "lamb")
        )
        assert soap < min(rivals)


def what_was_expected():
    """What came of the predictions on flights, and of AutoWarmup and `find_rate`."""
    found = against.scores(logs()["flights"])
    for spec in ("adamw", "lamb", "muon"):
        cells = against.compared("flights", found, f"transfer {spec}", f"tuned {spec}")
        assert 1000 * cells[8].worse > 2.5 and cells[8].outcome != against.KEEPS
        assert cells[32].outcome == cells[128].outcome == against.WORSE
    made = {(line["arm"], line["ratio"]) for line in logs()["flights"]}
    for arm, spec in FROZEN["arms"].items():
        if arm.startswith("growing"):
            continue
        assert (arm, 128) in made
        cells = against.compared("flights", found, arm, f"tuned {spec}")
        assert cells[128].outcome in (against.WORSE, "no answer")
    assert all(math.isinf(x) for k in (32, 128) for x in found["adascale momentum", k])
    unchanged = against.compared("flights", found, "unchanged adamw", "tuned adamw")
    assert unchanged[8].outcome == against.UNDECIDED
    learned_nothing = runs("equivalence_flights", arm="tuned momentum", ratio=128, seed=0)
    constant = max(x["test"] for x in learned_nothing if x["test"] and x["valid"][-1] < 0.56)
    assert 0.549 < constant < min(found["autowarmup lamb", 128])
    assert min(figures()["apart"].values()) > 2.5
    apart = figures()["apart_on_flights"].items()
    assert {spec for spec, (_, bound) in apart if bound < 2.48} == {"muon"}  # the margin


def what_was_not_run():
    """Longer runs of two, and some of a third; no base of Muon on letters, none on rows."""
    longer = {
        name: len([line for line in runs(f"equivalence_{name}") if line["horizon"] > 1])
        for name in FROZEN["workloads"].keys() - {"digits"}
    }
    assert {name for name, count in longer.items() if count} == {*tables.IN_FULL, PERCEPTRON}
    assert longer[PERCEPTRON] < 100 < min(longer[name] for name in tables.IN_FULL)
    assert ("tuned muon", 1) not in against.scores(logs()["letters"])  # its points alone were run
    assert not runs("equivalence_rows", ratio=1)


def three_cells_came_again():
    """Each within the interval that the log predicts."""
    cells = again.drawn(lambda name: logs()[name])
    assert len(cells) == 3
    for (name, arm, ratio), lines in cells.items():
        low, high = again.interval([line["test"] for line in lines])
        made = runs("equivalence_again", workload=name, arm=arm, ratio=ratio)
        assert low < np.mean([line["test"] for line in made]) < high


def the_tables_are_written_from_the_logs():
    """The page names the command; test_protocol.py compares it."""
    page = (ROOT / "docs" / "results_tables.md").read_text()
    assert "python -m benchmarks.equivalence.tables" in " ".join(page.split())
    assert page.count("| --- |") >= 10


def early_steps_fall_where_whole_runs_lose():
    """On flights from 64 to 1,024 Muon takes far fewer steps; at 2,048 a whole run loses."""
    assert figures()["fewer_flights"] > 8
    cells = against.compared(
        "flights", against.found("flights", logs()["flights"]), "transfer muon", "tuned muon"
    )
    assert cells[32].outcome == against.WORSE


def every_rule_loses_little_at_8_times():
    """Of the LSTM from 128 to 1,024; at 64 times each loses several times that."""
    small, large = figures()["small"], figures()["large"]
    assert len(small) == 5 and max(small.values()) <= 0.25
    assert min(large.values()) > 0.9


def muon_takes_the_fewest_steps():
    """At every batch of the convolutional network, of letters and of flights."""
    for name in ("muon", "muon_text", "muon_flights"):
        assert figures()[name][1] < 100


def no_change_carries_the_lstm():
    """To 8,192 with the accuracy of 128."""
    means = [mean for of in figures()["changes"].values() for mean, _ in of.values()]
    assert len(means) == 8 and max(means) < 98.6


def plain(text):
    """Sentences without links, marks, tables and headings."""
    text = re.sub(r"^(\||#|\[\^).*$|<a [^>]*></a>", "", text, flags=re.MULTILINE)
    text = re.sub(r"^- ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)|\[\^\w+\]", lambda of: of[1] or "", text)
    return re.sub(r"[*]", "", text)


def sentences(page):
    """Those of the page that infer; questions, links and words alone do not."""
    text = prose(ROOT / "docs" / page)
    for left_out in INFERRING[page]:
        text = re.sub(left_out, "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", plain(text)):
        words = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`\"0-9])", words):
            is_told = len(sentence.split()) > 5 and not sentence.endswith("?")
            if is_told and re.search(WORDS, sentence, re.IGNORECASE):
                yield sentence


@pytest.mark.parametrize("page", INFERRING)
def test_a_sentence_that_infers_names_what_bears_it(page):
    said = [plain(claim.format_map(figures())).strip(": ") for of, claim, *_ in BORNE if of == page]
    bare = [s for s in sentences(page) if not any(s in claim or claim in s for claim in said)]
    assert bare == [] and said


@pytest.mark.parametrize("check", sorted({check for _, _, check, _ in BORNE}))
def test_the_rows_bear_what_is_inferred(check):
    globals()[check]()


def test_a_claim_that_infers_names_its_rows():
    assert all(rows for *_, rows in BORNE) and len(BORNE) > 30


@pytest.mark.parametrize(
    "check", [nothing_is_kept_at_128_times, counts_are_of_all_that_is_finished]
)
def test_a_way_that_keeps_at_128_times_is_found(check, monkeypatch):
    """It stands alone, too: the other ways are left out of the count."""
    cell = against.Cell(0.0, 0.0, 0.0, against.KEEPS)
    label = "AdamW, by `transfer`"
    monkeypatch.setitem(globals(), "outcomes", lambda _: {(label, "flights"): (cell, cell)})
    with pytest.raises(AssertionError):
        check()


def test_a_search_that_costs_nothing_is_found(monkeypatch):
    monkeypatch.setattr(to_the_loss.Times, "search", lambda *_: 0.0)
    with pytest.raises(AssertionError):
        seconds_have_the_search_in_them()


def test_a_batch_that_grows_less_is_found(monkeypatch):
    whole = arms.recipes.growing
    monkeypatch.setattr(arms.recipes, "growing", lambda recipe, batch: whole(recipe, batch // 4))
    with pytest.raises(AssertionError):
        a_batch_that_grows_comes_to_what_is_said()


# Headings that others may link to, of pages that were cut or moved.
KEPT = {
    "evidence.md": "what-others-claim-and-what-was-seen-here an-lstm-that-reads-mnist "
    "a-convolutional-network-on-fashion-mnist a-bert-on-letters a-network-on-flights "
    "does-the-noise-scale-name-the-batch",
    "results.md": "on-how-many-tasks-a-way-keeps-the-tuned-adamws-result "
    "against-the-adamw-that-was-tuned-at-the-small-batch how-to-read-them a-perceptron seconds "
    "fashion-mnist-in-part letters-in-part rows-in-part both-together run-again what-was-not-run "
    "why-transfer-lost-on-flights soap-and-its-kin",
    "should_i.md": "what-was-kept-and-what-was-lost lambs-rate-is-not-adams if-a-recipe-refuses "
    "lamb-muon-or-adamw-which-optimizer-at-which-batch which-rate-at-the-larger-batch",
    "reference/optimizers.md": "lamb lans lars muon soap adamp sgdp optimizer_of adascale "
    "measurenoise describe layer_decay",
    "reliability.md": "non-finite-gradients-nan-inf spikes divergence-report killed-at-any-moment "
    "measured-kills distribution-what-equals-what measured-differences limits "
    "known-defects-of-other-packages multioptimizer-and-orbaxcheckpoint-of-keras "
    "numerical-accuracy-property-tests security-malformed-and-hostile-input patterns yaml "
    "refused-before-a-run-is-lost what-keras-and-tensorflow-do-not-promise",
    "noise.md": "keep-a-tuned-schedule-at-a-larger-batch-adascale end-when-the-steps-are-spent "
    "give-a-step-its-parts scale-adam-adamw-lamb-or-adamp cost in-the-model-garden measured "
    "find-how-large-a-batch-still-pays-measurenoise-and-noisescale corner-cases "
    "what-is-a-trust-ratio-and-how-to-watch-it layers-that-start-at-or-near-zero",
    "choosing_a_batch.md": "measured in-the-model-garden train-in-two-stages let-the-batch-grow",
    "automatic_warmup.md": "measured why-a-tuned-lamb-is-better",
    "growing.md": "what-was-measured on-flights-the-loss-stays on-fashion-mnist-some-of-it-is-lost",
    "make_it_larger.md": "what-came-of-it how-far-to-trust-find_rate beside-what-needs-no-search",
}


@pytest.mark.parametrize("page", KEPT)
def test_old_anchors_are_kept(page):
    path = ROOT / "docs" / page
    there = anchors(path) | set(re.findall(r'<a id="([^"]+)"></a>', path.read_text()))
    assert set(KEPT[page].split()) <= there
