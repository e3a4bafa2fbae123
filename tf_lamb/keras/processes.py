"""Compares several processes that train one model, and gathers what each has in part.

Only JAX has them. They talk through the store of JAX's coordination service, not by collectives:
those hang, or end the process, where one process sends what the others do not expect.

Seam: `jax._src.distributed.global_state.client` (JAX 0.10.2), the store.
"""

import contextlib
import itertools
import json
import zlib

import keras

from tf_lamb.api.variables import names_of
from tf_lamb.core.messages import differences
from tf_lamb.keras import seams, sharding

PATIENCE = 600  # seconds that the others wait for a process, which may have to read and write
_rounds = itertools.count()


def members():
    """Returns the numbers of the processes whose devices are in the mesh."""
    if not sharding.is_distributed():
        return [0]
    import jax

    # One process may have a mesh of a larger machine, to compile for it without its devices.
    if jax.process_count() == 1:
        return [0]
    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    return sorted({device.process_index for device in mesh.devices.flat})


def by_chief(act):
    """Gives all processes the result or error of the first one; none goes on before it has acted.

    The first process acts as if alone: with a distribution, Keras's saving makes variables, which
    all processes would have to make together.

    Args:
        act: A function without arguments, whose result JSON can hold.

    Raises:
        RuntimeError: In the other processes, if the first one fails or does not come in time.
    """
    if len(process_ids := members()) == 1:
        return act()
    import jax

    store, key = _store(), f"tf_lamb/{next(_rounds)}"
    if jax.process_index() != process_ids[0]:
        answer = json.loads(_read(store, key, 2 * PATIENCE))
        if answer["error"]:
            raise RuntimeError(
                f"Process {process_ids[0]}, which acts for all, failed: {answer['error']}"
            )
        return answer["result"]
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        result = act()
    except BaseException as error:
        store.key_value_set(key, json.dumps({"error": repr(error)}))
        raise
    finally:
        keras.distribution.set_distribution(distribution)
    store.key_value_set(key, json.dumps({"error": None, "result": result}))
    return result


def agree(what, facts):
    """Raises, in every process, where the processes differ in the facts that they state.

    A process that does not come counts as a difference.

    Args:
        what: What is compared, for the message.
        facts: Returns name -> text. It is not called where there is one process.

    Raises:
        ValueError: If the processes differ.
        RuntimeError: If a process does not come within `PATIENCE`.
    """
    if len(process_ids := members()) == 1:
        return
    import jax

    store, key = _store(), f"tf_lamb/{next(_rounds)}"
    store.key_value_set(f"{key}/{jax.process_index()}", json.dumps({"it": what, **facts()}))

    def compare():
        facts_by_process = {
            f"process {process_id}": json.loads(_read(store, f"{key}/{process_id}", PATIENCE))
            for process_id in process_ids
        }
        return differences(facts_by_process)

    if difference := by_chief(compare):
        raise ValueError(
            f"The processes differ in {what}: {difference}. Start the same program with the same "
            "arguments in all of them, and give each as many examples as the others."
        )


def _store():
    """Returns the store through which the processes talk."""
    from jax._src import distributed

    # A TPU's runtime knows its hosts: JAX may run on several of them without this client.
    if (store := distributed.global_state.client) is None:
        raise RuntimeError(
            "There are several processes that cannot talk to each other: call keras.distribution."
            "initialize() in each of them, before anything else asks JAX for its devices."
        )
    return store


def _read(store, key, seconds):
    """Returns the text under a key, which another process writes; waits for it."""
    import jax

    try:
        return store.blocking_key_value_get(key, 1000 * seconds)
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            f"A process has not come to {key} within {seconds} seconds: it has ended, or runs "
            f"another program. See what it printed. ({error})"
        ) from error


# -- the facts that are compared -------------------------------------------------------------------


def agree_on(optimizer, variables):
    """Raises where processes build different optimizers, or begin with different weights.

    From here on the first batch of each epoch is compared, too: with batches of different sizes,
    the processes would wait for each other for ever.

    Args:
        optimizer: The optimizer that is built.
        variables: Its variables.

    Raises:
        ValueError: If the processes differ.
    """
    agree(f"the optimizer {optimizer.name}", lambda: _facts(optimizer, variables))
    # `fit` calls nothing else with a batch before the devices of all processes need it.
    distribution = keras.distribution.distribution()
    if len(members()) > 1 and "get_data_layout" not in vars(distribution):
        seams.use_data_layout(distribution, _comparing(distribution.get_data_layout))


def _comparing(get_data_layout):
    """Returns `get_data_layout`, after a comparison of the shape that it is asked for."""

    def get_compared_layout(shape):
        agree("the batch", lambda: {"the shape of a part of it": str(tuple(shape))})
        return get_data_layout(shape)

    return get_compared_layout


def _facts(optimizer, variables):
    """Returns name -> text: the mesh, the config, and each variable with a checksum."""
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
def gathered(variables):
    """Makes variables readable, in a `with` block, of which other processes have parts.

    All processes must enter the block.
    """
    parts = []
    try:
        if len(members()) > 1:
            from jax.experimental.multihost_utils import process_allgather

            for variable in variables:
                array = variable.value
                if not getattr(array, "is_fully_replicated", True):  # an array of NumPy is whole
                    parts.append((variable, array))
                    seams.put_array(variable, process_allgather(array, tiled=True))
        yield
    finally:
        for variable, array in parts:
            seams.put_array(variable, array)
