"""Lets the experiments of Model Garden train with the optimizers of this package.

Importing `tf_lamb.model_garden` registers nothing with Model Garden. This call does:

    import tf_lamb.model_garden
    tf_lamb.model_garden.register()

`python -m tf_lamb.model_garden.train` makes that call. Model Garden's own main programs make it if
they get the flag `--gin_params='import tf_lamb.model_garden.registered'`.
"""

from tf_lamb.model_garden.common.errors import require


def register() -> None:
    """Registers this package's optimizers, schedules, tasks and experiments with Model Garden.

    Model Garden's main programs then also train with this package's trainer and runner. The runner
    acts on those settings of an optimizer that do not change its updates: it reports divergence,
    trust ratios and the noise scale, and ends a run of AdaScale after its `base_steps`.

    The function may be called any number of times.

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
    """Registers an optimizer class of yours, so that every experiment can choose it by name.

    Call the function in a module, here `my_rules.py`:

        LayerwiseLion = tf_lamb.tf_keras.optimizer_of(layerwise_lion)
        tf_lamb.model_garden.register_optimizer("layerwise_lion", LayerwiseLion)

    The command then imports that module:

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
        ValueError: if the key belongs to a class of another name, or to one of Model Garden's own
            optimizers.
    """
    require()
    from tf_lamb.model_garden.experiments import optimizers

    optimizers.register_user_class(key, optimizer)
