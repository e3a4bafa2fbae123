"""Checks a run before it starts; each error is one sentence.

Model Garden itself finds most of these errors only minutes later, with a long traceback, or after
it has overwritten the params.yaml of another run.
"""

import contextlib

import tensorflow as tf
from official.modeling.optimization import OptimizerFactory
from official.nlp.tasks.masked_lm import MaskedLMConfig

from tf_lamb.model_garden.checks.data import check_data
from tf_lamb.model_garden.checks.flags import check_effects
from tf_lamb.model_garden.checks.rates import check_numbers, check_rate, is_at_least_0
from tf_lamb.model_garden.checks.trainer import check_best, check_loop, check_steps
from tf_lamb.model_garden.common import batches, clusters
from tf_lamb.model_garden.common.errors import UserError, named, unknown
from tf_lamb.model_garden.experiments import left_behind
from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.tasks import check_groups, check_heads

# seam: relies on tf-models-official 2.20.0, whose `get_distribution_strategy` knows these names.
_STRATEGIES = "off", "one_device", "mirrored", "multi_worker_mirrored", "tpu"
_SERVED = "parameter_server"  # known to that function, but Model Garden cannot train with it


def check_run(params, mode, model_dir, experiment=None, seed=None) -> None:
    """Checks that a run is possible, and would not overwrite files of another run.

    Args:
        params: the experiment's `ExperimentConfig`.
        mode: the mode of the run.
        model_dir: the folder of the run.
        experiment: the name of the experiment, if known.
        seed: the seed, if one is set.

    Raises:
        UserError: for the first error that is found.
    """
    training, evaluating = "train" in mode, "eval" in mode
    check_runtime(params, evaluating)
    check_effects(params)
    if params.runtime.distribution_strategy.lower() == "multi_worker_mirrored":
        clusters.check()
    if training:
        _check_cluster(params)
        check_optimizer(params, experiment)
        check_batch(params)
    _check_first_stage(params, model_dir)
    check_heads(params.task, evaluating)
    check_data(params, training, evaluating)
    if evaluating:
        check_best(params)
    if training:
        check_loop(params.trainer, evaluating)
        check_steps(params, model_dir)
        model_dirs.check_folder(params, model_dir, experiment, seed)
    else:
        if mode == "continuous_eval":
            model_dirs.check_followed(model_dir)
        model_dirs.check_evaluated(params, model_dir)
    check_devices(params)


def check_runtime(params, evaluating: bool) -> None:
    """Checks the devices, the strategy and the precision of a run.

    Args:
        params: the experiment's `ExperimentConfig`.
        evaluating: whether the run evaluates.

    Raises:
        UserError: if Model Garden cannot run with these settings.
    """
    strategy = params.runtime.distribution_strategy
    if not isinstance(strategy, str):
        raise UserError(
            f"runtime.distribution_strategy is {strategy!r}, because YAML reads a bare off as "
            "false. Write it in quotes: 'off', on the command line "
            "--params_override=\"runtime.distribution_strategy='off'\""
        )
    if not isinstance(gpus := params.runtime.num_gpus, int) or gpus < 0:
        raise UserError(f"runtime.num_gpus is {gpus}. Set it to 0 or more")
    if strategy.lower() == _SERVED:
        raise UserError(
            f"runtime.distribution_strategy={strategy} cannot train here: a step sums over "
            "replicas, which a parameter server has not. Write runtime.distribution_strategy="
            "multi_worker_mirrored"
        )
    if strategy.lower() not in _STRATEGIES:
        raise UserError(unknown("runtime.distribution_strategy", strategy, _STRATEGIES))
    algorithm = params.runtime.all_reduce_alg
    if algorithm and strategy.lower() == "mirrored" and params.runtime.enable_xla and gpus:
        # TensorFlow would raise its own error only at the first step.
        raise UserError(
            f"runtime.all_reduce_alg={algorithm} lets replicas meet in the middle of a step, which "
            "runtime.enable_xla=true compiles for each alone. Leave all_reduce_alg out, or write "
            "runtime.enable_xla=false"
        )
    ema = params.trainer.optimizer_config.ema
    if ema is not None and strategy.lower() == "off" and evaluating:
        raise UserError(
            "trainer.optimizer_config.ema cannot be evaluated with "
            "runtime.distribution_strategy='off', because Model Garden swaps the averaged weights "
            "in through a strategy. Write runtime.distribution_strategy=one_device"
        )
    if params.runtime.mixed_precision_dtype == "float16":
        if ema is not None:
            raise UserError(
                "trainer.optimizer_config.ema cannot be combined with "
                "runtime.mixed_precision_dtype=float16 in Model Garden, whose average cannot be "
                "loss-scaled. Write runtime.mixed_precision_dtype=bfloat16"
            )
        if (setting := measures(params)) and batches.replicas(params) != 1:
            raise UserError(
                f"{setting} has to see the gradients of each replica, which "
                "runtime.mixed_precision_dtype=float16 sums before. Write "
                "runtime.mixed_precision_dtype=bfloat16"
            )
        if isinstance(params.task, MaskedLMConfig) and not getattr(params.task, "scale_loss", 0):
            raise UserError(
                "runtime.mixed_precision_dtype=float16 would train without loss scaling, because "
                "Model Garden's own masked-LM step has none. Write task.scale_loss=true in an "
                "experiment of ours (lamb/...), or runtime.mixed_precision_dtype=bfloat16"
            )


def _check_cluster(params) -> None:
    """Raises `UserError` if TF_CONFIG has several workers, but the strategy is for one process.

    Each worker would then train the whole model by itself, in the same folder.
    """
    strategy, count = params.runtime.distribution_strategy, 0
    if strategy.lower() in ("off", "one_device", "mirrored"):
        with contextlib.suppress(ValueError):  # an invalid TF_CONFIG has no effect here
            count = batches.cluster_size()
    if count > 1:
        raise UserError(
            f"TF_CONFIG describes {count} workers, but runtime.distribution_strategy={strategy} "
            "trains in each of them alone. Write runtime.distribution_strategy="
            "multi_worker_mirrored, or unset TF_CONFIG"
        )


def measures(params) -> str | None:
    """Returns the path of the setting that turns on measuring of gradient noise; None if off."""
    optimizer = params.trainer.optimizer_config.optimizer
    settings, path = optimizer.get(), f"trainer.optimizer_config.optimizer.{optimizer.type}"
    if getattr(getattr(settings, "adascale", None), "scale", None) is not None:
        return f"{path}.adascale"  # AdaScale measures the noise itself
    if getattr(getattr(settings, "measure_noise", None), "enabled", False):
        return f"{path}.measure_noise"
    return None


def check_devices(params) -> None:
    """Checks that TensorFlow sees as many GPUs as the settings of a run ask for.

    Args:
        params: the experiment's `ExperimentConfig`.

    Raises:
        UserError: if a GPU is missing, or if there are several and the strategy uses one device.
    """
    num_gpus, strategy = params.runtime.num_gpus, params.runtime.distribution_strategy.lower()
    if num_gpus > 1 and strategy in ("off", "one_device"):
        raise UserError(
            f"runtime.num_gpus is {num_gpus}, but runtime.distribution_strategy={strategy} has one "
            "device. Write runtime.distribution_strategy=mirrored"
        )
    # This call does not initialize the devices. The distribution strategy has to do that first.
    gpus = tf.config.list_physical_devices("GPU") if num_gpus else ()
    available = sum(len(tf.config.get_logical_device_configuration(gpu) or [gpu]) for gpu in gpus)
    if num_gpus > available and strategy != "tpu":
        raise UserError(
            f"runtime.num_gpus is {num_gpus}, but TensorFlow sees {available}. Write "
            f"runtime.num_gpus={available}, or install what drives the others"
        )


def check_optimizer(params, experiment: str | None = None) -> None:
    """Checks the optimizer and the schedules of an experiment.

    Args:
        params: the experiment's `ExperimentConfig`.
        experiment: the name of the experiment, if it is known.

    Raises:
        UserError: if they cannot be built, or if a setting would be lost or have no effect.
    """
    config = params.trainer.optimizer_config
    if not isinstance(steps := params.trainer.train_steps, int) or steps <= 0:
        raise UserError(f"trainer.train_steps is {steps}. Set a whole number of 1 or more")
    for part in ("optimizer", "learning_rate"):
        if getattr(config, part).get() is None:
            raise UserError(f"trainer.optimizer_config.{part}.type is not set")
    check_rate(params)
    source = f"trainer.optimizer_config.optimizer.{config.optimizer.type}"
    for name in ("weight_decay", "weight_decay_rate"):
        decay = getattr(config.optimizer.get(), name, None)
        if isinstance(decay, int | float) and not is_at_least_0(decay):
            raise UserError(f"{source}.{name} is {decay}, and it is a number of 0 or more")
    if config.optimizer.type not in OPTIMIZERS:
        return
    left_behind.check(config.optimizer, experiment)
    _check_clipping(config.optimizer.get(), source)
    _check_decay(params)
    path = f"{source}.weight_decay_schedule"
    schedule = config.optimizer.get().weight_decay_schedule
    check_numbers(schedule, path, params.trainer.train_steps, "weight decay")
    if not isinstance(config.optimizer.get().gradient_accumulation_steps, int | float | None):
        raise UserError(
            f"{source}.gradient_accumulation_steps takes one number here. Write one, and let "
            "train_stages --largest_batch grow the batch"
        )
    if params.task.differential_privacy_config is not None:
        raise UserError(
            "task.differential_privacy_config changes the gradients of one optimizer call, which "
            f"is no part of {config.optimizer.type}. Leave it out, or take adamw"
        )
    # The constructor of the optimizer checks the other arguments. It gets a constant learning rate
    # and runs in a graph, so that it makes no variable on a device: a multi-worker strategy has to
    # be made before any device is used.
    with tf.Graph().as_default(), named(source):
        OptimizerFactory(config).build_optimizer(1e-3)


def _check_clipping(own, source: str) -> None:
    """Raises `UserError` if more than one way of clipping is set.

    The experiment may have set one, and the user another.
    """
    values_by_name = {name: getattr(own, name) for name in left_behind.CLIPPINGS}
    clippings = {name: value for name, value in values_by_name.items() if value is not None}
    if len(clippings) > 1:
        values = " and ".join(f"{name}={value}" for name, value in clippings.items())
        raise UserError(
            f"{source} has {values}, by you or by the experiment, and one alone can clip. Write "
            f"{' or '.join(f'{source}.{name}=null' for name in clippings)}"
        )


def _check_decay(params) -> None:
    """Raises `UserError` if the loss and the optimizer both decay the weights."""
    in_loss = getattr(getattr(params.task, "losses", None), "l2_weight_decay", 0)
    optimizer = params.trainer.optimizer_config.optimizer
    name, decay = "weight_decay", optimizer.get().weight_decay
    if kind := optimizer.get().weight_decay_schedule.type:
        name, decay = "weight_decay_schedule.type", kind
    if in_loss and decay:
        raise UserError(
            f"task.losses.l2_weight_decay={in_loss} decays in the loss what trainer."
            f"optimizer_config.optimizer.{optimizer.type}.{name}={decay} decays too, and "
            "lengthens the gradient by it. Write task.losses.l2_weight_decay=0"
        )


def check_batch(params, replicas: int | None = None) -> None:
    """Checks that the batch divides into equal parts for the replicas and micro-batches.

    Also checks that noise measurement has at least two parts to compare, that ghost batch
    normalization can split a part into groups, and what the task itself requires of the batch.

    Args:
        params: the experiment's `ExperimentConfig`.
        replicas: the number of replicas. Defaults to None: the number in the settings.

    Raises:
        UserError: if the batch cannot be used.
    """
    batch_size = getattr(getattr(params.task, "train_data", None), "global_batch_size", None)
    if batch_size is None:
        return
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(
            f"task.train_data.global_batch_size is {batch_size}. Set a whole number of 1 or more"
        )
    replicas, micro_batches = replicas or batches.replicas(params), batches.micro_batches(params)
    with named(f"task.train_data.global_batch_size={batch_size}"):
        examples = batches.per_replica_batch(batch_size, replicas or 1, micro_batches)
    if (setting := measures(params)) and replicas == micro_batches == 1:
        path, _, kind = setting.rpartition(".")
        off = "scale=null" if kind == "adascale" else "enabled=false"
        raise UserError(
            f"{setting} compares the gradients of the parts of a batch, and a step of this run has "
            f"one part. Write {path}.gradient_accumulation_steps=2 or more, or {setting}.{off}"
        )
    if check := getattr(params.task, "check_experiment", None):  # a task may have its own check
        check(params)
    check_groups(params, examples)


def _check_first_stage(params, model_dir) -> None:
    """Raises `UserError` if a new run cannot start from the checkpoint `task.init_checkpoint`.

    Also raises if `task.init_optimizer` is set without `task.init_checkpoint`.
    """
    path = params.task.init_checkpoint
    takes_optimizer = getattr(params.task, "init_optimizer", False)
    if not path:
        if takes_optimizer:
            raise UserError(
                "task.init_optimizer needs task.init_checkpoint: name the first stage's folder"
            )
        return
    if checkpoints.is_begun(model_dir):
        return  # the run resumes from its own checkpoint
    checkpoint = model_dirs.checkpoint_in(path)
    if checkpoint is None:
        raise UserError(
            f"task.init_checkpoint={path}: there is no checkpoint. Name the --model_dir of the "
            "first stage, once it has trained, or a checkpoint in it"
        )
    if reason := checkpoints.why_broken(checkpoint):
        raise UserError(
            f"task.init_checkpoint={path} cannot be read: {reason}. Name another checkpoint in "
            "that folder, or bring back a copy"
        )
