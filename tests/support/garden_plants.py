"""Faults of the past, planted back into a process that runs a command of the Model Garden.

Each is what the code did before it was mended; `benchmarks/garden_fuzz.py --plant` has to find it.
Two have tests of their own instead: gradients summed over replicas at every micro-batch end as
those summed once do, and a loop that watches no loss is no command of ours.
"""

from collections.abc import Callable
from typing import NamedTuple


def clock():
    """With float16, a micro-batch that overflows counts as a step of its own."""
    from tf_lamb.tf_keras.optimizer import LayerwiseOptimizer

    LayerwiseOptimizer._take_loss_scale = lambda self, scale: None


def averages():
    """Averages of the weights decay at every micro-batch."""
    from official.modeling.optimization import ema_optimizer

    from tf_lamb.model_garden.experiments.optimizers import ExponentialMovingAverage

    base = ema_optimizer.ExponentialMovingAverage
    ExponentialMovingAverage.apply_gradients = base.apply_gradients


def use_ema():
    """Averages of an optimizer of ours are kept and never used."""
    from tf_lamb.model_garden.experiments import optimizers

    build = optimizers.build

    def built(cls, *args, use_ema=False, **arguments):
        return build(cls, *args, **arguments)

    optimizers.build = built


def no_checkpoint():
    """Random weights are evaluated where there is no checkpoint."""
    from tf_lamb.model_garden.folders import checkpoints

    last_whole = checkpoints.last_whole
    checkpoints.last_whole = lambda folder: last_whole(folder) or ""


def evaluations():
    """An evaluation that a kill prevented never happens."""
    import orbit

    from tf_lamb.model_garden.running.controllers import Controller

    Controller.train_and_evaluate = orbit.Controller.train_and_evaluate


def stages():
    """Every stage begins with the checkpoint that the command names."""
    from tf_lamb.model_garden.common import yamls

    yamls.without = lambda settings, path: settings


def end_of_a_stage():
    """A stage that AdaScale ends before its last step is taken for interrupted."""
    from tf_lamb.model_garden.folders import model_dirs

    model_dirs._steps_of_adascale = lambda folder: 0.0


def overridden_steps():
    """The curve of the rate does not follow the steps that `--params_override` says."""
    from tf_lamb.model_garden.experiments import recipes

    fill_in = recipes.fill_in
    recipes.fill_in = lambda name, batch_size, params, own: fill_in(name, batch_size, params)


def twice():
    """Of two equal keys of a YAML the last holds."""
    import yaml

    from tf_lamb.model_garden.common import yamls

    yamls._Loader.compose_mapping_node = yaml.SafeLoader.compose_mapping_node


def no_batch():
    """A validation without one batch reports metrics of 0."""
    from official.core import base_trainer

    from tf_lamb.model_garden.checks import data
    from tf_lamb.model_garden.running.trainer import Trainer

    data._lacks_a_batch = lambda *_: False
    Trainer.eval_end = base_trainer.Trainer.eval_end


def share():
    """`--per_replica_batch_size` is refused for all optimizers but one."""
    from tf_lamb.model_garden.experiments import parsing

    parsing.OPTIMIZERS = {"tf_lamb": None}


def devices():
    """A run waits for GPUs that are not there."""
    from tf_lamb.model_garden.checks import experiment

    experiment.check_devices = lambda params: None


def steps_of_adascale():
    """`--global_batch_size` moves neither the end of AdaScale nor the start of averages."""
    from tf_lamb.model_garden.experiments import recipes

    recipes._other_steps = lambda config, stretch: ()


def rates():
    """Rates and lengths that are nonsense are taken as they are."""
    from tf_lamb.model_garden.checks import experiment

    experiment.check_rate = lambda params: None


def workers():
    """Under a strategy of one worker each of a cluster trains alone."""
    from tf_lamb.model_garden.checks import experiment

    experiment._check_cluster = lambda params: None


def no_run():
    """A continuous evaluation follows a folder that nobody trains in."""
    from tf_lamb.model_garden.folders import model_dirs

    model_dirs.check_followed = lambda folder: None


def half_a_model():
    """What a model and a checkpoint have in common is evaluated."""
    from tf_lamb.model_garden.folders import checkpoints, model_dirs

    model_dirs.check_evaluated = lambda params, folder: None
    checkpoints.gaps = lambda checkpoint, root, variables: ([], [])


def longer_stage():
    """A stage is lengthened that the next one has begun with."""
    from tf_lamb.model_garden.folders import model_dirs

    model_dirs.check_handed_over = lambda params, folder, successor: None


def records():
    """Labels without a class and tokens beyond the vocabulary are trained on."""
    from tf_lamb.model_garden.checks import records

    records.limits = lambda task, data: {}


def jumps():
    """A run that goes on with another rate says nothing of it."""
    from tf_lamb.model_garden.running import jumps

    jumps.told = lambda *_: None


def metric():
    """A metric that nothing has ends the run at its first evaluation."""
    from tf_lamb.model_garden.checks import experiment

    experiment._check_best = lambda params: None


def passes():
    """Training data that are read once, in one order, are trained on."""
    from tf_lamb.model_garden.checks import data

    data._check_passes = lambda params, part, own: None


def decay():
    """A decay below 0 is refused in words that name no setting."""
    from tf_lamb.model_garden.checks import experiment

    experiment.check_numbers = lambda *_: None  # of a decay; the module of rates has its own


class Plant(NamedTuple):
    """A fault, and whether a drawn run can show it: others need not be made."""

    put_back: Callable
    can_be_shown_by: Callable


PLANTS = {  # in the order of their discovery
    put_back.__name__: Plant(put_back, can_be_shown_by)
    for put_back, can_be_shown_by in (
        (clock, lambda run: run.overflows and run.accumulates > 1 and run.precision == "float16"),
        (averages, lambda run: run.averages and run.is_run_at_once_too),
        (use_ema, lambda run: run.is_refused == "use_ema"),
        (no_checkpoint, lambda run: run.is_refused == "no checkpoint"),
        (evaluations, lambda run: run.interruption and run.mode == "train_and_eval"),
        (stages, lambda run: run.stages > 1 and run.flags),
        (
            end_of_a_stage,
            lambda run: run.stages > 1 and "adascale" in run.optimizer and run.may_end_early,
        ),
        (overridden_steps, lambda run: run.keeps_steps),
        (twice, lambda run: run.is_refused == "twice"),
        (no_batch, lambda run: run.is_refused == "no batch"),
        (share, lambda run: any("per_replica" in flag for flag in run.flags)),
        (devices, lambda run: run.is_refused == "num_gpus"),
        (
            steps_of_adascale,
            lambda run: (
                any("global_batch" in flag for flag in run.flags)
                and not run.keeps_steps
                and ((run.averages or {}).get("start_step") or "adascale" in run.optimizer)
            ),
        ),
        (rates, lambda run: run.is_refused in ("learning_rate", "steps")),
        (workers, lambda run: run.is_refused == "cluster"),
        (no_run, lambda run: run.is_refused == "no run"),
        (half_a_model, lambda run: run.change == "model"),
        (longer_stage, lambda run: run.stages > 1 and "adascale" not in run.optimizer),
        (records, lambda run: run.is_refused == "class"),
        (jumps, lambda run: run.change == "more"),
        (metric, lambda run: run.is_refused == "metric"),
        (passes, lambda run: run.is_refused == "is_training"),
        (decay, lambda run: run.is_refused == "decay"),
    )
}
