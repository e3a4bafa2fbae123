"""Does `find_rate` find the rate? Steps at the rate that it finds, beside those of a tuned grid.

    python -m benchmarks.study.find_rate --task=flights
    python -m benchmarks.study.find_rate --task=adapters

The tasks, targets and grids are those of steps_to_target.py, whose logs have the tuned steps; three
batches of each. The model comes with the AdamW that is tuned at the smallest batch. The run that a
search is for has twice the examples of the tuned AdamW at its batch and a constant rate, as the
runs of the grid have; the search may cost --budget of it. Where that is too small, the least budget
is taken, and it is in the log.

Each optimizer is searched alone, from four seeds. With the first answer --seeds runs go
to the target, and end at four times the tuned steps. A search and a run are lines of the log; a
command that was interrupted goes on where it stopped.

`adapters` is the task of adapters.py, with 112 held-out examples: LAMB is searched from ten seeds,
and its whole runs at rates a factor of two apart are judged by 4,096 fresh examples.
"""

import itertools
import math
import os
import statistics
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

import tf_lamb.keras
from benchmarks.shared.run_log import Log
from benchmarks.study import steps_to_target
from tf_lamb.find import search

BATCHES = {
    "pictures": (64, 512, 2048), "text": (16, 64, 256), "flights": (256, 1024, 4096),
}  # fmt: skip
NAMES = {"adamw": "AdamW", "lamb": "LAMB", "lans": "LANS", "muon": "Muon"}
WORST = 4  # times the tuned steps, where a run ends
SEARCHES = 4  # of a cell
FEW = {"task": "adapters", "rival": "lamb", "batch": 128}
FEW_STEPS, FEW_SEARCHES, FEW_START = 600, 10, 0.004  # where a user of Adam would begin
FEW_RATES = tuple(0.008 * 2**i for i in range(6))


def tuned(task):
    """(rival, batch) -> the tuned rate and its steps, from the log of steps_to_target.py."""
    args = SimpleNamespace(
        task=task, log=None, data=None, batches=[], target=None, limit=None,
        rivals=list(NAMES), seeds=3,
    )  # fmt: skip
    runs = steps_to_target.Runs(args, SimpleNamespace(update=lambda: None))
    found = {}
    for line in runs.log.lines:
        if line.get("rival") in NAMES and line["batch"] in runs.task.batches:
            found.setdefault((line["rival"], line["batch"]), {}).setdefault(line["rate"], {})[
                line["seed"]
            ] = line["steps"] or math.inf
    best = {}
    for key, rates in found.items():
        whole = {rate: list(of.values()) for rate, of in rates.items() if len(of) >= args.seeds}
        if whole:
            rate = min(whole, key=lambda rate: statistics.median(whole[rate]))
            if math.isfinite(statistics.median(whole[rate])):
                best[key] = rate, whole[rate]
    return runs, best


def searched(runs, log, best, rival, batch, seed, budget):
    """The line of a search, with the rate that it found, or none."""
    base = min(at for name, at in best if name == "adamw")
    run = round(2 * statistics.median(best["adamw", batch][1]))

    def make():
        import keras

        keras.utils.set_random_seed(seed)
        (x, y), held_out = runs.data
        model = runs.network()
        rate = best["adamw", base][0]
        model.compile(keras.optimizers.AdamW(rate, weight_decay=0.0), runs.task.loss)
        if rival == "adamw":
            of = {"baseline_batch_size": base}
        else:
            of = {"optimizers": [steps_to_target.optimizer(rival)]}
        spent = max(budget, search.min_budget(run, 1))
        found = tf_lamb.find_rate(
            model, (x, y), batch, epochs=run / math.ceil(len(y) / batch), decay="constant",
            validation_data=tuple(held_out), seed=seed, budget=spent, verbose=False, **of,
        )  # fmt: skip
        trials = [[float(f"{t.rate:.4g}"), t.steps, round(t.loss, 4)] for t in found.trials]
        rate = found.rate and float(f"{found.rate:.4g}")
        return {"found": rate, "why": found.why, "budget": spent, "cost": found.cost,
                "trials": trials}  # fmt: skip

    what = {"task": runs.name, "rival": rival, "batch": batch, "search": seed, "run": run}
    return log.run(what, make)


def compare(task, rivals, log, seeds, budget, bar):
    """(rival, batch) -> tuned rate and steps, the searches, and the steps at the found rate."""
    runs, best = tuned(task)
    trained = steps_to_target.Runs(
        SimpleNamespace(task=task, log=log, data=None, batches=[], target=None, limit=None,
                        rivals=rivals, seeds=seeds), bar,
    )  # fmt: skip
    found = {}
    for rival, batch in [(name, at) for name in rivals for at in BATCHES[task]]:
        if (rival, batch) not in best or ("adamw", batch) not in best:
            continue
        searches = [searched(runs, trained.log, best, rival, batch, s, budget)
                    for s in range(1, SEARCHES + 1)]  # fmt: skip
        rate, limit = searches[0]["found"], WORST * statistics.median(best[rival, batch][1])
        made = [
            trained.steps(rival, batch, rate, seed, limit)[0] if rate else math.inf
            for seed in range(1, seeds + 1)
        ]
        found[rival, batch] = best[rival, batch], searches, made
    return found


def table(task, found):
    """A line a cell: rates, steps, their ratio, and what the search cost."""
    lines = [f"{task:10}{'batch':>7}{'tuned rate':>12}{'found':>9}{'again':>27}{'tuned steps':>13}"
             f"{'at found':>10}{'ratio':>7}{'cost':>7}"]  # fmt: skip
    for (rival, batch), ((rate, tuned_steps), searches, made) in found.items():
        want, seen = statistics.median(tuned_steps), statistics.median(made)
        rates = "".join(
            f"{each['found']:>9.3g}" if each["found"] else f"{'-':>9}" for each in searches
        )
        lines.append(
            f"{NAMES[rival]:10}{batch:>7,}{rate:>12.3g}{rates}{want:>13,.0f}{seen:>10,.0f}"
            f"{seen / want:>7.2f}{searches[0]['cost']:>7.2f}"
        )
    pairs = [
        max(pair) <= 2 * min(pair)
        for _, searches, _ in found.values()
        for pair in itertools.combinations((each["found"] for each in searches), 2)
        if all(pair)
    ]
    lines.append(f"{sum(pairs)} of {len(pairs)} pairs of searches are within a factor of two")
    return "\n".join(lines)


def few(log, seeds):
    """The searches of adapters, and rate -> the losses of whole runs of these seeds."""
    import keras

    from benchmarks.study import adapters

    log, (data, held_out, fresh) = Log(log), adapters.data()
    epochs = FEW_STEPS / math.ceil(len(data[1]) / FEW["batch"])

    def search_from(seed):
        model = adapters.model(tf_lamb.LAMB(FEW_START), seed)
        found = tf_lamb.find_rate(
            model, data, FEW["batch"], epochs=epochs, validation_data=held_out, seed=seed,
            verbose=False,
        )  # fmt: skip
        trials = [
            [float(f"{t.rate:.4g}"), t.steps, [round(each, 4) for each in t.losses]]
            for t in found.trials
        ]
        return {"found": found.rate and float(f"{found.rate:.4g}"), "why": found.why,
                "interval": [float(f"{each:.4g}") for each in found.interval],
                "cost": found.cost, "blocks": trials}  # fmt: skip

    def train(rate, seed):
        warm = FEW_STEPS // 20
        decay = keras.optimizers.schedules.PolynomialDecay(rate, FEW_STEPS - warm, 0.0)
        rates = tf_lamb.keras.schedules.Warmup(warm, decay)
        model = adapters.model(tf_lamb.LAMB(rates), seed)
        model.fit(*data, batch_size=FEW["batch"], epochs=math.ceil(epochs), verbose=0)
        end = model.evaluate(*fresh, verbose=0)
        return {"loss": round(end, 4) if math.isfinite(end) else None}

    searches = [
        log.run({**FEW, "search": seed, "run": FEW_STEPS}, lambda seed=seed: search_from(seed))
        for seed in range(1, FEW_SEARCHES + 1)
    ]
    runs = {
        rate: [
            log.run({**FEW, "rate": rate, "seed": seed}, lambda at=(rate, seed): train(*at))["loss"]
            for seed in range(1, seeds + 1)
        ]
        for rate in FEW_RATES
    }
    return searches, runs


def overlaps(searches):
    """How many pairs of intervals overlap, and how many there are; undecided is every rate."""
    spans = [each["interval"] if each["found"] else [0, math.inf] for each in searches]
    pairs = list(itertools.combinations(spans, 2))
    return sum(max(a[0], b[0]) <= min(a[1], b[1]) for a, b in pairs), len(pairs)


def main(_):
    """Makes what is missing, and prints."""
    import tqdm

    args = flags.FLAGS
    if args.task == "adapters":
        searches, runs = few(args.log, args.seeds)
        for each in searches:
            low, high = each["interval"]
            print(f"seed {each['search']:2}: {each['found'] or 'undecided':<10}"
                  f"{low:9.3g} to {high:<9.3g}{each['why']}")  # fmt: skip
        print("{} of {} pairs of intervals overlap".format(*overlaps(searches)))
        for rate, losses in runs.items():
            print(f"{rate:<8.3g} whole runs end at {losses}")
        return
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        found = compare(args.task, args.rivals, args.log, args.seeds, args.budget, bar)
    print(table(args.task, found))


if __name__ == "__main__":
    flags.DEFINE_enum("task", "flights", [*BATCHES, FEW["task"]], "What is learned.")
    flags.DEFINE_list("rivals", list(NAMES), "Which optimizers.")
    flags.DEFINE_string("log", "benchmarks/logs/find_rate.jsonl", "Where every run is a line.")
    flags.DEFINE_float("budget", 0.5, "Of the run that a search is for.")
    flags.DEFINE_integer("seeds", 3, "Of the runs at the rate that is found.")
    flags.DEFINE_bool("train", True, "Whether runs that are missing are made.")
    app.run(main)
