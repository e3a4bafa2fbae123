"""What does a step of SOAP cost on flights? Milliseconds, of every optimizer in turn.

    python -m benchmarks.soap_seconds

Of each batch a line of the log has all rounds; printed are the least and the median.
"""

import functools
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of QR: as in the experiment

import jax
import numpy as np

from benchmarks.equivalence import workloads
from benchmarks.equivalence.protocol import points
from benchmarks.equivalence.training import Program
from benchmarks.run_log import Log

PROTOTYPES = ("MuonH", "OfPackage", "SOAP", "KLSOAP")
SPECS = ("adamw", "lamb", "muon", *(f"benchmarks.soap:{name}" for name in PROTOTYPES))
STEPS, ROUNDS = 128, 15


def milliseconds(batch: int) -> dict:
    """Of a step, by optimizer: one number a round."""
    flights, settings = workloads.workload("flights"), points()[0]
    programs = {spec: Program(flights, spec, settings) for spec in SPECS}
    states = {spec: program.start(0) for spec, program in programs.items()}
    found: dict = {spec: [] for spec in SPECS}
    drawn = np.random.default_rng(0).integers(0, len(flights.parts[0][1]), (STEPS, batch), "int32")
    given = np.int32(STEPS), drawn, np.full(STEPS, 1e-3, "float32")
    for round_ in range(ROUNDS + 1):
        for spec, program in programs.items():
            begun = time.perf_counter()
            states[spec] = jax.block_until_ready(program.advance(states[spec], *given))
            if round_:  # the first compiles
                found[spec].append(round(1000 * (time.perf_counter() - begun) / STEPS, 4))
    return {"ms": found}


if __name__ == "__main__":
    log = Log("benchmarks/logs/soap_seconds.jsonl")
    for size in (64, 2048):
        line = log.run({"batch": size, "steps": STEPS}, functools.partial(milliseconds, size))
        for name, each in line["ms"].items():
            print(f"{size:6} {name:24} {min(each):8.3f} {statistics.median(each):8.3f}")
