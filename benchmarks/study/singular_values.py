"""What Muon's coefficients make of singular values, in float32 and in bfloat16.

    python -m benchmarks.study.singular_values

Each matrix has 64 rows, and singular values at equal ratios from 1 to one over its condition
number. A line of `benchmarks/logs/singular_values.jsonl` is what `orthogonalized` makes of one:
the least and the greatest singular value. Printed is the table of docs/performance.md, in which
a cell is the range over all aspect ratios. It takes seconds on a CPU.
"""

import collections
import itertools
import json
import os
import pathlib

import numpy as np
from absl import app

LOG = pathlib.Path(__file__).parents[1] / "logs" / "singular_values.jsonl"
ROWS = 64
ASPECTS = (1, 4, 16)  # columns over rows
CONDITIONS = (10, 100, 1_000, 10_000)
DTYPES = ("float32", "bfloat16")


def matrix(columns, condition):
    """A matrix in float32 with these singular values, and singular vectors at random."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(ROWS, ROWS)))
    right, _ = np.linalg.qr(rng.normal(size=(columns, ROWS)))
    return ((left * np.geomspace(1, 1 / condition, ROWS)) @ right.T).astype("float32")


def measured():
    """The lines of the log."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from tf_lamb.core.rules.muon import PRESETS, Form, orthogonalized
    from tf_lamb.keras import arrays

    for name, dtype, aspect, condition in itertools.product(PRESETS, DTYPES, ASPECTS, CONDITIONS):
        u = arrays.convert_to_tensor(matrix(ROWS * aspect, condition))
        (o,) = orthogonalized(arrays, u, Form(coefficients=name).triples, dtype)
        values = np.linalg.svd(np.float64(o), compute_uv=False)
        yield {
            "coefficients": name, "dtype": dtype, "aspect": aspect, "condition": condition,
            "least": round(values.min(), 4), "greatest": round(values.max(), 4),
        }  # fmt: skip


def table(lines):
    """The Markdown table of these lines: a row for coefficients and dtype, a column a condition."""
    ends = collections.defaultdict(list)
    for line in lines:
        cell = line["coefficients"], line["dtype"], line["condition"]
        ends[cell] += [line["least"], line["greatest"]]
    header = ["coefficients", "products in", *(f"condition {n:,}" for n in CONDITIONS)]
    rows = [header, ["---"] * len(header)]
    for name, dtype in dict.fromkeys(cell[:2] for cell in ends):
        ranges = (ends[name, dtype, condition] for condition in CONDITIONS)
        cells = [f"{min(found):.2f} to {max(found):.2f}" for found in ranges]
        rows.append([f"`{name}`", dtype, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(_):
    """Measures, writes the log anew, and prints the table."""
    lines = list(measured())
    LOG.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table(lines), end="")


if __name__ == "__main__":
    app.run(main)
