"""The first step on JAX with an empty and with a filled compilation cache, in fresh processes.

    python -m benchmarks.performance.compile_cache                # the runs that the log lacks
    python -m benchmarks.performance.compile_cache --rounds=0     # the table alone

Every optimizer trains the same perceptron of nine layers of as many shapes by `train_on_batch`. In
each round a new folder is the cache of two processes, one after the other: the first one finds it
empty, the second one finds what the first one has compiled. That happens twice: with
`jax_persistent_cache_min_compile_time_secs` at 1, JAX's default, below which a program is not kept,
and at 0. Seconds are those of the first call and, for comparison, of the third; imports and the
construction of the model are not in them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.shared.run_log import Log

LOG = pathlib.Path(__file__).parents[1] / "logs" / "compile_cache.jsonl"
OPTIMIZERS = ("LAMB", "LARS", "Muon", "SOAP", "keras Adam")
WIDTHS = (200, 180, 160, 140, 120, 100, 80, 60)
THRESHOLDS = (1, 0)  # seconds
CACHES = ("empty", "filled")


def child(name, folder, threshold, widths):
    """Prints what the first step takes in this process, as JSON."""
    import jax
    import keras
    import numpy as np

    import tf_lamb.keras

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(threshold))
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, activation="relu") for width in widths]
    model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(10)])
    kind = name.removeprefix("keras ")
    optimizer = getattr(tf_lamb.keras if kind == name else keras.optimizers, kind)(1e-3)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(1)
    x, y = random.standard_normal((8, 32), np.float32), random.integers(10, size=8)
    seconds, processor_seconds = [], []
    for _ in range(3):
        began = time.perf_counter(), time.process_time()
        model.train_on_batch(x, y)
        seconds.append(time.perf_counter() - began[0])
        processor_seconds.append(time.process_time() - began[1])
    first, _, third = (round(each, 4) for each in seconds)
    kept = [path.stat().st_size for path in pathlib.Path(folder).iterdir()]
    line = {
        "first": first, "third": third, "processor_seconds": round(processor_seconds[0], 4),
        "files": len(kept), "bytes": sum(kept),
    }  # fmt: skip
    print(json.dumps(line))


def measured(name, folder, threshold, widths):
    """What a process of its own prints."""
    command = [sys.executable, "-m", __spec__.name, "--child", name, folder, str(threshold)]
    command += ["--widths", *map(str, widths)]
    # A cache that the shell names would be shared by all.
    env = {key: value for key, value in os.environ.items() if "COMPILATION_CACHE" not in key}
    env |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run_round(log, name, threshold, number, widths):
    """Adds the lines of a round to the log, unless it has both."""
    lines = [
        {"optimizer": name, "cache": cache, "threshold": threshold, "round": number}
        for cache in CACHES
    ]
    if all(any(each.items() <= line.items() for line in log.lines) for each in lines):
        return
    with tempfile.TemporaryDirectory() as folder:
        for each in lines:
            log.note({**each, **measured(name, folder, threshold, widths)})


def table(lines):
    """The table of the page: median seconds of the rounds."""
    lines = [line for line in lines if "optimizer" in line]

    def seconds(name, **what):
        wanted = {"optimizer": name, **what}
        found = [line["first"] for line in lines if wanted.items() <= line.items()]
        return f"{statistics.median(found):.2f}"

    rows = ["| | empty cache | filled | filled, threshold 0 |", "|---|---|---|---|"]
    for name in dict.fromkeys(line["optimizer"] for line in lines):
        kind = name.removeprefix("keras ")
        label = f"**`tf_lamb.keras.{kind}`**" if kind == name else f"`keras.optimizers.{kind}`"
        filled = [seconds(name, cache="filled", threshold=threshold) for threshold in THRESHOLDS]
        rows.append(f"| {label} | {' | '.join([seconds(name, cache='empty'), *filled])} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", default=LOG, help="the JSONL file of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--optimizers", nargs="*", default=OPTIMIZERS)
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, arguments.widths)
        return
    log = Log(arguments.log)
    for number in range(arguments.rounds):  # in turn, so that a slow minute meets all of them
        for name in arguments.optimizers:
            for threshold in THRESHOLDS:
                run_round(log, name, threshold, number, arguments.widths)
    print(table(log.lines))


if __name__ == "__main__":
    main()
