"""Makes the runs that the log lacks, two optimizers at a time on a core each."""

import concurrent.futures
import functools
import multiprocessing
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

from benchmarks.ladder import runs
from benchmarks.ladder.protocol import FROZEN, optimizers_of
from benchmarks.updates_left.runs import note_machine, on_one_core

FLAGS = flags.FLAGS
flags.DEFINE_string("log", "benchmarks/logs/ladder.jsonl", "Raw results.")
flags.DEFINE_integer("processes", 2, "Optimizers at a time.")
flags.DEFINE_float("hours", 4.0, "No run begins after these.")


def main(_):
    until = time.time() + 3600 * FLAGS.hours
    note_machine(FLAGS.log)
    make = functools.partial(runs.one, FLAGS.log, until)
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(FLAGS.processes, context, on_one_core)
    with pool:
        made = {
            pool.submit(make, task, optimizer): (task, optimizer)
            for task in FROZEN["updates"]
            for optimizer in optimizers_of(task)
        }
        for future in concurrent.futures.as_completed(made):
            # An error of one is told now, and the others go on.
            ended = repr(future.exception()) if future.exception() else future.result()
            print(*made[future], ended, sep=", ", flush=True)


if __name__ == "__main__":
    app.run(main)
