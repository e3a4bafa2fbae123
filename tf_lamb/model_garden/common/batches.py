"""Splits a batch: global batch size = examples on a replica x replicas x micro-batches."""

from tf_lamb.core.recipes import recipe
from tf_lamb.model_garden.common import clusters


def replicas(params) -> int | None:
    """Returns the number of replicas of a run; None if the settings do not give it, as on a TPU."""
    runtime = params.runtime
    strategy, gpus = str(runtime.distribution_strategy).lower(), max(runtime.num_gpus or 0, 1)
    if strategy in ("off", "one_device"):
        return 1
    if strategy == "mirrored":
        return gpus
    if strategy == "multi_worker_mirrored":
        return gpus * workers(params)
    return None


def workers(params) -> int:
    """Returns the number of processes that train one model together."""
    if str(params.runtime.distribution_strategy).lower() != "multi_worker_mirrored":
        return 1
    return max(cluster_size(), 1)


def cluster_size() -> int:
    """Returns the number of workers that `TF_CONFIG` describes; 0 if it is not set."""
    cluster = clusters.read().get("cluster") or {}
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))


def is_chief(params) -> bool:
    """Returns whether this process is the chief: in a cluster, the one that prints and logs."""
    if str(params.runtime.distribution_strategy).lower() != "multi_worker_mirrored":
        return True
    tf_config = clusters.read()
    task, cluster = tf_config.get("task", {}), tf_config.get("cluster", {})
    if task.get("type") == "worker":
        return int(task["index"]) == 0 and "chief" not in cluster
    return task.get("type") in (None, "chief")


def micro_batches(params) -> int:
    """Returns the number of micro-batches whose gradients are accumulated for one update."""
    config = params.trainer.optimizer_config.optimizer.get()
    return getattr(config, "gradient_accumulation_steps", None) or 1


def per_replica_batch(global_batch_size: int, replicas: int, accumulation: int) -> int:
    """Returns the number of examples that one replica processes at once, in one micro-batch.

    Args:
        global_batch_size: the number of examples of an update.
        replicas: the number of replicas.
        accumulation: the number of micro-batches of an update.

    Raises:
        ValueError: if the batch does not divide into equal parts; the message shows the division.
    """
    parts = replicas * accumulation
    if global_batch_size % parts:
        nearest = max(global_batch_size // parts, 1) * parts
        raise ValueError(
            f"A batch of {global_batch_size:,} examples cannot be dealt out to {replicas} "
            f"replica(s) x {accumulation} micro-batch(es): {global_batch_size:,} / {parts:,} = "
            f"{global_batch_size / parts:.6g}. Take a batch of {nearest:,}, or another "
            "gradient_accumulation_steps"
        )
    return global_batch_size // parts


def accumulation(global_batch_size: int, replicas: int, most: int) -> int:
    """Returns the smallest number of equal micro-batches of at most `most` examples each.

    Args:
        global_batch_size: the number of examples of an update.
        replicas: the number of replicas.
        most: the largest number of examples in a micro-batch of one replica.

    Raises:
        ValueError: if the batch does not divide equally among the replicas.
    """
    return recipe.micro_batches(per_replica_batch(global_batch_size, replicas, 1), most)
