"""Long runs of every optimizer over rare rows, dying columns and gradients of 1e-30 to 1e15.

    python -m benchmarks.fuzz.soak --log=benchmarks/logs/soak.jsonl
    KERAS_BACKEND=jax python -m benchmarks.fuzz.soak --log=benchmarks/logs/soak.jsonl

Each run is 20,000 steps in one program, which looks at every step; `tests/support/soaking.py` says
at what. On TensorFlow both Kerases run, in a step that XLA compiles whole (`jit_compile=True`), and
with bfloat16 slots by TensorFlow's own kernels, too. A run that is in the log is not made again, so
that one which was cut off goes on; `--minutes` ends it between two runs.

    not_finite  steps after which a weight, a slot, a master or an average was not finite
    moved       steps that were not taken, but changed one of these
    skipped     steps that were skipped, of those `expected` by the tables
    smallest    the smallest slot other than 0 at the end
"""

import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from absl import app, flags  # noqa: E402

from benchmarks.shared.run_log import Log  # noqa: E402

OPTIMIZERS = ("LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon")
# Dtypes of variables and slots; slots of float64 variables are float64.
DTYPES = (
    ("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32"),
    ("bfloat16", "float32"), ("float64", "float32"),
)  # fmt: skip


def runs(backend):
    """What is run, the most telling first."""
    modes = ("plain", "accumulating", "averaging", "masters")
    last = "sharing" if backend == "jax" else "replicas"
    for mode in (*modes, last):
        for dtype, slots in DTYPES:
            if mode == "masters" and dtype != "bfloat16" or mode == last and dtype != "float32":
                continue
            for name in OPTIMIZERS:
                for frontend in ("keras",) if backend == "jax" else ("keras", "tf_keras"):
                    run = {
                        "frontend": frontend, "backend": backend, "optimizer": name,
                         "variables": dtype,
                        "slots": slots, "mode": mode,
                    }  # fmt: skip
                    by_xla = mode != "replicas"
                    by_tensorflow = not by_xla or (mode, dtype) == ("plain", "float32")
                    if by_xla:
                        yield {**run, "whole_step_by_xla": True}
                    if backend == "tensorflow" and slots == "bfloat16" and by_tensorflow:
                        yield {**run, "whole_step_by_xla": False}


def soak(run, steps, seed):
    """The figures of one run."""
    import keras
    import numpy as np
    from support.clusters import mirrored
    from support.frontends import array
    from support.soaking import MODES, Soak

    mode, start = run["mode"], time.perf_counter()
    if mode == "sharing":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    soak = Soak(
        run["frontend"], run["optimizer"], steps, seed, run["variables"], run["whole_step_by_xla"],
        strategy=mirrored(2) if mode == "replicas" else None, slots=run["slots"], **MODES[mode],
    ).run()  # fmt: skip
    if mode == "sharing":
        keras.distribution.set_distribution(None)
    slots = [array(v).astype("float64") for own in soak.optimizer._storage.slots for v in own]
    sizes = np.abs(np.concatenate([slot.ravel() for slot in slots]))
    return {
        "not_finite": int(soak.seen[0]), "moved": int(soak.seen[1]),
        "finite_at_the_end": bool(np.isfinite(soak.numbers()).all()),
        "skipped": int(soak.optimizer.skipped_steps), "expected": soak.expected_skips(),
        "smallest": float(sizes[sizes > 0].min()), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def main(_):
    """All runs of the backend that are not in the log."""
    args, begun = flags.FLAGS, time.perf_counter()
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if backend == "tensorflow":
        from support import clusters

        clusters.logical_devices(2)
    log = Log(args.log)
    for run in runs(backend):
        if time.perf_counter() - begun > 60 * args.minutes:
            break
        what = {**run, "steps": args.steps, "seed": args.seed}
        line = log.run(what, lambda run=run: {**soak(run, args.steps, args.seed), "commit": commit})
        print(line)


if __name__ == "__main__":
    flags.DEFINE_string("log", None, "Where each run is a line.", required=True)
    flags.DEFINE_integer("steps", 20_000, "Of each run.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of weights and gradients.")
    flags.DEFINE_float("minutes", 1e9, "After these no run is begun.")
    app.run(main)
