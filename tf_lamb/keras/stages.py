"""A training whose batch grows, for Keras 3."""

import keras

from tf_lamb.api.stages.checks import SEVERAL, replicas_of
from tf_lamb.api.stages.fit import make_fit_stages
from tf_lamb.keras import processes, schedules, sharding


def _devices(model):
    """How many devices share a call."""
    if (count := len(processes.members())) > 1:
        raise ValueError(SEVERAL.format(count))
    if sharding.is_distributed():
        *_, devices = sharding.data_axis("fit_stages")
        return devices
    return replicas_of(model)


def _fed(model, batches, first):
    """On TensorFlow as a dataset."""
    if keras.backend.backend() != "tensorflow":
        return batches if isinstance(first, tuple) else _bare(batches)
    from tf_lamb.tensorflow import feeding

    # seam: Keras 3.12.0 to 3.15.1, `_maybe_symbolic_build`.
    return feeding.dataset(batches, first, is_tried=model._distribute_strategy is not None)


def _bare(batches):
    """What `fit` reads inputs alone from: a generator would have to give tuples."""
    # seam: Keras 3.12.0 to 3.15.1, whose `fit` takes an adapter.
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    adapter = GeneratorDataAdapter((each,) for each in batches)
    tuples = adapter.generator
    adapter.generator = lambda: (each for (each,) in tuples())
    return adapter


fit_stages = make_fit_stages(keras, schedules, _devices, _fed)

__all__ = ["fit_stages"]
