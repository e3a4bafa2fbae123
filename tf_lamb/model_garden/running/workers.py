"""What several workers wait for at the end of a run: the folder as the chief has left it."""

import json
import os
import time

import tensorflow as tf
from tensorflow.python.eager import context

from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs

PATIENCE = 1800  # seconds, for the chief's last checkpoint, and until the others see it
PAUSE = 0.2  # seconds between two looks
_KEY = "tf_lamb/left"


def wait_for_chief(params, model_dir: str) -> None:
    """Returns in all workers once each of them sees the folder as the chief has left it.

    A stage that follows reads this folder in every worker. The chief alone writes the last
    checkpoint there, which takes longer than those that the others save for nobody; and of a bucket
    or of NFS they may see it later than the chief.

    Raises:
        UserError: where the chief ends before it says what it has left, or that is not to be seen.
    """
    if batches.workers(params) < 2:
        return
    # seam: tensorflow 2.20. The store of the coordination service, of which nothing is public.
    store, milliseconds = context.context(), 1000 * PATIENCE
    try:
        if batches.is_chief(params):
            store.set_config_key_value(_KEY, json.dumps(_seen(model_dir)))
        left = json.loads(store.get_config_key_value(_KEY, milliseconds))
        _wait_to_see(left, model_dir)
        store.wait_at_barrier(_KEY, milliseconds)  # the first one ends with the store
    except tf.errors.OpError as error:
        raise UserError(
            f"--model_dir={model_dir}: another worker of TF_CONFIG has ended, or has not come to "
            f"the end within {PATIENCE} seconds. See what it printed, and give the same command "
            f"again in all of them ({error.message.splitlines()[0]})"
        ) from error


def _seen(model_dir: str) -> list:
    """What this worker sees of a folder: the last checkpoint, and the last evaluation."""
    checkpoint = checkpoints.readable(model_dir)
    return [checkpoint and os.path.basename(checkpoint), model_dirs.read_evaluated(model_dir)]


def _wait_to_see(left: list, model_dir: str) -> None:
    until = time.monotonic() + PATIENCE
    while (seen := _seen(model_dir)) != left:
        if time.monotonic() > until:
            raise UserError(
                f"--model_dir={model_dir}: the chief has left {left[0]} there, and this worker "
                f"sees {seen[0] or 'no checkpoint'} after {PATIENCE} seconds. Name a folder that "
                "all workers share"
            )
        time.sleep(PAUSE)
