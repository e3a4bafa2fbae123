"""The peers' test files, and a plugin of pytest that puts our classes in the place of theirs.

    PEER=keras python -m pytest -p support.peer_suites --pyargs keras.src.optimizers.lamb_test

In a process of its own, for it changes the peer before the file is imported. Where the file is of
LAMB, that is ours. Where it drives SGD or Adam, whatever it is of, those are ours with no layer
adapted or projected, which is the same mathematics.
"""

import functools
import os
import socket
import sys
import types

import pytest

FILES = {
    "keras": [  # the wheel is without optimizer_distribute_test
        f"keras.src.optimizers.{name}_test"
        for name in (
            "lamb", "sgd", "adam", "optimizer", "optimizer_sparse", "loss_scale_optimizer",
            "multi_optimizer",
        )
    ],
    "model_garden": [
        f"official.{name}_test"
        for name in (
            "modeling.optimization.lamb", "modeling.optimization.optimizer_factory",
            "nlp.tasks.masked_lm", "core.train_lib", "core.base_trainer",
            "modeling.multitask.train_lib", "modeling.multitask.base_trainer",
        )
    ],
}  # fmt: skip
PLAIN = {"exclude_from_layer_adaptation": [".*"]}


def pytest_configure():
    {"keras": _change_keras, "model_garden": _change_model_garden}[os.environ["PEER"]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Each case says how many optimizers of ours it has made."""
    from tf_lamb.api.optimizers.layerwise import Layerwise

    made = []
    keep = Layerwise._keep_settings
    Layerwise._keep_settings = lambda self, *kept: made.append(self) or keep(self, *kept)
    try:
        return (yield)
    finally:
        Layerwise._keep_settings = keep
        item.user_properties.append(("made", len(made)))


def _change_keras():
    import keras
    from keras.src import optimizers

    from tf_lamb.keras import LAMB, LARS, AdamP

    def put(name, cls, **defaults):
        def __init__(self, *args, **arguments):
            cls.__init__(self, *args, **defaults | {"name": None} | arguments)

        ours = type(name, (cls,), {"__init__": __init__, "__module__": __name__})
        globals()[name] = ours  # where pickle looks for it
        keras.saving.register_keras_serializable("peers")(ours)
        for module in (optimizers, sys.modules[f"keras.src.optimizers.{name.lower()}"]):
            setattr(module, name, ours)
        optimizers.ALL_OBJECTS_DICT[name.lower()] = ours

    put("Lamb", LAMB, epsilon=1e-7, weight_decay_mode="decoupled")
    put("SGD", LARS, momentum=0.0, **PLAIN)
    put("Adam", LAMB, epsilon=1e-7, **PLAIN)
    put("AdamW", AdamP, epsilon=1e-7, weight_decay=0.004, **PLAIN)


class Entry(type):
    """What stands in a table of theirs: it is called without arguments, and asked for instances."""

    def __call__(cls, *args, **kwargs):
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.__mro__[1])


def _change_model_garden():
    import tf_keras
    from absl import flags
    from official.modeling.optimization import lamb

    from tf_lamb import model_garden
    from tf_lamb.model_garden.common import seams
    from tf_lamb.tf_keras import LAMB, SGDP

    def put(name, cls, **defaults):
        made = functools.partial(make, cls, {"name": name, **defaults})
        ours = Entry(name, (cls,), {"make": staticmethod(made)})
        hosts = tf_keras.optimizers
        for module in (hosts, hosts.legacy, hosts.experimental):
            setattr(module, name, ours)
        for table in seams.OPTIMIZERS:
            table[name.lower()] = table[f"{name.lower()}_experimental"] = ours

    def make(cls, defaults, learning_rate=0.01, lr=None, decay=0.0, amsgrad=False, **arguments):
        assert not decay and not amsgrad  # fields of the peer's configs, which no file sets
        arguments.pop("gradient_aggregator", None)  # its case is for legacy optimizers
        rate = learning_rate if lr is None else lr
        return cls(rate, **PLAIN | defaults | arguments)

    def stock_lamb(learning_rate=0.001, weight_decay_rate=0.0, **arguments):
        return LAMB(learning_rate, **{"weight_decay": weight_decay_rate} | arguments)

    model_garden.register()
    lamb.LAMB = Entry("LAMB", (LAMB,), {"make": staticmethod(stock_lamb)})
    for table in seams.OPTIMIZERS:
        table["lamb"] = lamb.LAMB
    put("SGD", SGDP, momentum=0.0)
    put("Adam", LAMB, epsilon=1e-7)
    flags.FLAGS.mark_as_parsed()  # `tf.test.main` does it, and pytest does not
    # Needed by one file for free ports, and required by no wheel.
    sys.modules.setdefault("portpicker", types.SimpleNamespace(pick_unused_port=_unused_port))


def _unused_port():
    with socket.socket() as unbound:
        unbound.bind(("", 0))
        return unbound.getsockname()[1]
