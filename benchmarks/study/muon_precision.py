"""Muon with its products in bfloat16 beside float32: what is left of the loss, seed by seed.

    python -m benchmarks.study.muon_precision --workload=fashion --processes=2

Muon is trained with the settings that its search found for a workload, on fresh seeds, once with
each dtype of the products of Newton-Schulz; all else, batches and first weights among it, is equal.
A line of the log is a run: the test's score, and the held-out losses at each look. On an
accelerator float32 products are what its matrix units make of them. Set JAX_PLATFORMS there.
"""

import functools
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tqdm
from absl import app, flags

import tf_lamb
from benchmarks.equivalence.by_error import Noted
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.runs import Run

LOG = "benchmarks/logs/precision.jsonl"
WAYS = ("float32", "bfloat16")
TUNED = {  # ratio to the base batch, and the settings of "tuned muon" in the workload's log
    "flights": (1, Settings(0.04988, 0.957, 0.0, 0.002336, 1.0)),
    "fashion": (1, Settings(0.02402, 0.8765, 0.1, 0.06247, None)),
    "letters": (8, Settings(0.01047, 0.8358, 0.0, 0.006403, 1.0)),
}


def _muon(products):
    @functools.wraps(tf_lamb.Muon)
    def make(*args, **own):
        return tf_lamb.Muon(*args, **own, dtypes={"products": products})

    return make


float32, bfloat16 = map(_muon, WAYS)


def wanted(name: str, seeds: int) -> list[Run]:
    """Both ways of each seed, one after the other."""
    ratio, settings = TUNED[name]
    return [
        Run(name, f"tuned benchmarks.precision:{way}", ratio, settings, seed)
        for seed in range(1, seeds + 1) for way in WAYS
    ]  # fmt: skip


def main(_):
    """Makes the runs that the log does not have."""
    args = flags.FLAGS
    for name in args.workload:
        with tqdm.tqdm(desc=name, disable=None) as bar:
            runs = Noted(args.log, args.processes, bar)
            for line in runs.all(wanted(name, args.seeds)):
                print(name, line["arm"].rpartition(":")[2], line["seed"], line["test"])


if __name__ == "__main__":
    flags.DEFINE_multi_enum("workload", list(TUNED), [*FROZEN["workloads"]], "What is learned.")
    flags.DEFINE_integer("seeds", 5, "Fresh ones, of each way.", lower_bound=1)
    flags.DEFINE_string("log", LOG, "Where every run is a line.")
    flags.DEFINE_integer("processes", 1, "Runs at a time, one thread each.", lower_bound=1)
    app.run(main)
