"""Synchronizes the workers of a cluster at the start and at the end of a run.

At the start they check that their settings are equal. At the end they wait until every worker sees
the same files in the folder of the run.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import context

from tf_lamb.core.messages import differences_text
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs

# Seconds of each wait at the start. The chief waits this long for the settings of each worker, and
# the others twice as long for the chief; then each waits once for all others.
PATIENCE_AT_START = 300
# Seconds of each of three waits at the end: for the state that the chief publishes, for the folder
# to show that state, and for the other workers.
PATIENCE = 1800
PAUSE = 0.2  # seconds between two checks of the folder
# The keys of the coordination service under which the workers publish their settings, and the chief
# the last checkpoint and evaluation that it has left in the folder.
_SETTINGS, _LEFT = "tf_lamb/settings", "tf_lamb/left"


def check_same_settings(workers: list[str], worker: str, settings: dict[str, str]) -> None:
    """Checks, in all workers, that they have the same settings.

    Args:
        workers: the names of all workers, the chief first.
        worker: the name of this worker.
        settings: the settings of this worker, name -> text.

    Raises:
        UserError: in every worker, if settings differ, or if a worker does not publish its settings
            in the times that `PATIENCE_AT_START` sets. The error says how long this worker has
            waited.
    """
    start = time.monotonic()
    # The settings go through the key-value store of the cluster, because a collective operation of
    # the strategy would hang if workers have different numbers of GPUs.
    store, milliseconds = _store(), 1000 * PATIENCE_AT_START
    store.set_config_key_value(f"{_SETTINGS}/{worker}", json.dumps(settings))
    try:
        if worker == workers[0]:
            texts = {
                name: json.loads(store.get_config_key_value(f"{_SETTINGS}/{name}", milliseconds))
                for name in workers
            }
            store.set_config_key_value(_SETTINGS, json.dumps(differences_text(texts)))
        difference = json.loads(store.get_config_key_value(_SETTINGS, 2 * milliseconds))
        # If settings differ, the first worker ends right after the barrier, and the store with it,
        # perhaps before the other workers have left the barrier.
        with _chief_may_have_ended(bool(difference)):
            store.wait_at_barrier(_SETTINGS, milliseconds)
    except tf.errors.DeadlineExceededError as error:
        raise UserError(
            f"a worker of TF_CONFIG has not said {_waited_text(start)}, what it was told: it "
            f"has ended, or is of another version. See what it printed ({error.message})"
        ) from error
    if difference:
        raise UserError(
            f"the workers of TF_CONFIG were told different things: {difference}. Start the same "
            "version with the same flags and files in all of them"
        )


def wait_for_chief(is_chief: bool, model_dir: str) -> None:
    """Waits until all workers see the folder as the chief has left it.

    The chief alone writes the last checkpoint into the folder. The other workers may be done
    earlier, and on NFS or in a bucket they may see the checkpoint later than the chief. They have
    to see it, because the next stage of training reads this folder in every worker.

    Args:
        is_chief: whether this worker is the chief.
        model_dir: the folder of the run.

    Raises:
        UserError: if the chief ends before it publishes what it has left in the folder, or if that
            is not visible here within `PATIENCE` seconds.
    """
    start = time.monotonic()
    store, milliseconds = _store(), 1000 * PATIENCE
    try:
        if is_chief:
            store.set_config_key_value(_LEFT, json.dumps(_visible_state(model_dir)))
        chief_state = json.loads(store.get_config_key_value(_LEFT, milliseconds))
        _wait_to_see(chief_state, model_dir)
        # The chief ends right after the barrier, perhaps before the other workers have left it.
        # That is no error for them, because they see the folder as the chief has left it.
        with _chief_may_have_ended(not is_chief):
            store.wait_at_barrier(_LEFT, milliseconds)
    except tf.errors.OpError as error:
        raise UserError(
            f"--model_dir={model_dir}: another worker of TF_CONFIG has ended, or has not come to "
            f"the end {_waited_text(start)}. See what it printed, and give the same command again "
            f"in all of them ({error.message.splitlines()[0]})"
        ) from error


def _waited_text(start: float) -> str:
    """Returns how long this worker has waited since a time of the monotonic clock, for errors."""
    return f"in {time.monotonic() - start:,.0f} seconds, for which this one has waited"


def _store():
    """Returns TensorFlow's context, whose methods reach the key-value store of the cluster.

    The workers communicate through the store. The chief runs it, so it is gone when the chief ends.
    """
    # seam: relies on tensorflow 2.20, where no part of the store is public.
    return context.context()


@contextlib.contextmanager
def _chief_may_have_ended(expected: bool) -> Iterator[None]:
    """Ignores, within a `with` block, the error that a barrier raises if the chief has ended.

    Without `expected`, the error is raised.
    """
    try:
        yield
    except tf.errors.UnavailableError:
        if not expected:
            raise


def _visible_state(model_dir: str) -> list:
    """Returns the last checkpoint's name and the last evaluation's step that this worker sees."""
    checkpoint = checkpoints.first_readable(model_dir)
    return [checkpoint and os.path.basename(checkpoint), model_dirs.read_evaluated(model_dir)]


def _wait_to_see(left: list, model_dir: str) -> None:
    """Waits until `_visible_state` returns `left`, its result in the chief.

    Raises `UserError` after `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while (state := _visible_state(model_dir)) != left:
        if time.monotonic() > deadline:
            chief_text, own_text = (
                " and ".join(texts) for texts in zip(*_differing(left, state), strict=True)
            )
            raise UserError(
                f"--model_dir={model_dir}: the chief has left {chief_text} there, and this worker "
                f"sees {own_text} after {PATIENCE} seconds. Name a folder that all workers share"
            )
        time.sleep(PAUSE)


def _differing(left: list, state: list) -> list[tuple[str, str]]:
    """Returns, as texts, the parts of two results of `_seen` that differ.

    Args:
        left: the result in the chief.
        state: the result in this worker.
    """
    texts = (
        (
            checkpoint or "no checkpoint",
            f"the evaluation of step {step:,}" if step else "no evaluation",
        )
        for checkpoint, step in (left, state)
    )
    return [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
