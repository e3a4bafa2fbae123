"""Defines the base class of LAMB for all frameworks: signature, docstring and rule."""

import os
from collections.abc import Mapping
from typing import Any, Unpack

from tf_lamb.api import frontends
from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core.rules.lamb import RULE

ADDONS_ARGUMENTS = (
    "learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay", "clipnorm", "clipvalue",
    "global_clipnorm", *settings.EXCLUSIONS,
)  # fmt: skip
_ADDONS_NAMES_HERE = {"weight_decay_rate": "weight_decay"}  # name in TensorFlow Addons -> name here


@settings.documented
class LAMB(Layerwise):
    """LAMB, layer-wise adaptive moments for large batches, as its paper writes it.

    Per variable, at step t = 1, 2, ...:

        m <- beta_1 m + (1 - beta_1) g
        v <- beta_2 v + (1 - beta_2) g^2
        u  = m/(1 - beta_1^t) / (sqrt(v/(1 - beta_2^t)) + epsilon) + weight_decay w
        w <- w - learning_rate |w|/|u| u

    The trust ratio |w|/|u| is 1 where either norm is 0, and for variables excluded from layer
    adaptation. A norm is that of the whole variable, summed in float32 (in float64 for float64
    variables). Moments have the same dtypes, unless `dtypes` selects another one: those of float16
    and bfloat16 variables are in float32. The authors train with `global_clipnorm=1.0`.

    NVLAMB, NVIDIA's variant, is `exclude_from_layer_adaptation=[]` with `global_clipnorm=1.0`:
    every variable has a trust ratio, and the gradients are scaled down to a global norm of 1 if
    their global norm is larger.

    Args:
        learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.
            Defaults to 0.01, at which `find_rate` begins, too (docs/reference/optimizers.md).
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9 (the paper).
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999 (the paper).
        epsilon: Added to the root of the second moment. Defaults to 1e-6 (the authors' code).
        weight_decay: Decay inside the trust ratio, a float or a schedule; None is 0. Defaults to
            0.0; the paper trains BERT with 0.01.
        bias_correction: Whether to divide the moments by 1 - beta^t, as version 5 of the paper
            does; version 3 does not. Defaults to True.
        weight_decay_mode: "update" as above; "decoupled" subtracts learning_rate weight_decay w
            from w first, outside the ratio (`keras.optimizers.Lamb`). Defaults to "update" (the
            paper).
        bounds: Dict of "weight_norm" and "trust_ratio", each a pair of the smallest and the largest
            value: of |w| in the ratio, and of the ratio. None in a pair is no bound. The ratio 1 of
            excluded variables is bounded, too. Defaults to None: no bounds (the authors' code);
            DeepSpeed has {"trust_ratio": (0.01, 10)}.
        {{shared_arguments}}

    Raises:
        ValueError, TypeError: at construction, for a hyper-parameter out of its range, a pattern
            that is no regex, an unknown argument.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.LAMB(
    ...     1e-3, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
          https://arxiv.org/abs/1904.00962v5, Algorithm 2
    """

    rule = RULE
    settings_class = settings.RatioSettings

    def __init__(
        self,
        learning_rate: settings.LearningRate = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: settings.WeightDecay = 0.0,
        exclude_from_weight_decay: settings.Patterns = None,
        exclude_from_layer_adaptation: settings.Patterns = None,
        *,
        bias_correction: bool = True,
        weight_decay_mode: str = "update",
        bounds: settings.Bounds = None,
        name: str | None = "LAMB",
        **shared: Unpack[settings.Shared],
    ):
        super().__init__(**settings.constructor_arguments(locals()))

    @classmethod
    def from_addons(
        cls, config: Mapping[str, Any] | str | os.PathLike, **arguments: Any
    ) -> Any:  # fmt: skip
        """Makes a LAMB from the serialized LAMB of TensorFlow Addons or of Model Garden.

        Both serialize it under the name `Addons>LAMB`. TensorFlow Addons saves all arguments from
        0.16 on. Earlier versions, and Model Garden, leave out the exclusion lists and write
        `weight_decay_rate` for `weight_decay`. A `decay` of the learning rate becomes an
        `InverseTimeDecay`. This package does not register the name `Addons>LAMB` with Keras: load a
        model that was saved with it with `compile=False`, and make its optimizer by this function.

        Args:
            config: The result of `serialize`, `{"class_name": "Addons>LAMB", "config": {...}}` or
                the newer form with "registered_name"; or the path of an HDF5 file with it.
            **arguments: Arguments of `LAMB` that replace or extend those of the config.

        Returns:
            The optimizer, not built.

        Raises:
            FileNotFoundError: for a path without a file.
            ValueError: for another class; for an argument that LAMB does not have; for a schedule
                that cannot be read, or one together with a `decay`; for a config with
                `weight_decay_rate` if the exclusion lists are not both passed as arguments.

        Example:

        >>> import tf_lamb
        >>> config = {"class_name": "Addons>LAMB", "config": {"weight_decay": 0.01}}
        >>> optimizer = tf_lamb.LAMB.from_addons(config, learning_rate=1e-3)
        """
        frontend = frontends.of(cls)
        if isinstance(config, (str, os.PathLike)):
            config = frontend.checkpoints().optimizer_config(config)
        return cls(**_arguments_from_addons(config, arguments, frontend.host))


def _arguments_from_addons(config: Any, overrides: Mapping[str, Any], host: Any) -> dict[str, Any]:
    """Returns the arguments of this package's LAMB for a serialized `Addons>LAMB`.

    The arguments in `overrides` replace those of the config. The numbers of the config are rounded
    to seven digits, because the other package keeps them in float32. A config with a `decay` but
    without a learning rate gets the rate 0.001, the default of the other package. `host` is the
    package `keras` or `tf_keras`, which deserializes a schedule. Raises ValueError as `from_addons`
    does.
    """
    serialized = config if isinstance(config, Mapping) else {}
    name = serialized.get("registered_name") or serialized.get("class_name")
    saved_config = serialized.get("config")
    if name != "Addons>LAMB" or not isinstance(saved_config, Mapping):
        raise ValueError(
            "from_addons takes a serialized optimizer such as {'class_name': 'Addons>LAMB', "
            f"'config': {{...}}}}, or an HDF5 file with one, not {config!r}."
        )
    ignored = {"name", "decay", "is_legacy_optimizer"}
    if unknown := sorted(
        k for k in saved_config if _ADDONS_NAMES_HERE.get(k, k) not in {*ADDONS_ARGUMENTS, *ignored}
    ):
        raise ValueError(
            f"The config holds {unknown[0]!r}, which LAMB does not have. Leave it out."
        )
    if "weight_decay_rate" in saved_config and not set(settings.EXCLUSIONS) <= {
        *saved_config,
        *overrides,
    }:
        raise ValueError(
            "TensorFlow Addons before 0.16 and Model Garden, whose configs have weight_decay_rate, "
            "do not serialize their exclusion lists. Pass both, as they were in training: "
            "exclude_from_weight_decay=['layer_norm', 'bias'] and "
            "exclude_from_layer_adaptation=None, for instance; None where there was none."
        )
    result = {
        str(_ADDONS_NAMES_HERE.get(key, key)): settings.round_to_seven_digits(value)
        for key, value in saved_config.items()
        if key not in ignored
    }
    result |= {"name": saved_config.get("name", "LAMB"), **overrides}
    # An empty list becomes None, because TensorFlow Addons treats both alike. In this package an
    # empty list means that no variable is excluded.
    if "exclude_from_layer_adaptation" not in overrides:
        result["exclude_from_layer_adaptation"] = (
            result.get("exclude_from_layer_adaptation") or None
        )
    if saved_config.get("decay") and "learning_rate" not in overrides:
        rate = result.get("learning_rate", 0.001)
        result["learning_rate"] = inverse_time_decay(
            rate, settings.round_to_seven_digits(saved_config["decay"])
        )
    if isinstance(rate := result.get("learning_rate"), dict):
        result["learning_rate"] = _schedule_of(rate, host)
    return result


def inverse_time_decay(rate: Any, decay: float) -> dict[str, Any]:
    """Returns the serialized schedule `rate / (1 + decay * step)`.

    It is the schedule of Keras's old optimizers with the argument `decay`.

    Args:
        rate: The learning rate of step 0, a number.
        decay: The factor of the step number.

    Raises:
        ValueError: if the rate is already a schedule.
    """
    if isinstance(rate, Mapping):
        raise ValueError(
            f"The config has a schedule and decay={decay:g} besides. Write both as one schedule, "
            "and pass it as learning_rate=."
        )
    config = {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": decay}
    return {"class_name": "InverseTimeDecay", "config": {**config, "staircase": False}}


def _schedule_of(rate, host):
    """Makes the learning-rate schedule from its serialized config, the dict `rate`.

    `host` gives access to Keras 3 or tf_keras. Raises ValueError if no schedule can be made.
    """
    try:
        return host.optimizers.schedules.deserialize(_without_name(rate))
    except (TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"The learning_rate {rate!r} is no schedule that can be read: {reason} Pass another as "
            "learning_rate=."
        ) from error


def _without_name(value):
    """Returns a serialized schedule without its name and the names of schedules inside it.

    Keras 2 accepted None and `a/b` as names, which Keras 3 refuses in the first step. A schedule
    computes the same without its name.
    """
    if not isinstance(value, Mapping) or not isinstance(config := value.get("config"), Mapping):
        return value
    nameless = {key: _without_name(item) for key, item in config.items() if key != "name"}
    return {**value, "config": nameless}
