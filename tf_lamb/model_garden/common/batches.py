"""The arithmetic of a batch: global batch = examples a replica x replicas x accumulation."""

from tf_lamb.core.recipes import recipe
from tf_lamb.model_garden.common import clusters


def replicas(params) -> int | None:
    """The number of a run's replicas; None where only the TPU can say."""
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
    """The number of processes that train one model together."""
    if str(params.runtime.distribution_strategy).lower() != "multi_worker_mirrored":
        return 1
    return max(in_cluster(), 1)


def in_cluster() -> int:
    """The number of workers that `TF_CONFIG` describes; 0 where it is not set."""
    cluster = clusters.read().get("cluster") or {}
    return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))


def is_chief(params) -> bool:
    """Whether this process is the one of its cluster that shows and writes."""
    if str(params.runtime.distribution_strategy).lower() != "multi_worker_mirrored":
        return True
    tf_config = clusters.read()
    task, cluster = tf_config.get("task", {}), tf_config.get("cluster", {})
    if task.get("type") == "worker":
        return int(task["index"]) == 0 and "chief" not in cluster
    return task.get("type") in (None, "chief")


def micro_batches(params) -> int:
    """The number of calls of the optimizer for one update."""
    config = params.trainer.optimizer_config.optimizer.get()
    return getattr(config, "gradient_accumulation_steps", None) or 1


def per_replica_batch(global_batch_size: int, replicas: int, accumulation: int) -> int:
    """The examples that one replica sees at once, or a ValueError with the arithmetic."""
    parts = replicas * accumulation
    if global_batch_size % parts:
        near = max(global_batch_size // parts, 1) * parts
        raise ValueError(
            f"A batch of {global_batch_size:,} examples cannot be dealt out to {replicas} "
            f"replica(s) x {accumulation} micro-batch(es): {global_batch_size:,} / {parts:,} = "
            f"{global_batch_size / parts:.6g}. Take a batch of {near:,}, or another "
            "gradient_accumulation_steps"
        )
    return global_batch_size // parts


def accumulation(global_batch_size: int, replicas: int, most: int) -> int:
    """The fewest micro-batches of which no replica sees more than `most` examples at once."""
    return recipe.micro_batches(per_replica_batch(global_batch_size, replicas, 1), most)
