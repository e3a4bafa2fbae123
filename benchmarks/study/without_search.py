"""What needs no search: Prodigy and DoG (optax), and one fixed NadamW.

    pip install optax
    python -m benchmarks.study.without_search --task=pictures

Prodigy and DoG find the length of a step themselves, with their authors' settings. The fixed NadamW
has one rate, 0.004, on every task and at every batch. Steps to the target, with tasks and warmup
of steps_to_target.py, three seeds; a run ends at four times the steps of the tuned AdamW. They are
what `find_rate` has to beat; a run is a line of the log.
"""

import os
import statistics
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
from absl import app, flags

from benchmarks.shared.of_optax import OfOptax
from benchmarks.study import find_rate, steps_to_target

FIXED = 0.004


def rivals():
    from optax import contrib

    return {
        "prodigy": (lambda: OfOptax(contrib.prodigy(1.0)), 1.0),
        "dog": (lambda: OfOptax(contrib.dog(1.0)), 1.0),
        "nadamw": (lambda: keras.optimizers.Nadam(1.0), FIXED),
    }


def main(_):
    """Makes what is missing, and prints."""
    import tqdm

    args, every = flags.FLAGS, rivals()
    steps_to_target.optimizer = lambda name: every[name][0]()
    _, best = find_rate.tuned(args.task)
    print(f"{args.task:10}{'batch':>7}{'steps, all seeds':>30}{'AdamW tuned':>13}{'ratio':>8}")
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        runs = steps_to_target.Runs(
            SimpleNamespace(task=args.task, log=args.log, data=None, batches=[], target=None,
                            limit=None, rivals=[], seeds=args.seeds), bar,
        )  # fmt: skip
        for name, (_, rate) in every.items():
            for batch in (batch for of, batch in best if of == "adamw"):
                tuned = statistics.median(best["adamw", batch][1])
                limit = find_rate.WORST * tuned
                made = [runs.steps(name, batch, rate, s + 1, limit)[0] for s in range(args.seeds)]
                seen = ", ".join(f"{each:,.0f}" for each in made)
                ratio = statistics.median(made) / tuned
                print(f"{name:10}{batch:>7,}{seen:>30}{tuned:>13,.0f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    flags.DEFINE_enum("task", "pictures", list(find_rate.BATCHES), "What is learned.")
    flags.DEFINE_string("log", "benchmarks/logs/searchless.jsonl", "Where every run is a line.")
    flags.DEFINE_integer("seeds", 3, "Of each.")
    flags.DEFINE_bool("train", True, "Whether runs that are missing are made.")
    app.run(main)
