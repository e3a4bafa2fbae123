"""The update inside a whole training step: its share, and how hosts that set XLA treat it.

    make train    # once, for its data
    python -m benchmarks.performance.training_step --log=benchmarks/logs/training_step.jsonl

Model Garden's trainer on the small BERT at batch 32, without a strategy, with `runtime.enable_xla`,
and under a MirroredStrategy of one replica; and Keras's `fit` on a perceptron of 8 million
parameters. In one process, in turn, medians over rounds. "No update" takes the gradients and throws
them away; the share of the update is what a step takes beyond it.
"""

import json
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from absl import app, flags

STEPS = 20


def garden(optimizer, strategy="none", xla=False, **fields):
    """Steps of Model Garden's trainer; `fields` are those of the optimizer's config."""
    import tensorflow as tf
    from official.core import task_factory, train_utils

    from tf_lamb.model_garden.experiments import parsing
    from tf_lamb.model_garden.train_stages import Stage

    kind = "tf_lamb" if optimizer == "none" else optimizer
    params, _ = parsing.parse(
        Stage(
            "lamb/bert_pretraining", ["model_garden_configs/bert_small_cpu.yaml"], "",
            params_override=json.dumps({
                # Model Garden looks at enable_xla only where there are GPUs.
                "runtime": {"enable_xla": xla, "num_gpus": int(xla)},
                "task": {"train_data": {"global_batch_size": 32, "resume_in_order": False}},
                "trainer": {"steps_per_loop": STEPS, "optimizer_config": {
                    "optimizer": {"type": kind, kind: fields}}},
            }),
        )
    )  # fmt: skip
    scope = {
        "none": tf.distribute.get_strategy,
        "Mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    }[strategy]()
    with scope.scope():
        task = task_factory.get_task(params.task, logging_dir=tempfile.mkdtemp())
        trainer = train_utils.create_trainer(params, task, train=True, evaluate=False)
    if optimizer == "none":
        _throw_away(trainer.optimizer)

    def steps():
        with scope.scope():
            trainer.train(tf.constant(STEPS))

    return steps


def _throw_away(optimizer):
    """The gradients are still computed: an element of each goes into a variable."""
    import tensorflow as tf

    sink = tf.Variable(0.0)

    def apply_gradients(grads_and_vars, **_):
        grads = [tf.convert_to_tensor(g) for g, _ in grads_and_vars if g is not None]
        sink.assign(tf.add_n([tf.reshape(g, [-1])[0] for g in grads]))
        optimizer.iterations.assign_add(1)

    optimizer.apply_gradients = apply_gradients


def fit(optimizer):
    """Steps of Keras's `fit`, which leaves XLA off on a machine of CPUs."""
    import keras
    import numpy as np

    import tf_lamb.keras

    optimizer = {
        "tf_lamb": lambda: tf_lamb.keras.LAMB(1e-3, weight_decay=0.01),
        "Keras Lamb": lambda: keras.optimizers.Lamb(1e-3, weight_decay=0.01),
        "Keras Adam": lambda: keras.optimizers.Adam(1e-3),
    }[optimizer]()
    layers = [keras.layers.Dense(1600, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.layers.InputLayer((64,)), *layers, keras.layers.Dense(10)])
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((32 * STEPS, 64), "float32"), np.ones((32 * STEPS, 10), "float32")
    return lambda: model.fit(x, y, batch_size=32, verbose=0)


FOUR = {"gradient_accumulation_steps": 4}
CONTESTANTS = {
    "Model Garden, no update": lambda: garden("none"),
    "Model Garden, tf_lamb": lambda: garden("tf_lamb"),
    "Model Garden, its AdamW": lambda: garden("adamw"),
    "Model Garden, its LAMB": lambda: garden("lamb"),
    "Model Garden, tf_lamb, enable_xla": lambda: garden("tf_lamb", xla=True),
    "Model Garden, its LAMB, enable_xla": lambda: garden("lamb", xla=True),
    "Model Garden, tf_lamb, Mirrored": lambda: garden("tf_lamb", "Mirrored"),
    "Model Garden, tf_lamb, 4 micro-batches": lambda: garden("tf_lamb", **FOUR),
    "Model Garden, the same, MeasureNoise": lambda: garden(
        "tf_lamb", measure_noise={"enabled": True}, **FOUR
    ),
    "Model Garden, the same, AdaScale": lambda: garden("tf_lamb", adascale={"scale": 4}, **FOUR),
    "fit, tf_lamb": lambda: fit("tf_lamb"),
    "fit, Keras Lamb": lambda: fit("Keras Lamb"),
    "fit, Keras Adam": lambda: fit("Keras Adam"),
}


def main(_):
    """Every contestant in turn."""
    import tqdm

    from tf_lamb import model_garden

    model_garden.register()
    args = flags.FLAGS
    names = args.only or list(CONTESTANTS)
    steps = {name: CONTESTANTS[name]() for name in tqdm.tqdm(names, desc="building")}
    times = {name: [] for name in steps}
    for run in tqdm.tqdm(steps.values(), desc="first steps"):
        run()
    for _ in tqdm.trange(args.rounds, desc="rounds"):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) / STEPS)
    base = times[names[0]]
    for name, seen in times.items():
        median = statistics.median(seen)
        # Of the same round, for the machine is faster in some.
        ratio = statistics.median(one / other for one, other in zip(seen, base, strict=True))
        print(f"{name:40}{median * 1e3:8.1f} ms{ratio:8.3f} of {names[0]}")
        if args.log:
            with open(args.log, "a") as file:
                file.write(json.dumps({"name": name, "step": median, "rounds": seen}) + "\n")


if __name__ == "__main__":
    flags.DEFINE_integer("rounds", 9, "How often each takes its turn.", lower_bound=1)
    flags.DEFINE_multi_enum("only", None, list(CONTESTANTS), "These; the first is the measure.")
    flags.DEFINE_string("log", None, "Where every contestant is a line.")
    app.run(main)
