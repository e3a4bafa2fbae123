"""Trains experiments in stages: each stage starts from the weights of the previous one.

    python -m tf_lamb.model_garden.train_stages --mode=train_and_eval --model_dir=/tmp/bert \\
        --stage=lamb/bert_pretraining:bert_large_64k_32k_stage1_tpu.yaml \\
        --stage=lamb/bert_pretraining_phase2:bert_large_64k_32k_stage2_tpu.yaml

`--stage` names an experiment and, after the colon, its config files, separated by commas. Sequence
length, batch size and data may change between stages; the model may not. Stage i trains in
MODEL_DIR/stage_i with its own schedule and warmup, and counts its steps from 0. All other flags are
those of `tf_lamb.model_garden.train` and apply to every stage, with two exceptions in
`--params_override`. A setting under `stage_2`, such as `stage_2.trainer.train_steps=100`, applies
to the second stage only. The settings that say what training starts from, such as
`task.init_checkpoint`, apply to the first stage only.

`--moments` says with which moments of the gradient (such as m and v of LAMB) a stage starts:

    reset   (default) the moments are zero, and bias correction starts with step 1.
    keep    the moments and the optimizer's step count come from the previous stage, and bias
            correction continues; so do the moving averages of the weights.

In both cases the learning rate starts again, and so does a `weight_decay_schedule`.

`--recipe=bert_mixed_batch` and `--recipe=nvidia_bert` are recipes in stages: they give every stage
its batch size, learning rate and steps. NVIDIA's training kept the moments between its stages:
`--recipe=nvidia_bert --moments=keep`.

`--largest_batch` splits a single experiment into stages, whose batch size grows up to that number:

    python -m tf_lamb.model_garden.train_stages --mode=train_and_eval --model_dir=/tmp/bert \\
        --stage=lamb/bert_pretraining:bert_small_cpu.yaml --largest_batch=128

The batch size doubles where the schedule has halved the learning rate, as
`tf_lamb.recipes.growing` documents. The command prints the batch sizes, the steps, and how many
steps are saved. Every stage takes over the optimizer of the previous stage. The learning rate has
to fall by `polynomial` or `tf_lamb_polynomial`, or by the same factor at all boundaries of
`stepwise` or `tf_lamb_multi_step`, after a linear warmup or none. `--global_batch_size`, `--recipe`
and `--params_override` describe the experiment before its batch size grows; a setting under
`stage_2` applies to the first larger batch size. With `--per_replica_batch_size`, a larger batch is
accumulated from micro-batches. Checkpoints and evaluations stay the same number of examples apart.
With `resume_in_order`, a stage continues with the example after the last one of the previous stage.

To resume a stopped run, in any stage, give the same command again. A stage cannot get more steps
once the next stage has begun, because the next stage has started from weights without these steps.
"""

import dataclasses
import functools
import os
import re
import sys
from typing import Any

from tf_lamb.model_garden.common.errors import begin

if __name__ == "__main__":
    begin("train_stages")  # before the first import of a package that only the Model Garden brings

from absl import app, flags

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks.flags import check_flags, parse_flags
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, named, one_line

# The settings that determine what a stage starts from: the checkpoint, whether its optimizer is
# restored, and the optimizer's step. `prepare` sets the first of them for all stages but the first,
# so that each starts where the previous stage ended. It sets the other two only if the moments are
# kept.
_BEGINS = (
    "task.init_checkpoint",
    "task.init_optimizer",
    "trainer.optimizer_config.warmup.tf_lamb.begin_step",
)


@dataclasses.dataclass
class Stage:
    """Holds the flags of `tf_lamb.model_garden.train` for one stage.

    Attributes:
        experiment: The name of the experiment.
        config_file: The config files of the experiment.
        model_dir: The folder of the stage.
        params_override: The overrides. Defaults to an empty string.
        tpu: The flag of that name. Defaults to None.
        tf_data_service: The flag of that name. Defaults to None.
        global_batch_size: The flag of that name. Defaults to None.
        recipe: The flag of that name. Defaults to None.
        per_replica_batch_size: The flag of that name. Defaults to None.
        begun: With `--largest_batch`, the `ExperimentConfig` before its batch size grows. Defaults
            to None.
        settings: With `--largest_batch`, the nested settings in which this stage differs from
            `begun`. Defaults to an empty dict.
    """

    experiment: str
    config_file: list[str]
    model_dir: str
    params_override: str = ""
    tpu: str | None = None
    tf_data_service: str | None = None
    global_batch_size: int | None = None
    recipe: str | None = None
    per_replica_batch_size: int | None = None
    begun: Any = None
    settings: dict = dataclasses.field(default_factory=dict)

    def __contains__(self, flag):
        """Returns whether the stage has a flag; Model Garden's parser tests `name in flags`."""
        return hasattr(self, flag)


def _stages(args) -> list[Stage]:
    """Returns the stages that the flags describe."""
    shared_names = "params_override", "tpu", "tf_data_service", "recipe", "per_replica_batch_size"
    shared_flags = {name: getattr(args, name) for name in shared_names}
    stages = []
    for i, (text, batch) in enumerate(zip(args.stage, _batches(args), strict=True), 1):
        experiment, _, files = text.partition(":")
        folder = os.path.join(args.model_dir, f"stage_{i}")
        stage = Stage(experiment, files.split(",") if files else [], folder, **shared_flags)
        stages.append(dataclasses.replace(stage, global_batch_size=batch))
    return stages


def _batches(args) -> list[int | None]:
    """Returns the batch size of every stage.

    It is `--global_batch_size` if that is set, else the batch size of the same stage of `--recipe`
    if that is a recipe in stages, else None. Raises `UserError` if the recipe has another number of
    stages than `--stage` is given.
    """
    from tf_lamb.model_garden.experiments.recipes import batches_of_stages

    count, batches = len(args.stage), batches_of_stages(args.recipe)
    if not batches or args.global_batch_size:
        return [args.global_batch_size] * count
    if len(batches) != count:
        raise UserError(
            f"--recipe={args.recipe} has {len(batches)} stages, and {count} of --stage are given. "
            "Write one for each, or choose a stage by --global_batch_size="
            + " or ".join(map(str, batches))
        )
    return list(batches)


def split_by_batch_growth(stage: Stage, largest_batch: int) -> tuple[list[Stage], str]:
    """Splits one experiment into stages with growing batch sizes, as `--largest_batch` asks.

    Args:
        stage: The flags of the experiment, with the folder of the first stage.
        largest_batch: The largest batch size, in examples.

    Returns:
        The stages, and a text that explains their batch sizes and steps.

    Raises:
        UserError: if the experiment cannot be trained, or its batch cannot grow.
    """
    from tf_lamb.model_garden.checks import experiment
    from tf_lamb.model_garden.checks.data import count_examples
    from tf_lamb.model_garden.experiments import parsing, recipes

    override, _ = _split(parsing.own(stage))
    # These settings are for the first stage only, and `prepare` applies them.
    for path in _BEGINS:
        override = yamls.without(override, path)
    unsplit = dataclasses.replace(stage, per_replica_batch_size=None)
    begun, text = parsing.parse(unsplit, override)
    experiment.check_optimizer(begun, stage.experiment)
    experiment.check_batch(begun)
    examples = count_examples(begun.task.train_data)
    arithmetic, settings = recipes.grown(begun, largest_batch, stage.experiment, examples)
    # `begun` was parsed with these two flags, so the stages must not apply them again.
    of_stage = dataclasses.replace(stage, global_batch_size=None, recipe=None, begun=begun)
    root = os.path.dirname(stage.model_dir)
    stages = [
        dataclasses.replace(
            of_stage, settings=stage_settings, model_dir=os.path.join(root, f"stage_{i}")
        )
        for i, stage_settings in enumerate(settings, 1)
    ]
    return stages, "\n".join(filter(None, [text, arithmetic]))


def _split(override: dict) -> tuple[dict, dict]:
    """Splits `--params_override` into the settings for all stages and those under `stage_N`."""
    single = {key: value for key, value in override.items() if re.fullmatch(r"stage_\d+", str(key))}
    return {key: value for key, value in override.items() if key not in single}, single


def _of_stage(override: dict, i: int, count: int, settings: dict) -> list[dict]:
    """Returns the layers of settings of stage i, counted from 0, the weakest first.

    These are the settings for all stages in `override`, the content of `--params_override`; then
    `settings`; then the settings under `stage_N` in `override`. A later stage does not get the
    settings for all stages that say what training starts from. Raises `UserError` if there is no
    stage N, or if the value of a `stage_N` is not a dict.
    """
    common, single_stages = _split(override)
    for key, value in single_stages.items():
        number = int(key.removeprefix("stage_"))
        if not 1 <= number <= count:
            raise UserError(f"--params_override: there is no {key}, only {count} stages")
        if key != f"stage_{number}":
            raise UserError(f"--params_override: there is no {key}. Write stage_{number}")
        if not isinstance(value, dict):
            raise UserError(f"--params_override: {key} takes settings, but it is given {value!r}")
    for path in _BEGINS if i else ():
        common = yamls.without(common, path)
    return [common, settings, single_stages.get(f"stage_{i + 1}", {})]


def _check_no_start(stage: Stage, number: int) -> None:
    """Raises `UserError` if a config file of a later stage names a checkpoint to start from.

    Does nothing with `--largest_batch`. All stages then share the config files of the first stage,
    which may name the checkpoint that the first stage starts from.
    """
    for source, settings in [] if stage.begun else yamls.read_files(stage.config_file):
        if checkpoint := yamls.at(settings, _BEGINS[0]):
            raise UserError(
                f"{source} has {_BEGINS[0]}: {checkpoint}, but a stage starts from the one before. "
                f"Leave it out, or write --params_override=stage_{number}.{_BEGINS[0]}={checkpoint}"
            )


def prepare(stages: list[Stage], keep_moments: bool, mode="train", seed=None) -> list:
    """Parses and checks the experiments of all stages.

    Every stage starts from the checkpoint of the previous stage, unless its overrides name another
    one. For each stage that is not over, prints its steps, its folder, and how the flags of the
    batch size change its settings.

    Args:
        stages: The flags of the stages.
        keep_moments: Whether a stage also restores the optimizer of the previous stage.
        mode: The `--mode` of the command. Defaults to "train".
        seed: The `--seed` of the command. Defaults to None.

    Returns:
        The `ExperimentConfig` of each stage.

    Raises:
        UserError: if a stage cannot be trained, or cannot start from the previous stage.
    """
    from tf_lamb.model_garden.checks.experiment import check_run
    from tf_lamb.model_garden.experiments import parsing
    from tf_lamb.model_garden.folders import checkpoints, model_dirs

    parsed: list = []
    first_update = 0
    for i, stage in enumerate(stages):
        with named(f"stage {i + 1}", UserError):
            parts = _of_stage(parsing.own(stage), i, len(stages), stage.settings)
            override = functools.reduce(yamls.merged, parts)
            # A stage whose overrides name a checkpoint does not start from the previous stage.
            continues = i > 0 and yamls.at(override, _BEGINS[0]) is None
            if continues:
                _check_no_start(stage, i + 1)
                start_settings = [
                    stages[i - 1].model_dir,
                    *((True, first_update) if keep_moments else ()),
                ]
                for path, value in zip(_BEGINS, start_settings, strict=False):
                    override = yamls.merged(yamls.nested(path, value), override)
            params, arithmetic = parsing.parse(stage, override, stage.begun, parts=parts)
            checked_params = params
            if continues:
                model_dirs.check_successor(parsed[-1], params, keep_moments)
                model_dirs.check_handed_over(parsed[-1], stages[i - 1].model_dir, stage.model_dir)
                # `check_run` must not look for the checkpoint that the stage starts from, because
                # the previous stage may not have written it yet.
                checked_params = params.replace(task={"init_checkpoint": None})
                if hasattr(checked_params.task, "init_optimizer"):
                    checked_params.task.init_optimizer = False
            check_run(checked_params, mode, stage.model_dir, stage.experiment, seed)
        parsed.append(params)
        begin_step = getattr(params.trainer.optimizer_config.warmup.get(), "begin_step", 0)
        steps_left = max(params.trainer.train_steps - checkpoints.steps_done(stage.model_dir), 0)
        first_update = (checkpoints.updates_done(stage.model_dir) or begin_step) + steps_left
        if not model_dirs.is_over(params, stage.model_dir, mode):
            print(
                f"Stage {i + 1} of {len(stages)}: {stage.experiment}, "
                f"{params.trainer.train_steps:,} steps in {stage.model_dir}"
            )
            if arithmetic:
                print(arithmetic, flush=True)
    return parsed


def _train(args, console) -> bool:
    """Checks the flags and all stages, and trains the first stage that is not over.

    Sets `args.experiment` and `args.model_dir` to the name and the folder of that stage. Exits with
    a message if the training ends before the last step of the stage.

    Returns:
        Whether another stage follows.

    Raises:
        UserError: if a flag is wrong, or a stage cannot be trained.
    """
    check_flags(args)
    if "train" not in args.mode:
        raise UserError(
            f"--mode={args.mode}: stages are trained. Evaluate one with "
            "tf_lamb.model_garden.train and its folder as --model_dir"
        )
    if args.experiment or args.config_file:
        raise UserError("Each stage has its own: write --stage=EXPERIMENT:CONFIG_FILE")
    if args.largest_batch and len(args.stage) > 1:
        raise UserError(
            f"--largest_batch={args.largest_batch} grows the batch of one experiment, and "
            f"{len(args.stage)} of --stage are given. Write one"
        )
    if args.largest_batch and args.moments == "reset":
        raise UserError(
            f"--largest_batch={args.largest_batch} keeps the moments, which --moments=reset would "
            "set to zero at each larger batch. Leave --moments out"
        )
    keep_moments = bool(args.largest_batch) or args.moments == "keep"
    stages = _stages(args)
    for i, stage in enumerate(stages, 1):
        with named(f"stage {i}", UserError):
            yamls.read_files(stage.config_file)  # reports a missing file before a slow import
    train.register()
    from tf_lamb.model_garden.folders import checkpoints, model_dirs

    if args.largest_batch:
        stages, text = split_by_batch_growth(stages[0], args.largest_batch)
        if not checkpoints.is_begun(stages[0].model_dir):
            print(text, flush=True)
    all_params = prepare(stages, keep_moments, args.mode, args.seed)
    for i, (stage, params) in enumerate(zip(stages, all_params, strict=True), 1):
        checkpoints.repair(stage.model_dir)
        if model_dirs.is_over(params, stage.model_dir, args.mode):
            continue
        print(f"Training stage {i} of {len(stages)}.", flush=True)
        args.experiment, args.model_dir = stage.experiment, stage.model_dir
        train.run(console, params)
        if not model_dirs.is_over(params, stage.model_dir):
            steps_done = checkpoints.steps_done(stage.model_dir)
            sys.exit(f"Stage {i} ended at step {steps_done:,} of {params.trainer.train_steps:,}.")
        if i < len(stages):
            return True
    print(f"All {len(stages)} stages are trained: {stages[-1].model_dir}", flush=True)
    return False


def _run(_) -> None:
    """Trains the next stage, and starts the command again if another stage follows."""
    with Console() as console, one_line("train_stages"):
        has_more = _train(flags.FLAGS, console)
    if has_more:
        # The next stage needs a new process, because a process initializes its devices only once.
        module = "tf_lamb.model_garden.train_stages"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def main() -> None:
    """Defines the flags and runs the command."""
    train.define_flags(unlisted=("experiment", "config_file"))
    flags.DEFINE_multi_string("stage", None, "EXPERIMENT:CONFIG_FILE[,CONFIG_FILE...], in order.")
    flags.DEFINE_enum(
        "moments", None, ["reset", "keep"], "Whether the moments are reset or kept between stages."
    )
    flags.DEFINE_integer(
        "largest_batch", None, "Examples an update, up to which a batch grows.", lower_bound=1
    )
    flags.mark_flags_as_required(["stage", "mode", "model_dir"])
    app.run(_run, flags_parser=lambda args: parse_flags(args, "train_stages"))


if __name__ == "__main__":
    main()
