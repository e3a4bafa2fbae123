"""Every TPU configuration through the TPU's own compiler, at full depth, on its own topology.

    python -m benchmarks.performance.preflight --log=benchmarks/logs/preflight.jsonl
    python -m benchmarks.performance.preflight --largest_batch --only=bert_large_64k_32k_stage1_tpu

Each is a process of its own: BERT-large has 12 MB of HLO. The topology is the one that the file's
header names. The log has one report a line, and the table is drawn from it.
"""

import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from absl import app, flags

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
CONFIGS = os.path.join(ROOT, "model_garden_configs")


def asked_of(path):
    """The experiment and the topology that a file's header names."""
    with open(path) as file:
        text = file.read()
    width, height = re.search(r"v3-\d+ \((\d+)x(\d+) chips", text).groups()
    return text[2:].split(":")[0], f"v3:{width}x{height}"


def report_on(path, topology=None, largest_batch=False, overrides=()):
    """The report on one file and the seconds that it took; by default at its own topology."""
    experiment, named = asked_of(path)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "report.json")
        command = [
            sys.executable, "-m", "tf_lamb_extras.preflight.model_garden",
            f"--experiment={experiment}", f"--config_file={path}",
            f"--topology={topology or named}", f"--report={out}",
            f"--largest_batch={largest_batch}",
            *(["--params_override=" + ",".join(overrides)] if overrides else []),
        ]  # fmt: skip
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not os.path.exists(out):
            raise RuntimeError(done.stderr[-2000:])
        with open(out) as file:
            return json.load(file) | {"seconds": round(time.perf_counter() - begun, 1)}


def row(name, report):
    """A line of the table."""
    if not report["fits"]:
        why = report["refused"] or f"it needs {report['needed'] / 2**30:.2f} GiB"
        return f"{name:32}{report['topology']:10} does not compile: {why}"
    bounds = report["bounds"]
    return (
        f"{name:32}{report['topology']:10}{report['examples_a_replica']:>9}"
        f"{report['needed'] / 2**30:>8.2f}"
        f"{report['largest_examples_a_replica'] or '-':>9}{1e3 * bounds['step']:>9.1f} "
        f"{report['binding']:8}{report['hours']:>8.2f}{report['chip_hours']:>10.0f}"
        f"{report['seconds']:>8.0f}"
    )


def main(_):
    args = flags.FLAGS
    paths = sorted(glob.glob(os.path.join(CONFIGS, "*_tpu.yaml")))
    names = {os.path.splitext(os.path.basename(path))[0]: path for path in paths}
    print(f"{'':32}{'topology':10}{'examples':>9}{'GiB':>8}{'at most':>9}{'ms >=':>9} "
          f"{'takes':8}{'hours':>8}{'chip-h':>10}{'took s':>8}")  # fmt: skip
    for name in args.only or names:
        report = report_on(names[name], args.topology, args.largest_batch)
        print(row(name, report), flush=True)
        if args.log:
            with open(args.log, "a") as log:
                log.write(json.dumps({"file": name, **report}) + "\n")


if __name__ == "__main__":
    flags.DEFINE_multi_string("only", [], "Files to take, without .yaml; all if none is named.")
    flags.DEFINE_string("topology", None, "Instead of the one that the file names.")
    flags.DEFINE_bool("largest_batch", False, "Whether to look for the largest batch that fits.")
    flags.DEFINE_string("log", None, "Where the reports go, a line each.")
    app.run(main)
