#!/usr/bin/env bash
# keras 3.15.1 and tf_keras 2.20.1 with tensorflow 2.20.0, Python 3.11 to 3.13.
# Guess: under MirroredStrategy global_clipnorm=1 bounds the gradient that is applied, in both.
# Behaviour: tf_keras clips the sum of the replicas, Keras 3 clips each replica's gradient before
# it is summed. With gradients (100, 0) and (0, 1) on two devices the direction is another one.
# Output: keras (-1.0, -1.0)
#         tf_keras (-1.0, -0.01)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile keras==3.15.1 tensorflow==2.20.0 tf_keras==2.20.1
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" - <<'PYTHON'
import sys

import keras
import tensorflow as tf
import tf_keras

device = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def step(host):
    with strategy.scope():
        weight = tf.Variable([0.0, 0.0]) if host is tf_keras else keras.Variable([0.0, 0.0])
        optimizer = host.optimizers.SGD(1.0, global_clipnorm=1.0)
        optimizer.build([weight])

    @tf.function
    def run():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradient = tf.gather([[100.0, 0.0], [0.0, 1.0]], number)
            optimizer.apply_gradients([(gradient, weight)])

        strategy.run(replica)

    run()
    return [round(float(each), 2) for each in tf.convert_to_tensor(weight).numpy()]


seen = {host.__name__.split(".")[0]: step(host) for host in (keras, tf_keras)}
print(seen)
sys.exit(seen != {"keras": [-1.0, -1.0], "tf_keras": [-1.0, -0.01]})
PYTHON
