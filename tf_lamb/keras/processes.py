"""Several processes that train one model: what they must have in common, and what each has in part.

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
from tf_lamb.keras import seams, sharding

PATIENCE = 600  # seconds, for a process that reads and writes what the others wait for
_rounds = itertools.count()


def members():
    """The numbers of the processes whose devices are in the mesh."""
    if not sharding.is_distributed():
        return [0]
    import jax

    if jax.process_count() == 1:  # whatever the mesh says, which may be one to compile for
        return [0]
    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    return sorted({device.process_index for device in mesh.devices.flat})


def by_chief(act):
    """Gives all processes the first one's result, or its error; none goes on before it has acted.

    It acts as if alone: with a distribution Keras's saving makes variables, where all must come.
    """
    if len(chosen := members()) == 1:
        return act()
    import jax

    store, key = _store(), f"tf_lamb/{next(_rounds)}"
    if jax.process_index() != chosen[0]:
        answers = json.loads(_read(store, key, 2 * PATIENCE))
        if answers["error"]:
            raise RuntimeError(
                f"Process {chosen[0]}, which acts for all, failed: {answers['error']}"
            )
        return answers["result"]
    spread = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        result = act()
    except BaseException as error:
        store.key_value_set(key, json.dumps({"error": repr(error)}))
        raise
    finally:
        keras.distribution.set_distribution(spread)
    store.key_value_set(key, json.dumps({"error": None, "result": result}))
    return result


def agree(what, facts):
    """Raises in every process where they differ in the facts that they tell, name -> text.

    Where there is one process, `facts` is not called. A process that does not come is a difference.
    """
    if len(chosen := members()) == 1:
        return
    import jax

    store, key = _store(), f"tf_lamb/{next(_rounds)}"
    store.key_value_set(f"{key}/{jax.process_index()}", json.dumps({"": what, **facts()}))

    def compared():
        answers = {i: json.loads(_read(store, f"{key}/{i}", PATIENCE)) for i in chosen}
        return _difference(answers)

    if difference := by_chief(compared):
        raise ValueError(
            f"The processes differ in {what}: {difference}. Start the same program with the same "
            "arguments in all of them, and give each as many examples as the others."
        )


def _difference(texts):
    """Describes a difference, or None; `texts` is process -> name -> text."""
    (first, ours), *others = texts.items()
    for other, theirs in others:
        for name in {**ours, **theirs}:
            one, two = ours.get(name, "not there"), theirs.get(name, "not there")
            if one != two:
                return f"{name or 'it'} is {one} in process {first}, {two} in process {other}"
    return None


def _store():
    from jax._src import distributed

    if (store := distributed.global_state.client) is None:  # a TPU's runtime knows its hosts
        raise RuntimeError(
            "There are several processes that cannot talk to each other: call keras.distribution."
            "initialize() in each of them, before anything else asks JAX for its devices."
        )
    return store


def _read(store, key, seconds):
    import jax

    try:
        return store.blocking_key_value_get(key, 1000 * seconds)
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            f"A process has not come to {key} within {seconds} seconds: it has ended, or runs "
            f"another program. See what it printed. ({error})"
        ) from error


# -- what is compared ------------------------------------------------------------------------------


def agree_on(optimizer, variables):
    """Raises where processes build another optimizer, or begin with other weights.

    From here on each epoch's first batch is compared, too: of different sizes, the processes would
    wait for each other for ever.
    """
    agree(f"the optimizer {optimizer.name}", lambda: _facts(optimizer, variables))
    # Nothing else of `fit` is called with a batch before the devices of all processes need it.
    distribution = keras.distribution.distribution()
    if len(members()) > 1 and "get_data_layout" not in vars(distribution):
        seams.use_data_layout(distribution, _comparing(distribution.get_data_layout))


def _comparing(get_data_layout):
    def compared(shape):
        agree("the batch", lambda: {"the shape of a part of it": str(tuple(shape))})
        return get_data_layout(shape)

    return compared


def _facts(optimizer, variables):
    mesh = keras.distribution.distribution().device_mesh
    texts = {"the mesh": f"{list(mesh.axis_names)} of {list(mesh.shape)}"}
    with contextlib.suppress(NotImplementedError):  # a schedule that has no config, as AdaScale's
        texts |= {name: repr(value) for name, value in optimizer.get_config().items()}
    for name, variable in zip(names_of(variables), variables, strict=True):
        content = "in parts"
        if variable.value.is_fully_replicated:
            content = f"with the checksum {zlib.crc32(variable.numpy().tobytes()):08x}"
        texts[name] = f"{variable.dtype} {variable.shape} {content}"
    return texts


# -- what is in parts ------------------------------------------------------------------------------


@contextlib.contextmanager
def gathered(variables):
    """Inside it, variables of which other processes have parts can be read; all must come here."""
    parts = []
    try:
        if len(members()) > 1:
            from jax.experimental.multihost_utils import process_allgather

            for variable in variables:
                array = variable.value
                if not getattr(array, "is_fully_replicated", True):  # NumPy's is gathered already
                    parts.append((variable, array))
                    seams.put_array(variable, process_allgather(array, tiled=True))
        yield
    finally:
        for variable, array in parts:
            seams.put_array(variable, array)
