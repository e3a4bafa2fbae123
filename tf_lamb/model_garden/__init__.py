"""The Model Garden frontend: experiments that train with the optimizers of this package.

Nothing is registered by importing it. One call does so:

    import tf_lamb.model_garden
    tf_lamb.model_garden.register()

`python -m tf_lamb.model_garden.train` makes that call, and Model Garden's own mains make it with
`--gin_params='import tf_lamb.model_garden.registered'`.
"""

from tf_lamb.model_garden.common.errors import require


def register() -> None:
    """Makes our optimizers, schedules, tasks, trainer and experiments known to Model Garden.

    Its mains then train with our runner, too, which sees to what an optimizer's settings ask for
    besides steps: divergence reports, trust ratios, noise, the end of AdaScale. May be called any
    number of times.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers, schedules
    from tf_lamb.model_garden.running import runner

    optimizers.register_optimizers()
    schedules.register_schedules()
    runner.register_trainer()
    from tf_lamb.model_garden.experiments import named  # noqa: F401  (registers, with their tasks)


def register_optimizer(key: str, optimizer: type) -> None:
    """Makes a class of yours an optimizer of every experiment, under a key of its own.

    In a module `my_rules.py`, which the command imports:

        LayerwiseLion = tf_lamb.tf_keras.optimizer_of(layerwise_lion)
        tf_lamb.model_garden.register_optimizer("layerwise_lion", LayerwiseLion)

        python -m tf_lamb.model_garden.train --gin_params='import my_rules' \\
          --params_override=trainer.optimizer_config.optimizer.type=layerwise_lion ...

    Args:
        key: The `type` in YAMLs and overrides; the class's arguments are the settings beside it.
        optimizer: A class that `tf_lamb.tf_keras.optimizer_of` made.

    Raises:
        TypeError: for any other class.
        ValueError: for a key that another optimizer of this package has.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers

    optimizers.register_user_class(key, optimizer)
