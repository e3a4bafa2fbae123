"""What a whole step of training moves through a TPU's memory, with this package and with its peers.

    python -m benchmarks.performance.tpu_step --log=benchmarks/logs/tpu_step.jsonl

`tpu_traffic.py` compiles the update alone, with every gradient there before it begins. In a step a
gradient comes when backpropagation has it, and what a rule makes of it can begin at once, unless
it waits for something. No TPU is needed and nothing runs: the model is BERT-large at `--layers`,
eight sequences of 128 a chip on eight chips, bfloat16, as `tf_lamb_extras.preflight` compiles
Keras's own layers and `tf_lamb_extras.preflight.model_garden` the Model Garden's pretraining. Every
row is a line of the log with its `commit`, and one that the log has is not compiled again.
"""

import json
import os
import subprocess
import sys
import time

from absl import app, flags

from benchmarks.performance import preflight

CHIPS = {"v4": "v4:2x2x2", "v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4"}
EXAMPLES = 8  # a chip
KEY = ("name", "chip", "layers", "commit")
KERAS = {  # on JAX
    "tf_lamb.keras on JAX": lambda lamb, keras: lamb(1e-3, on_nonfinite="propagate"),
    "tf_lamb.keras on JAX, skipping": lambda lamb, keras: lamb(1e-3),
    "keras.optimizers.Lamb on JAX": lambda lamb, keras: keras.optimizers.Lamb(1e-3),
}
OPTIMIZER = "trainer.optimizer_config.optimizer"
MODEL_GARDEN = {  # on TensorFlow: overrides
    "tf_lamb.tf_keras": f"{OPTIMIZER}.tf_lamb.on_nonfinite=propagate",
    "tf_lamb.tf_keras, skipping": f"{OPTIMIZER}.tf_lamb.on_nonfinite=skip",
    "Model Garden": f"{OPTIMIZER}.type=lamb",
}


def of_keras(name, chip, layers):
    """The report on Keras's own layers; in a process whose backend is JAX."""
    import keras

    import tf_lamb.keras
    import tf_lamb_extras.preflight
    from benchmarks.performance.sharded_update import bert

    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = KERAS[name](tf_lamb.keras.LAMB, keras)
    report = tf_lamb_extras.preflight.preflight(
        bert(layers),
        optimizer,
        loss,
        (8 * EXAMPLES, 128),
        CHIPS[chip],
        largest_batch=False,
    )
    print(json.dumps(report.as_dict()))


def ask(name, chip, layers):
    """The report on one step and the seconds that it took, of a process of its own."""
    if name in MODEL_GARDEN:
        overrides = (
            f"task.model.encoder.bert.num_layers={layers}",
            f"task.train_data.global_batch_size={8 * EXAMPLES}", MODEL_GARDEN[name],
        )  # fmt: skip
        path = os.path.join(preflight.CONFIGS, "bert_large_32k_tpu.yaml")
        return preflight.report_on(path, CHIPS[chip], overrides=overrides)
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, f"--contestant={name}", f"--chips={chip}",
         f"--layers={layers}"],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu",
             "KERAS_BACKEND": "jax"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])
    return report | {"seconds": round(time.perf_counter() - begun, 1)}


def main(_):
    """Each row, unless the log has it."""
    args = flags.FLAGS
    if args.contestant:
        of_keras(args.contestant, args.chips[0], args.layers)
        return
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=preflight.ROOT, text=True
    )
    known = set()
    if os.path.exists(args.log):
        with open(args.log) as file:
            known = {tuple(row[name] for name in KEY) for row in map(json.loads, file)}
    for name in args.only or (*KERAS, *MODEL_GARDEN):
        for chip in args.chips:
            row = dict(zip(KEY, (name, chip, args.layers, commit.strip()), strict=True))
            if tuple(row.values()) in known:
                continue
            row |= ask(name, chip, args.layers)
            with open(args.log, "a") as file:
                file.write(json.dumps(row) + "\n")
            moved, beside = row["work"]["bytes_moved"], row["memory"]["temporaries"]
            print(f"{name:34}{chip:5}{moved / 1e9:8.2f} GB moved{beside / 1e9:8.2f} GB beside")


if __name__ == "__main__":
    flags.DEFINE_multi_enum("only", None, [*KERAS, *MODEL_GARDEN], "These contestants alone.")
    flags.DEFINE_multi_enum("chips", ["v4", "v5e"], list(CHIPS), "Eight of which TPU.")
    flags.DEFINE_integer("layers", 6, "Of BERT-large.")
    flags.DEFINE_string("log", "benchmarks/logs/tpu_step.jsonl", "Where the rows are.")
    flags.DEFINE_enum("contestant", None, list(KERAS), "Compile this one, here.")
    app.run(main)
