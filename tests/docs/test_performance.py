"""The tables of what an update costs, from their logs."""

import re
import statistics

import pytest
from support.pages import ROOT, runs, table, words

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
    shapes, seen = None, 0
    for label, *cells in rows:
        first, _, rest = label.rpartition(": ")
        shapes = SHAPES[first] if first else shapes
        optimizer, name = contestant(rest)
        for chip, cell in zip(CHIPS, cells, strict=True):
            found = runs("tpu_traffic", optimizer=optimizer, name=name, shapes=shapes, chip=chip)
            if cell:
                assert cell == f"{found[0]['ratio']:.2f}", (label, chip)
                seen += 1
    assert seen > 80


def test_what_soap_takes_on_a_tpu_is_in_the_log():
    _, *rows = table(PREFLIGHT, "SOAP on a TPU")

    def found(optimizer, chip="v5e"):
        (line,) = runs("tpu_traffic", optimizer=optimizer, shapes="layer_4mb", chip=chip)
        return line

    for label, *cells in rows:
        line = found(label.split(",")[0].lower())
        assert cells == [
            f"{line['bytes_moved'] / 1e6:.0f} MB", scientific(line["flops"]),
            f"{line['temporaries'] / 1e6:.1f} MB", f"{line['seconds']:.0f}",
        ]  # fmt: skip
    of_v3, of_v5p, *of_muon = (
        f"{found(optimizer, chip)['bytes_moved'] / 1e6:,.0f}"
        for optimizer in ("soap", "muon") for chip in ("v3", "v5p")
    )  # fmt: skip
    assert (
        f"SOAP moves {of_v3} and {of_v5p} MB there, Muon {of_muon[0]} and {of_muon[1]} MB"
        in words(PREFLIGHT)
    )


def test_the_milliseconds_of_soap_are_in_the_log():
    """Medians of the rounds."""
    _, *rows = table(PERFORMANCE, "SOAP beside them")
    renewing = {"a step with one": ", renewing"}

    def median(name, what):
        return statistics.median(line[what] for line in runs("update_soap", name=name))

    lamb = median("tf_lamb.tf_keras", "step")
    for label, *cells in rows:
        of, _, how = label.replace("`", "").partition(", ")
        name = of.removesuffix(".LAMB").replace("tf_keras.", "tf_keras ") + renewing.get(how, "")
        step, first = median(name, "step"), median(name, "first")
        times = f"{step / lamb:.{0 if step > 10 * lamb else 1}f}".removesuffix(".0")
        first = f"{first:.{0 if first > 10 else 1}f}"
        assert cells == [f"{1000 * step:,.0f}", times, first], label


def test_the_milliseconds_on_a_gpu_are_in_the_log():
    _, *rows = table(PERFORMANCE, "On a GPU")
    names = [
        "gradients", "keras.AdamW", "tf_lamb.LAMB", "optax.lamb", "tf_lamb.Muon",
        "tf_lamb.Muon bfloat16", "tf_lamb.Muon one by one", "optax.contrib.muon",
    ]  # fmt: skip
    found = {name: runs("accelerator", contestant=name)[0] for name in names}
    alone = statistics.median(found["gradients"]["rounds"])
    added = {}
    for name, (_, step, adds, first) in zip(names, rows, strict=True):
        median = statistics.median(found[name]["rounds"])
        added[name] = median - alone
        wanted = f"{added[name]:.1f}" if name != "gradients" else ""
        assert (step, adds, first) == (f"{median:.1f}", wanted, f"{found[name]['first']:.0f}")
    times = added["tf_lamb.Muon one by one"] / added["tf_lamb.Muon bfloat16"]
    over = added["tf_lamb.Muon bfloat16"] / added["tf_lamb.LAMB"]
    told = f"makes Muon's update {times:.1f} times cheaper; it still adds {over:.1f} times"
    assert told in words(PERFORMANCE)


def test_what_an_unused_option_costs_is_in_the_log():
    _, *rows = table(PERFORMANCE, "What an option costs that is not used")
    names = {"Keras 3": "tf_lamb.keras", "tf_keras": "tf_lamb.tf_keras"}

    def medians(key, **of):
        each = ([r[key] for r in runs("update_before_after", tree=tree, **of)]
                for tree in ("1ca2522", "49e6a9d"))  # fmt: skip
        return "{:.2f}, {:.2f}".format(*map(statistics.median, each))

    for label, step, first, *startups in rows:
        of = {"name": names.get(label, "tf_lamb.keras on JAX, jitted"), "shapes": "bert_base"}
        assert (step, first) == (medians("step", **of), medians("first", **of))
        for model, startup in zip(("perceptron", "resnet18"), startups, strict=True):
            if label in names:
                made = {"optimizer": f"{names[label]} LAMB", "model": model}
                assert startup == medians("cpu_seconds", **made)
