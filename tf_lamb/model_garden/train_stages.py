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

import dataclasses
import os
import sys

from absl import app, flags


def _stages(args) -> list:
    """One set of flags a stage."""
    from official.core import train_utils

    from tf_lamb.model_garden.parsing import UserError

    @dataclasses.dataclass
    class Stage(train_utils.ParseConfigOptions):
        model_dir: str = ""
        global_batch_size: int | None = None
        recipe: str = "legw"
        per_replica_batch_size: int | None = None

    if args.experiment or args.config_file:
        raise UserError("Every stage has its own: write --stage=EXPERIMENT:CONFIG_FILE")
    stages = []
    for i, text in enumerate(args.stage, 1):
        experiment, _, files = text.partition(":")
        stages.append(
            Stage(
                experiment=experiment,
                config_file=files.split(",") if files else [],
                tpu=args.tpu,
                tf_data_service=args.tf_data_service,
                params_override=args.params_override,
                model_dir=os.path.join(args.model_dir, f"stage_{i}"),
                global_batch_size=args.global_batch_size,
                recipe=args.recipe,
                per_replica_batch_size=args.per_replica_batch_size,
            )
        )
    return stages


def _prepare(stages, keep_moments: bool) -> list:
    """Parses all stages and says in each where it begins; raises where one cannot follow."""
    from tf_lamb.model_garden import model_dirs, parsing

    parsed, begin = [], 0
    for i, stage in enumerate(stages):
        try:
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
                raise parsing.UserError(reason)
        except parsing.UserError as error:
            raise parsing.UserError(f"stage {i + 1}: {error}") from error
        parsed.append(params)
        begin += params.trainer.train_steps
        print(f"Stage {i + 1} of {len(stages)}: {stage.experiment}, "
              f"{params.trainer.train_steps:,} steps in {stage.model_dir}")  # fmt: skip
        if arithmetic:
            print(arithmetic)
    return parsed


def _run(_) -> None:
    from tf_lamb.model_garden import parsing, tasks, train

    args = flags.FLAGS
    train.register()
    try:
        if "train" not in args.mode:
            raise parsing.UserError(
                f"--mode={args.mode}: stages are trained. Evaluate one with "
                "tf_lamb.model_garden.train and its folder as --model_dir"
            )
        stages = _stages(args)
        all_params = _prepare(stages, args.moments == "keep")
        for i, (stage, params) in enumerate(zip(stages, all_params, strict=True), 1):
            if tasks.steps_done(stage.model_dir) >= params.trainer.train_steps:
                continue
            print(f"Training stage {i} of {len(stages)}.", flush=True)
            for field in dataclasses.fields(stage):
                setattr(args, field.name, getattr(stage, field.name))
            args.global_batch_size = args.per_replica_batch_size = None  # filled in by now
            train.run()
            done = tasks.steps_done(stage.model_dir)
            if done < params.trainer.train_steps:
                sys.exit(f"Stage {i} ended at step {done:,} of {params.trainer.train_steps:,}.")
            if i < len(stages):
                # A new process for the next stage: a strategy and its devices are made once only.
                module = "tf_lamb.model_garden.train_stages"
                os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
    except parsing.UserError as error:
        sys.exit(f"tf_lamb.model_garden.train_stages: {error}")
    print(f"All {len(stages)} stages are trained: {stages[-1].model_dir}")


def main() -> None:
    """Defines the flags and runs."""
    from tf_lamb.model_garden import train

    train.define_flags()
    flags.DEFINE_multi_string("stage", None, "EXPERIMENT:CONFIG_FILE[,CONFIG_FILE...], in order.")
    flags.DEFINE_enum("moments", "reset", ["reset", "keep"], "What becomes of them between stages.")
    flags.mark_flags_as_required(["stage", "mode", "model_dir"])
    app.run(_run)


if __name__ == "__main__":
    main()
