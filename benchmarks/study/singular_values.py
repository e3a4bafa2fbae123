"""What Muon's coefficients make of singular values, in float32 and in bfloat16.

    python -m benchmarks.study.singular_values

Each matrix has 64 rows, and singular values at equal ratios from 1 to one over its condition
number. A line of `benchmarks/logs/singular_values.jsonl` is what `orthogonalized` makes of one:
the least and the greatest singular value. Matrices of rank one are drawn at random; there a line
has the least and the greatest share of the result that lies along the matrix itself, which is
below 0 where the direction is reversed. In bfloat16 a product is summed in float32, and every
result is rounded. Printed is the table of docs/performance.md, in which a cell is the range over
all shapes. It takes seconds in NumPy.
"""

import collections
import itertools
import json
import pathlib
import types

import ml_dtypes
import numpy as np
from absl import app

LOG = pathlib.Path(__file__).parents[1] / "logs" / "singular_values.jsonl"
ROWS = 64
ASPECTS = (1, 4, 16)  # columns over rows
CONDITIONS = (10, 100, 1_000, 10_000)
DTYPES = ("float32", "bfloat16")
SHAPES = ((1, 1), (2, 1), (2, 2), (8, 1), (8, 8), (64, 1))  # of matrices of rank one
DRAWS = 200
RANK_ONE = "rank one"


class Bfloat16:
    """A matrix in bfloat16, with what `orthogonalized` does to one."""

    dtype = "bfloat16"

    def __init__(self, values):
        self.values = np.asarray(values, ml_dtypes.bfloat16).astype("float32")
        self.shape = self.values.shape

    def __matmul__(self, other):
        return Bfloat16(self.values @ other.values)

    def __add__(self, other):
        return Bfloat16(self.values + other.values)

    def __rmul__(self, number):
        return Bfloat16(Bfloat16(number).values * self.values)

    def transpose(self, axes):
        return Bfloat16(self.values.transpose(axes))


def _cast(x, dtype):
    """The matrix in another of the two dtypes."""
    return Bfloat16(x) if dtype == "bfloat16" else x.values


_OF_NUMPY = {name: getattr(np, name) for name in ("square", "sum", "sqrt", "where", "transpose")}
ARRAYS = types.SimpleNamespace(cast=_cast, **_OF_NUMPY)  # an array namespace of rules


def matrix(columns, condition):
    """A matrix in float32 with these singular values, and singular vectors at random."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(ROWS, ROWS)))
    right, _ = np.linalg.qr(rng.normal(size=(columns, ROWS)))
    return ((left * np.geomspace(1, 1 / condition, ROWS)) @ right.T).astype("float32")


def matrices_of_rank_one(shape):
    """Matrices in float32, each the product of two random vectors."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        column, row = (rng.normal(size=length) for length in shape)
        yield np.outer(column, row).astype("float32")


def measured():
    """The lines of the log."""
    from tf_lamb.core.rules.muon import PRESETS, MuonForm, orthogonalized

    for name, dtype in itertools.product(PRESETS, DTYPES):
        triples = MuonForm(coefficients=name).triples

        def result(u, triples=triples, dtype=dtype):
            (o,) = orthogonalized(ARRAYS, u, triples, dtype)
            return np.float64(o)

        def line(ends, name=name, dtype=dtype, **of):
            least, greatest = (round(float(end), 4) for end in (min(ends), max(ends)))
            return {"coefficients": name, "dtype": dtype, **of,
                    "least": least, "greatest": greatest}  # fmt: skip

        for aspect, condition in itertools.product(ASPECTS, CONDITIONS):
            ends = np.linalg.svd(result(matrix(ROWS * aspect, condition)), compute_uv=False)
            yield line(ends, aspect=aspect, condition=condition)
        for shape in SHAPES:
            ends = [np.sum(result(u) * u) / np.linalg.norm(u) for u in matrices_of_rank_one(shape)]
            yield line(ends, shape=shape, condition=RANK_ONE)


def table(lines):
    """The Markdown table of these lines: a row for coefficients and dtype, a column a condition."""
    ends = collections.defaultdict(list)
    for line in lines:
        cell = line["coefficients"], line["dtype"], line["condition"]
        ends[cell] += [line["least"], line["greatest"]]
    titles = [*(f"condition {n:,}" for n in CONDITIONS), RANK_ONE]
    header = ["coefficients", "products in", *titles]
    rows = [header, ["---"] * len(header)]
    for name, dtype in dict.fromkeys(cell[:2] for cell in ends):
        ranges = (ends[name, dtype, condition] for condition in (*CONDITIONS, RANK_ONE))
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
