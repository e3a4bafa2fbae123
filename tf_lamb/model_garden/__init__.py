"""The Model Garden frontend: experiments that train with the optimizers of this package.

Importing it registers nothing. One call does:

    import tf_lamb.model_garden
    tf_lamb.model_garden.register()

`python -m tf_lamb.model_garden.train` makes that call, and Model Garden's own mains make it with
`--gin_params='import tf_lamb.model_garden.registered'`.
"""

from tf_lamb.model_garden.common.errors import require


def register() -> None:
    """Registers our optimizers, schedules, tasks, trainer and experiments with Model Garden.

    Model Garden's mains then train with our runner, too. It does what an optimizer's settings ask
    for besides steps: divergence reports, trust ratios, noise, the end of AdaScale. It may be
    called any number of times.

    Raises:
        ModuleNotFoundError: if Model Garden is not installed.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers, schedules
    from tf_lamb.model_garden.running import runner

    optimizers.register_optimizers()
    schedules.register_schedules()
    runner.register_trainer()
    from tf_lamb.model_garden.experiments import named  # noqa: F401  (registers, with their tasks)


def register_optimizer(key: str, optimizer: type) -> None:
    """Registers a class of yours as an optimizer of every experiment.

    In a module `my_rules.py`, which the command imports:

        LayerwiseLion = tf_lamb.tf_keras.optimizer_of(layerwise_lion)
        tf_lamb.model_garden.register_optimizer("layerwise_lion", LayerwiseLion)

        python -m tf_lamb.model_garden.train --gin_params='import my_rules' \\
          --params_override=trainer.optimizer_config.optimizer.type=layerwise_lion ...

    Args:
        key: The `type` in YAMLs and overrides; the class's arguments are the settings beside it.
        optimizer: A class that `tf_lamb.tf_keras.optimizer_of` made, or a subclass of an optimizer
            of `tf_lamb.tf_keras`.

    Raises:
        ModuleNotFoundError: if Model Garden is not installed.
        TypeError: if the class is any other.
        ValueError: if an optimizer of another name, or one of Model Garden's own, has the key.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers

    optimizers.register_user_class(key, optimizer)
