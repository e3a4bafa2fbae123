"""Door 3: Model Garden experiments that train with the optimizers of this package.

Nothing is registered by importing it. One call does so:

    import tf_lamb.model_garden
    tf_lamb.model_garden.register()

`python -m tf_lamb.model_garden.train` makes that call, and Model Garden's own mains make it with
`--gin_params='import tf_lamb.model_garden.registered'`.
"""

from tf_lamb.core.checks import installed


def require() -> None:
    """Raises `ModuleNotFoundError`, with the line that installs it, where Model Garden is not."""
    installed.require("tf_lamb.model_garden", "official", "tf_keras", extra="model-garden")


def register(replace_stock: bool = False) -> None:
    """Makes our optimizers, schedules, task, trainer and experiments known to Model Garden.

    May be called any number of times.

    Args:
        replace_stock: also puts our optimizers in the place of Model Garden's own of the same
            algorithm. A stock experiment with `optimizer.type: lamb` then trains with ours, under
            the field names that it has today (`weight_decay_rate`).
    """
    require()
    from tf_lamb.model_garden.experiments import experiments, schedules
    from tf_lamb.model_garden.experiments import optimizers as configs
    from tf_lamb.model_garden.running import trainer
    from tf_lamb.model_garden.tasks import adversarial as adversarial_tasks
    from tf_lamb.model_garden.tasks import images as image_tasks
    from tf_lamb.model_garden.tasks import masked_lm as tasks

    configs.register_optimizers()
    schedules.register_schedules()
    trainer.register_trainer()
    tasks.register_tasks()
    image_tasks.register_image_tasks()
    adversarial_tasks.register_adversarial_tasks()
    experiments.register_experiments()
    if replace_stock:
        configs.replace_stock_optimizers()
