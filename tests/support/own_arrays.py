"""Whether variables have arrays of their own: a step of JAX donates each of them once."""

import keras


def _all(model):
    optimizer = model.optimizer
    return [*model.variables, *optimizer.variables]


def assert_own_arrays(model):
    """No two variables of a model and its optimizer share memory, on any device; on JAX."""
    if keras.backend.backend() != "jax":
        return
    owners: dict = {}
    for variable in {id(v): v for v in _all(model)}.values():
        for shard in variable.value.addressable_shards:
            place = (shard.device, shard.data.unsafe_buffer_pointer())
            owners.setdefault(place, []).append(variable.path)
    shared = [paths for (_, pointer), paths in owners.items() if pointer and len(paths) > 1]
    assert not shared, shared
