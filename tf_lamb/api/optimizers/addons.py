"""A serialized LAMB of TensorFlow Addons in our arguments."""

from collections.abc import Mapping
from typing import Any

# Its word -> ours.
WORDS = {"weight_decay_rate": "weight_decay"}
EXCLUSIONS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")
HAS = (
    "learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay", "clipnorm", "clipvalue",
    "global_clipnorm", *EXCLUSIONS,
)  # fmt: skip


def arguments(config: Any, given: Mapping[str, Any], host: Any) -> dict[str, Any]:
    """Returns our arguments for a serialized `Addons>LAMB`.

    Args:
        config: The serialized optimizer.
        given: Arguments of ours, which replace those of the config.
        host: The package of the Keras that makes a schedule.

    Raises:
        ValueError: where it is another class, holds an argument that we do not have or a decay of
            the rate, or is of Addons before 0.16 or Model Garden, which drop the exclusion lists,
            and they are not given.
    """
    serialized = config if isinstance(config, Mapping) else {}
    name = serialized.get("registered_name") or serialized.get("class_name")
    theirs = serialized.get("config")
    if name != "Addons>LAMB" or not isinstance(theirs, Mapping):
        raise ValueError(
            "from_addons takes a serialized optimizer such as {'class_name': 'Addons>LAMB', "
            f"'config': {{...}}}}, or an HDF5 file with one, not {config!r}."
        )
    rest = {"name", "decay", "is_legacy_optimizer"}
    if strange := sorted(k for k in theirs if WORDS.get(k, k) not in {*HAS, *rest}):
        raise ValueError(
            f"The config holds {strange[0]!r}, which LAMB does not have. Leave it out."
        )
    if "weight_decay_rate" in theirs and not set(EXCLUSIONS) <= {*theirs, *given}:
        raise ValueError(
            "TensorFlow Addons before 0.16 and Model Garden, whose configs have weight_decay_rate, "
            "do not serialize their exclusion lists. Pass both, as they were in training: "
            "exclude_from_weight_decay=['layer_norm', 'bias'] and "
            "exclude_from_layer_adaptation=None, for instance; None where there was none."
        )
    ours = {
        str(WORDS.get(key, key)): plain(each) for key, each in theirs.items() if key not in rest
    }
    ours |= {"name": theirs.get("name", "LAMB"), **given}
    # Addons takes an empty list for none given.
    if "exclude_from_layer_adaptation" not in given:
        ours["exclude_from_layer_adaptation"] = ours.get("exclude_from_layer_adaptation") or None
    if (decay := theirs.get("decay")) and "learning_rate" not in given:
        raise ValueError(
            f"The config has decay={plain(decay)!r}, which divides its rate in every step. "
            f"Pass learning_rate={host.__name__}.optimizers.schedules.InverseTimeDecay(rate, 1, "
            "decay), or a schedule of your own."
        )
    if isinstance(rate := ours.get("learning_rate"), dict):
        ours["learning_rate"] = _schedule(rate, host)
    return ours


def plain(value: Any) -> Any:
    """0.9 for 0.8999999761581421: the legacy interface keeps its arguments in float32."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _schedule(rate, host):
    try:
        return host.optimizers.schedules.deserialize(rate)
    except (TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"The learning_rate {rate!r} is no schedule that can be read: {reason} Pass another as "
            "learning_rate=."
        ) from error
