"""Describes the optimizers whose calls can be rewritten: their names, arguments and defaults."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_lamb.api.migration import peers
from tf_lamb.api.optimizers.lamb import LAMB
from tf_lamb.api.optimizers.lars import LARS
from tf_lamb.api.optimizers.muon import Muon

CLASSES = {"LAMB": LAMB, "LARS": LARS, "Muon": Muon}  # this package's classes

_ADAM_DEFAULTS = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999}
_EXCLUSIONS = {"exclude_from_weight_decay": None, "exclude_from_layer_adaptation": None}
_KERAS_DEFAULTS = {
    "clipnorm": None, "clipvalue": None, "global_clipnorm": None, "use_ema": False,
    "ema_momentum": 0.99, "ema_overwrite_frequency": None, "loss_scale_factor": None,
    "gradient_accumulation_steps": None, "name": None,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Source:
    """Describes an optimizer of another package: its full names, its arguments and its differences.

    Attributes:
        peer: The description of the same optimizer for migrating checkpoints. It has this package's
            names for its arguments.
        names: The full names by which a script may import the optimizer.
        defaults: Its arguments with their defaults, in the order of its constructor.
        warnings: Text -> a sentence on another difference between an optimizer of Keras and this
            package's. The sentence is a note on a call if the script has each word of the text. ""
            is for every call.
    """

    peer: peers.Peer
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    warnings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def cls(self) -> type:
        """The class of this package that replaces the optimizer; each framework has a subclass."""
        return CLASSES[self.peer.family]

    @property
    def is_keras_own(self) -> bool:
        """Whether the optimizer is one of Keras 3."""
        return "use_ema" in self.defaults


# Word, or words, of a script -> the sentence.
_ACCUMULATION_WARNINGS = {
    "gradient_accumulation_steps": "With gradient_accumulation_steps, schedules count updates "
    "here, and micro-batches in Keras: divide the steps of yours by it.",
    "gradient_accumulation_steps use_ema": "With gradient_accumulation_steps and use_ema, Keras "
    "averages at each micro-batch, and no argument here does the same: at each update here, "
    "ema_momentum to the power of gradient_accumulation_steps gives averages that are less than "
    "one update ahead of Keras's.",
    "gradient_accumulation_steps ema_overwrite_frequency": "With gradient_accumulation_steps and "
    "ema_overwrite_frequency, Keras also overwrites the weights between updates, so these differ, "
    "and no argument here keeps them.",
}
_EXCLUSION_WARNING = (
    "exclude_from_weight_decay(...) searches in a variable's path here, such as dense/bias, and in "
    "its name alone in Keras. It may match different variables here."
)
_GARDEN_MODULES = ("official.modeling.optimization", "tensorflow_models.optimization")
_KERAS_MODULES = ("keras.optimizers", "keras.api.optimizers", "tensorflow.keras.optimizers")

SOURCES = (
    Source(
        peers.ADDONS_LAMB,
        ("tensorflow_addons.optimizers.LAMB", "tensorflow_addons.optimizers.lamb.LAMB"),
        {**_ADAM_DEFAULTS, "epsilon": 1e-6, "weight_decay": 0.0, **_EXCLUSIONS, "name": "LAMB"},
    ),
    Source(
        dataclasses.replace(peers.OLDER_LAMB, title="Model Garden's LAMB"),
        tuple(f"{module}.lamb.LAMB" for module in _GARDEN_MODULES),
        {
            **_ADAM_DEFAULTS, "epsilon": 1e-6, "weight_decay_rate": 0.0, **_EXCLUSIONS,
            "name": "LAMB",
        },
    ),
    Source(
        dataclasses.replace(peers.GARDEN_LARS, title="Model Garden's LARS"),
        tuple(
            f"{module}.{file}.LARS"
            for module in _GARDEN_MODULES for file in ("lars", "lars_optimizer")
        ),
        {
            "learning_rate": 0.01, "momentum": 0.9, "weight_decay_rate": 0.0, "eeta": 0.001,
            "nesterov": False, "classic_momentum": True, **_EXCLUSIONS, "name": "LARS",
        },
    ),
    Source(
        dataclasses.replace(peers.KERAS_LAMB, title="Keras's Lamb"),
        tuple(f"{module}.Lamb" for module in _KERAS_MODULES),
        {**_ADAM_DEFAULTS, "epsilon": 1e-7, "weight_decay": None, **_KERAS_DEFAULTS},
        {
            ".exclude_from_weight_decay(": _EXCLUSION_WARNING,
            **_ACCUMULATION_WARNINGS,
        },
    ),
    Source(
        dataclasses.replace(peers.KERAS_MUON, title="Keras's Muon"),
        tuple(f"{module}.Muon" for module in _KERAS_MODULES),
        {
            "learning_rate": 0.001, "adam_beta_1": 0.9, "adam_beta_2": 0.999,
            "adam_weight_decay": 0.004, "epsilon": 1e-7, "weight_decay": 0.004, **_KERAS_DEFAULTS,
            "exclude_layers": None, "exclude_embeddings": True, "muon_a": 3.4445,
            "muon_b": -4.775, "muon_c": 2.0315, "adam_lr_ratio": 1, "momentum": 0.95,
            "ns_steps": 5, "nesterov": True, "rms_rate": 0.2,
        },
        {
            "": "Kernels of convolutions and of attention are matrices here, and Keras leaves them "
            "to Adam. tf_lamb.describe(model) shows them. Name them in "
            "exclude_from_layer_adaptation to leave them to Adam. "
            "Keras adds epsilon before it corrects Adam's second moment: where gradients are "
            "as small as epsilon, the first steps differ. Keras ignores case when it looks for "
            "embeddings; tf_lamb does not.",
            **_ACCUMULATION_WARNINGS,
        },
    ),
)  # fmt: skip

SOURCE_BY_NAME = {name: source for source in SOURCES for name in source.names}
# Type of an optimizer in a Model Garden config -> the optimizer.
SOURCE_BY_TYPE = {
    "lamb": SOURCE_BY_NAME[f"{_GARDEN_MODULES[0]}.lamb.LAMB"],
    "lars": SOURCE_BY_NAME[f"{_GARDEN_MODULES[0]}.lars.LARS"],
}
