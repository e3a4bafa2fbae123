"""Keras's test files, and a plugin of pytest that puts our classes in the place of theirs.

    python -m pytest -p support.peer_suites --pyargs keras.src.optimizers.lamb_test

In a process of its own, for it changes Keras before the file is imported. Where the file is of
LAMB, that is ours. Where it drives SGD or Adam, whatever it is of, those are ours with no layer
adapted or projected, which is the same mathematics.
"""

import sys

import pytest

FILES = [  # the wheel is without optimizer_distribute_test
    f"keras.src.optimizers.{name}_test"
    for name in (
        "lamb", "sgd", "adam", "optimizer", "optimizer_sparse", "loss_scale_optimizer",
        "multi_optimizer",
    )
]  # fmt: skip
PLAIN = {"exclude_from_layer_adaptation": [".*"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Each case says how many optimizers of ours it has made."""
    from tf_lamb.api.optimizers.layerwise import Layerwise

    made = []
    keep = Layerwise._store_settings
    Layerwise._store_settings = lambda self, *kept: made.append(self) or keep(self, *kept)
    try:
        return (yield)
    finally:
        Layerwise._store_settings = keep
        item.user_properties.append(("made", len(made)))


def pytest_configure():
    import keras
    from keras.src import optimizers

    from tf_lamb.keras import LAMB, LARS, AdamP

    def put(name, cls, rate, **defaults):
        def __init__(self, learning_rate=rate, *args, **arguments):
            arguments = defaults | {"name": None} | arguments
            cls.__init__(self, learning_rate, *args, **arguments)

        ours = type(name, (cls,), {"__init__": __init__, "__module__": __name__})
        globals()[name] = ours  # where pickle looks for it
        keras.saving.register_keras_serializable("peers")(ours)
        for module in (optimizers, sys.modules[f"keras.src.optimizers.{name.lower()}"]):
            setattr(module, name, ours)
        optimizers.ALL_OBJECTS_DICT[name.lower()] = ours

    put("Lamb", LAMB, 0.001, epsilon=1e-7, weight_decay_mode="decoupled")
    put("SGD", LARS, 0.01, momentum=0.0, **PLAIN)
    put("Adam", LAMB, 0.001, epsilon=1e-7, **PLAIN)
    put("AdamW", AdamP, 0.001, epsilon=1e-7, weight_decay=0.004, **PLAIN)
