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
