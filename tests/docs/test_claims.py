"""Every number in the prose of the pages of evidence is that of a log, or a setting of a run.

`claims.txt` has the sentences and rows, a line each, with names in place of the figures that the
logs bear. A page has to have each of its claims; what else it has may hold `SETTINGS` alone. A
claim that infers ends with `<- CHECK: ROWS`: the check of test_inferences.py that would fail if the
rows did not bear it.
"""

import re

import pytest
from support.figures import CLAIMS, figures, page_of
from support.pages import ROOT, runs, table

from tf_lamb.core import rules
from tf_lamb.find.rate import KERAS_START_RATES, start_rate_of

SETTINGS = {  # batches, ratios, seeds, epochs, targets, budgets, and what a page quotes
    "../README.md#A larger batch": "0 5 8 16 31 32 50 64 95 110 128 500 13.8 256 1,024 2,000 "
    "2,048 3,519 8,599 15,625",
    "steps_saved.md": "1 3 8 16 25 28 32 60 64 87 100 128 256 512 1,000 1,024 1,600 2,048 2,656 "
    "8,192 10,000 250,000 900,000 156 0.1 0.36 2,000 2.4 2.89 0.505 4,096 220",
    "should_i.md": "0.2 0.24 0.3 0.5 5 8 13.9 16 32 64 95 128 132 1,024 2,048",
    "results.md": "0 1 2 3 4 5 8 16 30 32 64 128 256 512 2,048 8,192 0.24 0.5 0.3 95 100 "
    "0.95 0.999 200 2.5 7.4 23 52 10",
    "measured_recipes.md#A small BERT": "1 2 3 4 8 16 32 64 128 0.69 25,600",
    "measured_adascale.md#Accuracy and steps": "1 2 3 5 8 16 32 100 1,024 5.5 "
    "0.01 0.02 0.04 0.08 0.9 4,800 27,000 0.32 1.28",
    "language_model.md": "1 6 8 16 64 95 128 256 1,024 2,048 8,192 32,768 13.8 4,608 576 9.0 "
    "200 208.4 262,144 0.0274 100 2.5980 4,096 7 3.6 12.2",  # test_protocol.py has these
    "measured_warmup.md#Measured": "1 3 4 5 60 86 120 512 0.01 "
    "64 9.6 9.7 24.0",  # test_protocol.py has these, too
}

# Pages whose tables have tests of their own.
TABLES = ("../README.md", "steps_saved.md", "language_model.md", "results.md", "should_i.md")


@pytest.mark.once
def test_find_rate_begins_where_the_page_says():
    rows = table(ROOT / "docs" / "choosing_a_batch.md", "LAMB's rate is not Adam's")[1:]
    said = {
        name: float(begin.split(",")[0])
        for names, _, begin in rows
        for name in re.findall(r"\w+", names)
        if name in {*KERAS_START_RATES, *rules.ALL}
    }
    assert said == {name: start_rate_of(name) for name in said}
    assert {*said} == {"LAMB", "LANS", "Muon", "SOAP", "AdamW", "Adam", "LARS"}
    soap = {
        line["settings"]["rate"]
        for task in ("flights", "diamonds")
        for line in runs(f"equivalence_{task}", arm="tuned benchmarks.soap:OfPackage", ratio=1)
        if line["seed"]
    }
    assert f"| SOAP | {min(soap)} to {max(soap)}, tuned" in page_of("choosing_a_batch.md")


@pytest.mark.once
@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=range(len(CLAIMS)))
def test_a_claim_is_what_the_log_bears(page, claim):
    assert claim.format_map(figures()) in page_of(page)


@pytest.mark.once
@pytest.mark.parametrize("page", SETTINGS)
def test_a_number_is_a_claim_or_a_setting(page):
    """Of the prose; the tables of steps_saved.md have a test of their own."""
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
