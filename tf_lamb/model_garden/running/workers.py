"""Several workers that train one model: all of them have to be told the same.

Each reads its own flags and files. Where these differ, each would follow another schedule with the
gradients of all, and nothing would say so.
"""

import importlib.metadata
import json
from collections.abc import Callable

import tensorflow as tf
from official.common import distribute_utils
from tensorflow.python.eager import context

import tf_lamb.tf_keras
from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.errors import UserError

PATIENCE = 300  # seconds, for a worker that has joined, until it says what it was told
_KEY, _MOST_SHOWN = "tf_lamb/told", 5


def join(params, told: Callable[[], dict[str, str]]) -> tf.distribute.Strategy | None:
    """The strategy of several workers, all of which were told the same; None for one worker.

    Model Garden's main makes it when the first files are written.

    Args:
        params: the experiment.
        told: gives what has to be the same, name -> text; called where there are several workers.

    Raises:
        UserError: in every worker, with what differs.
    """
    if batches.workers(params) < 2:
        return None
    runtime = params.runtime
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=runtime.distribution_strategy,
        all_reduce_alg=runtime.all_reduce_alg,
        num_gpus=runtime.num_gpus,
    )
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    names = [f"{job} {i}" for job in ("chief", "worker") for i, _ in enumerate(tasks.get(job, ()))]
    if difference := _difference(names, f"{resolver.task_type} {resolver.task_id}", told()):
        raise UserError(
            f"the workers of TF_CONFIG were told different things: {difference}. Start the same "
            "version with the same flags and files in all of them"
        )
    return strategy


def _difference(names: list[str], own: str, told: dict[str, str]) -> str:
    """Finds what differs, in every worker the same text; "" where nothing does."""
    # seam: tensorflow 2.20. The store of the coordination service, of which nothing is public: a
    # collective hangs where workers that were told different numbers of GPUs meet.
    store, milliseconds = context.context(), 1000 * PATIENCE
    store.set_config_key_value(f"{_KEY}/{own}", json.dumps(_versions() | told))
    try:
        if own == names[0]:
            texts = {
                name: json.loads(store.get_config_key_value(f"{_KEY}/{name}", milliseconds))
                for name in names
            }
            store.set_config_key_value(_KEY, json.dumps(_differences(texts)))
        difference = json.loads(store.get_config_key_value(_KEY, 2 * milliseconds))
        store.wait_at_barrier(_KEY, milliseconds)  # the first one ends with the store
    except tf.errors.DeadlineExceededError as error:
        raise UserError(
            f"a worker of TF_CONFIG has not said within {PATIENCE} seconds what it was told: it "
            f"has ended, or is of another version. See what it printed ({error.message})"
        ) from error
    return difference


def _versions() -> dict[str, str]:
    """The versions of what a step is made of."""
    known = {"tf_lamb": tf_lamb.__version__, "tensorflow": tf.__version__}
    known["tf-models-official"] = importlib.metadata.version("tf-models-official")
    return {f"the version of {name}": version for name, version in known.items()}


def _differences(texts: dict[str, dict[str, str]]) -> str:
    """Each name that some have another text for; `texts` is worker -> name -> text."""
    (first, ours), *others = texts.items()
    found: dict[str, str] = {}
    for other, theirs in others:
        for name in {**ours, **theirs}:
            one, two = ours.get(name, "not there"), theirs.get(name, "not there")
            if one != two:
                found.setdefault(name, f"{name} is {one} in {first}, {two} in {other}")
    more = len(found) - _MOST_SHOWN
    return "; ".join([*found.values()][:_MOST_SHOWN] + ([f"{more} more"] if more > 0 else []))
