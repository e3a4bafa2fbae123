"""What can be known to be wrong with a run before it starts, one sentence each.

Model Garden finds most of it too: minutes later, deep inside, or after it has overwritten the
params.yaml of another run.
"""

import tensorflow as tf
from official.modeling.optimization import OptimizerFactory
from official.nlp.tasks import masked_lm

from tf_lamb.model_garden.checks import data as data_checks
from tf_lamb.model_garden.checks.errors import UserError
from tf_lamb.model_garden.experiments import batches
from tf_lamb.model_garden.experiments import optimizers as configs
from tf_lamb.model_garden.experiments.entries import CLIPPINGS
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import autowarmup
from tf_lamb.model_garden.tasks import adversarial as adversarial_tasks
from tf_lamb.model_garden.tasks import images as image_tasks
from tf_lamb.model_garden.tasks import masked_lm as tasks

_LISTS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")


def check(params, mode, model_dir, experiment=None, seed=None) -> None:
    """Raises one `UserError` if this run cannot be, or would harm another one."""
    training = "train" in mode
    for complaint in (
        _runtime(params, "eval" in mode),
        _optimization(params) if training else None,
        _batch(params) if training else None,
        _first_stage(params, model_dir) if training else None,
        data_checks.complaint(params, training, "eval" in mode),
        model_dirs.why_not_here(params, model_dir, experiment, seed) if training else None,
    ):
        if complaint:
            raise UserError(complaint)


def check_program(params) -> None:
    """Raises one `UserError` if the step of this run cannot be; looks at no file."""
    if complaint := _runtime(params, evaluating=False) or _optimization(params):
        raise UserError(complaint)


def _runtime(params, evaluating: bool) -> str | None:
    strategy = params.runtime.distribution_strategy
    if not isinstance(strategy, str):
        return (
            f"runtime.distribution_strategy is {strategy!r}, because YAML reads a bare off as "
            "false. Write it in quotes: 'off', on the command line "
            "--params_override=\"runtime.distribution_strategy='off'\""
        )
    if not isinstance(gpus := params.runtime.num_gpus, int) or gpus < 0:
        return f"runtime.num_gpus is {gpus}. Set it to 0 or more"
    ema = params.trainer.optimizer_config.ema
    if ema is not None and strategy.lower() == "off" and evaluating:
        return (
            "trainer.optimizer_config.ema cannot be evaluated with "
            "runtime.distribution_strategy='off', because Model Garden swaps the averaged weights "
            "in through a strategy. Write runtime.distribution_strategy=one_device"
        )
    if params.runtime.mixed_precision_dtype == "float16":
        if ema is not None:
            return (
                "trainer.optimizer_config.ema cannot be combined with "
                "runtime.mixed_precision_dtype=float16 in Model Garden, whose average cannot be "
                "loss-scaled. Write runtime.mixed_precision_dtype=bfloat16"
            )
        if isinstance(params.task, masked_lm.MaskedLMConfig) and not _scales_loss(params.task):
            return (
                "runtime.mixed_precision_dtype=float16 would train without loss scaling, because "
                "Model Garden's own masked-LM step has none. Write task.scale_loss=true in an "
                "experiment of ours (lamb/...), or runtime.mixed_precision_dtype=bfloat16"
            )
    return None


def _scales_loss(task) -> bool:
    return isinstance(task, tasks.MaskedLMConfig) and task.scale_loss


def _optimization(params) -> str | None:
    config = params.trainer.optimizer_config
    if not isinstance(steps := params.trainer.train_steps, int) or steps <= 0:
        return f"trainer.train_steps is {steps}. Set it to 1 or more"
    for part in ("optimizer", "learning_rate"):
        if getattr(config, part).get() is None:
            return f"trainer.optimizer_config.{part}.type is not set"
    for part in ("learning_rate", "warmup"):
        choice = getattr(config, part)
        for key, value in (choice.get().as_dict() if choice.get() else {}).items():
            # `staircase` alone means something when it is None: false.
            if value is None and key != "staircase":
                return (
                    f"trainer.optimizer_config.{part}.{choice.type}.{key} is not set and has no "
                    f"default. Set it, e.g. for trainer.train_steps={params.trainer.train_steps}"
                )
    if complaint := _warmup(params) or autowarmup.complaint(config):
        return complaint
    ours = config.optimizer.type in configs._OPTIMIZERS
    if ours and (complaint := _left_behind(config.optimizer) or _decays_twice(params)):
        return complaint
    private = params.task.differential_privacy_config is not None
    if ours and private and (config.optimizer.get().gradient_accumulation_steps or 1) > 1:
        return (
            "task.differential_privacy_config clips and adds noise once an update, and cannot be "
            f"combined with {config.optimizer.type}.gradient_accumulation_steps. Leave one out"
        )
    if ours:
        # The constructor knows best. It sees a constant, and makes no variable on a device: a
        # multi-worker strategy must be the first to touch them.
        with tf.Graph().as_default():
            try:
                OptimizerFactory(config).build_optimizer(
                    1e-3, gradient_transformers=[tuple] if private else None
                )
            except (TypeError, ValueError) as error:
                reason = str(error).splitlines()[0]  # Gin adds where it stood in the call
                return f"trainer.optimizer_config.optimizer.{config.optimizer.type}: {reason}"
    return None


def _left_behind(optimizer) -> str | None:
    """Settings belong to the type that they were written for: another type begins without them."""
    chosen = optimizer.get().as_dict()
    for other in configs._OPTIMIZERS:
        for key in (*_LISTS, *CLIPPINGS):
            written = getattr(getattr(optimizer, other), key, None)
            same = CLIPPINGS if key in CLIPPINGS else (key,)
            if written and all(chosen.get(each) is None for each in same):
                return (
                    f"trainer.optimizer_config.optimizer.type={optimizer.type} has no {key}, but "
                    f"{other}, which is not used, has {written}. Write it under {optimizer.type}, "
                    f"too, or {other}.{key}=null"
                )
    return None


def _decays_twice(params) -> str | None:
    in_loss = getattr(getattr(params.task, "losses", None), "l2_weight_decay", 0)
    optimizer = params.trainer.optimizer_config.optimizer
    decay = optimizer.get().weight_decay
    if in_loss and decay:
        return (
            f"task.losses.l2_weight_decay={in_loss} decays in the loss what trainer."
            f"optimizer_config.optimizer.{optimizer.type}.weight_decay={decay} decays too, and "
            "lengthens the gradient by it. Write task.losses.l2_weight_decay=0"
        )
    return None


def _warmup(params) -> str | None:
    warmup, steps = params.trainer.optimizer_config.warmup, params.trainer.train_steps
    length = "steps" if warmup.type == "tf_lamb" else "warmup_steps"
    warm = getattr(warmup.get(), length, 0) if warmup.get() else 0
    if warm > steps:
        return (
            f"warmup is longer than training: trainer.optimizer_config.warmup.{warmup.type}."
            f"{length}={warm:,} > trainer.train_steps={steps:,}. Train for longer, or take a "
            "smaller batch"
        )
    return None


def _batch(params) -> str | None:
    config = params.trainer.optimizer_config.optimizer.get()
    accumulation = getattr(config, "gradient_accumulation_steps", None) or 1
    batch = getattr(getattr(params.task, "train_data", None), "global_batch_size", None)
    if batch is None:
        return None
    if not isinstance(batch, int) or batch < 1:
        return f"task.train_data.global_batch_size is {batch}. Set it to 1 or more"
    try:
        examples = batches.split(batch, batches.replicas(params) or 1, accumulation)
    except ValueError as error:
        return f"task.train_data.global_batch_size={batch}: {error}"
    return adversarial_tasks.why_no_attack(params) or image_tasks.why_no_groups(params, examples)


def _first_stage(params, model_dir) -> str | None:
    path = params.task.init_checkpoint
    takes_optimizer = getattr(params.task, "init_optimizer", False)
    if not path:
        if takes_optimizer:
            return "task.init_optimizer needs task.init_checkpoint: name the first stage's folder"
        return None
    if checkpoints.is_begun(model_dir):
        return None  # it goes on from its own
    checkpoint = model_dirs.checkpoint_in(path)
    if checkpoint is None:
        return (
            f"task.init_checkpoint={path}: there is no checkpoint. Name the --model_dir of the "
            "first stage, once it has trained, or a checkpoint in it"
        )
    if reason := checkpoints.why_broken(checkpoint):
        return (
            f"task.init_checkpoint={path} cannot be read: {reason}. Name another checkpoint in "
            "that folder, or bring back a copy"
        )
    return None
