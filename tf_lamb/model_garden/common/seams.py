"""Every place where something of Model Garden's or of Orbit's is replaced; nothing else does so.

All of it is of tf-models-official 2.20.0 and the Orbit that comes with it. In the order of a
process:

1.  `tf_lamb.model_garden.register` adds our names: `add_optimizers`, `add_learning_rates`,
    `add_warmups`, `add_export`; each of them by `add_choices` where a YAML chooses.
2.  It has Model Garden train with ours: `use_averages`, `use_trainer`, `use_runner`.
3.  `tf_lamb.model_garden.train` hands its run to Model Garden's main: `hand_over`.
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

# A task never says which table it wants and gets the first, although its optimizers may be
# new-style; averaging (`ema:`) exists for the first alone.
OPTIMIZERS = optimizer_factory.LEGACY_OPTIMIZERS_CLS, optimizer_factory.NEW_OPTIMIZERS_CLS
_ADDED: dict[type, dict[str, type]] = {}  # choice -> our keys


def add_choices(choice: type[oneof.OneOfConfig], kinds: dict[str, type]) -> None:
    """Adds our keys to a choice, in every experiment; a subclass would serve its own alone.

    A config reads the type of a field from the annotations, and takes overrides of what is in its
    dict. Some experiments copy one that is older than ours. What derives from `choice` knows our
    keys, too.
    """
    added = _ADDED.setdefault(choice, {})
    added.update(kinds)
    choice.__annotations__.update(kinds)

    def complete(self):
        for key, kind in added.items():
            self.__dict__.setdefault(key, kind())

    def __post_init__(self, *args):
        complete(self)
        oneof.OneOfConfig.__post_init__(self, *args)

    def __setstate__(self, state):
        self.__dict__.update(state)
        complete(self)

    choice.__post_init__, choice.__setstate__ = __post_init__, __setstate__


def add_optimizers(made_by: dict, settings: dict[str, type]) -> None:
    """Adds optimizers: key -> what makes one, and the class of its settings."""
    add_choices(optimization_config.OptimizerConfig, settings)
    for table in OPTIMIZERS:
        table.update(made_by)


def add_learning_rates(made_by: dict, settings: dict[str, type]) -> None:
    """Adds learning rates: what makes them, and the classes of their settings."""
    add_choices(optimization_config.LrConfig, settings)
    optimizer_factory.LR_CLS.update(made_by)


def add_warmups(made_by: dict, settings: dict[str, type]) -> None:
    """Adds warmups: what makes them, and the classes of their settings."""
    add_choices(optimization_config.WarmupConfig, settings)
    optimizer_factory.WARMUP_CLS.update(made_by)


def add_export(task: type) -> None:
    """Exports a task as the one that it derives from: the table asks for the class itself."""
    known = export_savedmodel.SERVING_MODULES
    known[task] = next(known[base] for base in task.__mro__ if base in known)


def use_averages(averages: type) -> None:
    """Makes the averages of Model Garden's factory of this class, which it finds in a module."""
    optimizer_factory.ema_optimizer = SimpleNamespace(ExponentialMovingAverage=averages)


def use_trainer(trainer: type) -> None:
    """Trains every experiment with this class; it has no other way to choose one."""
    with gin.unlock_config():
        gin.bind_parameter("create_trainer.trainer_cls", trainer)


def use_runner(runner: type, write_params) -> None:
    """Runs `run_experiment` with this class, and writes params.yaml with `write_params`."""
    train_lib.OrbitExperimentRunner = runner
    train_utils.serialize_config = write_params


def hand_over(params, strategy=None, is_shown: bool = False) -> None:
    """Makes Model Garden's main run this experiment, though it reads the flags itself.

    It makes a strategy, unless it is handed that of workers who have met. Where progress is shown,
    Orbit logs its lines, and prints none.
    """
    train_utils.parse_configuration = lambda flags: params
    if strategy is not None:
        distribute_utils.get_distribution_strategy = lambda **_: strategy
    if is_shown:
        orbit.controller._log = logging.info
