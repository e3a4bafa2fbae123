"""The optimizers as Model Garden sees them: their arguments as settings, each under its key."""

import dataclasses
import functools

import tensorflow as tf
from official.modeling.hyperparams import base_config
from official.modeling.optimization import ema_optimizer, optimizer_factory
from official.modeling.optimization.configs import optimization_config, optimizer_config

import tf_lamb.tf_keras
from tf_lamb.api.optimizers.observation import starts_to_observe
from tf_lamb.core import rules
from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.experiments.schedules import is_steered, settings_of
from tf_lamb.tf_keras import schedules
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer


class _InOrder(base_config.Config):
    """A dict in its own order: of several patterns the first that matches counts."""

    def _override(self, override_dict, is_strict=True):
        # seam: tf-models-official 2.20.0, which sorts the keys.
        for pair in override_dict.items():
            super()._override(dict([pair]), is_strict)


_AdaScale = settings_of(tf_lamb.tf_keras.AdaScale, "inner", "name", scale=None, base_steps=None)
_MeasureNoise = settings_of(tf_lamb.tf_keras.MeasureNoise, "inner", "name", enabled=False)


@dataclasses.dataclass
class _Config(optimizer_config.BaseOptimizerConfig):
    """The settings of every optimizer besides its arguments.

    `learning_rate` is not among those: it comes from `optimizer_config.learning_rate`.

    Attributes:
        weight_decay_schedule: what `weight_decay` follows instead of being a number: a choice as
            `optimizer_config.learning_rate` is one, off without a type.
        adascale: the arguments of `tf_lamb.tf_keras.AdaScale`, which documents them, off without a
            scale; and `base_steps`, the steps that the base batch took, at which training ends if
            `train_steps` does not end it before. None leaves it to those alone.
        measure_noise: the arguments of `tf_lamb.tf_keras.MeasureNoise`, off unless `enabled`.
        trust_ratios_every: steps from one reading of the trust ratios to the next; None for none.
        divergence_report: whether a run that has diverged ends, before it saves a checkpoint, with
            a report of `tf_lamb.tf_keras.StopOnDivergence`.
    """

    weight_decay_schedule: optimization_config.LrConfig = dataclasses.field(
        default_factory=optimization_config.LrConfig
    )
    adascale: _AdaScale = dataclasses.field(default_factory=_AdaScale)  # type: ignore[valid-type]
    measure_noise: _MeasureNoise = dataclasses.field(  # type: ignore[valid-type]
        default_factory=_MeasureNoise
    )
    trust_ratios_every: int | None = None
    divergence_report: bool = True

    def _set(self, k, v):
        is_argument = self._get_subconfig_type(k) is base_config.Config
        if is_argument and isinstance(v, dict) and not self.__dict__.get(k):
            v = _InOrder(v)
        super()._set(k, v)


OPTIMIZERS = {f"tf_{name.lower()}": getattr(tf_lamb.tf_keras, name) for name in rules.OURS}


def _settings(cls):
    """The arguments of an optimizer as settings; Keras 3 alone has a `loss_scale_factor`."""
    return settings_of(cls, "learning_rate", "loss_scale_factor", base=_Config)


SETTINGS = {key: _settings(cls) for key, cls in OPTIMIZERS.items()}


def build(
    cls, learning_rate=0.001, adascale=None, measure_noise=None, trust_ratios_every=None,
    divergence_report=False, weight_decay_schedule=None, **arguments,
):  # fmt: skip
    """An optimizer of ours, with what wraps it; the runner sees to the rest."""
    if arguments.get("use_ema") and not arguments.get("ema_overwrite_frequency"):
        decay = arguments.get("ema_momentum", 0.99)
        raise ValueError(
            "use_ema=true keeps averages that Model Garden never uses. Leave it out, and write "
            f"trainer.optimizer_config.ema.average_decay={decay:g}, whose averages are evaluated "
            "and exported"
        )
    if (weight_decay_schedule or {}).get("type"):
        arguments["weight_decay"] = _falling(
            weight_decay_schedule, arguments.get("weight_decay"), learning_rate
        )
    optimizer = cls(learning_rate, **arguments)
    if trust_ratios_every is not None:
        optimizer.observe_trust_ratios()  # refuses one that has none
    if divergence_report:
        starts_to_observe(optimizer)
    adascale, measure_noise = dict(adascale or {}), dict(measure_noise or {})
    adascale.pop("base_steps", None)  # the runner's
    is_measured = measure_noise.pop("enabled", False)
    if adascale.get("scale") is not None:
        return tf_lamb.tf_keras.AdaScale(optimizer, **adascale)
    return tf_lamb.tf_keras.MeasureNoise(optimizer, **measure_noise) if is_measured else optimizer


def _falling(choice: dict, weight_decay, learning_rate):
    """The schedule that weight decay follows, in the place of a number."""
    if weight_decay:
        raise ValueError(
            f"weight_decay_schedule.type={choice['type']} takes the place of weight_decay, which "
            f"is {weight_decay:g}, by you or by the experiment. Write weight_decay=0, or "
            "weight_decay_schedule.type=null"
        )
    if is_steered(kind := choice["type"]) or kind not in optimizer_factory.LR_CLS:
        raise ValueError(
            f"weight_decay_schedule.type={kind} is no schedule. Write a number as weight_decay"
        )
    schedule = optimizer_factory.LR_CLS[kind](**choice[kind])
    if isinstance(learning_rate, schedules.Stages):  # the rate's `warmup.tf_lamb.begin_step`
        schedule = schedules.Stages(learning_rate.lengths, (0.0, schedule))
    # A check before training is made in a graph, where no decay can be read.
    return schedule if tf.executing_eagerly() else 0.0


class ExponentialMovingAverage(ema_optimizer.ExponentialMovingAverage):
    """Model Garden's averages, which wait at a micro-batch and at a step that is skipped."""

    @property
    def learning_rate(self):
        """The inner optimizer's learning rate, of any kind; the base class knows old ones alone."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self._optimizer.learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, name=None):
        """See base class."""
        with tf.init_scope():  # where an optimizer of Model Garden makes it, if this is its first
            iterations = self.iterations
        iterations_before = tf.identity(iterations)
        result = self._optimizer.apply_gradients(grads_and_vars, name)

        def average(strategy):
            tf.cond(
                iterations > iterations_before, lambda: self.update_average(strategy), lambda: None
            )

        ema_optimizer.maybe_merge_call(average, tf.distribute.get_strategy())
        return result


def register_optimizers() -> None:
    """Registers each of our optimizers under its own key, in every experiment; and `ema:`."""
    seams.use_averages(ExponentialMovingAverage)
    constructors = {key: functools.partial(build, cls) for key, cls in OPTIMIZERS.items()}
    seams.add_optimizers(constructors, SETTINGS)


def register_user_class(key: str, cls: type) -> None:
    """Adds a class of optimizers that a user has made; `tf_lamb.model_garden` documents it."""
    if not (isinstance(cls, type) and issubclass(cls, LayerwiseOptimizer)):
        raise TypeError(
            f"{cls!r:.80} is no class that tf_lamb.tf_keras.optimizer_of made: the Model Garden "
            "trains with tf_keras."
        )
    if OPTIMIZERS.get(key, cls).__name__ != cls.__name__:
        raise ValueError(f"{key!r} is {OPTIMIZERS[key].__name__}: register another key.")
    OPTIMIZERS[key], SETTINGS[key] = cls, _settings(cls)
    register_optimizers()
