"""Trains one experiment after another, each from the weights of the one before.

    python -m tf_lamb.model_garden.train_stages --mode=train_and_eval --model_dir=/tmp/bert \\
        --stage=lamb/bert_pretraining:model_garden_configs/bert_large_64k_32k_stage1_tpu.yaml \\
        --stage=lamb/bert_pretraining_phase2:model_garden_configs/bert_large_64k_32k_stage2_tpu.yaml

A stage is an experiment and, after the colon, its config files, separated by commas. Sequence
length, batch and data may change between stages; the model may not. Stage i trains in
MODEL_DIR/stage_i with its own schedule, warmed up again from its own step 0. All other flags are
those of `tf_lamb.model_garden.train` and hold for every stage.

`--moments` says what becomes of the optimizer's moments between stages:

    reset   (default) each stage begins with moments of zero, and bias correction with step 1.
    keep    they are carried over, and with them the optimizer's steps, so that bias correction
            stays that of moments which are warm. The learning rate starts anew all the same.

To resume a run that stopped, in whatever stage, give the same command again.
"""

import contextlib
import dataclasses
import os
import sys

from absl import app, flags

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks import early
from tf_lamb.model_garden.errors import UserError, one_line
from tf_lamb.model_garden.running.console import Console


@dataclasses.dataclass
class Stage:
    """What the flags of `tf_lamb.model_garden.train` say of one stage."""

    experiment: str
    config_file: list[str]
    model_dir: str
    params_override: str = ""
    tpu: str | None = None
    tf_data_service: str | None = None
    global_batch_size: int | None = None
    recipe: str | None = None
    per_replica_batch_size: int | None = None

    def __contains__(self, flag):  # asked by Model Garden
        return hasattr(self, flag)


def _stages(args) -> list[Stage]:
    _, _, _, *common = (field.name for field in dataclasses.fields(Stage))
    stages = []
    for i, text in enumerate(args.stage, 1):
        experiment, _, files = text.partition(":")
        folder = os.path.join(args.model_dir, f"stage_{i}")
        same = {name: getattr(args, name) for name in common}
        stages.append(Stage(experiment, files.split(",") if files else [], folder, **same))
    return stages


@contextlib.contextmanager
def _named(i):
    try:
        yield
    except UserError as error:
        raise UserError(f"stage {i}: {error}") from error


def prepare(stages: list[Stage], keep_moments: bool, mode="train", seed=None) -> list:
    """Parses all stages and says in each where it begins; raises where one cannot be."""
    from tf_lamb.model_garden.checks.experiment import check_run
    from tf_lamb.model_garden.experiments import parsing
    from tf_lamb.model_garden.folders import checkpoints, model_dirs

    parsed, begin = [], 0
    for i, stage in enumerate(stages):
        with _named(i + 1):
            arithmetic = parsing.fill_in(stage)
            if i:
                hand_over = {"task": {"init_checkpoint": stages[i - 1].model_dir}}
                if keep_moments:
                    hand_over["task"]["init_optimizer"] = True
                    warmup = {"warmup": {"tf_lamb": {"begin_step": begin}}}
                    hand_over["trainer"] = {"optimizer_config": warmup}
                parsing.put_in_front(stage, hand_over)
            params = parsing.parse(stage)
            if i and (reason := model_dirs.why_no_successor(parsed[-1], params, keep_moments)):
                raise UserError(reason)
            # The checkpoint that it starts from does not have to be there yet.
            alone = params.replace(task={"init_checkpoint": None})
            if hasattr(alone.task, "init_optimizer"):
                alone.task.init_optimizer = False
            check_run(alone, mode, stage.model_dir, stage.experiment, seed)
        parsed.append(params)
        begin += params.trainer.train_steps
        if checkpoints.steps_done(stage.model_dir) < params.trainer.train_steps:
            print(f"Stage {i + 1} of {len(stages)}: {stage.experiment}, "
                  f"{params.trainer.train_steps:,} steps in {stage.model_dir}")  # fmt: skip
            if arithmetic:
                print(arithmetic, flush=True)
    return parsed


def _train(args, console) -> bool:
    """Trains the next stage; returns whether there are more of them."""
    if "train" not in args.mode:
        raise UserError(
            f"--mode={args.mode}: stages are trained. Evaluate one with "
            "tf_lamb.model_garden.train and its folder as --model_dir"
        )
    if args.experiment or args.config_file:
        raise UserError("Each stage has its own: write --stage=EXPERIMENT:CONFIG_FILE")
    stages = _stages(args)
    for i, stage in enumerate(stages, 1):
        with _named(i):
            early.check_names(stage.experiment, stage.config_file)
    train.register()
    from tf_lamb.model_garden.folders import checkpoints

    console.parts = max(8 // len(stages), 1)  # of all stages together as many lines as of one run
    all_params = prepare(stages, args.moments == "keep", args.mode, args.seed)
    for i, (stage, params) in enumerate(zip(stages, all_params, strict=True), 1):
        checkpoints.settle(stage.model_dir)
        if checkpoints.steps_done(stage.model_dir) >= params.trainer.train_steps:
            continue
        print(f"Training stage {i} of {len(stages)}.", flush=True)
        for name, value in vars(stage).items():
            setattr(args, name, value)
        args.global_batch_size = args.per_replica_batch_size = None  # filled in by now
        train.run(console)
        done = checkpoints.steps_done(stage.model_dir)
        if done < params.trainer.train_steps:
            sys.exit(f"Stage {i} ended at step {done:,} of {params.trainer.train_steps:,}.")
        if i < len(stages):
            return True
    print(f"All {len(stages)} stages are trained: {stages[-1].model_dir}", flush=True)
    return False


def _run(_) -> None:
    with Console() as console, one_line("train_stages"):
        has_more = _train(flags.FLAGS, console)
    if has_more:
        # A new process for the next stage: a strategy and its devices are made once only.
        module = "tf_lamb.model_garden.train_stages"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def main() -> None:
    """Defines the flags and runs."""
    early.begin("train_stages")
    train.define_flags()
    flags.DEFINE_multi_string("stage", None, "EXPERIMENT:CONFIG_FILE[,CONFIG_FILE...], in order.")
    flags.DEFINE_enum("moments", "reset", ["reset", "keep"], "What becomes of them between stages.")
    flags.mark_flags_as_required(["stage", "mode", "model_dir"])
    app.run(_run)


if __name__ == "__main__":
    main()
