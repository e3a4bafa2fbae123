"""The time and memory of the update alone, beside its peers and a plain copy.

    python -m benchmarks.performance.update --shapes=bert_base --log=benchmarks/logs/update.jsonl

Each contestant is a process of its own: it makes weights, gradients and slots, takes its first
step, then some more, and says what it saw. They take turns, A B C A B C, for as many rounds as
asked; medians are over rounds. A contestant that is not installed or takes minutes is skipped, and
said so; those of torch may live elsewhere: `--torch_python=/path/to/python`. On an accelerator
`accelerator.py` measures.

    step      median seconds of a step after the first
    cpu       the same in seconds of all cores, which other work on the machine sways less
    first     seconds of the first step: tracing, compiling, running
    programs  XLA programs that the first step compiled, in a run of their own
    extra     memory that a step takes beside what the process holds, in megabytes
"""

import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.performance.contestants import CONTESTANTS, CORES, SHAPES, backend, needs_torch


def contest(name, shapes, steps):
    """What one contestant saw, in this process."""
    step = CONTESTANTS[name](SHAPES[shapes]())
    dumped = os.environ.get("DUMPED_PROGRAMS")
    before = _programs(dumped)
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    if dumped:
        return {"programs": len(_programs(dumped) - before)}
    step()
    held = _forget_peak()
    times, worked = [], []
    for _ in range(steps):
        start, before = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - start)
        worked.append(time.process_time() - before)
    extra = _status("VmHWM") - held
    medians = {"step": statistics.median(times), "cpu": statistics.median(worked)}
    return {"first": first, **medians, "extra": extra / 1e6}


def _programs(folder):
    """The programs that XLA has dumped; each is several files."""
    names = os.listdir(folder) if folder else []
    return {re.match(r"module_\d+", name).group() for name in names if name.startswith("module_")}


def _status(field):
    """Bytes, from the kernel's account of this process."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


def _forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def run(name, shapes, args, count_programs=False):
    """One process; None where the contestant is not installed or takes too long."""
    python = args.torch_python if needs_torch(name) and args.torch_python else sys.executable
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend(name)}
    environment["JAX_PLATFORMS"] = "cpu"
    command = [python, "-m", __spec__.name, f"--shapes={shapes}", f"--contestant={name}"]
    command.append(f"--steps={args.steps}")
    with tempfile.TemporaryDirectory() as folder:
        if count_programs:
            environment["DUMPED_PROGRAMS"] = folder
            environment["XLA_FLAGS"] = f"--xla_dump_to={folder}"
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False,
                timeout=args.limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "ModuleNotFoundError" in done.stderr:
        return None
    raise RuntimeError(f"{name}: {done.stderr[-2000:]}")


def table(seen):
    """Medians over rounds, and ratios to the floor and to ours."""
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in seen.items()
    }
    floor = next(m["step"] for name, m in medians.items() if name.startswith("floor"))
    ours = next(m for name, m in medians.items() if name.startswith("tf_lamb"))
    lines = [
        f"{'':46}{'step s':>8}{'/floor':>8}{'ours/':>7}{'first s':>9}{'ours/':>7}{'extra MB':>10}"
        f"{'cpu s':>8}"
    ]
    for name, m in medians.items():
        lines.append(
            f"{name:46}{m['step']:8.4f}{m['step'] / floor:8.2f}{ours['step'] / m['step']:7.2f}"
            f"{m['first']:9.2f}{ours['first'] / m['first']:7.2f}{m['extra']:10.0f}{m['cpu']:8.3f}"
        )
    return "\n".join(lines)


def describe(shapes):
    """The machine, the versions and the size, as a line of the log."""
    import importlib.metadata

    def version(name):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    names = ("tensorflow", "keras", "tf-keras", "tf-models-official", "jax", "optax")
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if "model name" in line), "")
    sizes = [math.prod(shape) for shape in SHAPES[shapes]()]
    return {
        "shapes": shapes, "variables": len(sizes), "parameters": sum(sizes),
        "largest_mb": 4 * max(sizes) / 1e6, "cpu": cpu, "cores": CORES,
        "load": os.getloadavg()[0], "python": platform.python_version(),
        **{n: version(n) for n in names if version(n)},
    }  # fmt: skip


def main(_):
    """One contestant, or all of them in turn."""
    args = flags.FLAGS
    if args.contestant:
        print(json.dumps(contest(args.contestant, args.shapes, args.steps)))
        return
    import tqdm

    def note(entry):
        if args.log:
            with open(args.log, "a") as file:
                file.write(json.dumps(entry) + "\n")

    print(machine := describe(args.shapes))
    note(machine)
    seen = {name: [] for name in args.only or CONTESTANTS}
    for _ in tqdm.trange(args.rounds, desc="rounds", disable=None):
        for name in list(seen):
            found = run(name, args.shapes, args)
            if found is None:
                print(f"skipped, not installed or longer than {args.limit} s: {name}")
                del seen[name]
                continue
            seen[name].append(found)
            note({"name": name, "shapes": args.shapes, **found})
    print(table(seen))
    if args.programs:
        for name in seen:
            found = run(name, args.shapes, args, count_programs=True)
            if found is None:
                continue
            print(f"{name:46}{found['programs']:5} programs")
            note({"name": name, "shapes": args.shapes, **found})


if __name__ == "__main__":
    flags.DEFINE_enum("shapes", "bert_base", list(SHAPES), "Whose variables.")
    flags.DEFINE_integer("rounds", 3, "How often each contestant is started.", lower_bound=1)
    flags.DEFINE_integer("steps", 6, "How many steps each process times.", lower_bound=1)
    flags.DEFINE_integer("limit", 180, "Seconds that a process may take.", lower_bound=1)
    flags.DEFINE_multi_enum("only", None, list(CONTESTANTS), "These contestants alone.")
    flags.DEFINE_bool("programs", False, "Count the compiled programs, too.")
    flags.DEFINE_string("torch_python", None, "The Python that has torch and its optimizers.")
    flags.DEFINE_string("log", None, "Where every process is a line.")
    flags.DEFINE_string("contestant", None, "Run this one, here.")
    app.run(main)
