"""Replicas for tests: as logical devices of this process, and as processes of their own."""

import json
import os
import socket
import subprocess
import sys

import tensorflow as tf

FOLDER = os.path.dirname(__file__)


def mirrored(replicas):
    """Collectives of two sizes do not live in one process; a reduction to one device does.

    One device is no replica: what goes wrong under every mirrored strategy must show.
    """
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def native(variable):
    """What TensorFlow knows of a variable of either door."""
    return variable if callable(variable.value) else variable.value


def addresses(count):
    """Free ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    found = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return found


def results_of_workers(module, function, count):
    """What the function returns in each of the workers of one MultiWorkerMirroredStrategy."""
    cluster = {"worker": addresses(count)}
    return _run(module, function, [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
        for i in range(count)
    ])  # fmt: skip


def result_of_process(module, function):
    """What the function returns in a process of its own."""
    return _run(module, function, [{}])[0]


def _run(module, function, environments):
    command = [sys.executable, os.path.join(FOLDER, "workers.py"), module, function]
    processes = [
        subprocess.Popen(command, env={**os.environ, **own}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for own in environments
    ]  # fmt: skip
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=500)
            assert process.returncode == 0, err[-3000:]
            results.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
    return results
