"""Does the recipe keep the loss as the batch grows? The small BERT at 1x, 4x, 8x and 16x.

    python -m benchmarks.study.bert_batches --log=benchmarks/logs/batch.jsonl \\
        --picture=benchmarks/logs/batch.png

Real text (the English that every Python ships), Model Garden's task and trainer, the same number of
examples for every batch, three seeds. Three contestants:

    LAMB          tuned at the baseline's batch only; LEGW fills in the rest, nothing is tuned
    AdamW         the same: tuned at the baseline's batch, then LEGW
    AdamW, tuned  its learning rate is tuned at every batch

A learning rate is tuned on one seed, by the validation loss. Every run is a line of the log; a
command that was interrupted goes on where it stopped. On several cores, start one command with
`--only=tf_lamb` and one with `--only=adamw`, then a third without, which finds all runs made.
"""

import json
import os
import statistics
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.shared import drawing

BASE, EXAMPLES, WARMUP = 8, 25600, 40
FACTORS = (1, 4, 8, 16)
SEEDS = (1, 2, 3)
GRID = {"tf_lamb": (0.005, 0.01, 0.02), "adamw": (0.001, 0.002, 0.004)}
MULTIPLES = (0.5, 1, 2)  # of LEGW's rate, for AdamW tuned at a larger batch
EXCLUDED = ["LayerNorm", "layer_norm", "bias"]


def experiment(optimizer, learning_rate, data):
    """The small BERT at the baseline's batch."""
    from tf_lamb.model_garden.experiments import parsing
    from tf_lamb.model_garden.train_stages import Stage

    steps = EXAMPLES // BASE
    decay = "weight_decay" if optimizer == "tf_lamb" else "weight_decay_rate"
    clip = "global_clipnorm" if optimizer == "tf_lamb" else "gradient_clip_norm"
    flags_ = Stage(
        "lamb/bert_pretraining", ["model_garden_configs/bert_small_cpu.yaml"], "",
        params_override=json.dumps({
            "task": {
                part: {
                    "input_path": f"{data}/{file}.tfrecord", "global_batch_size": BASE,
                    "seq_length": 64, "max_predictions_per_seq": 10, "resume_in_order": False,
                }
                for part, file in (("train_data", "train"), ("validation_data", "validation"))
            },
            "trainer": {
                "train_steps": steps,
                "optimizer_config": {
                    "optimizer": {"type": optimizer, optimizer: {
                        decay: 0.01, clip: 1.0, "exclude_from_weight_decay": EXCLUDED}},
                    "learning_rate": {"type": "tf_lamb_polynomial", "tf_lamb_polynomial": {
                        "initial_learning_rate": learning_rate, "steps": steps - WARMUP}},
                    "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": WARMUP}},
                },
            },
        }),
    )  # fmt: skip
    params, _ = parsing.parse(flags_)
    return params


def validation_loss(optimizer, learning_rate, factor, seed, data):
    """Trains once; the rate is the one at the baseline's batch, which LEGW scales."""
    import tensorflow as tf
    import tf_keras
    from official.core import task_factory, train_utils

    from tf_lamb.model_garden.experiments import scaling

    params = experiment(optimizer, learning_rate, data)
    if factor > 1:
        _, settings = scaling.settings_at_batch("legw", BASE * factor, params)
        params = params.replace(**settings)
    params = params.replace(task={"train_data": {"seed": seed}})
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(seed)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=tempfile.mkdtemp())
        trainer = train_utils.create_trainer(params, task, train=True, evaluate=True)
        trainer.train(tf.constant(params.trainer.train_steps))
        logs = trainer.evaluate(tf.constant(-1))
    return float(logs["validation_loss"])


class Log:
    """Runs by what they are of; a run that is in the log is not made again."""

    def __init__(self, path, data, bar):
        self.path, self.data, self.bar = path, data, bar

    def _runs(self):
        """Read anew each time: several commands may write one log."""
        if not os.path.exists(self.path):
            return {}
        with open(self.path) as file:
            runs = [json.loads(line) for line in file]
        return {self._key(run): run["validation_loss"] for run in runs}

    @staticmethod
    def _key(run):
        return run["optimizer"], round(run["base_learning_rate"], 8), run["factor"], run["seed"]

    def loss(self, optimizer, learning_rate, factor, seed):
        """The validation loss of a run, made now if it has to be."""
        run = {
            "optimizer": optimizer, "base_learning_rate": learning_rate, "factor": factor,
            "batch": BASE * factor, "steps": EXAMPLES // BASE // factor, "seed": seed,
        }  # fmt: skip
        loss = self._runs().get(self._key(run))
        if loss is None:
            loss = validation_loss(optimizer, learning_rate, factor, seed, self.data)
            with open(self.path, "a") as file:
                file.write(json.dumps({**run, "validation_loss": loss}) + "\n")
        self.bar.update()
        return loss

    def best(self, optimizer, rates, factor):
        """Of these rates, the one with the lowest loss on the first seed."""
        return min(rates, key=lambda rate: self.loss(optimizer, rate, factor, SEEDS[0]))

    def seeds(self, optimizer, rate, factor):
        """The loss of every seed."""
        return [self.loss(optimizer, rate, factor, seed) for seed in SEEDS]


def table(results):
    """Means and spreads, and each against the baseline of its kind."""
    lines = [f"{'':14}" + "".join(f"{f'{factor}x ({BASE * factor})':>22}" for factor in FACTORS)]
    for name, losses in results.items():
        cells = []
        for factor in FACTORS:
            mean, spread = statistics.mean(losses[factor]), statistics.stdev(losses[factor])
            gain = mean / statistics.mean(losses[1]) - 1
            cells.append(f"{mean:.3f} +- {spread:.3f} {gain:+6.1%}".rjust(22))
        lines.append(f"{name:14}" + "".join(cells))
    return "\n".join(lines)


def draw(results, path):
    """Loss against batch: a mark a seed, lines through the means."""
    plt = drawing.pyplot()
    figure, ax = plt.subplots(figsize=(7, 4.5))
    for name, optimizer in (("LAMB", "lamb"), ("AdamW", "adamw")):
        at = np.array([BASE * factor for factor in FACTORS]) * (0.98 if name == "LAMB" else 1.02)
        losses = np.array([results[name][factor] for factor in FACTORS])
        ax.plot(at, losses.mean(1), **drawing.style(optimizer) | {"marker": ""})
        ax.plot(at, losses, **drawing.style(optimizer) | {"ls": ""})
        ax.plot([], [], label=name, **drawing.style(optimizer))
    ax.set_xscale("log", base=2)
    ax.set_xticks([BASE * f for f in FACTORS], [f"{BASE * f}\n({f}x)" for f in FACTORS])
    ax.set(xlabel="batch", ylabel=f"validation loss after {EXAMPLES:,} examples, nats")
    ax.legend()
    figure.savefig(path)


def runs(log, only):
    """All runs of one optimizer, or of both: contestant -> factor -> the losses of the seeds."""
    results = {}
    if only != "adamw":
        rate = log.best("tf_lamb", GRID["tf_lamb"], 1)
        results["LAMB"] = {f: log.seeds("tf_lamb", rate, f) for f in FACTORS}
    if only != "tf_lamb":
        rate = log.best("adamw", GRID["adamw"], 1)
        results["AdamW"] = {f: log.seeds("adamw", rate, f) for f in FACTORS}
        tuned = {1: rate}
        for f in FACTORS[1:]:
            tuned[f] = log.best("adamw", [rate * m for m in MULTIPLES], f)
        results["AdamW, tuned"] = {f: log.seeds("adamw", rate, f) for f, rate in tuned.items()}
    return results


def main(_):
    """Makes the runs that are missing, and prints."""
    import tqdm

    from tf_lamb import model_garden
    from tf_lamb.model_garden import sample_data

    model_garden.register()
    args = flags.FLAGS
    sample_data.write(args.data, seq_length=64, max_predictions_per_seq=10)
    with tqdm.tqdm(desc="runs", disable=None) as bar:
        results = runs(Log(args.log, args.data, bar), args.only)
    print(table(results))
    if not args.only:
        draw(results, args.picture)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/batch.jsonl", "Where every run is a line.")
    flags.DEFINE_string("picture", "benchmarks/logs/batch.png", "The picture to write.")
    flags.DEFINE_string("data", ".build/data64", "The folder of the data, written if missing.")
    flags.DEFINE_enum("only", None, ["tf_lamb", "adamw"], "The runs of one optimizer alone.")
    app.run(main)
