"""Makes the runs of a chain that the log lacks, in a process of its own."""

import concurrent.futures
import json
import multiprocessing
import os
import time

from benchmarks.shared.run_log import Log, commit, machine
from benchmarks.updates_left import chains
from benchmarks.updates_left.protocol import HASH, Run, key


class Runs:
    """The lines of a log to which several processes write, each of the runs that it makes.

    Another study has a class of its own below this one, with its own `protocol`, `key` and
    `result_of`.
    """

    protocol = HASH
    key = staticmethod(key)

    def __init__(self, path, until):
        self.path, self.until = path, until
        self.lines = {self.key(line): line for line in runs_of(path, self.protocol)}

    def make(self, run) -> dict:
        """Returns the line of a run, which is made if it is missing."""
        if (known := self.lines.get(self.key(run.line))) is not None:
            return known
        if time.time() > self.until:
            raise TimeoutError("the hours are over")
        line = run.line | self.result_of(run) | {"commit": commit()}
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
        self.lines[self.key(line)] = line
        return line

    @staticmethod
    def result_of(run: Run) -> dict:
        """Makes a run, and returns what its line ends with."""
        from benchmarks.updates_left import training

        return training.result_of(run)


def runs_of(path, protocol=HASH) -> list[dict]:
    """Returns the runs in a log, without the lines of machines; of one protocol alone."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [line for line in map(json.loads, file) if line.get("protocol") == protocol]


def note_machine(path):
    """Writes a line of this machine, where the log has none."""
    log = Log(path)
    if machine() not in log.lines:
        log.note(machine())


def one(path, until, task, optimizer, most_lengths, has_own_numbers):
    """Makes the runs of a chain, in a process of its own."""
    runs = Runs(path, until)
    try:
        settings = chains.all_of(task, optimizer, runs.make, most_lengths)
        if has_own_numbers:
            chains.own_numbers(optimizer, runs.make, settings)
    except TimeoutError:
        return "the hours were over"
    return "done"


def make_all(pool, make, jobs):
    """Calls `make(*job)` of every job in a pool of processes, and prints how each ended.

    An error of one job is told at once, and the others go on.

    Args:
        pool: Of `pool_of_cores`.
        make: A function that can be pickled; it returns how the job ended.
        jobs: Tuples of arguments.
    """
    futures = {pool.submit(make, *job): job for job in jobs}
    for future in concurrent.futures.as_completed(futures):
        error = future.exception()
        print(*futures[future], repr(error) if error else future.result(), sep=", ", flush=True)


def pool_of_cores(processes):
    """Returns a pool of processes, each of which has a core of the machine."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(processes, context, on_one_core)


def on_one_core():
    """Gives a process of several one thread, its share of the machine."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
