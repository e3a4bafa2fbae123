"""Makes the runs that the log lacks, two optimizers at a time on a core each."""

import functools
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

from benchmarks.ladder import runs
from benchmarks.ladder.protocol import FROZEN, optimizers_of
from benchmarks.updates_left.runs import make_all, note_machine, pool_of_cores

FLAGS = flags.FLAGS
flags.DEFINE_string("log", "benchmarks/logs/ladder.jsonl", "Raw results.")
flags.DEFINE_integer("processes", 2, "Optimizers at a time.")
flags.DEFINE_float("hours", 4.0, "No run begins after these.")


def main(_):
    until = time.time() + 3600 * FLAGS.hours
    note_machine(FLAGS.log)
    make = functools.partial(runs.one, FLAGS.log, until)
    climbs = [(task, name) for task in FROZEN["updates"] for name in optimizers_of(task)]
    with pool_of_cores(FLAGS.processes) as pool:
        make_all(pool, make, climbs)


if __name__ == "__main__":
    app.run(main)
