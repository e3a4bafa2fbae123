"""Compares several processes that train one model, and gathers arrays that are split over them.

This is for JAX alone. The processes exchange texts through the key-value store of JAX's
coordination service, not by collective operations. Collective operations hang, or end the process,
if one process sends something that the others do not expect.

Seam (private API of JAX 0.10.2): `jax._src.distributed.global_state.client`, the key-value store.
"""

import contextlib
import itertools
import json
import zlib

import keras

from tf_lamb.api.variables import names_of
from tf_lamb.core.messages import differences_text
from tf_lamb.keras import seams, sharding

# How long to wait for another process. It is long because that process may read or write files.
TIMEOUT_SECONDS = 600
_key_numbers = itertools.count()


def mesh_process_ids():
    """Returns the numbers of the processes whose devices are in the mesh of the distribution.

    With one process, or without a distribution, the result is [0].
    """
    if not sharding.is_distributed():
        return [0]
    import jax

    # A process may only compile for a larger machine. Its mesh then has devices that seem to belong
    # to other processes, which do not run.
    if jax.process_count() == 1:
        return [0]
    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    return sorted({device.process_index for device in mesh.devices.flat})


def run_in_first_process(function):
    """Calls a function in the first process alone, and returns its result in every process.

    The other processes wait until the function has returned. It runs without a distribution. Under
    a distribution Keras's saving makes variables, which all processes would have to make together.

    Args:
        function: A function without arguments, whose result JSON can hold.

    Raises:
        RuntimeError: In the other processes, if the function fails or does not return in time.
    """
    if len(process_ids := mesh_process_ids()) == 1:
        return function()
    import jax

    store, key = _store(), f"tf_lamb/{next(_key_numbers)}"
    if jax.process_index() != process_ids[0]:
        message = json.loads(_wait_for_text(store, key, 2 * TIMEOUT_SECONDS))
        if message["error"]:
            raise RuntimeError(
                f"Process {process_ids[0]}, which acts for all, failed: {message['error']}"
            )
        return message["result"]
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        result = function()
    except BaseException as error:
        store.key_value_set(key, json.dumps({"error": repr(error)}))
        raise
    finally:
        keras.distribution.set_distribution(distribution)
    store.key_value_set(key, json.dumps({"error": None, "result": result}))
    return result


def check_agreement(subject, make_texts):
    """Raises an error in every process if a text that should be equal in all of them differs.

    Args:
        subject: A description of what is compared, for the message.
        make_texts: A function that returns a dict of the texts of this process by name. It is not
            called if there is only one process.

    Raises:
        ValueError: If the processes differ.
        RuntimeError: If a process does not call this function within `TIMEOUT_SECONDS` seconds.
    """
    if len(process_ids := mesh_process_ids()) == 1:
        return
    import jax

    store, key = _store(), f"tf_lamb/{next(_key_numbers)}"
    store.key_value_set(f"{key}/{jax.process_index()}", json.dumps({"it": subject, **make_texts()}))

    def compare():
        texts_by_process = {
            f"process {process_id}": json.loads(
                _wait_for_text(store, f"{key}/{process_id}", TIMEOUT_SECONDS)
            )
            for process_id in process_ids
        }
        return differences_text(texts_by_process)

    if difference := run_in_first_process(compare):
        raise ValueError(
            f"The processes differ in {subject}: {difference}. Start the same program with the "
            "same arguments in all of them, and give each as many examples as the others."
        )


def _store():
    """Returns the key-value store through which the processes exchange texts.

    Raises:
        RuntimeError: If JAX has none.
    """
    from jax._src import distributed

    # On TPUs JAX may run on several machines without this client, because the TPU runtime itself
    # connects them.
    if (store := distributed.global_state.client) is None:
        raise RuntimeError(
            "There are several processes that cannot talk to each other: call keras.distribution."
            "initialize() in each of them, before anything else asks JAX for its devices."
        )
    return store


def _wait_for_text(store, key, seconds):
    """Waits until another process has written a text under a key, and returns the text.

    Args:
        store: The key-value store.
        key: The key.
        seconds: How long to wait.

    Raises:
        RuntimeError: If there is no text by then.
    """
    import jax

    try:
        return store.blocking_key_value_get(key, 1000 * seconds)
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            f"A process has not come to {key} within {seconds} seconds: it has ended, or runs "
            f"another program. See what it printed. ({error})"
        ) from error


# -- the texts that are compared -------------------------------------------------------------------


def check_same_optimizer(optimizer, variables):
    """Raises if the processes build different optimizers, or begin with different weights.

    It also makes `fit` compare the shape of the first batch of each epoch. With batches of
    different sizes, the processes would wait for each other for ever.

    Args:
        optimizer: The optimizer that is built.
        variables: Its variables.

    Raises:
        ValueError: If the processes differ.
    """
    check_agreement(
        f"the optimizer {optimizer.name}", lambda: _compared_texts(optimizer, variables)
    )
    # The comparison is put into `get_data_layout`, because `fit` gives a batch to no other function
    # before it begins a computation in which all processes have to take part.
    distribution = keras.distribution.distribution()
    if len(mesh_process_ids()) > 1 and "get_data_layout" not in vars(distribution):
        seams.use_data_layout(distribution, _with_comparison(distribution.get_data_layout))


def _with_comparison(get_data_layout):
    """Wraps `get_data_layout` of a distribution, so that it first compares all processes.

    It raises an error if the part of a batch that a process trains on has another shape in another
    process. Otherwise training would hang.
    """

    def get_compared_layout(shape):
        check_agreement("the batch", lambda: {"the shape of a part of it": str(tuple(shape))})
        return get_data_layout(shape)

    return get_compared_layout


def _compared_texts(optimizer, variables):
    """Returns a dict, by name, of texts that have to be equal in all processes.

    They describe the mesh, the optimizer's config, and the dtype, shape and checksum of each
    variable. A variable that is split over devices has no checksum.
    """
    mesh = keras.distribution.distribution().device_mesh
    texts = {"the mesh": f"{list(mesh.axis_names)} of {list(mesh.shape)}"}
    with contextlib.suppress(NotImplementedError):  # a schedule such as AdaScale's has no config
        texts |= {name: repr(value) for name, value in optimizer.get_config().items()}
    for name, variable in zip(names_of(variables), variables, strict=True):
        content = "in parts"
        if variable.value.is_fully_replicated:
            content = f"with the checksum {zlib.crc32(variable.numpy().tobytes()):08x}"
        texts[name] = f"{variable.dtype} {variable.shape} {content}"
    return texts


# -- arrays in parts -------------------------------------------------------------------------------


@contextlib.contextmanager
def gathered_variables(variables):
    """Gathers variables that are split over processes, for the time of a `with` block.

    In the block, each variable holds its whole array in every process. All processes must enter
    the block.
    """
    split_arrays = []
    try:
        if len(mesh_process_ids()) > 1:
            from jax.experimental.multihost_utils import process_allgather

            for variable in variables:
                array = variable.value
                if not getattr(array, "is_fully_replicated", True):  # NumPy's arrays are whole
                    split_arrays.append((variable, array))
                    seams.put_array(variable, process_allgather(array, tiled=True))
        yield
    finally:
        for variable, array in split_arrays:
            seams.put_array(variable, array)
