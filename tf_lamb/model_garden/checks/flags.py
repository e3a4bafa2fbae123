"""Refuses modes that cannot run, and flags and settings that would have no effect.

`parse_flags` and `check_flags` run before TensorFlow is imported, which takes seconds.
"""

import os

from absl import app, flags

from tf_lamb.core import rules
from tf_lamb.model_garden.common.errors import UserError, one_line

MODES = ("train", "eval", "train_and_eval", "continuous_eval", "train_and_post_eval")
# Mode -> why it cannot run here, as the end of an error.
# seam: relies on tf-models-official 2.20.0, whose flags allow these modes. It also has the flags in
# `_WITHOUT_EFFECT`.
_OTHER_MODES = {
    "continuous_train_and_eval": "waits for a pretraining to fine-tune each of its checkpoints, "
    "for which there are no flags here",
    "train_and_validate": "is not implemented in Model Garden",
}
_WITHOUT_EFFECT = ("tpu_platform", "tfhub_handle", "tflex_output_uri")
# seam: relies on tensorflow 2.20. It reads the name of a TPU from these environment variables.
_NAMES_OF_A_TPU = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")

_OPTIMIZER = "trainer.optimizer_config.optimizer"
_RATE = "trainer.optimizer_config.learning_rate.polynomial.initial_learning_rate"
_WARMUP = "trainer.optimizer_config.warmup.polynomial.warmup_steps"
_BATCH = "task.train_data.global_batch_size"
# Flags that other training programs have -> the setting of an experiment that does the same.
_SETTINGS = {
    "optimizer_type": f"{_OPTIMIZER}.type", "optimizer": f"{_OPTIMIZER}.type",
    "learning_rate": _RATE, "initial_learning_rate": _RATE, "init_lr": _RATE, "lr": _RATE,
    "warmup_steps": _WARMUP, "num_warmup_steps": _WARMUP,
    "weight_decay": f"{_OPTIMIZER}.tf_lamb.weight_decay",
    "weight_decay_rate": f"{_OPTIMIZER}.tf_lamb.weight_decay",
    "train_steps": "trainer.train_steps", "num_train_steps": "trainer.train_steps",
    "max_steps": "trainer.train_steps", "steps_per_loop": "trainer.steps_per_loop",
    "batch_size": _BATCH, "train_batch_size": _BATCH,
    "init_checkpoint": "task.init_checkpoint", "input_path": "task.train_data.input_path",
    "num_gpus": "runtime.num_gpus", "distribution_strategy": "runtime.distribution_strategy",
}  # fmt: skip
# The blocks in these paths, which have another name if the experiment has another type.
_BLOCKS = "polynomial", "tf_lamb"


def parse_flags(args: list[str], command: str, package: str = "tf_lamb.model_garden") -> list[str]:
    """Parses the flags of a command; of an unknown flag it says which setting does the same.

    Args:
        args: The command line, with the name of the program.
        command: The name of the command, for errors.
        package: The package of the command. Defaults to "tf_lamb.model_garden".

    Returns:
        The command line without the flags.

    Raises:
        SystemExit: if the flags cannot be parsed.
    """
    try:
        return flags.FLAGS(args)
    except flags.UnrecognizedFlagError as error:
        if error.flagname in _SETTINGS:
            with one_line(command, package=package):
                text = _unknown_flag_text(error.flagname, args, command != "find")
                raise UserError(text) from error
    except flags.Error:
        pass
    return app.parse_flags_with_usage(args)  # reports the error


def _unknown_flag_text(name: str, args: list[str], has_recipes: bool) -> str:
    """Returns the text of the error for a flag that is a setting of the experiment.

    Args:
        name: The name of the flag.
        args: The command line.
        has_recipes: Whether the command takes `--global_batch_size`, if it has this flag.
    """
    path, value = _SETTINGS[name], "VALUE"
    for i, argument in enumerate(args):
        flag, _, own_value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            value = own_value or next(iter(args[i + 1 : i + 2]), value)
    if name.startswith("optimizer") and value.lower() in map(str.lower, rules.OURS):
        value = f"tf_{value.lower()}"
    text = f"there is no flag --{name}. Write --params_override={path}={value}"
    if path == _BATCH and has_recipes and "global_batch_size" in flags.FLAGS:
        text += f", or --global_batch_size={value}, which also changes the rate and the steps"
    block = next((block for block in _BLOCKS if f".{block}." in path), None)
    return f"{text}, with the type of the experiment if it is not {block}" if block else text


def check_flags(args) -> None:
    """Checks the mode and the flags of a command.

    Args:
        args: the parsed flags.

    Raises:
        UserError: if the mode cannot run, or if a flag has no effect.
    """
    if reason := _OTHER_MODES.get(str(getattr(args, "mode", ""))):
        raise UserError(f"--mode={args.mode} {reason}. Take one that runs: {', '.join(MODES)}")
    for name in _WITHOUT_EFFECT:
        if value := getattr(args, name, None):
            raise UserError(f"--{name}={value} has no effect. Leave it out")


def check_effects(params) -> None:
    """Refuses settings that would be ignored, and a TPU without a name.

    The settings are those of the TPU, the workers and the tf.data service.

    Args:
        params: the experiment's `ExperimentConfig`.

    Raises:
        UserError: if a setting would be ignored, or if the name of the TPU is missing.
    """
    runtime = params.runtime
    strategy = str(runtime.distribution_strategy).lower()
    if runtime.tpu and strategy != "tpu":
        raise UserError(
            f"--tpu={runtime.tpu} has no effect, because runtime.distribution_strategy is "
            f"{runtime.distribution_strategy}: it would train without the TPU. Write runtime."
            "distribution_strategy=tpu, or leave --tpu out"
        )
    if runtime.tpu is None and strategy == "tpu" and not any(map(os.environ.get, _NAMES_OF_A_TPU)):
        raise UserError(
            "runtime.distribution_strategy=tpu needs the name of the TPU. Write --tpu=local on its "
            "own machine, or else --tpu=NAME"
        )
    for name, unset in (("worker_hosts", None), ("task_index", -1)):
        if (value := getattr(runtime, name)) != unset:
            raise UserError(
                f"runtime.{name}={value} has no effect: several workers meet by TF_CONFIG. Set "
                f"that, and leave runtime.{name} out"
            )
    _check_data_service(params.task)


def _check_data_service(task) -> None:
    """Raises `UserError` if a tf.data service has an address, but is not enabled, or vice versa."""
    configs = {name: getattr(task, name, None) for name in ("train_data", "validation_data")}
    switches = {
        name: getattr(data, "enable_tf_data_service", False) for name, data in configs.items()
    }
    addresses = {
        name: getattr(data, "tf_data_service_address", 0) for name, data in configs.items()
    }
    address = next(filter(None, addresses.values()), None)
    if address and not any(switches.values()):
        raise UserError(
            f"--tf_data_service={address} has no effect, because the data are read without it. "
            "Write task.train_data.enable_tf_data_service=true, or leave the address out"
        )
    for name, is_on in switches.items():
        if is_on and not addresses[name]:
            raise UserError(
                f"task.{name}.enable_tf_data_service has no effect without an address. Write "
                "--tf_data_service=ADDRESS, or leave it out"
            )
