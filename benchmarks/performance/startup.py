"""What an optimizer costs before it trains: CPU seconds of a first epoch, in fresh processes.

    python -m benchmarks.performance.startup --log=benchmarks/logs/startup.jsonl

Every contestant trains the same model on the same few batches; five rounds in turn, and the median.
A perceptron of nine layers of as many shapes, a small convolutional network, a ResNet-18; in `fit`,
and in a user's own `tf.function`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CONTESTANTS = ("tf_lamb.keras LAMB", "tf_lamb.tf_keras LAMB", "keras Lamb", "keras Adam")
MODELS = ("perceptron", "cnn", "resnet18")
LOOPS = ("fit", "function")
BATCHES = 4


def perceptron(layers, keras):
    widths = [200, 180, 160, 140, 120, 100, 80, 60]
    return (32,), [*(layers.Dense(width, activation="relu") for width in widths), layers.Dense(10)]


def cnn(layers, keras):
    return (28, 28, 1), [
        layers.Conv2D(16, 3, activation="relu"), layers.BatchNormalization(),
        layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"),
        layers.BatchNormalization(), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(64, activation="relu"), layers.Dense(10),
    ]  # fmt: skip


def resnet18(layers, keras):
    x = inputs = keras.Input((32, 32, 3))

    def convolved(x, width, size=3, strides=1):
        x = layers.Conv2D(width, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    x = layers.ReLU()(convolved(x, 64))
    for width in (64, 128, 256, 512):
        for strides in (1 if width == 64 else 2, 1):
            y = convolved(layers.ReLU()(convolved(x, width, 3, strides)), width)
            if x.shape[-1] != width:
                x = convolved(x, width, 1, strides)
            x = layers.ReLU()(layers.add([x, y]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return (32, 32, 3), keras.Model(inputs, outputs)


def child(contestant, name, loop):
    """CPU seconds of the first epoch, without imports and without building the model."""
    import importlib

    import numpy as np
    import tensorflow as tf

    room, kind = contestant.split()
    host = importlib.import_module(room.rpartition(".")[2])
    ours = importlib.import_module(room) if "." in room else host.optimizers
    host.utils.set_random_seed(1)
    shape, model = globals()[name](host.layers, host)
    if isinstance(model, list):
        model = host.Sequential([host.Input(shape), *model])
    random = np.random.default_rng(1)
    x = random.standard_normal((8 * BATCHES, *shape), np.float32)
    y = random.integers(10, size=8 * BATCHES)
    optimizer = getattr(ours, kind)(1e-3)
    loss = host.losses.SparseCategoricalCrossentropy(from_logits=True)

    began = time.process_time()
    if loop == "fit":
        model.compile(optimizer=optimizer, loss=loss)
        model.fit(x, y, batch_size=8, verbose=0)
    else:

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            variables = model.trainable_variables
            gradients = tape.gradient(value, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return value

        for i in range(BATCHES):
            step(tf.constant(x[8 * i : 8 * i + 8]), tf.constant(y[8 * i : 8 * i + 8]))
    print(json.dumps(time.process_time() - began))


def measured(contestant, name, loop):
    command = [sys.executable, "-m", __spec__.name, "--child", contestant, name, loop]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", help="a JSONL file to write the rows to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=3)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--loops", nargs="*", default=LOOPS)
    parser.add_argument("--contestants", nargs="*", default=CONTESTANTS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    for name in arguments.models:
        for loop in arguments.loops:
            seen = {contestant: [] for contestant in arguments.contestants}
            for _ in range(arguments.rounds):
                for contestant, seconds in seen.items():
                    seconds.append(round(measured(contestant, name, loop), 2))
            for contestant, seconds in seen.items():
                row = {"model": name, "loop": loop, "optimizer": contestant,
                       "cpu_seconds": seconds, "median": statistics.median(seconds)}  # fmt: skip
                print(f"{name:12} {loop:9} {contestant:24} {row['median']:7.2f} CPU s")
                if arguments.log:
                    with open(arguments.log, "a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
