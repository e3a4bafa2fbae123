"""Compares batch sizes for an experiment: how long training takes at each, and what it costs.

    python -m tf_lamb.model_garden.find --experiment=lamb/bert_pretraining \\
        --config_file=bert_small_cpu.yaml --noise_scale=1000 --step_seconds=16:0.05,64:0.12 \\
        --write_config=found.yaml

The baseline is the experiment with its own global batch size and `trainer.train_steps`, for which
its learning rate should be tuned. The command needs two measurements, from runs that you have made:

*   How the steps change with the batch size. Either `--runs=64:4800,1024:300`, pairs of a batch
    size and the steps that it takes to the same loss, at two batch sizes or more. Or
    `--noise_scale=1000`, the gradient noise scale in examples. Take the last value that a run with
    `measure_noise.enabled=true` reports.
*   The seconds of a step on one device. `--step_seconds=16:0.05,64:0.12` holds pairs of a
    micro-batch size and the seconds of a step with it, at two sizes or more. A short `train`
    without accumulation shows the examples per second; the seconds of a step are the micro-batch
    size divided by that number. Communication between devices is not included.

The command prints a table of batch sizes, the batch size to take, and a `train` command for that
size, with the number of steps in the table and with `--recipe=transfer`. `--write_config` writes
the whole experiment at that batch size as a YAML file, whose first comment is the command that
trains with the file.
"""

import math
import os
import shlex
from typing import Any

from tf_lamb.model_garden.common.errors import begin

if __name__ == "__main__":
    begin("find")  # before the first import of a package that only the Model Garden brings

import yaml
from absl import app, flags

from tf_lamb.find.goodput import costs, steps
from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks.flags import parse_flags
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, named, one_line
from tf_lamb.model_garden.train_stages import Stage

# Flags of the command `train` that this command refuses, because it trains nothing.
_OF_TRAINING = ("mode", "model_dir", "seed", "tpu", "tf_data_service")


def define_flags() -> None:
    """Defines the flags of `train` that describe an experiment, and those of this command."""
    train.define_flags(unlisted=("global_batch_size", "recipe", *_OF_TRAINING))
    flags.DEFINE_list("runs", [], "BATCH:STEPS of runs to the same loss, at two batches or more.")
    flags.DEFINE_float("noise_scale", None, "The gradient noise scale, in examples.")
    flags.DEFINE_list("step_seconds", [], "MICRO_BATCH:SECONDS of steps on one device.")
    flags.DEFINE_list("batches", [], "The batches to compare; or powers of two times the baseline.")
    flags.DEFINE_list("devices", [], "Number of devices; of several, as 1,8, each is compared.")
    for name, meaning in (
        ("micro_batch_size", "The most examples that a device holds at once."),
        ("examples", "Examples of the training data, where they cannot be counted."),
    ):
        flags.DEFINE_integer(name, None, meaning, lower_bound=1)
    flags.DEFINE_float("price", None, "Price of one device for one hour.")
    flags.DEFINE_float("deadline", None, "Deadline of the training, in hours.")
    flags.DEFINE_string("write_config", None, "A file for the YAML; not overwritten.")


def check_flags(args) -> None:
    """Checks the flags, before the experiment is read.

    Args:
        args: The flags.

    Raises:
        UserError: if a flag has a bad value, has no effect here, or is missing.
    """
    for name in ("global_batch_size", "recipe"):
        if value := getattr(args, name):
            raise UserError(
                f"--{name}={value}: the baseline is the experiment as it stands. Leave it out, or "
                "name the batches to compare by --batches"
            )
    for name in _OF_TRAINING:
        if (value := getattr(args, name, None)) not in (None, ""):
            raise UserError(
                f"--{name}={value} has no effect: nothing is trained here. Leave it out"
            )
    if bool(args.runs) == (args.noise_scale is not None):
        raise UserError(
            "one flag tells the steps at another batch: --runs=64:4800,1024:300, the steps to the "
            "same loss at two batches, or --noise_scale=N. Pass one of them"
        )
    _steps(args, 1, 1)
    _seconds(args)
    for name in ("batches", "devices"):
        _integers(args, name)
    if path := args.write_config:
        if os.path.exists(path):
            raise UserError(f"--write_config={path} exists: name another file, or delete it")
        if not os.path.isdir(folder := os.path.dirname(path) or "."):
            raise UserError(f"--write_config={path}: there is no folder {folder}")


def _pairs(args, name: str) -> list[tuple[int, float]]:
    """Returns the pairs in a flag such as --runs=64:4800,1024:300; raises `UserError` if wrong."""
    texts = getattr(args, name)
    try:
        return [(int(size), float(value)) for size, value in (text.split(":") for text in texts)]
    except ValueError:
        flag_text = ",".join(texts)
        raise UserError(f"--{name}={flag_text}: write pairs, such as 64:4800,1024:300") from None


def _integers(args, name: str) -> list[int]:
    """Returns the integers in a flag such as --devices=1,8; raises `UserError` for other text."""
    try:
        return [int(text) for text in getattr(args, name)]
    except ValueError:
        flag_text = ",".join(getattr(args, name))
        raise UserError(f"--{name}={flag_text}: write whole numbers, such as 64,128") from None


def _steps(args, baseline, train_steps) -> steps.StepCurve:
    """Returns the number of steps to the same loss, as a function of the batch size.

    The function is fitted to `--runs`. With `--noise_scale` it follows from that noise scale, and
    from `train_steps` steps at the batch size `baseline`.
    """
    with named("--runs" if args.runs else "--noise_scale"):
        if args.runs:
            return steps.curve_from_runs(_pairs(args, "runs"))
        return steps.curve_from_noise(args.noise_scale, baseline, train_steps)


def _seconds(args) -> tuple[costs.StepTime, int]:
    """Returns the `StepTime` fitted to `--step_seconds`, and the largest micro-batch in that flag.

    A `StepTime` gives the seconds of a step at any micro-batch size. Raises `UserError` if the flag
    is missing or wrong.
    """
    if not (pairs := _pairs(args, "step_seconds")):
        raise UserError(
            "--step_seconds is missing. Write the seconds of a step at two micro-batches or more, "
            "such as --step_seconds=16:0.05,64:0.12"
        )
    with named("--step_seconds"):
        sizes, seconds = zip(*pairs, strict=True)
        return costs.fit_step_time(sizes, seconds), max(sizes)


def ask(params, args) -> costs.Answer:
    """Plans how long training takes at each batch size, and what it costs.

    Args:
        params: The `ExperimentConfig` of the baseline, the tuned experiment.
        args: The flags, which `check_flags` has checked.

    Returns:
        The table of the batch sizes, and which of them to take.

    Raises:
        UserError: if the experiment cannot be trained, if no rule of this package scales it to
            another batch size, or if the batch sizes do not fit the devices.
    """
    from tf_lamb.model_garden.checks import data, experiment
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.experiments import schedule_configs
    from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS

    rate = params.trainer.optimizer_config.learning_rate.type
    if schedule_configs.is_steered(rate):
        raise UserError(
            f"trainer.optimizer_config.learning_rate.type={rate} finds its rate in training, and "
            "no rule scales that to another batch. Write another type with the rate that a run of "
            "it has found, or train at the batches by hand, by task.train_data.global_batch_size"
        )
    _check(params, args.experiment)
    if (setting := experiment.measures(params) or "").endswith(".adascale"):
        raise UserError(
            f"{setting} makes other steps of a batch than the rules that plan them here. Write "
            f"{setting}.scale=null"
        )
    train_data, replicas = params.task.train_data, batches.replicas(params) or 1
    baseline = train_data.global_batch_size
    if not (examples := args.examples or data.count_examples(train_data)):
        raise UserError("the examples of task.train_data cannot be counted. Write --examples=N")
    if baseline > examples:
        raise UserError(
            f"task.train_data.global_batch_size={baseline:,} is more than the {examples:,} "
            "examples of task.train_data. Take a smaller batch, or more data"
        )
    devices, sizes = tuple(_integers(args, "devices")) or (replicas,), _integers(args, "batches")
    step_time, largest_timed = _seconds(args)
    replica_share = math.ceil(baseline / replicas / batches.micro_batches(params))
    micro_batch = args.micro_batch_size or max(replica_share, largest_timed)
    accumulates = params.trainer.optimizer_config.optimizer.type in OPTIMIZERS
    step_curve = _steps(args, baseline, params.trainer.train_steps)
    try:
        return costs.plan(
            step_curve,
            costs.Machine(step_time, micro_batch, devices, price=args.price),
            baseline=baseline,
            examples=examples,
            batches=sizes or None,
            max_batch=None if accumulates else micro_batch * max(devices),
            deadline_hours=args.deadline,
        )
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def _check(params, name: str) -> None:
    """Raises `UserError` if the experiment of this name cannot be trained."""
    from tf_lamb.model_garden.checks import experiment

    experiment.check_runtime(params, evaluating=True)
    experiment.check_optimizer(params, name)
    experiment.check_batch(params)


def found_at(params, row, args) -> tuple[Stage, Any]:
    """Returns the flags of `train`, and the experiment, for one row of the table of batch sizes.

    Args:
        params: The `ExperimentConfig` of the baseline, the tuned experiment.
        row: A row of the table: its batch size, steps, devices and accumulation.
        args: The parsed flags of this command.

    Returns:
        The flags with which `train` trains at that batch size, and the `ExperimentConfig` that
        they describe.

    Raises:
        UserError: if `train` would refuse the experiment.
    """
    from tf_lamb.model_garden.checks import experiment
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.experiments import parsing

    optimizer = (
        f"trainer.optimizer_config.optimizer.{params.trainer.optimizer_config.optimizer.type}"
    )
    overrides: dict = {"trainer.train_steps": row.steps}
    if row.accumulation != batches.micro_batches(params):
        overrides[f"{optimizer}.gradient_accumulation_steps"] = row.accumulation
    if experiment.measures(params) and row.devices == row.accumulation == 1:
        # The noise is measured by comparing the gradients of parts of a batch. Here the batch has
        # one part only.
        overrides[f"{optimizer}.measure_noise.enabled"] = False
    if batches.replicas(params) not in (None, row.devices):
        overrides["runtime"] = {"distribution_strategy": "mirrored", "num_gpus": row.devices}
    settings = parsing.own(args)
    for path, value in overrides.items():
        settings = yamls.merged(settings, yamls.nested(path, value))
    override = yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10**6)
    stage = Stage(
        args.experiment, list(args.config_file or ()), "...", override.strip(),
        global_batch_size=row.batch, recipe="transfer",
    )  # fmt: skip
    with named("the batch that was found cannot be trained", UserError):
        parsed, _ = parsing.parse(stage)
        _check(parsed, args.experiment)
    return stage, parsed


def command(found: Stage) -> str:
    """Returns the command line of `train` for the flags in `found`."""
    values = {
        "global_batch_size": found.global_batch_size, "recipe": found.recipe,
        "params_override": found.params_override, "mode": "train_and_eval",
        "model_dir": found.model_dir,
    }  # fmt: skip
    return "python -m tf_lamb.model_garden.train " + shlex.join([
        f"--experiment={found.experiment}",
        *(f"--config_file={file}" for file in found.config_file),
        *(f"--{name}={value}" for name, value in values.items() if value),
    ])  # fmt: skip


def write_config(path: str, found: Stage, params) -> str:
    """Writes the experiment as a YAML file, which begins with the command that uses it.

    Args:
        path: The file to write, which must not exist.
        found: The flags of `train` for the batch that was found.
        params: The `ExperimentConfig` for that batch.

    Returns:
        The command.
    """
    command_line = command(Stage(found.experiment, [path], found.model_dir))
    with open(path, "x") as file:
        file.write(
            f"# {found.experiment}: the batch that tf_lamb.model_garden.find has found.\n#\n"
        )
        file.write(f"#   {command_line}\n\n{yaml.dump(params.as_dict(), sort_keys=False)}")
    return command_line


def run() -> None:
    """Prints the table of batch sizes for the flags, and the `train` command for the fastest."""
    args = flags.FLAGS
    with one_line("find"):
        check_flags(args)
        # A missing file is reported before TensorFlow is imported, which takes seconds.
        yamls.read_files(args.config_file)
        train.register()
        from tf_lamb.model_garden.experiments import parsing

        params, _ = parsing.parse(args)
        answer = ask(params, args)
        print(answer, flush=True)
        stage, stage_params = found_at(params, answer.fastest, args)
        path = args.write_config
        command_line = write_config(path, stage, stage_params) if path else command(stage)
        print(f"To train with it: {command_line}")


def _run(_) -> None:
    """Runs the command; `Console` sends the output of TensorFlow to a log."""
    with Console():
        run()


def main() -> None:
    """Defines the flags and runs the command."""
    define_flags()
    flags.mark_flag_as_required("experiment")
    app.run(_run, flags_parser=lambda args: parse_flags(args, "find"))


if __name__ == "__main__":
    main()
