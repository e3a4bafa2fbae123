"""The schedules of this package as Model Garden sees them: one class of settings each, and its key.

    learning_rate: {type: tf_lamb_polynomial, tf_lamb_polynomial: {...}}
    warmup:        {type: tf_lamb, tf_lamb: {steps: 3125, handover: drop}}

`warmup: tf_lamb` stands in front of any learning rate, ours or Model Garden's own. Settings are the
arguments of the schedule, which documents them. To leave a number that has no default out of a
YAML is an error before training.

The warmup has one setting more: `begin_step`, the optimizer's step at which the schedule begins,
and a `weight_decay_schedule` with it: 0, unless the optimizer comes with the steps of an earlier
stage (`task.init_optimizer`), where there need be no warmup (`steps: 0`).
"""

from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.experiments import optimizers
from tf_lamb.tf_keras import schedules


def warmup(after, steps, begin_step=0, **arguments):
    """Our warmup in front of a schedule, or of the plain number that a constant rate is."""
    schedule = schedules.Warmup(steps, after, **arguments) if steps != 0 else after
    if not begin_step:
        return schedule
    return schedules.Stages((begin_step, 1), (0.0, schedule))


# Key -> what is made of the settings.
_LEARNING_RATES = {
    "tf_lamb_constant": schedules._Constant,
    "tf_lamb_polynomial": schedules._Polynomial,
    "tf_lamb_cosine": schedules._Cosine,
    "tf_lamb_exponential": schedules._Exponential,
    "tf_lamb_multi_step": schedules._MultiStep,
}
_RATES = {key: optimizers.settings_of(cls) for key, cls in _LEARNING_RATES.items()}
_WARMUPS = {"tf_lamb": optimizers.settings_of(schedules.Warmup, "after", begin_step=0)}


def register_schedules() -> None:
    """Registers each of our schedules under its own key, in every experiment."""
    seams.add_learning_rates(_LEARNING_RATES, _RATES)
    seams.add_warmups({"tf_lamb": warmup}, _WARMUPS)
