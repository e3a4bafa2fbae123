"""Does what was tuned at a small batch hold at a large one? The experiment of docs/protocol.md.

    python -m benchmarks.equivalence --workload=flights
    python -m benchmarks.equivalence --workload=flights --optimizer=keras.optimizers:Adafactor

The first makes the runs of a workload that its log does not have, and prints what they decide. Of
several, --workload=flights --workload=diamonds, it prints a performance profile, too. The second
does for one optimizer of Keras, MODULE:CLASS, or of optax, optax:NAME, what the registered arm
`transfer` does for AdamW: it is tuned at the base batch, its rate moves with the square root of the
batch, and the largest ratio is told at which its result is that of the base. With --tuned it is
tuned at every batch instead. With --equal the runs are those of as many examples as the base's,
without longer ones; what is tuned again there takes --tuned, too. --arm="transfer muon" names the
arms.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tqdm
from absl import app, flags

from benchmarks.equivalence.experiment import compare, reference
from benchmarks.equivalence.protocol import FROZEN
from benchmarks.equivalence.report import profile, rows, table
from benchmarks.equivalence.runs import Runs


def main(_):
    """Makes what is missing, and prints."""
    args, decided = flags.FLAGS, {}
    for name in args.workload:
        found = _decided(name, args)
        decided[name] = list(rows(name, found))
        print(table(name, found))
        if args.draw:
            from benchmarks.equivalence.picture import draw

            draw(name, decided[name], args.draw)
    if len(decided) > 1:
        print(profile(decided))


def _decided(name, args):
    specs, arms = FROZEN["optimizers"], FROZEN["arms"]
    if args.arm:
        arms = {arm: arms[arm] for arm in args.arm}
        specs = list(dict.fromkeys(arms.values()))
    if args.optimizer:
        specs = [args.optimizer]
        arms = {} if args.tuned else {f"transfer {args.optimizer}": args.optimizer}
    log = args.log or f"benchmarks/logs/equivalence_{name}.jsonl"
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        runs = Runs(log, args.processes, bar)
        found = compare(runs, name, specs, arms, longer=not args.equal)
        if args.tuned or not (args.equal or args.optimizer):
            reference(runs, name, specs, found, longer=not args.equal)
    return found


def define():
    """Defines the flags."""
    flags.DEFINE_multi_enum(
        "workload",
        ["flights"],
        list(FROZEN["workloads"]),
        "What is learned; of several, a profile.",
    )
    flags.DEFINE_string("optimizer", None, "MODULE:CLASS of Keras, or optax:NAME, alone.")
    flags.DEFINE_bool("tuned", False, "Whether --optimizer is tuned at every batch.")
    flags.DEFINE_bool("equal", False, "Whether only runs of as many examples are made.")
    flags.DEFINE_multi_enum("arm", None, list(FROZEN["arms"]), "These arms alone.")
    flags.DEFINE_string("log", None, "Where every run is a line; default: of the workload.")
    flags.DEFINE_string("draw", None, "The picture to write.")
    flags.DEFINE_integer("processes", 2, "Runs at a time, one thread each.", lower_bound=1)


if __name__ == "__main__":
    define()
    app.run(main)
