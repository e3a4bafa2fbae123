"""The Markdown that people read, and the logs that it tells of, as tests need them."""

import json
import math
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
LOGS = ROOT / "benchmarks" / "logs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page, language):
    """(heading, text) of each block of code in a language, in order; "" is none."""
    found, heading, fence, lines = [], "", None, []
    for line in page.read_text().splitlines():
        if fence is None and line.startswith("```"):
            fence, lines = line[3:].strip(), []
        elif line.startswith("```"):
            found += [(heading, "\n".join(lines))] if fence == language else []
            fence = None
        elif fence is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.strip("# ")
    return found


def prose(page):
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def words(page):
    """The text, one space between words."""
    return re.sub(r"\s+", " ", page.read_text())


def span(values, form=""):
    """From the least to the greatest."""
    values = list(values)
    return f"{min(values):{form}} to {max(values):{form}}"


def anchors(page):
    """What `#...` may name: each heading in lower case, spaces as hyphens, without punctuation."""
    seen = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = sum(name == slug for name, _ in seen)
        seen.append((slug, f"{slug}-{again}" if again else slug))
    return {anchor for _, anchor in seen}


def table(page, heading):
    """The first table below a heading, as lists of cells."""
    text = page.read_text().split(f"## {heading}\n")[1]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (lines[0], *lines[2:])]


def number(text):
    """Of digits with commas."""
    return int(text.replace(",", ""))


def runs(log, **of):
    """The lines of a log that have these values, but for those of machines."""
    lines = map(json.loads, (LOGS / f"{log}.jsonl").read_text().splitlines())
    return [line for line in lines if of.items() <= line.items() and "cores" not in line]


def seeds_of_letters(name, batch):
    """Returns the runs of large_batch.jsonl that the pages quote: no grid, one step a call."""
    lines = runs("large_batch", text="the Bible", name=name, batch=batch)
    return [line for line in lines if line["seed"] < 100 and "steps_per_execution" not in line]


def steps_of(task, **of):
    """By seed the fewest steps of these runs, infinitely many where none arrived."""
    found = {}
    for run in runs(f"steps_{task}", **of):
        found[run["seed"]] = min(found.get(run["seed"], math.inf), run["steps"] or math.inf)
    return found


# Sentences of the finders that have other words since the run that is logged.
_REWORDED = {
    "within 10% of its time is no other": "no other batch is within 10% of its time",
    "not larger, time:": "why not larger:",
    "twice the fewest steps there, and twice the fewest examples": (
        "a batch that large takes twice the minimum steps and examples"
    ),
    "longer than the best batch": "more time than the best batch",
    "one device that holds any batch is fastest at": (
        "with unlimited memory one device is fastest at batch"
    ),
}


def reworded(text):
    """What a finder printed, in the words that it has now."""
    for before, now in _REWORDED.items():
        text = text.replace(before, now)
    return text
