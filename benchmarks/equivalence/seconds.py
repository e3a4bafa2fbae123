"""What does a step take? Milliseconds on an idle machine, of every optimizer in turn.

    python -m benchmarks.equivalence.seconds

Of each workload and batch a line of the log has all rounds; printed are the least and the median,
and the hours that the registered runs of as many examples take, one at a time.
"""

import functools
import itertools
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of QR: as in the experiment

import jax
import numpy as np

from benchmarks.equivalence import workloads
from benchmarks.equivalence.experiment import hours
from benchmarks.equivalence.protocol import FROZEN, points
from benchmarks.equivalence.training import Program
from benchmarks.shared.run_log import Log

REGISTERED = tuple(FROZEN["optimizers"])
PROTOTYPES = (f"benchmarks.soap:{name}" for name in ("MuonH", "OfPackage", "SOAP", "KLSOAP"))
SPECS = (*REGISTERED, "tf_lamb:LANS", *PROTOTYPES)
# Workload -> optimizers, examples of a round, rounds: of the long ones less.
MEASURED = {name: (SPECS, 16384, 15) for name in ("flights", "diamonds")}
MEASURED |= {name: (REGISTERED, 8192, 5) for name in ("fashion", "perceptron", "rows")}
MEASURED["letters"] = REGISTERED, 2048, 5


def milliseconds(name: str, batch: int) -> dict:
    """Of a step, by optimizer: one number a round."""
    specs, examples_of_round, rounds = MEASURED[name]
    workload, settings = workloads.workload(name), points()[0]
    programs = {spec: Program(workload, spec, settings) for spec in specs}
    states = {spec: program.start(0) for spec, program in programs.items()}
    found: dict = {spec: [] for spec in specs}
    steps = examples_of_round // batch
    examples = len(workload.parts[0][1])
    drawn = np.random.default_rng(0).integers(0, examples, (steps, batch), "int32")
    given = np.int32(steps), drawn, np.full(steps, 1e-3, "float32")
    for round_ in range(rounds + 1):
        for spec, program in programs.items():
            begun = time.perf_counter()
            states[spec] = jax.block_until_ready(program.advance(states[spec], *given))
            if round_:  # the first compiles
                found[spec].append(round(1000 * (time.perf_counter() - begun) / steps, 4))
    return {"ms": found}


if __name__ == "__main__":
    log = Log("benchmarks/logs/equivalence_seconds.jsonl")
    for name, ratio in itertools.product(MEASURED, (1, *FROZEN["ratios"])):
        batch = FROZEN["workloads"][name]["base"] * ratio
        make = functools.partial(milliseconds, name, batch)
        line = log.run({"workload": name, "batch": batch}, make)
        for spec, each in line["ms"].items():
            print(f"{name} {batch:6} {spec:24} {min(each):8.3f} {statistics.median(each):8.3f}")
    for name in MEASURED:
        print(f"{name}: {hours(name, log.lines):.1f} hours")
