"""What is tuned at a large batch, against the AdamW that was tuned at the small one.

    python -m benchmarks.equivalence.against

The registered experiment compares an optimizer with its own base. A user has one base. Every run is
in the logs; margin and tests are those of docs/protocol.md.
"""

from benchmarks.equivalence.protocol import FROZEN, HASH
from benchmarks.equivalence.report import told
from benchmarks.equivalence.statistics import holm, worse_by
from benchmarks.run_log import Log

WORKLOADS, BASE = ("flights", "diamonds"), "adamw"
SPECS = {
    "adamw": "AdamW", "lamb": "LAMB", "tf_lamb:LANS": "LANS", "muon": "Muon",
    "benchmarks.soap:OfPackage": "SOAP",
}  # fmt: skip


def scores(lines) -> dict:
    """Optimizer and ratio -> the test scores of its seeds, in their order."""
    found: dict = {}
    for line in sorted((each for each in lines if each.get("protocol") == HASH and each["seed"]),
                       key=lambda each: each["seed"]):  # fmt: skip
        rule, _, spec = line["arm"].partition(" ")
        if rule == "tuned" and line["horizon"] == 1:
            found.setdefault((spec, line["ratio"]), []).append(line["test"])
    return found


def table(lines: dict) -> str:
    """A row an optimizer, in Markdown; `lines` are those of each workload's log."""
    ratios = FROZEN["ratios"]
    head = ["", *(f"{name}, {ratio} times" for name in lines for ratio in ratios)]
    rows = {spec: [name] for spec, name in SPECS.items()}
    for name, own in lines.items():
        found = scores(own)
        base = found[BASE, 1]
        margin = FROZEN["workloads"][name]["margin"] * sum(base) / len(base)
        for spec, row in rows.items():
            tests = [worse_by(found[spec, ratio], base, margin) for ratio in ratios]
            held = holm([p for *_, p in tests])
            row += [told(1000 * mean, 1000 * bound, ok)
                    for (mean, bound, _), ok in zip(tests, held, strict=True)]  # fmt: skip
    every = [head, ["---"] * len(head), *rows.values()]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


if __name__ == "__main__":
    LOG = "benchmarks/logs/equivalence_{}.jsonl"
    print(table({name: Log(LOG.format(name)).lines for name in WORKLOADS}))
