"""Why does AutoWarmup lose to a tuned LAMB? It is given what was tuned, one thing at a time.

    python -m benchmarks.equivalence.autowarmups

The tuned LAMB is that of the registered experiment, from its log, on flights at 8 and 32 times the
base batch, eight seeds. `AutoWarmup` decides where its warmup ends, to which step it goes back, and
the peak of its decay. From these decisions a run is made anew, as a schedule, in which one thing is
that of the tuned run:

    as it is    the steps between the retreat and the switch are lost
    peak        the decay begins from the tuned rate
    retreat     no step is lost: the decay begins at the step to which it goes back
    decay       linear
    warmup      none, as of the tuned run: the decay takes all steps
    settings    beta_1, weight decay and clipping
    all         the tuned run

A line of the log has a seed's decisions and the losses on test flights.
"""

import math
import os
import statistics
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import tqdm

from benchmarks.equivalence import arms, fits, workloads
from benchmarks.equivalence.experiment import tuned
from benchmarks.equivalence.protocol import Settings
from benchmarks.equivalence.runs import Run, Runs, program
from benchmarks.shared.run_log import Log
from tf_lamb_extras.automatic_warmup import AutoWarmup

REGISTERED = "benchmarks/logs/equivalence_flights.jsonl"
LOG = "benchmarks/logs/equivalence_autowarmups.jsonl"
RATIOS, SEEDS = (8, 32), range(1, 9)
GIVEN = ("as it is", "peak", "retreat", "decay", "warmup", "settings", "all")
UNTUNED = Settings(rate=1.0, beta_1=0.9, warmup=0.0, weight_decay=0.0, global_clipnorm=None)


def rates(found, best, given):
    """The rate of every step that counts; what was lost at the retreat is no step."""
    back = 0 if given == "warmup" else found["back"]
    left = found["steps"] - (found["switch"] if given not in ("retreat", "warmup") else back)
    part = np.arange(left) / left
    fall = 1 - part if given == "decay" else (1 + np.cos(math.pi * part)) / 2
    peak = best.rate if given == "peak" else found["peak"]
    rise = 1e-5 * 1e5 ** (np.arange(back) / found["longest"])
    return np.concatenate([rise, peak * fall])


def scheduled(rates, batch):
    """A recipe of these rates."""
    schedule = SimpleNamespace(value=lambda xp, step: rates[step])
    stage = SimpleNamespace(batch_size=batch, train_steps=len(rates))
    return SimpleNamespace(
        schedule=lambda of: schedule, train_steps=len(rates), stages=[stage]
    )  # fmt: skip


def decisions(flights, ratio, seed):
    """Where AutoWarmup switches, to which step it goes back, and from which peak it decays."""
    callback = AutoWarmup(verbose=False)
    made = fits.autowarmup(flights, ratio, seed, 1, callback)
    state = callback.warmup
    return {
        "steps": state.settings.total_steps, "longest": state.settings.longest,
        "found": state.found, "switch": int(state.begin),
        "back": state.lowest if state.found else int(state.begin),
        "peak": state.peak, "cuts": len(state.cuts), "fit": made["test"],
    }  # fmt: skip


def losses(flights, best, ratio, found, seed):
    """On test flights, by what is given of the tuned run."""
    batch, told = ratio * flights.base, {}
    for given in GIVEN:
        settings = best if given in ("settings", "all") else UNTUNED
        recipe = arms.plain(flights, best, ratio, 1)
        if given != "all":
            recipe = scheduled(rates(found, best, given), batch)
        told[given] = program("flights", "lamb", settings).run(recipe, seed)["test"]
    return told


def main():
    """Makes what is missing, and prints."""
    log, registered = Log(LOG), Runs(REGISTERED, 1, tqdm.tqdm(disable=True))
    flights = workloads.workload("flights")
    base = tuned(registered, "flights", "lamb", 1)
    whole = {
        line["seed"]: line["test"]
        for line in registered.all([Run("flights", "tuned lamb", 1, base, s) for s in SEEDS])
    }
    for ratio in RATIOS:
        best, lost = tuned(registered, "flights", "lamb", ratio), {}
        for seed in SEEDS:

            def made(ratio=ratio, seed=seed, best=best):
                found = decisions(flights, ratio, seed)
                return {**found, "test": losses(flights, best, ratio, found, seed)}

            line = log.run({"ratio": ratio, "seed": seed}, made)
            for given, loss in {"fit": line["fit"], **line["test"]}.items():
                lost.setdefault(given, []).append(math.inf if loss is None else loss - whole[seed])
        for given, each in lost.items():
            told = statistics.median(each), max(each)
            print(ratio, given, *(f"{1000 * number:+.1f}" for number in told))


if __name__ == "__main__":
    main()
