"""The tables of what an update costs, from their logs."""

import json
import re
import statistics

import pytest
from support.pages import ROOT, runs, table, words

from benchmarks.performance import compile_cache
from benchmarks.study import singular_values

pytestmark = pytest.mark.once
PREFLIGHT, PERFORMANCE = (ROOT / "docs" / f"{name}.md" for name in ("preflight", "performance"))
CHIPS = ("v3", "v4", "v5e", "v5p", "v6e")
SHAPES = {"ResNet-50": "resnet50", "BERT-large": "bert_large"}


def contestant(label):
    """The optimizer of a row, and its name in the log."""
    words = label.replace("`", "")
    optimizer = next(
        each for each in ("lamb", "lans", "lars", "muon")
        if each in words.lower().removeprefix("tf_lamb")
    )  # fmt: skip
    if words.startswith("Model Garden"):
        return optimizer, "Model Garden"
    if words.startswith("optax"):
        return optimizer, "optax"
    if words.startswith("keras"):
        return optimizer, "keras.optimizers.Lamb on JAX"
    return optimizer, "tf_lamb.keras on JAX" if words.endswith("JAX") else "tf_lamb.tf_keras"


def scientific(number):
    return re.sub(r"e\+0*", "e", f"{number:.1e}")


def test_the_bytes_of_an_update_on_a_tpu_are_those_of_the_log():
    _, *rows = table(PREFLIGHT, "Memory traffic of the update alone")
    shapes, shown, wanted = None, {}, {}
    for label, *cells in rows:
        first, _, rest = label.rpartition(": ")
        shapes = SHAPES[first] if first else shapes
        optimizer, name = contestant(rest)
        for chip, cell in zip(CHIPS, cells, strict=True):
            found = runs("tpu_traffic", optimizer=optimizer, name=name, shapes=shapes, chip=chip)
            if cell:
                shown[shapes, rest, chip] = cell
                wanted[shapes, rest, chip] = f"{found[0]['ratio']:.2f}"
    assert shown == wanted and len(shown) > 80


def test_what_soap_takes_on_a_tpu_is_in_the_log():
    _, *rows = table(PREFLIGHT, "SOAP on a TPU")

    def found(label, chip="v5e"):
        optimizer, *renewal = label.lower().split(", ")
        name = ", ".join(["tf_lamb.tf_keras", *renewal])
        (line,) = runs("tpu_traffic", optimizer=optimizer, name=name, shapes="layer_4mb", chip=chip)
        return line

    lines = {label: found(label) for label, *_ in rows}
    assert rows == [
        [
            label, f"{line['bytes_moved'] / 1e6:.0f} MB", scientific(line["flops"]),
            f"{line['temporaries'] / 1e6:.1f} MB", f"{line['seconds']:.0f}",
        ]
        for label, line in lines.items()
    ]  # fmt: skip
    of_v3, of_v5p, *of_muon = (
        f"{found(optimizer, chip)['bytes_moved'] / 1e6:,.0f}"
        for optimizer in ("soap, cholesky", "muon") for chip in ("v3", "v5p")
    )  # fmt: skip
    assert (
        f"SOAP moves {of_v3} and {of_v5p} MB there, and Muon {of_muon[0]} and {of_muon[1]} MB."
        in words(PREFLIGHT)
    )


def test_the_milliseconds_of_soap_are_in_the_log():
    """Medians of the rounds."""
    _, *rows = table(PERFORMANCE, "SOAP beside them")
    renewing = {"a step with one": ", renewing"}

    def median(name, what):
        return statistics.median(line[what] for line in runs("update_soap", name=name))

    lamb, found = median("tf_lamb.tf_keras", "step"), []
    for label, *_ in rows:
        of, _, how = label.replace("`", "").partition(", ")
        name = of.removesuffix(".LAMB").replace("tf_keras.", "tf_keras ") + renewing.get(how, "")
        step, first = median(name, "step"), median(name, "first")
        times = f"{step / lamb:.{0 if step > 50 * lamb else 1}f}".removesuffix(".0")
        first = "" if "products" in name else f"{first:.1f}"
        found.append([label, f"{1000 * step:,.0f}", times, first])
    assert rows == found


def test_the_milliseconds_on_a_gpu_are_in_the_log():
    _, *rows = table(PERFORMANCE, "On a GPU")
    names = [
        "gradients", "keras.AdamW", "tf_lamb.LAMB", "optax.lamb", "tf_lamb.Muon bfloat16",
        "tf_lamb.Muon", "optax.contrib.muon",
    ]  # fmt: skip
    found = {name: runs("accelerator", contestant=name)[0] for name in names}
    medians = {name: statistics.median(line["rounds"]) for name, line in found.items()}
    alone = medians["gradients"]
    added = {name: median - alone for name, median in medians.items()}
    assert [(step, adds, first) for _, step, adds, first in rows] == [
        (
            f"{medians[name]:.1f}", f"{added[name]:.1f}" if name != "gradients" else "",
            f"{found[name]['first']:.0f}",
        )
        for name in names
    ]  # fmt: skip
    over = [added[f"tf_lamb.Muon{how}"] / added["tf_lamb.LAMB"] for how in (" bfloat16", "")]
    told = "adds {:.1f} times what LAMB's adds, in float32 {:.1f} times".format(*over)
    assert told in " ".join(PERFORMANCE.read_text().split())
    said = f"adds {over[0]:.1f} times what LAMB's adds"
    assert said in words(ROOT / "docs" / "reference" / "muon.md")
    said = f"LAMB adds {added['tf_lamb.LAMB']:.1f} ms to BERT-base's step of {alone:.1f} ms."
    assert said in words(ROOT / "README.md")
    _, *costs = table(PERFORMANCE.with_name("should_i.md"), "What an optimizer costs")
    told = {name: cell for name, _, cell, _ in costs}
    of = {"Keras's AdamW": "keras.AdamW", "LAMB": "tf_lamb.LAMB"}
    assert {name: told[name] for name in of} == {
        name: f"{added[each]:.1f} ms" for name, each in of.items()
    }
    muon = f"{added['tf_lamb.Muon bfloat16']:.1f} ms; {added['tf_lamb.Muon']:.1f} with"
    assert told["Muon"].startswith(muon)


def test_the_seconds_with_a_compilation_cache_are_in_the_log():
    assert compile_cache.table(runs("compile_cache")) in PERFORMANCE.read_text()


def test_what_is_said_of_the_compilation_cache_is_in_the_log():
    """How far rounds are apart, and what is in the folder."""
    of_run, apart = ("optimizer", "cache", "threshold"), []
    lines = runs("compile_cache")
    for wanted in {tuple((name, line[name]) for name in of_run) for line in lines}:
        rounds = [line["first"] for line in runs("compile_cache", **dict(wanted))]
        apart.append(max(rounds) / min(rounds))
    assert f"differ by up to {max(apart):.1f} times" in words(PERFORMANCE)
    files = [{line["files"] for line in lines if line["threshold"] == threshold}
             for threshold in (1, 0)]  # fmt: skip
    assert files == [{1, 2}, {31, 41}]
    assert max(line["bytes"] for line in lines) / 1e6 == pytest.approx(0.8, abs=0.05)


def test_where_singular_values_end_is_in_the_log():
    written = singular_values.table(map(json.loads, singular_values.LOG.read_text().splitlines()))
    assert written in PERFORMANCE.read_text()


def test_no_matrix_of_rank_one_in_the_log_is_reversed():
    lines = map(json.loads, singular_values.LOG.read_text().splitlines())
    of_rank_one = [line for line in lines if line["condition"] == singular_values.RANK_ONE]
    assert {line["dtype"] for line in of_rank_one} == {"float32", "bfloat16"}
    assert min(line["least"] for line in of_rank_one) > 0.6


def test_products_in_bfloat16_end_where_those_in_float32_do():
    _, *rows = table(PERFORMANCE, "Products in bfloat16")
    found, far = [], {}
    for label, *_ in rows:
        name = {"Fashion-MNIST": "fashion"}.get(label, label.split(",")[0])
        arms = [f"tuned benchmarks.precision:{way}" for way in ("float32", "bfloat16")]
        full, half = ([line["test"] for line in runs("precision", workload=name, arm=arm)]
                      for arm in arms)  # fmt: skip
        apart = [b - a for a, b in zip(full, half, strict=True)]
        within = 2.776 * statistics.stdev(apart) / 5**0.5  # Student's, of four degrees
        mean = statistics.mean(apart)
        if len(apart) != 5 or abs(mean) >= within:
            far[label] = apart
        found.append([label, f"{statistics.mean(full):.4f}", f"{mean:+.4f}", f"± {within:.4f}"])
    assert rows == found
    assert far == {}


def test_the_milliseconds_of_small_variables_are_in_the_log():
    _, *rows = table(PERFORMANCE, "Small variables")
    names = [
        "tf_lamb.tf_keras", "tf_lamb.tf_keras, one by one", "tf_lamb.keras",
        "tf_lamb.keras on JAX, jitted", "optax lamb, jitted",
    ]  # fmt: skip
    logged = [runs("update_small", name=name) for name in names]
    assert {len(rounds) for rounds in logged} == {5}
    medians = [
        [statistics.median(line[of] for line in rounds) for of in ("step", "first")]
        for rounds in logged
    ]
    assert [cells for _, *cells in rows] == [
        [f"{1000 * step:.1f}", f"{first:.1f}"] for step, first in medians
    ]


OF_UPDATE = {
    "floor": "floor", "`tf_lamb.tf_keras.LAMB`": "tf_lamb.tf_keras",
    "`tf_lamb.keras.LAMB`": "tf_lamb.keras", "Model Garden's LAMB": "Model Garden LAMB",
    "`keras.optimizers.Lamb`": "Keras Lamb", "`optax.lamb`": "optax lamb, jitted",
    "torch's fused AdamW": "torch AdamW, fused",
}  # fmt: skip
MODELS = {"BERT-base": "bert_base", "BERT-large": "bert_large", "ResNet-50": "resnet50"}


def of_update(label, model, what):
    """The values of a row's rounds; `jit_compile=True` in a label is the rival under XLA."""
    plain = label.replace("*", "")
    (name,) = (of for start, of in OF_UPDATE.items() if plain.startswith(start))
    compiled = ", XLA" * ("jit_compile=True" in plain)
    return [line[what] for line in runs("update", name=name + compiled, shapes=MODELS[model])]


def test_the_seconds_of_an_update_are_in_the_log():
    """Medians of the rounds, ranges of some, and each over the floor."""
    (_, *models, _), *rows = table(PERFORMANCE, "Update time of LAMB implementations")
    floors = [statistics.median(of_update("floor", model, "step")) for model in models]
    wrong = {}
    for label, *cells, over in rows:
        medians = []
        for model, cell in zip(models, cells, strict=True):
            rounds = of_update(label, model, "step")
            medians.append(statistics.median(rounds))
            found, _, spread = cell.replace("*", "").partition(" ")
            is_near = float(found) == pytest.approx(medians[-1], abs=0.00051)
            of_rounds = f"({min(rounds):.3f} to {max(rounds):.3f})"
            if not is_near or spread != of_rounds * bool(spread):
                wrong[label, model] = cell, medians[-1], of_rounds
        times = ", ".join(f"{m / f:.1f}" for m, f in zip(medians, floors, strict=True))
        if over.replace("*", "") != (times if label[:5] != "floor" else "1"):
            wrong[label] = over, times
    assert wrong == {}


def test_the_first_steps_are_in_the_log():
    text = PERFORMANCE.read_text().split("The first step, with its compilation")[1]
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\| .+ \|$", text, re.M)][:8]
    above, shown, wanted = "", {}, {}
    for label, *cells, _ in rows[1:]:
        above = label.replace("the same", above) if label.startswith("the same") else label
        for model, cell in zip(MODELS, cells, strict=True):
            shown[above, model] = float(cell.strip("*"))
            wanted[above, model] = statistics.median(of_update(above, model, "first"))
    assert shown == pytest.approx(wanted, abs=0.051)


def test_what_is_said_of_compiled_rivals_is_in_the_log():
    """Each beside ours of the same host."""
    pairs = [
        ("Model Garden's LAMB, `jit_compile=True`", "`tf_lamb.tf_keras.LAMB`"),
        ("`keras.optimizers.Lamb`, `jit_compile=True`", "`tf_lamb.keras.LAMB`"),
    ]
    steps, firsts = (
        [
            statistics.median(of_update(rival, model, of))
            / statistics.median(of_update(ours, model, of))
            for rival, ours in pairs
            for model in MODELS
        ]
        for of in ("step", "first")
    )
    said = (
        "With XLA for all, a rival's step takes {:.1f} to {:.1f} times as long as ours, and its "
        "first step {:.1f} to {:.0f} times."
    )
    told = said.format(min(steps), max(steps), min(firsts), max(firsts))
    assert told in " ".join(PERFORMANCE.read_text().split())


def test_readme_has_the_seconds_of_bert_large():
    (_, *names), *rows = table(ROOT / "README.md", "Beside others")
    rivals = {
        "Keras 3.15": "`keras.optimizers.Lamb`",
        "Model Garden 2.20": "Model Garden's LAMB",
    }
    (cells,) = (cells for label, *cells in rows if label.startswith("BERT-large's update"))
    shown, wanted = {}, {}
    for name, cell in zip(names, cells, strict=True):
        if cell == "-":
            continue
        label = "`tf_lamb.tf_keras.LAMB`"
        if name != "tf_lamb":
            label = f"{rivals[name]}, `jit_compile=True`"
        (step,), (first,) = (of_update(label, "BERT-large", of) for of in ("step", "first"))
        shown[name], wanted[name] = cell, f"{step:.2f} s, {first:.0f} s"
    assert shown == wanted
    steps = [statistics.median(of_update(f"{label}, `jit_compile=True`", "ResNet-50", "step"))
             for label in rivals.values()]  # fmt: skip
    ours = statistics.median(of_update("`tf_lamb.keras.LAMB`", "ResNet-50", "step"))
    assert all(abs(step / ours - 1) < 0.05 for step in steps)


def test_the_compilers_seconds_for_a_renewal_are_in_the_log():
    _, *rows = table(PREFLIGHT, "The compiler's seconds for a renewal")
    made = {
        (str(line["renewal"]), tuple(line["shape"])): line["seconds"]
        for line in runs("renewal", program="orthonormal")
    }
    shapes = [(256, 256), (8, 256, 256), (512, 512), (8, 512, 512)]
    names = [row[0] for row in rows]
    assert rows == [
        [name, *(str(made[name.strip('`"'), shape]) for shape in shapes)] for name in names
    ]


def test_what_a_renewal_comes_to_is_in_the_log():
    cells, apart, kept = [], [], []
    for name in ("flights", "letters", "bert"):
        ways = [runs("renewal", workload=name, renewal=way) for way in ("cholesky", "qr")]
        kept += [line["kept_bases"] for lines in ways for line in lines]
        cells += [sum(line["renewals"] for line in ways[0]), len(ways[0])]
        apart += [abs(a["loss"] - b["loss"]) for a, b in zip(*ways, strict=True)]
    assert not any(kept)
    said = "none of {:,} renewals failed on flights ({} seeds), none of {} on letters ({} seeds), "
    said += "and none of {} in a BERT of four layers ({} seed). The held-out losses differed by at "
    said += "most {:.4f}"
    assert said.format(*cells, max(apart)) in words(PREFLIGHT)
