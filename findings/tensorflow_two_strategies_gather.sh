#!/usr/bin/env bash
# tensorflow 2.20.0, Python 3.11 to 3.13, on a CPU.
# Guess: what two MirroredStrategies of one process exchange has nothing to do with one another.
# Behaviour: where the first exchange of one is an all_gather and that of the other an all_reduce,
# both have the same number, and the second breaks off.
# Output: all_gather, then all_reduce: Collective instance 100 expected type 2 and data_type 3 but
# got type 0 and data_type 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile tensorflow-cpu==2.20.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PYTHON'
import re
import sys

import tensorflow as tf

halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)


def exchange(how):
    """The first exchange of a new strategy."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def on_replica():
        context = tf.distribute.get_replica_context()
        ones = tf.ones((1, 2))
        return context.all_gather(ones, 0) if how == "gather" else context.all_reduce("sum", ones)

    return tf.function(lambda: strategy.run(on_replica))()


exchange("gather")
try:
    exchange("reduce")
except tf.errors.InternalError as error:
    (reason,) = re.findall(r"Collective instance \d+ expected .*", str(error))
    print(f"all_gather, then all_reduce: {reason}")
else:
    sys.exit(1)
PYTHON
