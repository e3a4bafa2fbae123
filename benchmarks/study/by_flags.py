"""Do flags alone keep the result at 32 times the batch? BERT-small and ResNet-small.

    python -m benchmarks.study.by_flags                # hours on two cores; goes on where it ended
    python -m benchmarks.study.by_flags --table        # the table, from the log

The Model Garden's trainer as a user runs it: a YAML with the small batch, its rate and its decay,
then the same command with `--global_batch_size` and `--recipe=transfer`, which change rate, warmup,
decay and betas. The user changes nothing else, and 1,024 updates are left.

    BERT-small     LAMB, the King James Bible, sequences of 64 tokens, batch 8 -> 256, 262,144
                   examples; scored by the loss of the masked tokens, and by their accuracy
    ResNet-small   LARS, Fashion-MNIST at 32 x 32 pixels, batch 16 -> 512, 524,288 examples; scored
                   by the share of errors

Protocol, written before the first run. At the small batch the rate is searched on a grid of 2, from
that of the YAML, on seed 0, until the best has a worse rate on either side (six rates at the most).
Seeds 1, 2 and 3 then train at both batches. The result is kept if the mean score at the large batch
is at most `margin` above that at the small one: what 5% fewer examples lose, taken from seeds 1 and
2 with half of the examples as in docs/updates_left.md, and 0.2% at least. If the excess is closer
to the margin than two standard errors of the difference of the means, that is not decided. A run
that diverges counts as lost, and its score is infinite. What chooses the rate and what scores is
the validation data of the YAML: the seeds differ, the examples do not.
"""

import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.shared import rate_search
from benchmarks.shared.run_log import Log, commit

FLAGS = flags.FLAGS

RATIO, UPDATES_LEFT = 32, 1024
WARMUP_SHARE = 0.05
SEARCH_SEED, SEEDS, SEEDS_OF_HALF = 0, (1, 2, 3), (1, 2)
MOST_RATES = 6
FEWER, LEAST_MARGIN = 0.05, 0.002
DIVERGED = "Training has diverged"  # what the trainer prints at the end of such a run
EVALUATED = re.compile(r"Evaluated at step [\d,]+: (.*)")
VERSES_OF_DOCUMENT = 25

# Name of a path -> experiment, config, small batch, first rate, and the score: its name among the
# metrics of an evaluation, and whether it is an accuracy, of which 1 - accuracy is the score.
PATHS = {
    "bert": {
        "experiment": "lamb/bert_pretraining", "config": "bert_small_cpu.yaml", "batch": 8,
        "rate": 0.01, "score": "lm_example_loss", "is_accuracy": False,
    },
    "resnet": {
        "experiment": "lars/resnet_imagenet", "config": "resnet_small_lars_cpu.yaml", "batch": 16,
        "rate": 0.5, "score": "accuracy", "is_accuracy": True,
    },
}  # fmt: skip


# -- data ------------------------------------------------------------------------------------------


def write_verses(folder: str) -> str:
    """Writes the Bible with a verse a line and a blank line between documents; returns the path."""
    from benchmarks.shared import text

    with open(text.BIBLE) as file:
        bible = file.read().split('"""')[1]
    verses = [" ".join(verse.split()) for verse in re.split(r"\d+\. ", bible)]
    verses = [re.sub(r"[\[\]]", "", verse) for verse in verses if verse]
    path = os.path.join(folder, "bible.txt")
    with open(path, "w") as file:
        for start in range(0, len(verses), VERSES_OF_DOCUMENT):
            file.write("\n".join(verses[start : start + VERSES_OF_DOCUMENT]) + "\n\n")
    return path


def write_bert_data(folder: str):
    """Writes TFRecords of the Bible in the form that BERT's task reads."""
    from tf_lamb.model_garden import sample_data

    os.makedirs(folder, exist_ok=True)
    sample_data.write(
        os.path.join(folder, "bert"), input=write_verses(folder), seq_length=64,
        max_predictions_per_seq=10, dupe_factor=10,
    )  # fmt: skip


def write_resnet_data(folder: str):
    """Writes Fashion-MNIST as TFRecords of 32 x 32 pixels, as the ResNet's task reads them."""
    import tensorflow as tf

    from benchmarks.shared import pictures

    folder = os.path.join(folder, "resnet")
    if os.path.exists(os.path.join(folder, "validation.tfrecord")):
        return
    os.makedirs(folder, exist_ok=True)
    pixels, labels = pictures.fashion_or_mnist(pictures.FASHION_MNIST)
    for name, part in {"train": slice(60000), "validation": slice(60000, None)}.items():
        path = os.path.join(folder, f"{name}.tfrecord")
        with tf.io.TFRecordWriter(f"{path}.part") as writer:
            for picture, label in zip(pixels[part], labels[part], strict=True):
                picture = tf.image.grayscale_to_rgb(tf.constant(picture))
                picture = tf.image.pad_to_bounding_box(picture, 2, 2, 32, 32)
                jpeg = tf.io.encode_jpeg(picture, quality=100, chroma_downsampling=False).numpy()
                feature = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[int(label)])
                    ),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        os.rename(f"{path}.part", path)


# -- runs ------------------------------------------------------------------------------------------


def small_batch_yaml(path: str, folder: str, rate: float, examples: int, seed: int) -> dict:
    """Returns the settings of the small batch, which stand in a YAML of the user's."""
    about = PATHS[path]
    steps = examples // about["batch"]
    warmup = round(WARMUP_SHARE * steps)
    data = {
        part: {"input_path": os.path.join(folder, path, f"{name}.tfrecord")}
        for part, name in (("train_data", "train"), ("validation_data", "validation"))
    }
    data["train_data"] |= {"global_batch_size": about["batch"], "seed": seed}
    if path == "bert":
        for part in data.values():
            part |= {"seq_length": 64, "max_predictions_per_seq": 10}
        data["train_data"]["shuffle_buffer_size"] = 200000  # all of the data
        optimizer = {
            "learning_rate": {
                "type": "polynomial",
                "polynomial": {"initial_learning_rate": rate, "decay_steps": steps},
            },
            "warmup": {"type": "linear", "linear": {"warmup_steps": warmup}},
        }
    else:
        data["train_data"] |= {"shuffle_buffer_size": 60000, "aug_rand_hflip": True}
        data["validation_data"]["global_batch_size"] = 500
        optimizer = {
            "learning_rate": {
                "type": "tf_lamb_polynomial",
                "tf_lamb_polynomial": {
                    "initial_learning_rate": rate, "steps": steps - warmup, "power": 2.0,
                },
            },
            "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": warmup}},
        }  # fmt: skip
    loop = steps // 32
    return {
        "task": data,
        "trainer": {
            "train_steps": steps, "steps_per_loop": loop, "summary_interval": loop,
            "checkpoint_interval": steps, "validation_interval": steps,
            "optimizer_config": optimizer,
        },
    }  # fmt: skip


def train(path: str, folder: str, run: dict) -> dict:
    """Trains by the command line; returns the metrics of the last evaluation, and the seconds.

    Raises:
        RuntimeError: with the end of what the command printed, if it fails.
    """
    about = PATHS[path]
    with tempfile.TemporaryDirectory() as place:
        yaml = os.path.join(place, "small_batch.yaml")
        settings = small_batch_yaml(path, folder, run["rate"], run["examples"], run["seed"])
        pathlib.Path(yaml).write_text(json.dumps(settings))  # JSON is YAML
        command = [
            sys.executable, "-m", "tf_lamb.model_garden.train", "--mode=train_and_eval",
            f"--experiment={about['experiment']}", f"--config_file={about['config']}",
            f"--config_file={yaml}", f"--seed={run['seed']}", f"--model_dir={place}/model",
        ]  # fmt: skip
        if run["batch"] != about["batch"]:
            command += [f"--global_batch_size={run['batch']}", "--recipe=transfer"]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    printed = done.stdout + done.stderr
    found = EVALUATED.findall(printed)
    if done.returncode and DIVERGED in printed:
        return {"diverged": True, "seconds": round(seconds, 1)}
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{printed[-3000:]}")
    metrics = dict(entry.split(" ") for entry in found[-1].split(", "))
    return {name: float(value) for name, value in metrics.items()} | {"seconds": round(seconds, 1)}


class Path:
    """The runs of one path: those that the log has, and those that it lacks.

    Args:
        name: A key of `PATHS`.
        log: The log.
        folder: The folder of the data.
        until: The time after which no run begins.
    """

    def __init__(self, name: str, log: Log, folder: str, until: float):
        self.name, self.log, self.folder, self.until = name, log, folder, until
        self.about = PATHS[name]
        self.batch, self.large = self.about["batch"], RATIO * self.about["batch"]
        self.examples = UPDATES_LEFT * self.large

    def line(self, batch: int, rate: float, seed: int, examples: int) -> dict:
        """Returns the line of a run, which is made if the log lacks it."""
        run = {
            "path": self.name, "batch": batch, "rate": rate, "seed": seed, "examples": examples,
            "updates": examples // batch,
        }  # fmt: skip

        def make():
            if time.time() > self.until:
                raise TimeoutError("the hours are over")
            return train(self.name, self.folder, run) | {"commit": commit()}

        return self.log.run(run, make)

    def score(self, line: dict) -> float:
        """Returns what is to be small: a loss, or a share of errors."""
        if line.get("diverged"):
            return math.inf
        value = line[self.about["score"]]
        if self.about["is_accuracy"]:
            return 1 - value
        return value if math.isfinite(value) else math.inf

    def tuned_rate(self) -> tuple[float, bool]:
        """Searches the rate at the small batch; returns it, and whether it is at an edge."""

        def rate_at(power):
            return self.about["rate"] * 2.0**power

        def score_at(power):
            return self.score(self.line(self.batch, rate_at(power), SEARCH_SEED, self.examples))

        scores = rate_search.bracketed(score_at, MOST_RATES)
        best = min(scores, key=scores.__getitem__)
        return rate_at(best), best in (min(scores), max(scores))

    def run(self) -> dict:
        """Makes all runs; returns the row of the table."""
        rate, is_at_edge = self.tuned_rate()
        lines = {
            batch: [self.line(batch, rate, seed, self.examples) for seed in SEEDS]
            for batch in (self.batch, self.large)
        }
        halves = [self.line(self.batch, rate, seed, self.examples // 2) for seed in SEEDS_OF_HALF]
        base, large = (statistics.mean(map(self.score, of_batch)) for of_batch in lines.values())
        lost = math.log2(1 / (1 - FEWER)) * (statistics.mean(map(self.score, halves)) - base) / base
        scores = {batch: [self.score(line) for line in lines[batch]] for batch in lines}
        excess, margin = (large - base) / base, max(lost, LEAST_MARGIN)
        return {
            "path": self.name, "rate": rate, "is_at_edge": is_at_edge, "base": base, "large": large,
            "excess": excess, "margin": margin, "scores": scores, "lines": lines,
            "verdict": verdict(excess, margin, *scores.values()),
        }  # fmt: skip


def verdict(excess: float, margin: float, small: list[float], large: list[float]) -> str:
    """Says whether the large batch kept the result: "kept", "lost" or "not decided".

    Args:
        excess: The mean score of the large batch over that of the small one, minus 1.
        margin: The largest excess of a kept result.
        small, large: The scores of the seeds at either batch.
    """
    if math.isinf(excess):
        return "lost"
    variances = [statistics.variance(scores) / len(scores) for scores in (small, large)]
    standard_error = math.sqrt(sum(variances)) / statistics.mean(small)
    if abs(excess - margin) < 2 * standard_error:
        return "not decided"
    return "kept" if excess <= margin else "lost"


def table(rows: list[dict]) -> str:
    """Formats the rows: both batches, their updates and scores, the excess and the margin."""
    head = (
        "| path | rate | batch | updates | scores of the seeds | excess | margin | kept | minutes |"
    )
    lines = [head, "|" + " --- |" * 9]
    for row in rows:
        for batch, of_batch in row["lines"].items():
            minutes = statistics.mean(line["seconds"] for line in of_batch) / 60
            excess, margin, kept = "-", "-", "-"
            rate = f"{row['rate']:g}" + " (the last tried)" * row["is_at_edge"]
            if batch != PATHS[row["path"]]["batch"]:
                excess, margin = f"{row['excess']:+.1%}", f"{row['margin']:.1%}"
                rate, kept = "by transfer", row["verdict"]
            scores = ", ".join(f"{score:.4f}" for score in row["scores"][batch])
            updates = of_batch[0]["updates"]
            lines.append(
                f"| {row['path']} | {rate} | {batch:,} | {updates:,} | {scores} | {excess} "
                f"| {margin} | {kept} | {minutes:.1f} |"
            )
    return "\n".join(lines)


def main(_):
    """Makes the runs that the log lacks, and prints the table of the paths that are complete."""
    until = 0.0 if FLAGS.table else time.time() + 3600 * FLAGS.hours
    if not FLAGS.table:
        for name in FLAGS.path:
            {"bert": write_bert_data, "resnet": write_resnet_data}[name](FLAGS.data)
    rows = []
    for name in FLAGS.path:
        try:
            rows.append(Path(name, Log(FLAGS.log), FLAGS.data, until).run())
        except TimeoutError as error:
            print(f"{name}: {'not complete' if FLAGS.table else error}")
    print(table(rows))


if __name__ == "__main__":  # another study defines flags of these names, too
    flags.DEFINE_string("log", "benchmarks/logs/by_flags.jsonl", "Where every run is a line.")
    flags.DEFINE_string("data", ".build/by_flags", "The folder of the data, written if missing.")
    flags.DEFINE_multi_enum("path", ["bert", "resnet"], ["bert", "resnet"], "What to run.")
    flags.DEFINE_bool("table", False, "Print the table of the log, and run nothing.")
    flags.DEFINE_float("hours", 24.0, "No run begins after these.")
    app.run(main)
