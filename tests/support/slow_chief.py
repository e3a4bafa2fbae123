"""A chief whose checkpoints take longer than the other workers', as to a bucket or to NFS."""

import json
import os
import time

from tensorflow.python.checkpoint import checkpoint_management


def begin(seconds):
    """In the chief of a cluster: the file that names the checkpoints comes so much later."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task")
    if not task or task["index"] != 0:
        return
    name = checkpoint_management.update_checkpoint_state_internal

    def name_later(*args, **kwargs):
        time.sleep(seconds)
        return name(*args, **kwargs)

    checkpoint_management.update_checkpoint_state_internal = name_later


def at_the_end(folder):
    """In each worker of a cluster: its end, which the chief reaches with a checkpoint to write.

    Returns the step that the worker sees in the folder then.
    """
    import types

    import tensorflow as tf

    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.folders import checkpoints
    from tf_lamb.model_garden.running import workers

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # which brings the store
    runtime = types.SimpleNamespace(distribution_strategy="multi_worker_mirrored", num_gpus=0)
    params = types.SimpleNamespace(runtime=runtime)
    if is_chief := batches.is_chief(params):
        time.sleep(3)
        checkpoint = tf.train.Checkpoint(global_step=tf.Variable(10, dtype=tf.int64))
        tf.train.CheckpointManager(checkpoint, folder, 1).save(checkpoint_number=10)
    workers.wait_for_chief(is_chief, folder)
    del strategy
    return checkpoints.steps_done(folder)
