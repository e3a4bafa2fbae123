"""Draws whole runs of the Model Garden with `tests/support/garden_runs.py`, for hours.

    python -m benchmarks.fuzz.garden_fuzz --hours=1
    python -m benchmarks.fuzz.garden_fuzz --seed=17 --seeds=1      # one of them again

A line of `benchmarks/logs/garden_fuzz.jsonl` is a run: what was drawn, how it ended, and what was
promised and is not so. The folders of a failure stay where `--keep` says.
"""

import argparse
import importlib.metadata
import json
import pathlib
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import garden_runs  # noqa: E402

from benchmarks.shared.run_log import commit, without_folders  # noqa: E402

VERSIONS = ("tensorflow", "tf_keras", "tf-models-official")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many, at the most")
    parser.add_argument("--log", default=ROOT / "benchmarks" / "logs" / "garden_fuzz.jsonl")
    parser.add_argument("--keep", help="a folder for what has failed")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="times as long before a run is said to hang"
    )
    asked = parser.parse_args()
    garden_runs.PATIENCE *= asked.patience
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    begun, failed = time.monotonic(), []
    with tempfile.TemporaryDirectory() as data_folder:
        data = garden_runs.write_data(pathlib.Path(data_folder))
        for seed in range(asked.seed, asked.seed + asked.seeds):
            if time.monotonic() - begun > 3600 * asked.hours:
                break
            start, folder = time.monotonic(), pathlib.Path(tempfile.mkdtemp())
            run = garden_runs.draw(seed, data)
            line = {"seed": seed, "drawn": garden_runs.summary(run)}
            try:
                line["outcome"] = garden_runs.check(run, folder)
            except garden_runs.Broken as broken:
                line |= {"outcome": "broken", "broken": without_folders(str(broken))[-2000:]}
                failed.append(seed)
                if asked.keep:
                    shutil.copytree(folder, pathlib.Path(asked.keep) / str(seed))
            line |= {"seconds": round(time.monotonic() - start, 1), "commit": commit()}
            with open(asked.log, "a") as log:
                log.write(json.dumps(line | {"versions": versions}) + "\n")
            shutil.rmtree(folder)
            print(f"{seed}: {line['outcome']}, {line['seconds']} s, {line['drawn']}", flush=True)
            if line["outcome"] == "broken":
                print(line["broken"], flush=True)
    print(f"{len(failed)} broken: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
