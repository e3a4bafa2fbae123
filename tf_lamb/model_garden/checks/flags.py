"""Refuses modes that cannot run, and flags and settings that would have no effect.

`check_flags` runs before TensorFlow is imported, which takes seconds.
"""

import os

from tf_lamb.model_garden.common.errors import UserError

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
