"""Lets the experiments of Model Garden train with the optimizers of this package.

Importing `tf_lamb.model_garden` changes nothing in Model Garden. To register the optimizers, call:

    import tf_lamb.model_garden
    tf_lamb.model_garden.register()

`python -m tf_lamb.model_garden.train` calls `register` itself. Model Garden's own main programs
call it if they get the flag `--gin_params='import tf_lamb.model_garden.registered'`.
"""

from tf_lamb.model_garden.common.errors import require


def register() -> None:
    """Registers this package's optimizers, schedules, tasks and experiments with Model Garden.

    Model Garden's main programs then also train with this package's trainer and runner. The runner
    handles the settings of an optimizer that act outside of its updates. It reports divergence,
    trust ratios and the noise scale, and it ends training with AdaScale when AdaScale's progress
    has reached the setting `base_steps`.

    The function may be called any number of times.

    Raises:
        ModuleNotFoundError: if Model Garden is not installed.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers, schedule_configs
    from tf_lamb.model_garden.running import runner

    optimizers.register_optimizers()
    schedule_configs.register_schedules()
    runner.register_trainer()
    from tf_lamb.model_garden.experiments import named  # noqa: F401  (registers, with their tasks)


def register_optimizer(key: str, optimizer: type) -> None:
    """Registers an optimizer class of yours, so that every experiment can choose it by name.

    Call the function in a module of yours, such as `my_rules.py`:

        LayerwiseLion = tf_lamb.tf_keras.optimizer_of(layerwise_lion)
        tf_lamb.model_garden.register_optimizer("layerwise_lion", LayerwiseLion)

    Then let the training command import that module:

        python -m tf_lamb.model_garden.train --gin_params='import my_rules' \\
          --params_override=trainer.optimizer_config.optimizer.type=layerwise_lion ...

    Args:
        key: The name of the class in settings: the value of `optimizer_config.optimizer.type`. The
            arguments of the class are the settings under `optimizer_config.optimizer.KEY`.
        optimizer: A class that `tf_lamb.tf_keras.optimizer_of` made, or a subclass of an optimizer
            of `tf_lamb.tf_keras`.

    Raises:
        ModuleNotFoundError: if Model Garden is not installed.
        TypeError: if `optimizer` is not such a class.
        ValueError: if an optimizer class of another name, or one of Model Garden's own optimizers,
            is already registered under `key`.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers

    optimizers.register_user_class(key, optimizer)
