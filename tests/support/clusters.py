"""Replicas for tests: as logical devices of this process, and as processes of their own."""

import json
import os
import pathlib
import socket
import tempfile

from support import processes


def logical_devices(count):
    """Makes so many of the CPU, before anything has run on it."""
    import tensorflow as tf  # here, for the clusters of JAX need none

    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)


def mirrored(replicas):
    """Collectives of two sizes do not live in one process; a reduction to one device does.

    One device is no replica: what goes wrong under every mirrored strategy must show.
    """
    import tensorflow as tf

    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def native(variable):
    """What TensorFlow knows of a variable of either frontend."""
    return variable if callable(variable.value) else variable.value


def all_reduces(function, *arguments):
    """How many all-reduces a traced function has: in every call, and in some calls alone."""
    program = function.get_concrete_function(*arguments).graph.as_graph_def()
    bodies = {each.signature.name: each.node_def for each in program.library.function}

    def count(nodes, in_branch):
        always, sometimes = 0, 0
        for node in nodes:
            if node.op.startswith("CollectiveReduce"):
                always, sometimes = always + (not in_branch), sometimes + in_branch
            for attribute in node.attr.values():
                if attribute.func.name in bodies:
                    branch = in_branch or node.op in ("If", "StatelessIf")
                    more = count(bodies[attribute.func.name], branch)
                    always, sometimes = always + more[0], sometimes + more[1]
        return always, sometimes

    return count(program.node, False)


def addresses(count):
    """Free ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    found = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return found


def workers(count):
    """What makes each of so many processes a worker of one cluster: its environment."""
    cluster = {"worker": addresses(count)}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
        for i in range(count)
    ]


def jax_processes(count, devices):
    """What makes each of so many processes one of JAX's, for `keras.distribution.initialize`.

    The devices are those of all of them.
    """
    (coordinator,) = addresses(1)
    return [
        {
            "KERAS_BACKEND": "jax",
            # Collectives that do not depend on each other are run in the order of the program:
            # Gloo matches those of the processes by their order, and ends a process otherwise.
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // count} "
            "--xla_cpu_enable_concurrency_optimized_scheduler=false",
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": coordinator,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(i),
        }
        for i in range(count)
    ]  # fmt: skip


def torch_processes(count):
    """What makes each of so many processes one of torch's, on CPUs."""
    (master,) = addresses(1)
    host, port = master.split(":")
    return [
        {
            "KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu", "MASTER_ADDR": host,
            "MASTER_PORT": port, "WORLD_SIZE": str(count), "RANK": str(i),
        }
        for i in range(count)
    ]  # fmt: skip


def results(function, environments=({},), timeout=500):
    """What the function returns in processes of their own, all at once: one an environment."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, f"{i}.json") for i, _ in enumerate(environments)]
        running = [
            processes.started(_write, function, file, output=file.with_suffix(".log"), **own)
            for file, own in zip(files, environments, strict=True)
        ]
        try:
            for process, file in zip(running, files, strict=True):
                process.join(timeout)
                assert process.exitcode == 0, file.with_suffix(".log").read_text()[-3000:]
        finally:
            for process in running:
                process.kill()
        return [json.loads(file.read_text()) for file in files]


def _write(function, file):
    file.write_text(json.dumps(function()))
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        import jax

        # Waits for the others, as at the end of any script; multiprocessing ends without.
        jax.distributed.shutdown()
