"""Has all workers wait, at the end of a run, until they see the folder as the chief left it."""

import json
import os
import time

import tensorflow as tf
from tensorflow.python.eager import context

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs

# Seconds of each of three waits: for what the chief says, for the folder, and for the others.
PATIENCE = 1800
PAUSE = 0.2  # seconds between two checks of the folder
# The key of the coordination service under which the chief publishes what it left.
_KEY = "tf_lamb/left"


def wait_for_chief(is_chief: bool, model_dir: str) -> None:
    """Returns in all workers once each of them sees the folder as the chief has left it.

    A stage that follows reads this folder in every worker. The chief alone writes the last
    checkpoint there. That takes longer than the checkpoints that the others save to temporary
    folders, and on NFS or in a bucket the others may see it later than the chief.

    Args:
        is_chief: whether this worker is the chief.
        model_dir: the folder of the run.

    Raises:
        UserError: if the chief ends before it says what it has left, or if that is not visible here
            within `PATIENCE` seconds.
    """
    # seam: tensorflow 2.20. The store of the coordination service, of which nothing is public.
    store, milliseconds = context.context(), 1000 * PATIENCE
    try:
        if is_chief:
            store.set_config_key_value(_KEY, json.dumps(_seen(model_dir)))
        chief_state = json.loads(store.get_config_key_value(_KEY, milliseconds))
        _wait_to_see(chief_state, model_dir)
        try:
            store.wait_at_barrier(_KEY, milliseconds)  # the store ends with the chief
        except tf.errors.UnavailableError:
            # The chief may end before this worker hears that all are there. What it left is seen.
            if is_chief:
                raise
    except tf.errors.OpError as error:
        raise UserError(
            f"--model_dir={model_dir}: another worker of TF_CONFIG has ended, or has not come to "
            f"the end within {PATIENCE} seconds. See what it printed, and give the same command "
            f"again in all of them ({error.message.splitlines()[0]})"
        ) from error


def _seen(model_dir: str) -> list:
    """Returns the last checkpoint's name and the last evaluation's step that this worker sees."""
    checkpoint = checkpoints.readable(model_dir)
    return [checkpoint and os.path.basename(checkpoint), model_dirs.read_evaluated(model_dir)]


def _wait_to_see(left: list, model_dir: str) -> None:
    """Waits until this worker sees `left`, the chief's result of `_seen`."""
    deadline = time.monotonic() + PATIENCE
    while (state := _seen(model_dir)) != left:
        if time.monotonic() > deadline:
            raise UserError(
                f"--model_dir={model_dir}: the chief has left {left[0]} there, and this worker "
                f"sees {state[0] or 'no checkpoint'} after {PATIENCE} seconds. Name a folder that "
                "all workers share"
            )
        time.sleep(PAUSE)
