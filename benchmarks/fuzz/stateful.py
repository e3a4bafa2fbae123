"""Draws trainings with `tests/support/stateful.py` and holds each to what was promised, for hours.

    python -m benchmarks.fuzz.stateful --host=tensorflow --hours=1
    python -m benchmarks.fuzz.stateful --host=jax --hours=1
    python -m benchmarks.fuzz.stateful --host=tf_keras --hours=1

A line of `benchmarks/logs/stateful.jsonl` is a seed: how many runs it drew, what was done in them,
and what failed, if anything did, with the whole sequence. `--seed=N --seeds=1` draws a seed again.

    python -m benchmarks.fuzz.stateful --host=jax --plant="one layer of two towers"

plants a fault of `tests/support/planted.py` and says in which run it was found, of a hundred at
the most; a line of `benchmarks/logs/stateful_planted.jsonl` each.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).parents[2]
LOGS = ROOT / "benchmarks" / "logs"
sys.path.insert(0, str(ROOT / "tests"))

from support import killing, planted  # noqa: E402
from support.forgetting import forget  # noqa: E402

from benchmarks.shared.run_log import commit, without_folders  # noqa: E402

VERSIONS = ("keras", "tensorflow", "tf_keras", "jax", "numpy", "hypothesis")


def plant(name):
    """Has this process import the package with a fault."""
    _, changes = planted.PLANTS[name]
    for change in changes:
        killing.slip(*change)


def draw(frontend, seed, runs, steps):
    """Runs the machine with a seed; returns the error that ended it, or None."""
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test
    from support import stateful

    settings = hypothesis.settings(
        max_examples=runs, stateful_step_count=steps, deadline=None, database=None,
        phases=[hypothesis.Phase.generate], report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    machine = stateful.MACHINES[frontend]
    machine._hypothesis_internal_use_seed = seed  # as hypothesis.seed sets it
    stateful.COUNTS.clear()
    try:
        run_state_machine_as_test(machine, settings=settings)
    except Exception as error:
        return error
    return None


def line_of(host, seed, error, seconds):
    from support import stateful

    counts = dict(sorted(stateful.COUNTS.items()))
    if error is not None:
        counts["runs"] -= 1  # hypothesis shows the failing run once more
    line = {"host": host, "seed": seed, "counts": counts, "seconds": round(seconds, 1)}
    if error is not None:
        line["failed"] = {
            "at_run": counts["runs"], "error": f"{type(error).__name__}: {error}"[:6000],
            "notes": "\n".join(getattr(error, "__notes__", []))[:6000],
            "where": list(map(without_folders, traceback.format_tb(error.__traceback__)[-4:])),
        }  # fmt: skip
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", choices=("tensorflow", "jax", "tf_keras"), required=True)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many, at the most")
    parser.add_argument("--runs", type=int, default=40, help="of a seed")
    parser.add_argument("--steps", type=int, default=15, help="actions of a run")
    parser.add_argument("--log")
    parser.add_argument("--plant", choices=planted.PLANTS)
    told = parser.parse_args()
    if told.plant:
        told.seeds, told.runs = 1, 100
        plant(told.plant)
    log_file = told.log or LOGS / f"stateful{'_planted' * bool(told.plant)}.jsonl"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "jax" if told.host == "jax" else "tensorflow"
    frontend = "tf_keras" if told.host == "tf_keras" else "keras"

    versions = {name: importlib.metadata.version(name.replace("_", "-")) for name in VERSIONS}
    begun, runs, failed = time.monotonic(), 0, []
    for seed in range(told.seed, told.seed + told.seeds):
        if time.monotonic() - begun > 3600 * told.hours:
            break
        start = time.monotonic()
        error = draw(frontend, seed, told.runs, told.steps)
        line = line_of(told.host, seed, error, time.monotonic() - start)
        if told.plant:
            first = line["failed"]["error"].splitlines()[0] if error is not None else None
            found = error is not None and line["failed"]["at_run"]
            line |= {"planted": told.plant, "found_in_run": found or None, "failure": first}
            line |= {"commit": commit()}
        line |= {"python": platform.python_version(), "versions": versions}
        with open(log_file, "a") as log:
            log.write(json.dumps(line) + "\n")
        runs += line["counts"]["runs"]
        failed += [seed] if error is not None else []
        print(f"seed {seed}: {line['counts']['runs']} runs, {line['seconds']:.0f} s", flush=True)
        if error is not None:
            print(line["failed"]["error"], line["failed"]["notes"], sep="\n", flush=True)
        del error
        forget()
    if told.plant:
        found = f"found in run {runs}" if failed else f"not found in {runs} runs"
        print(f"{told.host}: {told.plant}: {found}")
        sys.exit(not failed)
    print(f"{told.host}: {runs} runs, {len(failed)} seeds failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
