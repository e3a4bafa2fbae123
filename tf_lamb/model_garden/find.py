"""Finds which batch an experiment wants: how long training takes at each, and what it costs.

    python -m tf_lamb.model_garden.find --experiment=lamb/bert_pretraining \\
        --config_file=bert_small_cpu.yaml --noise_scale=1000 --write_config=found.yaml

The experiment as it stands is the tuned baseline: its global batch, and its `trainer.train_steps`.
The steps at another batch come from one of these:

*   `--runs=64:4800,1024:300`: the steps to the same loss at two batches or more;
*   `--noise_scale=1000`: the gradient noise scale in examples, as it was read last;
*   `--noise_dir=MODEL_DIR`: the last finite reading of a run that measured it.

The seconds of a step come from `--step_seconds=16:0.05,64:0.12`; or are measured here, by a few
steps of the experiment's own trainer on one device, at two or three micro-batches; the network
between devices is not counted. Or they are a bound: with `--topology=v3:32x32` the TPU's own
compiler says, as in `tf_lamb.model_garden.preflight`, what a step takes at least and what fits.

The command prints a table of the batches, and which to take. `--write_config` writes that one as a
YAML for `tf_lamb.model_garden.train`: the settings by the rules of `--recipe=transfer`, over the
steps of the table.
"""

import contextlib
import dataclasses
import functools
import math
import os
import shlex
import sys

from absl import app, flags

from tf_lamb.api import plots
from tf_lamb.core import messages
from tf_lamb.core.goodput import plan, steps, time
from tf_lamb.model_garden import preflight, report, train
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, begin, check_new_file, named, one_line
from tf_lamb.tpu import compiler, roofline
from tf_lamb.tpu.answers import asked

HIDDEN = 10.0  # adaptdl's gamma where the network hides behind the gradients
_STEPS = {
    "runs": "--runs=64:4800,1024:300, the steps to the same loss at two batches",
    "noise_scale": "--noise_scale=N",
    "noise_dir": "--noise_dir=MODEL_DIR of a run with measure_noise.enabled=true",
}


def define_flags() -> None:
    """The flags of `train` that describe an experiment, and ours."""
    train.define_flags()
    flags.DEFINE_list("runs", [], "BATCH:STEPS of runs to the same loss, at two batches or more.")
    flags.DEFINE_float("noise_scale", None, "The gradient noise scale, in examples.")
    flags.DEFINE_string("noise_dir", None, "The --model_dir of a run that measured it.")
    flags.DEFINE_list("step_seconds", [], "MICRO_BATCH:SECONDS of steps on one device.")
    flags.DEFINE_string("topology", None, "The TPU slice: v3:32x32, v4:4x4x4, v5e:4x8, ...")
    flags.DEFINE_list("batches", [], "The batches to compare; or powers of two times the baseline.")
    flags.DEFINE_list("devices", [], "Number of devices; of several, as 1,8, each is compared.")
    flags.DEFINE_integer(
        "micro_batch_size", None, "The most examples that a device holds at once.", lower_bound=1
    )
    flags.DEFINE_integer(
        "examples",
        None,
        "Examples of the training data, where they cannot be counted.",
        lower_bound=1,
    )
    flags.DEFINE_float("price", None, "Price of one device for one hour.")
    flags.DEFINE_float("deadline", None, "Deadline of the training, in hours.")
    flags.DEFINE_string("output_dir", None, "A folder for the picture, find.png.")
    flags.DEFINE_string("write_config", None, "A file for the YAML; not overwritten.")


def check_flags(args) -> None:
    """Raises `ValueError` for what is wrong before the experiment is read."""
    for name in ("global_batch_size", "recipe"):
        if value := getattr(args, name):
            raise UserError(
                f"--{name}={value}: the baseline is the experiment as it stands. Leave it out, or "
                "name the batches to compare by --batches"
            )
    given = [name for name in _STEPS if getattr(args, name) not in (None, [])]
    if not given:
        ways = "; or ".join(_STEPS.values())
        raise UserError(f"nothing tells the steps at another batch. Pass {ways}")
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} tell the same. Leave one of them out")
    _steps_of_runs(args)
    _time_of_steps(args)
    for name in ("batches", "devices"):
        _integers(args, name)
    if args.topology:
        compiler.require()
        roofline.topology(args.topology)
        for name in ("devices", "step_seconds"):
            if getattr(args, name):
                raise UserError(
                    f"--topology={args.topology} tells the same as --{name}: leave one out"
                )
    if args.output_dir:
        messages.require_installed("A picture of batches", "matplotlib", extra="pictures")
    check_new_file("write_config", args.write_config)


def _pairs(args, name, kind):
    """What a flag such as --runs=64:4800,1024:300 says."""
    pairs = []
    for text in getattr(args, name):
        size, _, value = text.partition(":")
        try:
            pairs.append((int(size), float(value)))
        except ValueError:
            raise UserError(f"--{name}: {text!r} is no {kind}") from None
    return pairs


def _integers(args, name):
    """What a flag such as --devices=1,8 says."""
    try:
        return [int(text) for text in getattr(args, name)]
    except ValueError:
        given = ",".join(getattr(args, name))
        raise UserError(f"--{name}={given}: write whole numbers, such as 64,128") from None


def _steps_of_runs(args):
    """The steps at a batch by the flag, or None."""
    if runs := _pairs(args, "runs", "BATCH:STEPS, such as 64:4800"):
        with named("--runs"):
            return steps.from_runs(runs)


def _timed(args):
    return _pairs(args, "step_seconds", "MICRO_BATCH:SECONDS, such as 16:0.05")


def _time_of_steps(args):
    """The time of a step by the flag, or None."""
    if timed := _timed(args):
        with named("--step_seconds"):
            return _fit(timed)


def _fit(timed):
    sizes, seconds = zip(*timed, strict=True)
    return time.fit(sizes, seconds)


def last_noise_scale(model_dir: str) -> float:
    """The last finite reading of a run that measured the noise scale."""
    readings = report.read_scalars(os.path.join(model_dir, "train")).get("noise_scale", {})
    if finite := [value for value in readings.values() if 0 < value < float("inf")]:
        return finite[-1]
    found = f"none of {len(readings)} readings is finite" if readings else "there is no reading"
    raise UserError(
        f"--noise_dir={model_dir} tells no noise scale: {found}. Name the --model_dir of a run, or "
        "of a longer one, with trainer.optimizer_config.optimizer.tf_lamb.measure_noise.enabled="
        "true"
    )


def ask(params, args, say=print) -> plan.Answer:
    """What training takes at each batch, and which batches to name.

    Args:
        params: the experiment.
        args: the flags, which `check_flags` has seen.
        say: called with what takes long, as `print` is.

    Raises:
        UserError: where nothing can be planned; before any step where that can be known.
    """
    from tf_lamb.model_garden.checks import experiment
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.experiments import recipes
    from tf_lamb.model_garden.experiments.optimizers import OPTIMIZERS

    experiment.check_runtime(params, evaluating=False)
    experiment.check_optimizer(params)
    experiment.check_batch(params)
    if (setting := experiment.measures(params) or "").endswith(".adascale"):
        raise UserError(
            f"{setting} makes other steps of a batch than the rules that plan them here. Write "
            f"{setting}.scale=null"
        )
    baseline = params.task.train_data.global_batch_size
    examples = _examples(params, args)
    topology, replicas = None, batches.replicas(params)
    if args.topology:
        topology = roofline.topology(args.topology)
        if replicas is not None:
            raise UserError(
                f"runtime.distribution_strategy={params.runtime.distribution_strategy} is not that "
                f"of --topology={topology}. Write runtime.distribution_strategy=tpu"
            )
        replicas = topology.replicas
    devices = tuple(_integers(args, "devices")) or (replicas or 1,)
    share = math.ceil(baseline / (replicas or 1) / batches.micro_batches(params))
    micro = args.micro_batch_size or max([share, *(size for size, _ in _timed(args))])
    accumulates = params.trainer.optimizer_config.optimizer.type in OPTIMIZERS
    counted = _steps_of_runs(args)
    if counted is None:
        noise = last_noise_scale(args.noise_dir) if args.noise_dir else args.noise_scale
        with named("--noise_scale"):
            counted = steps.from_noise(noise, baseline, params.trainer.train_steps)

    def planned(seconds, micro):
        try:
            return plan.plan(
                counted,
                plan.Machine(seconds, micro, devices, price=args.price),
                baseline=baseline,
                examples=examples,
                batches=_integers(args, "batches") or None,
                most=None if accumulates else micro * max(devices),
                deadline=args.deadline,
            )
        except (TypeError, ValueError) as error:
            raise UserError(str(error)) from error

    planned(time.StepTime(1.0, 1.0), micro)  # refuses before any step
    if args.write_config:
        with named("--write_config"):
            recipes.fill_in(recipes.TRANSFER, baseline, params)
    if topology:
        return planned(*_least(params, topology, micro, args, say))
    return planned(_time_of_steps(args) or _measured(params, micro, say), micro)


def _examples(params, args):
    """How many there are to train on; more than the baseline's batch."""
    from tf_lamb.model_garden.checks import data

    batch = params.task.train_data.global_batch_size
    examples = args.examples or data.count_examples(params.task.train_data)
    if not examples:
        raise UserError("the examples of task.train_data cannot be counted. Write --examples=N")
    if batch > examples:
        raise UserError(
            f"task.train_data.global_batch_size={batch:,} is more than the {examples:,} examples "
            "of task.train_data. Take a smaller batch, or more data"
        )
    return examples


def _measured(params, most, say):
    """The time of a step on one device of this machine."""
    from tf_lamb.model_garden.checks import data, experiment
    from tf_lamb.model_garden.running import timing

    if params.runtime.distribution_strategy.lower() == "tpu":
        raise UserError("runtime.distribution_strategy=tpu is not timed here. Pass --topology")
    data.check_data(params, training=True, evaluating=False)
    experiment.check_devices(params)
    timed = []
    for size in timing.sizes(most):
        say(f"timing {size:,} examples ... ", end="")
        with data.naming_records(params):
            timed.append((size, timing.seconds(params, size)))
        say(f"{timed[-1][1]:.3g} s a step")
    return _fit(timed)


def _least(params, topology, micro, args, say):
    """The least time of a step on a TPU, and the most examples that fit a device.

    The network is taken as hidden behind the rest of the step, as far as it can be.
    """
    from tf_lamb.model_garden.running import timing

    share = timing.one_micro_batch(params, micro * topology.replicas)
    report, compiled = preflight.prepare(share, topology, args.experiment, say=say)
    if not (most := args.micro_batch_size):
        found = asked(report, compiled, largest_batch=True)
        if not (most := found.largest):
            why = found.refused or "no batch was found that fits a device"
            raise UserError(f"--topology={topology}: {why}")
    timed, update = [], 0.0
    try:
        for examples in timing.sizes(most):
            program = compiled.step(examples)
            reduced, *_ = compiled.network(program)
            least = roofline.bounds(topology, program.flops, program.bytes_moved, reduced)
            timed.append((examples, max(least.compute, least.memory)))
        with contextlib.suppress(compiler.Refused):  # alone it may be
            program = compiled.update()
            update = roofline.bounds(topology, program.flops, program.bytes_moved, 0).step
    except compiler.Refused as refusal:
        raise UserError(f"{examples:,} examples at once on {topology}: {refusal}") from refusal
    fitted = _fit(timed)
    update = min(update, fitted.alpha_c)  # alone it may take longer than within a step
    alpha = fitted.alpha_c - update
    bound = dataclasses.replace(
        fitted, alpha_c=alpha, update=update, gamma=HIDDEN, bound=True, timed=()
    )
    return time.with_network(bound, least.network, "hidden"), most


def settings_at(params, row, settings: dict) -> dict:
    """The settings of an experiment at a row of the answer.

    Args:
        params: the baseline.
        row: the batch, and how many devices accumulate it.
        settings: those of the baseline that are not the experiment's own.
    """
    from tf_lamb.model_garden.checks import experiment
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.experiments import recipes

    said = yamls.nested("trainer.train_steps", row.steps)
    _, filled = recipes.fill_in(recipes.TRANSFER, row.batch, params, said)
    own = f"trainer.optimizer_config.optimizer.{params.trainer.optimizer_config.optimizer.type}"
    if row.accumulation != batches.micro_batches(params):
        steps = yamls.nested(f"{own}.gradient_accumulation_steps", row.accumulation)
        filled = yamls.merged(filled, steps)
    if experiment.measures(params) and row.devices == row.accumulation == 1:
        # One part of a batch has no other to be compared with.
        filled = yamls.merged(filled, yamls.nested(f"{own}.measure_noise.enabled", False))
    if batches.replicas(params) not in (None, row.devices):
        runtime = {"distribution_strategy": "mirrored", "num_gpus": row.devices}
        filled = yamls.merged(filled, {"runtime": runtime})
    return yamls.merged(settings, filled)


def check_found(name: str, settings: dict) -> None:
    """Raises where `tf_lamb.model_garden.train` would refuse these settings of an experiment."""
    from official.core import exp_factory

    from tf_lamb.model_garden.checks import experiment

    params = exp_factory.get_exp_config(name)
    with named("the batch that was found cannot be trained", (KeyError, TypeError, ValueError)):
        params.override(settings, is_strict=True)
        experiment.check_runtime(params, evaluating=True)
        experiment.check_optimizer(params)
        experiment.check_batch(params)


def _write_config(path, settings, experiment):
    """Writes a YAML that begins with the command that takes it."""
    import yaml

    command = (
        f"python -m tf_lamb.model_garden.train --experiment={experiment} "
        f"--config_file={shlex.quote(path)} --mode=train_and_eval --model_dir=..."
    )
    with open(path, "x") as file:
        file.write(f"# {experiment}: the batch that tf_lamb.model_garden.find has found.\n#\n")
        file.write(f"#   {command}\n\n{yaml.safe_dump(settings, sort_keys=False)}")
    print(f"To train with it: {command}")


def _draw(answer, folder):
    """Draws the picture in a folder, which is made."""
    os.makedirs(folder, exist_ok=True)
    (ax,) = plots.given_or_new("batches", shown=False)
    plots.batches(answer, ax).figure.savefig(os.path.join(folder, "find.png"), dpi=110)


def run(progress_stream=None) -> None:
    """Asks what the flags say, prints the answer, and writes what they name.

    Args:
        progress_stream: the file that progress is printed to; None for stderr.
    """
    args = flags.FLAGS
    with one_line("find", (ValueError, ModuleNotFoundError)):
        check_flags(args)
    with one_line("find"):
        files = yamls.read_files(args.config_file)
        train.register()
        from tf_lamb.model_garden.experiments import parsing

        params, _ = parsing.parse(args, files)
        say = functools.partial(print, file=progress_stream or sys.stderr, flush=True)
        answer = ask(params, args, say)
    print(answer, flush=True)
    if args.output_dir:
        _draw(answer, args.output_dir)
    if args.write_config:
        written = [*(settings for _, settings in files), parsing.own(args)]
        settings = settings_at(params, answer.fastest, functools.reduce(yamls.merged, written))
        with one_line("find"):
            check_found(args.experiment, settings)
        _write_config(args.write_config, settings, args.experiment)


def _run(_):
    with Console() as console:
        run(console.stream)


def main() -> None:
    """Defines the flags and runs."""
    begin("find")
    define_flags()
    flags.mark_flag_as_required("experiment")
    app.run(_run)


if __name__ == "__main__":
    main()
