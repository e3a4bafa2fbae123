"""Runs by what they are of: those that are missing are made, two at a time, and logged."""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os

from benchmarks.equivalence.protocol import HASH, Settings
from benchmarks.shared.run_log import Log


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: an arm at a ratio, from what was tuned."""

    workload: str
    arm: str  # "tuned SPEC" for settings as they are
    ratio: int
    settings: Settings
    seed: int
    horizon: int = 1

    @property
    def line(self) -> dict:
        """By what the log knows it."""
        return {"protocol": HASH, **dataclasses.asdict(self)}


class Runs:
    """The lines of a log, with what makes those that are missing."""

    def __init__(self, path: str, processes: int, bar):
        self.log, self.processes, self.bar = Log(path), processes, bar
        self.known = {_key(line): line for line in self.log.lines if line.get("protocol") == HASH}

    def all(self, wanted: list[Run]) -> list[dict]:
        """The lines of these runs, in their order."""
        missing = [run for run in dict.fromkeys(wanted) if _key(run.line) not in self.known]
        self.bar.total = (self.bar.total or 0) + len(missing)
        groups: dict = {}
        for run in missing:  # of one program: it is compiled once
            groups.setdefault((run.arm, run.ratio, run.settings), []).append(run)
        for made in self._made(list(groups.values())):
            for run, found in made:
                line = {**run.line, **found}
                self.known[_key(line)] = line
                self.log.note(line)
                self.bar.update()
        return [self.known[_key(run.line)] for run in wanted]

    def _made(self, groups):
        if self.processes == 1:
            yield from map(make, groups)
            return
        futures = [self._pool.submit(make, group) for group in groups]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()

    @functools.cached_property
    def _pool(self):
        """The processes, which keep what they have compiled."""
        context = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(self.processes, context, initializer=_alone)


def by_cell(lines) -> dict:
    """Arm and ratio -> the lines of its fresh seeds, in their order, of the base's examples."""
    found: dict = {}
    own = (line for line in lines if line.get("protocol") == HASH)
    for line in sorted(own, key=lambda line: line["seed"]):
        if line["horizon"] == 1 and line["seed"]:
            found.setdefault((line["arm"], line["ratio"]), []).append(line)
    return found


def _key(line) -> tuple:
    names = [field.name for field in dataclasses.fields(Run) if field.name != "settings"]
    return (*(line[name] for name in names), *line["settings"].values())


def _alone():
    """A process of several: one thread is its share of the machine."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the factorizations, whose threads wait for others


def make(group: list[Run]) -> list[tuple[Run, dict]]:
    """Makes the runs of one program; what refuses a batch says why."""
    made = []
    for run in group:
        try:
            made.append((run, _made(run)))
        except ValueError as error:
            made.append((run, {"refused": str(error)}))
    return made


def _made(run):
    from benchmarks.equivalence import arms, fits, workloads

    workload = workloads.workload(run.workload)
    rule, _, spec = run.arm.partition(" ")
    own = workload, run.settings
    if rule == "adascale":
        return fits.adascale(*own, run.ratio, run.seed, most=4)
    if rule == "autowarmup":
        return fits.autowarmup(workload, run.ratio, run.seed, run.horizon)
    if rule == "find_rate":
        return fits.found_rate(*own, spec, run.ratio, run.seed, run.horizon)
    if rule == "tuned":
        settings, recipe = run.settings, arms.plain(*own, run.ratio, run.horizon)
    else:
        settings, recipe = arms.arm(run.arm, *own, run.ratio, run.horizon)
    return program(run.workload, spec, settings).run(recipe, run.seed)


def program(name: str, spec: str, settings: Settings):
    """The compiled program of these settings, but for their rate and warmup, which a run gives."""
    return _program(name, spec, dataclasses.replace(settings, rate=1.0, warmup=0.0))


@functools.lru_cache(maxsize=2)
def _program(name, spec, settings):
    from benchmarks.equivalence import training, workloads

    return training.Program(workloads.workload(name), spec, settings)
