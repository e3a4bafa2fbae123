"""Trains and evaluates an experiment with Model Garden's own main, after early checks.

    python -m tf_lamb.model_garden.train --experiment=lamb/bert_pretraining \\
        --config_file=bert_small_cpu.yaml --mode=train_and_eval --model_dir=/tmp/bert_small

The flags are those of `official.nlp.train`, and all of its experiments run here. In addition:

*   `--config_file` finds the files of `model_garden_configs` by name;
*   `--global_batch_size` sets the batch, and a recipe sets the rest: learning rate, warmup, steps,
    intervals. The default recipe, LEGW, scales the experiment's own settings; for
    `lamb/bert_pretraining` and the ResNets this gives the published tables;
*   `--per_replica_batch_size` limits the examples on a replica; the run accumulates the rest;
*   a detectable mistake is reported in one line before anything is written;
*   `--seed` starts two runs from the same weights;
*   `--gin_params='import MODULE'` imports a module that registers more experiments, as in Model
    Garden's own mains;
*   `--replace_stock` gives stock experiments with `optimizer.type: lamb` our LAMB;
*   a run resumes from the last complete checkpoint, also under `multi_worker_mirrored`;
*   it shows one line of progress; the output of TensorFlow and Model Garden goes to `train.log` in
    the model folder, or with `--verbosity=1` to the console;
*   it ends with a short report, which `python -m tf_lamb.model_garden.report` prints again.

To stop a run, type Ctrl-C; to resume it, give the same command again. A missed evaluation is then
made first.
"""

import os
import sys
import tempfile

from absl import app, flags

from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, begin, one_line

OURS = (
    "lamb/bert_pretraining",
    "lamb/bert_pretraining_phase2",
    "lamb/resnet_imagenet",
    "lars/resnet_imagenet",
)


def define_flags() -> None:
    """Model Garden's flags and ours, none of them required yet."""
    from official.common import flags as model_garden_flags

    from tf_lamb.model_garden.experiments import recipes

    model_garden_flags.define_flags()
    flags.FLAGS[
        "experiment"
    ].help = f"What to train, and what it begins with: {', '.join(OURS)} or one of Model Garden's."
    flags.DEFINE_integer(
        "seed", None, "Two runs with one seed start from the same weights.", lower_bound=0
    )
    flags.DEFINE_integer(
        "global_batch_size", None, "Examples an update; --recipe fills in the rest.", lower_bound=1
    )
    flags.DEFINE_enum(
        "recipe",
        None,
        recipes.RECIPES,
        "What fills in the rest: a rule that scales what the experiment says of its own batch "
        "(legw, the default, sqrt, transfer), or a published recipe.",
    )
    flags.DEFINE_integer(
        "per_replica_batch_size",
        None,
        "The most examples that a replica holds at once; the rest of the batch is accumulated.",
        lower_bound=1,
    )
    flags.DEFINE_bool("replace_stock", False, "Whether optimizer.type=lamb means our LAMB.")
    for name in (
        "experiment", "config_file", "mode", "model_dir", "params_override", "seed",
        "global_batch_size", "recipe", "per_replica_batch_size", "replace_stock",
    ):  # fmt: skip
        # --help lists what the command's own module defined, or what is called its own.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def read(args):
    """The experiment that the flags describe; prints what the batch flags stand for."""
    files = yamls.read_files(args.config_file)  # before TensorFlow is imported, which takes seconds
    register()
    from tf_lamb.model_garden.experiments import parsing

    params, arithmetic = parsing.parse(args, files)
    if arithmetic:
        print(arithmetic, flush=True)
    return params


def register() -> None:
    """Makes all experiments known that the flags can name."""
    import gin

    from tf_lamb import model_garden

    model_garden.register(replace_stock=flags.FLAGS.replace_stock)
    # Gin may import what registers more experiments. Model Garden parses it again, and locks it.
    gin_files, gin_params = flags.FLAGS.gin_file, flags.FLAGS.gin_params
    gin.parse_config_files_and_bindings(gin_files, gin_params, finalize_config=False)


def run(console, params) -> None:
    """Trains and evaluates an experiment as the flags say; raises `UserError` where it cannot be.

    Args:
        console: the `Console` of this process; it is left to the chief.
        params: the experiment.
    """
    import tf_keras
    from absl import logging
    from official.nlp import train as model_garden_train

    from tf_lamb.model_garden import report
    from tf_lamb.model_garden.checks import data
    from tf_lamb.model_garden.checks.experiment import check_run
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.folders import checkpoints, model_dirs
    from tf_lamb.model_garden.running import runner, workers

    args = flags.FLAGS
    check_run(params, args.mode, args.model_dir, args.experiment, args.seed)

    training, is_chief = "train" in args.mode, batches.is_chief(params)
    if (seed := args.seed) is None:
        seed = model_dirs.read_run(args.model_dir).get("seed")
    evaluated = _evaluated(params, args.model_dir) if args.mode == "eval" else None
    strategy = workers.join(params, lambda: _told(params, args, seed, evaluated))
    # Up to here nothing was written. An evaluation may be of a folder that somebody else owns.
    if not checkpoints.is_writable(args.model_dir):
        if args.mode != "eval":
            raise UserError(f"--model_dir={args.model_dir} cannot be written. Choose another one")
        unwritten, args.model_dir = args.model_dir, tempfile.mkdtemp(prefix="tf_lamb-eval-")
        print(f"{unwritten} cannot be written: all that this evaluation writes goes to "
              f"{args.model_dir}", flush=True)  # fmt: skip
    if training and is_chief:
        model_dirs.lock(args.model_dir)
    if is_chief:
        console.keep_in(args.model_dir, "train.log" if training else "eval.log")
    else:
        console.give_back(show=True)
    if seed is not None:
        tf_keras.utils.set_random_seed(seed)
    if training:
        checkpoints.settle(args.model_dir)
        once = args.mode in ("train", "train_and_eval")  # others evaluate each time
        if once and model_dirs.is_over(params, args.model_dir, args.mode):
            if is_chief:
                done = checkpoints.steps_done(args.model_dir)
                print(f"Training is over at step {done:,}: a larger trainer.train_steps goes on")
                print(report.report(args.model_dir), flush=True)
            return
        console.on_stop = lambda: _stopped(console.step, args.model_dir)
        begins = params.task.init_checkpoint
        model_dirs.write_run(args.model_dir, args.experiment, seed, begins)
        if is_chief and (latest := checkpoints.latest(args.model_dir)):
            print(f"Going on from {os.path.basename(latest)}", flush=True)
    follows = args.mode == "continuous_eval" and is_chief
    if follows and (timeout := params.trainer.continuous_eval_timeout) is not None:
        print(f"Waiting for each checkpoint in {args.model_dir}, {timeout:,} seconds at the most "
              "(trainer.continuous_eval_timeout)", flush=True)  # fmt: skip
    # Their main makes the strategy, the task and the trainer, and our runner runs them.
    before = model_dirs.read_params(args.model_dir) if training else None
    runner.install(params, console if is_chief else None, evaluated, strategy, before)
    with data.naming_records(params):
        model_garden_train.main(None)
    if follows:
        done = checkpoints.steps_done(args.model_dir)
        print(f"Training is over at step {done:,}, and so is its evaluation", flush=True)
    if training:
        logging.set_verbosity(logging.WARNING)  # TensorFlow's threads tell of their end, after it
        if is_chief:
            print(report.report(args.model_dir), flush=True)


def _told(params, args, seed: int | None, evaluated: str | None) -> dict[str, str]:
    """What all workers of a run have to be told, name -> text."""
    from tf_lamb.model_garden.common import yamls
    from tf_lamb.model_garden.folders import checkpoints

    begins = evaluated or checkpoints.readable(args.model_dir)
    told = {
        "--experiment": args.experiment,
        "--mode": args.mode,
        "--model_dir": args.model_dir,
        "--seed": seed,
        "--replace_stock": args.replace_stock,
        "--gin_params": args.gin_params,
        "the checkpoint that it begins with": begins and os.path.basename(begins),
        **dict(yamls.leaves(params.as_dict())),
    }
    return {name: repr(value) for name, value in told.items()}


def _evaluated(params, model_dir: str) -> str | None:
    """The checkpoint that is evaluated; None for that of `task.init_checkpoint`."""
    from tf_lamb.model_garden.folders import checkpoints

    checkpoint = checkpoints.last_whole(model_dir)
    if checkpoint is None and not params.task.init_checkpoint:
        raise UserError(
            f"--model_dir={model_dir} holds no checkpoint to evaluate. Name the --model_dir of a "
            "run that has saved one, or write task.init_checkpoint=CHECKPOINT"
        )
    return checkpoint


def _stopped(step: int | None, model_dir: str) -> str:
    """The last line of a training that is stopped; before its first step there is no step."""
    from tf_lamb.model_garden.folders import checkpoints

    at = f"at step {step:,}" if step else "before the first step"
    checkpoint = checkpoints.readable(model_dir)
    way_on = f"goes on from {checkpoint}" if checkpoint else "begins anew"
    return f"Stopped {at}. The same command {way_on}"


def _run(_) -> None:
    with Console() as console, one_line("train"):
        run(console, read(flags.FLAGS))


def main() -> None:
    """Defines the flags and runs."""
    begin("train")
    define_flags()
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(_run)


if __name__ == "__main__":
    main()
