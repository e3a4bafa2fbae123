"""The optimizers as Model Garden sees them: their arguments as settings, each under its key.

A new optimizer is one line in `OPTIMIZERS`.
"""

import dataclasses
import functools

from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimization_config, optimizer_config

import tf_lamb.tf_keras
from tf_lamb.api.optimizers.observation import starts_to_observe
from tf_lamb.core import checks
from tf_lamb.model_garden.experiments import averages, choices, entries

_AdaScale = choices.settings(
    tf_lamb.tf_keras.AdaScale, "inner", "name", scale=None, scale_invariant_steps=None
)
_Measured = choices.settings(tf_lamb.tf_keras.Measured, "inner", "name", enabled=False)


@dataclasses.dataclass
class _Config(optimizer_config.BaseOptimizerConfig):
    """What every optimizer takes besides its arguments.

    `learning_rate` is not among those: it comes from `optimizer_config.learning_rate`.

    Attributes:
        adascale: the arguments of `tf_lamb.tf_keras.AdaScale`, which documents them, off without a
            scale; and `scale_invariant_steps`, the steps that the base batch took, at which
            training ends if `train_steps` does not end it before. None leaves it to those alone.
        measured: the arguments of `tf_lamb.tf_keras.Measured`, off unless `enabled`.
        trust_ratios_every: steps from one reading of the trust ratios to the next; None for none.
        divergence_report: whether a run that has diverged ends, before it saves a checkpoint, with
            a report of `tf_lamb.tf_keras.DivergenceReport`.
    """

    adascale: _AdaScale = dataclasses.field(default_factory=_AdaScale)
    measured: _Measured = dataclasses.field(default_factory=_Measured)
    trust_ratios_every: int | None = None
    divergence_report: bool = True


OPTIMIZERS = {
    "tf_lamb": tf_lamb.tf_keras.LAMB,
    "tf_lans": tf_lamb.tf_keras.LANS,
    "tf_lars": tf_lamb.tf_keras.LARS,
    "tf_muon": tf_lamb.tf_keras.Muon,
    "tf_adamp": tf_lamb.tf_keras.AdamP,
    "tf_sgdp": tf_lamb.tf_keras.SGDP,
}
# Keras 3 alone has a `loss_scale_factor`.
SETTINGS = {
    key: choices.settings(cls, "learning_rate", "loss_scale_factor", base=_Config)
    for key, cls in OPTIMIZERS.items()
}


def build(
    cls, learning_rate=0.001, adascale=None, measured=None, trust_ratios_every=None,
    divergence_report=False, **arguments,
):  # fmt: skip
    """An optimizer of ours, with what stands around it; the runner sees to the rest."""
    if arguments.get("use_ema") and not arguments.get("ema_overwrite_frequency"):
        decay = arguments.get("ema_momentum", 0.99)
        raise ValueError(
            "use_ema=true keeps averages that Model Garden never uses. Leave it out, and write "
            f"trainer.optimizer_config.ema.average_decay={decay:g}, whose averages are evaluated "
            "and exported"
        )
    optimizer = entries.transformed(cls, learning_rate, **arguments)
    if trust_ratios_every is not None:
        checks.whole("trust_ratios_every", trust_ratios_every)
        optimizer.observe_trust_ratios()  # refuses one that has none
    if divergence_report:
        starts_to_observe(optimizer)
    adascale, measured = dict(adascale or {}), dict(measured or {})
    adascale.pop("scale_invariant_steps", None)  # the runner's
    is_measured = measured.pop("enabled", False)
    if adascale.get("scale") is not None:
        return tf_lamb.tf_keras.AdaScale(optimizer, **adascale)
    return tf_lamb.tf_keras.Measured(optimizer, **measured) if is_measured else optimizer


def _tables():
    # seam: tf-models-official 2.20.0. A task never says which table it wants and gets the first,
    # although its optimizers may be new-style; averaging (`ema:`) exists for the first alone.
    return optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS


def register_optimizers() -> None:
    """Registers each of our optimizers under its own key, in every experiment; and `ema:`."""
    # seam: tf-models-official 2.20.0, whose factory finds the class of averages in this module.
    optimizer_factory.ema_optimizer = averages
    choices.add(optimization_config.OptimizerConfig, SETTINGS)
    for table in _tables():
        for key, cls in OPTIMIZERS.items():
            table[key] = entries.entry(cls, functools.partial(build, cls))


def replace_stock_optimizers() -> None:
    """Puts ours in the place of Model Garden's own keys."""
    for table in _tables():
        table.update(entries.STOCK)
