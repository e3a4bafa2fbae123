"""Runs an experiment in six steps.

The steps are: check the settings; make the strategy, and wait until all workers have compared their
settings; lock the folder; repair the folder and write the notes of the run; have Model Garden's
main train or evaluate; print the report.
"""

import dataclasses
import importlib.metadata
import os
import tempfile
from typing import Any

import tensorflow as tf
import tf_keras
from absl import logging
from official.common import distribute_utils
from official.nlp import train as model_garden

import tf_lamb.tf_keras
from tf_lamb.model_garden.checks.data import naming_records, reason
from tf_lamb.model_garden.checks.experiment import check_batch, check_run
from tf_lamb.model_garden.common import batches, yamls
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.folders import checkpoints, model_dirs, report
from tf_lamb.model_garden.running import runner, workers


@dataclasses.dataclass(frozen=True)
class Session:
    """Holds the experiment and flags of one command, and the role of this process in its cluster.

    Attributes:
        params: The experiment, as Model Garden's `ExperimentConfig`.
        args: The parsed flags; `args.model_dir` is replaced where an evaluation cannot write there.
        seed: The random seed of the run, the same whenever it is resumed; None without one.
        checkpoint: The path of the checkpoint that mode `eval` evaluates. None in other modes, and
            if mode `eval` evaluates `task.init_checkpoint` instead.
        is_chief: Whether this process prints, locks the folder and logs. Every worker repairs the
            folder and writes the notes of the run.
        workers: The number of processes that train one model together.
        strategy: The distribution strategy of a TPU or of several workers; None if Model Garden's
            main makes the strategy.
    """

    params: Any
    args: Any
    seed: int | None
    checkpoint: str | None
    is_chief: bool
    workers: int
    strategy: tf.distribute.Strategy | None = None

    @property
    def trains(self) -> bool:
        """Whether the run trains."""
        return "train" in self.args.mode


def run(console, params, args) -> None:
    """Trains and evaluates an experiment as the flags say.

    Nothing is written before `_take_folder`, and nothing is trained before
    `_have_model_garden_train`.

    Args:
        console: the `Console` of the command.
        params: the experiment, as Model Garden's `ExperimentConfig`.
        args: the parsed flags; `args.model_dir` is replaced where an evaluation cannot write there.

    Raises:
        UserError: if the run is impossible, or would overwrite files of another run.
    """
    check_run(params, args.mode, args.model_dir, args.experiment, args.seed)
    session = _meet(params, args)
    _take_folder(console, session)
    if session.trains and not _begin(console, session):
        return
    _have_model_garden_train(console, session)
    _end(session)


def _meet(params, args) -> Session:
    """Makes the session and its distribution strategy.

    With several workers, returns when all of them have compared their settings.
    """
    if (seed := args.seed) is None:
        seed = model_dirs.read_run(args.model_dir).get("seed")
    checkpoint = _checkpoint_to_evaluate(params, args.model_dir) if args.mode == "eval" else None
    session = Session(
        params=params,
        args=args,
        seed=seed,
        checkpoint=checkpoint,
        is_chief=batches.is_chief(params),
        workers=batches.workers(params),
    )
    strategy = _make_strategy(session)
    params = _with_micro_batches(session, strategy)
    return dataclasses.replace(session, params=params, strategy=strategy)


def _with_micro_batches(session: Session, strategy):
    """Returns the experiment, on a TPU with the number of micro-batches set, and prints it.

    The number follows from `--per_replica_batch_size` and the number of replicas. Without a TPU it
    is set already, because then the settings alone give the number of replicas. Raises `UserError`
    if the batch cannot be split.
    """
    if batches.replicas(session.params) is not None or not session.trains:
        return session.params
    if not (per_replica_batch_size := session.args.per_replica_batch_size):
        return session.params
    replicas = strategy.num_replicas_in_sync
    params, message = parsing.accumulated(session.params, per_replica_batch_size, replicas)
    check_batch(params, replicas)
    print(message, flush=True)
    return params


def _take_folder(console, session: Session) -> None:
    """Checks that the folder can be written, locks it for training, and writes the log into it.

    An evaluation does not lock the folder. Only the chief locks and logs; the log of other workers
    goes to their stderr. If an evaluation cannot write to the folder, as when somebody else owns
    it, its files go to a temporary folder.
    """
    args = session.args
    if not checkpoints.is_writable(args.model_dir):
        if args.mode != "eval":
            raise UserError(f"--model_dir={args.model_dir} cannot be written. Choose another one")
        read_only_dir, args.model_dir = args.model_dir, tempfile.mkdtemp(prefix="tf_lamb-eval-")
        print(f"{read_only_dir} cannot be written: all that this evaluation writes goes to "
              f"{args.model_dir}", flush=True)  # fmt: skip
    if not session.is_chief:
        console.give_back(show=True)
        return
    if session.trains:
        model_dirs.lock(args.model_dir)
    console.keep_in(args.model_dir, "train.log" if session.trains else "eval.log")


def _begin(console, session: Session) -> bool:
    """Prepares the folder for a run that trains, and prints where it resumes.

    It removes unfinished checkpoints, and writes down the experiment, the seed and the initial
    checkpoint. It returns False if there is nothing to train, because the run has reached its last
    step.
    """
    params, args = session.params, session.args
    checkpoints.repair(args.model_dir)
    # The third mode that trains, train_and_post_eval, evaluates even if training is over.
    stops_when_over = args.mode in ("train", "train_and_eval")
    if stops_when_over and model_dirs.is_over(params, args.model_dir, args.mode):
        if session.is_chief:
            step = checkpoints.steps_done(args.model_dir)
            print(f"Training is over at step {step:,}: a larger trainer.train_steps goes on")
            print(report.report(args.model_dir), flush=True)
        return False
    console.on_stop = lambda: _text_at_stop(console.step, args.model_dir)
    initial = params.task.init_checkpoint
    model_dirs.write_run(args.model_dir, args.experiment, session.seed, initial)
    if session.is_chief and (latest := checkpoints.latest(args.model_dir)):
        print(f"Going on from {os.path.basename(latest)}", flush=True)
    return True


def _have_model_garden_train(console, session: Session) -> None:
    """Calls Model Garden's main, which makes the task and the trainer, and trains or evaluates."""
    params, args, shown_on = session.params, session.args, console if session.is_chief else None
    timeout = params.trainer.continuous_eval_timeout
    if session.seed is not None:
        tf_keras.utils.set_random_seed(session.seed)
    if args.mode == "continuous_eval" and session.is_chief and timeout is not None:
        print(f"Waiting for each checkpoint in {args.model_dir}, {timeout:,} seconds at the most "
              "(trainer.continuous_eval_timeout)", flush=True)  # fmt: skip
    params_before = model_dirs.read_params(args.model_dir) if session.trains else None
    runner.install(params, shown_on, session.checkpoint, session.strategy, params_before)
    try:
        with naming_records(params):
            model_garden.main(None)
    except UserError:
        logging.set_verbosity(logging.WARNING)  # hides what TensorFlow's threads log at their end
        raise


def _end(session: Session) -> None:
    """Prints the report after training, or that `continuous_eval` is over.

    With several workers, first waits until the chief has written the last files of the run.
    """
    model_dir = session.args.model_dir
    if session.trains:
        if session.workers > 1:
            workers.wait_for_chief(session.is_chief, model_dir)
        logging.set_verbosity(logging.WARNING)  # hides what TensorFlow's threads log at their end
    if session.trains and session.is_chief:
        print(report.report(model_dir), flush=True)
    elif session.args.mode == "continuous_eval" and session.is_chief:
        step = checkpoints.steps_done(model_dir)
        print(f"Training is over at step {step:,}, and so is its evaluation", flush=True)


def _checkpoint_to_evaluate(params, model_dir: str) -> str | None:
    """Returns the path of the checkpoint to evaluate; None to evaluate `task.init_checkpoint`.

    Raises `UserError` if there is neither.
    """
    checkpoint = checkpoints.last_whole(model_dir)
    if checkpoint is None and not params.task.init_checkpoint:
        raise UserError(
            f"--model_dir={model_dir} holds no checkpoint to evaluate. Name the --model_dir of a "
            "run that has saved one, or write task.init_checkpoint=CHECKPOINT"
        )
    return checkpoint


def _text_at_stop(step: int | None, model_dir: str) -> str:
    """Returns the line to print when the user stops training: where it stopped and will resume.

    `step` is the last step; None before the first one.
    """
    position = f"at step {step:,}" if step else "before the first step"
    checkpoint = checkpoints.first_readable(model_dir)
    next_run = f"goes on from {checkpoint}" if checkpoint else "begins anew"
    return f"Stopped {position}. The same command {next_run}"


# -- several workers that train one model ----------------------------------------------------------


def _settings_to_share(session: Session) -> dict[str, str]:
    """Returns the settings on which all workers of a run have to agree, name -> text."""
    params, args = session.params, session.args
    start = session.checkpoint or checkpoints.first_readable(args.model_dir)
    initial = params.task.init_checkpoint and model_dirs.checkpoint_in(params.task.init_checkpoint)
    settings = {
        "the version of tf_lamb": tf_lamb.__version__,
        "the version of tensorflow": tf.__version__,
        "the version of tf-models-official": importlib.metadata.version("tf-models-official"),
        "--experiment": args.experiment,
        "--mode": args.mode,
        "--model_dir": args.model_dir,
        "--seed": session.seed,
        "--gin_params": args.gin_params,
        "the checkpoint that it begins with": start and os.path.basename(start),
        "the checkpoint of task.init_checkpoint": initial and os.path.basename(initial),
        "the step of its last evaluation": model_dirs.read_evaluated(args.model_dir),
        **dict(yamls.leaves(params.as_dict())),
    }
    return {name: repr(value) for name, value in settings.items()}


def _make_strategy(session: Session) -> tf.distribute.Strategy | None:
    """Makes the strategy of a TPU or of several workers; None if Model Garden's main makes it.

    With several workers, returns when all of them have compared their settings. If the settings
    differ, raises `UserError` in every worker.
    """
    runtime = session.params.runtime
    if str(runtime.distribution_strategy).lower() == "tpu":
        return _of_tpu(runtime)
    if session.workers < 2:
        return None
    settings = _settings_to_share(session)
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=runtime.distribution_strategy,
        all_reduce_alg=runtime.all_reduce_alg,
        num_gpus=runtime.num_gpus,
    )
    resolver = strategy.cluster_resolver
    tasks = resolver.cluster_spec().as_dict()
    names = [f"{job} {i}" for job in ("chief", "worker") for i, _ in enumerate(tasks.get(job, ()))]
    workers.check_same_settings(names, f"{resolver.task_type} {resolver.task_id}", settings)
    return strategy


def _of_tpu(runtime) -> tf.distribute.Strategy:
    """Makes the strategy of a TPU; raises `UserError` if TensorFlow cannot reach the TPU."""
    try:
        return distribute_utils.get_distribution_strategy(
            distribution_strategy=runtime.distribution_strategy,
            num_gpus=runtime.num_gpus,
            tpu_address=runtime.tpu,
            **runtime.model_parallelism(),
        )
    # Every error is caught, because other libraries raise errors of their own types here: the HTTP
    # client, Google's cloud clients, the TPU driver.
    except Exception as error:
        flag = "" if runtime.tpu is None else f"--tpu={runtime.tpu}: "
        why = reason(error) or type(error).__name__
        raise UserError(
            f"{flag}TensorFlow reaches no TPU there ({why}). Write --tpu=local on its own machine, "
            "or else its name, once it is ready"
        ) from error
