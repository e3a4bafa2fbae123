"""Holds every function that changes something in Model Garden or Orbit; no other file does.

The functions change tf-models-official 2.20.0 and the Orbit that comes with it, mostly where these
have no public way to extend them. A process calls the functions in this order:

1.  `tf_lamb.model_garden.register` adds this package's optimizers, schedules and tasks:
    `add_optimizers`, `add_learning_rates`, `add_warmups`, `add_export`. The first three call
    `add_choices`, so that a YAML can choose what they add.
2.  The same function makes Model Garden use this package's classes: `use_averages`, `use_trainer`,
    `use_runner`.
3.  `tf_lamb.model_garden.train` makes Model Garden's main train a given experiment: `hand_over`.
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

# Model Garden's tables of legacy and of new-style Keras optimizers. The optimizers of this package
# are new-style, but are added to both tables. Model Garden's tasks always use the first table, and
# only with the first table can the weights be averaged (`ema:`).
OPTIMIZERS = optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS
# Config class that lists what a YAML can choose -> key that this package has added -> the class of
# its settings.
_ADDED: dict[type, dict[str, type]] = {}


def add_choices(choice: type[oneof.OneOfConfig], kinds: dict[str, type]) -> None:
    """Adds keys to those that a YAML may choose from, in every experiment.

    The config class itself is changed, because a subclass would be used only by experiments that
    name it. A config reads the type of a field from the annotations of its class, and accepts
    overrides of fields that are in its `__dict__`. Therefore the keys are added to the annotations,
    and to the `__dict__` of every config when it is made or copied. Subclasses of `choice` get the
    keys, too.

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


def is_added(choice: oneof.OneOfConfig, key: str) -> bool:
    """Returns whether a key of a config that lists choices is one of ours."""
    return any(key in kinds for kind, kinds in _ADDED.items() if isinstance(choice, kind))


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

    In the tables, Model Garden's optimizers are classes, and those of this package are functions.
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
    """Makes Model Garden export a task of this package with the export module of its base class.

    Model Garden looks for the exact class of a task in a table, and would not find a subclass.

    Args:
        task: The task class, a subclass of one in the table.
    """
    modules = export_savedmodel.SERVING_MODULES
    modules[task] = next(modules[base] for base in task.__mro__ if base in modules)


def use_averages(averages: type) -> None:
    """Makes Model Garden's optimizer factory average the weights with the class `averages`.

    The factory takes the class from a module that it refers to as `ema_optimizer`. This reference
    is replaced by an object that has only the class.
    """
    optimizer_factory.ema_optimizer = SimpleNamespace(ExponentialMovingAverage=averages)


def use_trainer(trainer: type) -> None:
    """Makes Model Garden train every experiment with the class `trainer`.

    It is bound through Gin, because Model Garden has no other way to choose a trainer.
    """
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
    """Makes Model Garden's main run an experiment, instead of the one that it reads from flags.

    Args:
        params: the experiment's `ExperimentConfig`.
        strategy: the strategy of several workers or of a TPU; None lets main make one.
        is_shown: whether this package shows the progress. Orbit then logs its own lines instead of
            printing them.
    """
    train_utils.parse_configuration = lambda flags: params
    if strategy is not None:
        distribute_utils.get_distribution_strategy = lambda **_: strategy
    if is_shown:
        orbit.controller._log = logging.info
