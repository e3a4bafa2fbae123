"""Makes the runs that the log lacks, two chains at a time on a core each."""

import functools
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

from benchmarks.updates_left import runs
from benchmarks.updates_left.protocol import FROZEN

FLAGS = flags.FLAGS
flags.DEFINE_string("log", "benchmarks/logs/updates_left.jsonl", "Raw results.")
flags.DEFINE_integer("processes", 2, "Chains at a time.")
flags.DEFINE_float("hours", 24.0, "No run begins after these.")


def wanted():
    """Yields task, optimizer, lengths and whether its own numbers follow: the short ones first."""
    own = FROZEN["own_numbers"]
    for most_lengths in (2, 3):
        for optimizer, about in FROZEN["optimizers"].items():
            for task in FROZEN["lengths"]:
                lengths = min(about["lengths"], len(FROZEN["lengths"][task]))
                has_own = task == own["task"] and optimizer in own["optimizers"]
                if most_lengths == 2 or lengths > 2:
                    yield task, optimizer, most_lengths, has_own and most_lengths == 3


def main(_):
    until = time.time() + 3600 * FLAGS.hours
    runs.note_machine(FLAGS.log)
    make = functools.partial(runs.one, FLAGS.log, until)
    with runs.pool_of_cores(FLAGS.processes) as pool:
        for lengths in (2, 3):  # a longer chain begins with the runs of the shorter one
            runs.make_all(pool, make, [chain for chain in wanted() if chain[2] == lengths])


if __name__ == "__main__":
    app.run(main)
