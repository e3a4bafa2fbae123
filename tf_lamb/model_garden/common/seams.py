"""Holds every function that replaces something in Model Garden or Orbit; no other file does.

What they replace is part of tf-models-official 2.20.0, or of the Orbit that comes with it. A
process calls them in this order:

1.  `tf_lamb.model_garden.register` adds our names: `add_optimizers`, `add_learning_rates`,
    `add_warmups`, `add_export`. The first three call `add_choices`, so that a YAML can choose them.
2.  The same function makes Model Garden train with our classes: `use_averages`, `use_trainer`,
    `use_runner`.
3.  `tf_lamb.model_garden.train` makes Model Garden's main train its experiment: `hand_over`.
"""

from types import SimpleNamespace

import gin
import orbit
from absl import logging
from official.common import distribute_utils
from official.core import train_lib, train_utils
from official.modeling.hyperparams import oneof
from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import optimization_config
from official.nlp.serving import export_savedmodel

# The tables of legacy and of new Keras optimizers. Ours are new, but in both tables: a task never
# says which table it wants, and gets the first. Averaging (`ema:`) exists for the first one alone.
OPTIMIZERS = optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS
# Config class that lists a YAML's choices -> our keys in it -> the classes of their settings.
_ADDED: dict[type, dict[str, type]] = {}


def add_choices(choice: type[oneof.OneOfConfig], kinds: dict[str, type]) -> None:
    """Adds our keys to those that a YAML may choose from, in every experiment.

    The config class itself is changed, because only experiments that name a subclass would use it.
    A config reads the type of a field from the annotations of its class, and accepts overrides of
    fields that are in its `__dict__`. Therefore our keys are added to the annotations, and to the
    `__dict__` of every config when it is made or copied. Subclasses of `choice` have our keys, too.

    Args:
        choice: the config class that lists what a YAML can choose.
        kinds: key -> the class of its settings.
    """
    our_kinds = _ADDED.setdefault(choice, {})
    our_kinds.update(kinds)
    choice.__annotations__.update(kinds)

    def complete(self):
        for key, kind in our_kinds.items():
            self.__dict__.setdefault(key, kind())

    def __post_init__(self, *args):
        complete(self)
        oneof.OneOfConfig.__post_init__(self, *args)

    def __setstate__(self, state):
        self.__dict__.update(state)
        complete(self)

    choice.__post_init__, choice.__setstate__ = __post_init__, __setstate__


def add_optimizers(made_by: dict, settings: dict[str, type]) -> None:
    """Adds optimizers to Model Garden.

    Args:
        made_by: key -> the function that makes the optimizer.
        settings: key -> the class of its settings.
    """
    add_choices(optimization_config.OptimizerConfig, settings)
    for table in OPTIMIZERS:
        table.update(made_by)


def has_optimizer(key: str) -> bool:
    """Returns whether one of Model Garden's own optimizers has a key.

    Its optimizers are classes in the tables, and ours are not.
    """
    return any(isinstance(table.get(key), type) for table in OPTIMIZERS)


def add_learning_rates(made_by: dict, settings: dict[str, type]) -> None:
    """Adds learning rates to Model Garden.

    Args:
        made_by: key -> the function or class that makes the learning rate.
        settings: key -> the class of its settings.
    """
    add_choices(optimization_config.LrConfig, settings)
    optimizer_factory.LR_CLS.update(made_by)


def add_warmups(made_by: dict, settings: dict[str, type]) -> None:
    """Adds warmups to Model Garden.

    Args:
        made_by: key -> the function or class that makes the warmup.
        settings: key -> the class of its settings.
    """
    add_choices(optimization_config.WarmupConfig, settings)
    optimizer_factory.WARMUP_CLS.update(made_by)


def add_export(task: type) -> None:
    """Makes Model Garden export a task by the same module as the class that it derives from.

    Model Garden's table has only exact classes.

    Args:
        task: Our task class.
    """
    modules = export_savedmodel.SERVING_MODULES
    modules[task] = next(modules[base] for base in task.__mro__ if base in modules)


def use_averages(averages: type) -> None:
    """Makes Model Garden's optimizer factory average the weights with this class.

    The factory takes the class from the module `ema_optimizer`, so its reference to that module is
    replaced.
    """
    optimizer_factory.ema_optimizer = SimpleNamespace(ExponentialMovingAverage=averages)


def use_trainer(trainer: type) -> None:
    """Makes Model Garden train every experiment with this class; only Gin can choose a trainer."""
    with gin.unlock_config():
        gin.bind_parameter("create_trainer.trainer_cls", trainer)


def use_runner(runner: type, write_params) -> None:
    """Replaces the class that runs an experiment, and the function that writes params.yaml.

    Args:
        runner: the class that `run_experiment` then uses.
        write_params: the function that then writes params.yaml. It takes the experiment and the
            folder.
    """
    train_lib.OrbitExperimentRunner = runner
    train_utils.serialize_config = write_params


def hand_over(params, strategy=None, is_shown: bool = False) -> None:
    """Makes Model Garden's main run this experiment, instead of the one it would read from flags.

    Args:
        params: the experiment.
        strategy: the strategy of several workers or of a TPU; None lets main make one.
        is_shown: whether progress is shown, so that Orbit logs its lines instead of printing them.
    """
    train_utils.parse_configuration = lambda flags: params
    if strategy is not None:
        distribute_utils.get_distribution_strategy = lambda **_: strategy
    if is_shown:
        orbit.controller._log = logging.info
