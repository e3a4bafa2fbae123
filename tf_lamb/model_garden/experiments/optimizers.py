"""Registers this package's optimizers in Model Garden, with their arguments as settings.

A YAML chooses an optimizer by its key, such as `tf_lamb`, as `optimizer_config.optimizer.type`.
"""

import dataclasses
import functools

import tensorflow as tf
from official.modeling.hyperparams import base_config
from official.modeling.optimization import ema_optimizer, optimizer_factory
from official.modeling.optimization.configs import optimization_config, optimizer_config

import tf_lamb.tf_keras
from tf_lamb.api.optimizers.observation import start_observing
from tf_lamb.core import rules
from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.experiments.schedule_configs import is_steered, settings_of
from tf_lamb.tf_keras import schedules
from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer


class _InOrder(base_config.Config):
    """A dict of settings that keeps its order.

    The order matters if the keys are patterns for names of variables: the first match applies.
    """

    def _override(self, override_dict, is_strict=True):
        # seam: relies on tf-models-official 2.20.0. The base class sorts the keys of a dict, so it
        # gets one key at a time.
        for pair in override_dict.items():
            super()._override(dict([pair]), is_strict)


_AdaScale = settings_of(tf_lamb.tf_keras.AdaScale, "inner", "name", scale=None, base_steps=None)
_MeasureNoise = settings_of(tf_lamb.tf_keras.MeasureNoise, "inner", "name", enabled=False)


@dataclasses.dataclass
class _Config(optimizer_config.BaseOptimizerConfig):
    """Holds the settings that every optimizer has in addition to its arguments.

    The argument `learning_rate` is not among the settings of an optimizer, because it comes from
    `optimizer_config.learning_rate`.

    Attributes:
        weight_decay_schedule: A schedule of the weight decay, in place of the number
            `weight_decay`: a `type` and the settings of that type, as in
            `optimizer_config.learning_rate`. Off without a type.
        adascale: The arguments of `tf_lamb.tf_keras.AdaScale`, and `base_steps`. AdaScale is off
            without a `scale`. It counts the progress of training in steps of the base batch, for
            which the learning rate was tuned. Training ends when the progress reaches `base_steps`,
            or at `train_steps` if that comes first. With `base_steps=None`, training ends at
            `train_steps`.
        measure_noise: The arguments of `tf_lamb.tf_keras.MeasureNoise`, off unless `enabled`.
        trust_ratios_every: Steps from one reading of the trust ratios to the next. Defaults to
            None: no readings.
        divergence_report: Whether a run that has diverged ends, before it saves a checkpoint, with
            a report of `tf_lamb.tf_keras.StopOnDivergence`. Defaults to True.
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
        # A dict that is the value of an argument, such as a dict of name patterns, keeps its order.
        is_argument = self._get_subconfig_type(k) is base_config.Config
        if is_argument and isinstance(v, dict) and not self.__dict__.get(k):
            v = _InOrder(v)
        super()._set(k, v)


# Key of an optimizer in a YAML -> its class.
OPTIMIZERS = {f"tf_{name.lower()}": getattr(tf_lamb.tf_keras, name) for name in rules.OURS}


def _settings_class(cls):
    """Makes the class of settings from the arguments of an optimizer class.

    `loss_scale_factor` is left out, because only Keras 3 has it.
    """
    return settings_of(cls, "learning_rate", "loss_scale_factor", base=_Config)


# Key of an optimizer in a YAML -> the config class with its settings.
SETTINGS = {key: _settings_class(cls) for key, cls in OPTIMIZERS.items()}


def build(
    cls, learning_rate=0.001, adascale=None, measure_noise=None, trust_ratios_every=None,
    divergence_report=False, weight_decay_schedule=None, **arguments,
):  # fmt: skip
    """Makes an optimizer of this package from its settings, in a wrapper if they turn one on.

    The settings that act outside of the optimizer, such as `base_steps`, are not used here: the
    runner applies them.

    Args:
        cls: The class of the optimizer.
        learning_rate: The learning rate or its schedule. Defaults to 0.001.
        adascale: The settings of `AdaScale`, off without a scale. Defaults to None.
        measure_noise: The settings of `MeasureNoise`, off unless `enabled`. Defaults to None.
        trust_ratios_every: Steps between two readings of the trust ratios. Defaults to None: none.
        divergence_report: Whether the optimizer records its trust ratios, if it has them, for a
            report on divergence. Defaults to False.
        weight_decay_schedule: The `type` of the schedule of weight decay, and the settings of that
            type. Defaults to None: weight decay is a number.
        **arguments: The arguments of the class.

    Returns:
        The optimizer. It is wrapped in `AdaScale` if that has a scale, else in `MeasureNoise` if
        that is enabled.

    Raises:
        ValueError: if `use_ema` would keep moving averages of the weights that Model Garden never
            uses, or the weight decay cannot follow the schedule.
    """
    if arguments.get("use_ema") and not arguments.get("ema_overwrite_frequency"):
        decay = arguments.get("ema_momentum", 0.99)
        raise ValueError(
            "use_ema=true keeps averages that Model Garden never uses. Leave it out, and write "
            f"trainer.optimizer_config.ema.average_decay={decay:g}, whose averages are evaluated "
            "and exported"
        )
    if (weight_decay_schedule or {}).get("type"):
        arguments["weight_decay"] = _decay_schedule(
            weight_decay_schedule, arguments.get("weight_decay"), learning_rate
        )
    optimizer = cls(learning_rate, **arguments)
    if trust_ratios_every is not None:
        optimizer.observe_trust_ratios()  # raises for an optimizer that has no trust ratios
    if divergence_report:
        start_observing(optimizer)
    adascale, measure_noise = dict(adascale or {}), dict(measure_noise or {})
    adascale.pop("base_steps", None)  # the runner uses it
    is_measured = measure_noise.pop("enabled", False)
    if adascale.get("scale") is not None:
        return tf_lamb.tf_keras.AdaScale(optimizer, **adascale)
    return tf_lamb.tf_keras.MeasureNoise(optimizer, **measure_noise) if is_measured else optimizer


def _decay_schedule(choice: dict, weight_decay, learning_rate):
    """Returns the schedule of weight decay that `choice` describes by its type and settings.

    Raises `ValueError` if `weight_decay` is also set, or if the type is not a schedule.
    """
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
    if isinstance(learning_rate, schedules.Stages):  # the rate begins at a later step
        schedule = schedules.Stages(learning_rate.lengths, (0.0, schedule))
    # The checks before training make the optimizer in a graph, where the value of a schedule cannot
    # be read. They get a weight decay of 0 instead.
    return schedule if tf.executing_eagerly() else 0.0


class ExponentialMovingAverage(ema_optimizer.ExponentialMovingAverage):
    """Model Garden's moving averages of the weights, updated only when the weights are updated.

    The averages do not change in a call that only accumulates the gradients of a micro-batch, nor
    in a step that is skipped.
    """

    @property
    def learning_rate(self):
        """The learning rate of the wrapped optimizer, a legacy or a new-style Keras optimizer.

        The base class supports legacy optimizers only.
        """
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self._optimizer.learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, name=None):
        """Applies gradients, and updates the averages if `iterations` has risen; see base class.

        Args:
            grads_and_vars: Pairs of a gradient and a variable.
            name: The name of the operation. Defaults to None.

        Returns:
            The result of the wrapped optimizer's `apply_gradients`.
        """
        # Model Garden's optimizers create the variable `iterations` when it is first read. They
        # must do so outside the graph of the training step.
        with tf.init_scope():
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
    """Registers this package's optimizers for every experiment, and its moving averages."""
    seams.use_averages(ExponentialMovingAverage)
    constructors = {key: functools.partial(build, cls) for key, cls in OPTIMIZERS.items()}
    seams.add_optimizers(constructors, SETTINGS)


def register_user_class(key: str, cls: type) -> None:
    """Registers an optimizer class of a user, for `tf_lamb.model_garden.register_optimizer`.

    Args:
        key: The `type` of the optimizer in settings.
        cls: A class that `tf_lamb.tf_keras.optimizer_of` made, or a subclass of an optimizer of
            `tf_lamb.tf_keras`.

    Raises:
        TypeError: if `cls` is not such a class.
        ValueError: if an optimizer class of another name, or one of Model Garden's own optimizers,
            is already registered under `key`.
    """
    if not (isinstance(cls, type) and issubclass(cls, LayerwiseOptimizer)):
        raise TypeError(
            f"{cls!r:.80} is no class that tf_lamb.tf_keras.optimizer_of made: the Model Garden "
            "trains with tf_keras."
        )
    if OPTIMIZERS.get(key, cls).__name__ != cls.__name__:
        raise ValueError(f"{key!r} is {OPTIMIZERS[key].__name__}: register another key.")
    if key not in OPTIMIZERS and seams.has_optimizer(key):
        raise ValueError(f"{key!r} is an optimizer of the Model Garden: register another key.")
    OPTIMIZERS[key], SETTINGS[key] = cls, _settings_class(cls)
    register_optimizers()
