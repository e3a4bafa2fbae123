"""Makes the runs of an optimizer on a task that the log lacks, in a process of its own."""

from benchmarks.ladder import climb
from benchmarks.ladder.protocol import HASH, Run, key
from benchmarks.updates_left import runs


class Runs(runs.Runs):
    """Reads a log to which several processes write, and makes the runs that it lacks."""

    protocol = HASH
    key = staticmethod(key)

    @staticmethod
    def result_of(run: Run) -> dict:
        """See base class."""
        from benchmarks.ladder import training

        return training.result_of(run)


def runs_of(path) -> list[dict]:
    """Returns the runs of this protocol in a log; of a run that was made twice, the first."""
    lines: dict[str, dict] = {}
    for line in runs.runs_of(path, HASH):
        lines.setdefault(key(line), line)
    return list(lines.values())


def one(path, until, task, optimizer) -> str:
    """Makes the runs of an optimizer on a task; returns how that ended.

    Args:
        path: Of the log.
        until: No run begins after this time, in seconds of `time.time`.
        task, optimizer: Names in the protocol.
    """
    try:
        climb.Climb(task, optimizer, Runs(path, until).make).all()
    except TimeoutError:
        return "the hours were over"
    return "done"
