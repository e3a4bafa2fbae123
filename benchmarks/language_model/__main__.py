"""Does a language model that is tuned at 256 keep its loss at 2,048? On one accelerator.

    python -m benchmarks.language_model --seconds=560 --log=benchmarks/logs/language_model.jsonl

makes the runs of docs/protocol_language_model.md that the log lacks, in its order, as long as they
end in time. `python -m benchmarks.language_model.report` says what they decide. The tokens are
made by `python -m benchmarks.language_model.data`.
"""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import platform
import sys

from absl import app, flags

from benchmarks.language_model import plan
from benchmarks.language_model.runs import OutOfTime, Work
from benchmarks.shared import run_log

BEGUN = time.monotonic()


def main(_):
    """Makes what is missing."""
    import jax
    import keras

    from benchmarks.language_model import data, train
    from benchmarks.language_model.protocol import FROZEN

    args = flags.FLAGS
    about = {
        "commit": args.commit or run_log.commit(),
        "card": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "program": " ".join(["benchmarks.language_model", *filter(_is_told, sys.argv[1:])]),
    }
    task = train.Task(data.load(args.tokens), FROZEN["model"], FROZEN["micro"])
    print(f"{about}, {time.monotonic() - BEGUN:.0f} s until the first step", flush=True)
    work = Work(args.log, task, args.seconds - (time.monotonic() - BEGUN), about)
    for portion in args.portion or plan.PORTIONS:
        try:
            plan.PORTIONS[portion](work, args.examples)
        except OutOfTime as error:
            print(f"{portion}: {error}", flush=True)
            break
        print(f"{portion} is made, {time.monotonic() - BEGUN:.0f} s", flush=True)


def _is_told(argument):
    return not argument.startswith(("--log", "--tokens", "--commit"))


def define():
    """Defines the flags."""
    flags.DEFINE_multi_enum("portion", None, list(plan.PORTIONS), "These alone, in this order.")
    flags.DEFINE_float("seconds", 3600, "Nothing is begun that would not end by then.")
    flags.DEFINE_integer("examples", None, "Of a run; default: by the protocol's calibration.")
    flags.DEFINE_string("tokens", ".tokens", "The folder with the tokens.")
    flags.DEFINE_string("log", "benchmarks/logs/language_model.jsonl", "Where a run is a line.")
    flags.DEFINE_string("commit", None, "Where there is no checkout to ask.")


if __name__ == "__main__":
    define()
    app.run(main)
