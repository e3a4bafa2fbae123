"""Manages the folder of a run, the model_dir: its lock, its settings, and notes on the run.

Also checks that an experiment can train or be evaluated in a folder which an earlier run has used,
and reads the facts that a folder of data has on its data.
"""

import fcntl  # is missing on Windows, but so is tensorflow-text, which Model Garden needs
import json
import os
import re
import socket
from typing import IO

import tensorflow as tf
import yaml

from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.folders import checkpoints

# Model Garden saves the settings as params.yaml at every start. These two files hold what is not in
# params.yaml: notes on the run (its experiment, seed and initial checkpoint), and the step of the
# last evaluation.
RUN_FILE, EVALUATED_FILE = "tf_lamb_run.json", "tf_lamb_evaluated.json"
_OPTIMIZER = "trainer.optimizer_config.optimizer.type"
_LOCK_FILE = "tf_lamb_run.lock"
# Matches the names of those settings of a model that an evaluation may change.
_FREE_IN_EVALUATION = re.compile("drop|input_size|momentum|stochastic|sync_bn")
_locked: dict[str, IO] = {}  # path -> lock file, open while this process trains there


def lock(model_dir: str) -> None:
    """Locks a folder until this process ends, so that no other run trains in it.

    Does nothing for a folder in a bucket. On a file system without locks it makes the folder and an
    empty lock file, but locks nothing.

    Raises:
        UserError: if another run trains in the folder.
    """
    path = os.path.join(os.path.realpath(model_dir), _LOCK_FILE)
    if "://" in model_dir or path in _locked:
        return
    os.makedirs(model_dir, exist_ok=True)
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (open until the process ends)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UserError(
            f"--model_dir={model_dir}: another run trains in it, {holder}. Wait for its end, or "
            "choose another --model_dir"
        ) from error
    except OSError:
        # The file stays, because another run may hold a lock on it if only this call has failed.
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _locked[path] = file


def _read(path: str, load) -> dict | None:
    """Returns the dict that `load` makes of a file's bytes.

    Returns None if there is no such file, or if `load` fails or returns no dict.
    """
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = load(file.read())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_run(model_dir: str) -> dict:
    """Returns the notes on the last run in a folder, as a dict; {} if there are none.

    The keys are "experiment", "seed" and "began_with", the path of the initial checkpoint.
    """
    return _read(os.path.join(model_dir, RUN_FILE), json.loads) or {}


def write_run(model_dir: str, experiment: str, seed: int | None, begins=None) -> None:
    """Writes the notes on this run: its experiment, its seed and its initial checkpoint.

    When a run is resumed, the notes keep the checkpoint that it started from at first.

    Args:
        model_dir: the folder of the run, which is created if it is missing.
        experiment: the name of the experiment.
        seed: the random seed; None without one.
        begins: `task.init_checkpoint`, a checkpoint or a folder with one; None if the run starts
            from newly initialized weights.
    """
    tf.io.gfile.makedirs(model_dir)
    if checkpoints.is_begun(model_dir):
        first_checkpoint = read_run(model_dir).get("began_with")
    else:
        first_checkpoint = checkpoint_in(begins) if begins else None
    content = {"experiment": experiment, "seed": seed, "began_with": first_checkpoint}
    checkpoints.write_json(os.path.join(model_dir, RUN_FILE), content)


def read_evaluated(model_dir: str) -> int:
    """Returns the step of the last evaluation of a training run in this folder; 0 without one."""
    return (_read(os.path.join(model_dir, EVALUATED_FILE), json.loads) or {}).get("step", 0)


def write_evaluated(model_dir: str, step: int) -> None:
    """Writes the step of the last evaluation; all evaluations due before that step were made.

    Args:
        model_dir: the folder of the run.
        step: the step of the weights that were evaluated last.
    """
    checkpoints.write_json(os.path.join(model_dir, EVALUATED_FILE), {"step": step})


def write_params(params, model_dir: str) -> None:
    """Writes params.yaml, completely or not at all.

    The keys keep their order. It matters where they are patterns for the names of variables, of
    which the first that matches applies.

    Args:
        params: the experiment's `ExperimentConfig`.
        model_dir: the folder of the run, which is created if it is missing.
    """
    tf.io.gfile.makedirs(model_dir)
    path = os.path.join(model_dir, "params.yaml")
    with checkpoints.atomic_write(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        yaml.dump(params.as_dict(), file, sort_keys=False)


def read_params(model_dir: str) -> dict | None:
    """Returns the settings in the params.yaml of a run's folder, as a dict; None without one."""
    return _read(os.path.join(model_dir, "params.yaml"), yamls.read)


def read_facts(file: str) -> dict:
    """Returns the content of the data.json beside a data file, as a dict; {} without one.

    `tf_lamb.model_garden.sample_data` and `sample_pictures` write data.json. It has facts on the
    data, such as the size of the vocabulary.
    """
    return _read(os.path.join(os.path.dirname(file), "data.json"), json.loads) or {}


def checkpoint_in(path: str) -> str | None:
    """Returns the path of the checkpoint that `path` refers to; None if there is none.

    `path` is the path of a checkpoint, or of a folder, of which the last checkpoint is returned.
    """
    if tf.io.gfile.isdir(path):
        return checkpoints.latest(path)
    return path if tf.io.gfile.exists(f"{path}.index") else None


def is_over(params, model_dir: str, mode: str = "train") -> bool:
    """Returns whether training is over: no step is left, and no evaluation is missing.

    No step is left at `trainer.train_steps`, or earlier, when AdaScale has reached `base_steps`.

    Args:
        params: the experiment's `ExperimentConfig`.
        model_dir: the folder of the run.
        mode: the mode of the run. Only in "train_and_eval" can an evaluation be missing.
    """
    step = checkpoints.steps_done(model_dir)
    if mode == "train_and_eval" and read_evaluated(model_dir) != step:
        return False
    adascale = getattr(params.trainer.optimizer_config.optimizer.get(), "adascale", None)
    limit = getattr(adascale, "base_steps", None)
    if limit is not None and _steps_of_adascale(model_dir) >= limit:
        return True
    return step >= params.trainer.train_steps


def _steps_of_adascale(model_dir: str) -> float:
    """Returns AdaScale's progress in the last checkpoint, in steps of its base batch.

    Returns 0 without AdaScale, or if the checkpoint is damaged; `checkpoints.repair` reports that.
    """
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    reader = checkpoints.reader(model_dir)
    for name in reader.get_variable_to_shape_map() if reader else ():
        if name.startswith("optimizer/") and name.endswith(f"/fraction{suffix}"):
            step = name.replace(f"/fraction{suffix}", f"/step{suffix}")
            try:
                return float(reader.get_tensor(name)) + float(reader.get_tensor(step))
            except checkpoints.UNREADABLE:
                return 0.0
    return 0.0


def check_folder(params, model_dir: str, experiment: str | None, seed: int | None) -> None:
    """Checks that a folder has no checkpoint, or only checkpoints of this experiment.

    Args:
        params: the experiment's `ExperimentConfig`.
        model_dir: the folder.
        experiment: the name of the experiment, if known.
        seed: the seed, if one is set.

    Raises:
        UserError: if the folder is a file; if it has a checkpoint but no params.yaml; or if its run
            has another experiment, seed, model or batch size than this one, or another setting on
            which the optimizer's variables depend.
    """
    if tf.io.gfile.exists(model_dir) and not tf.io.gfile.isdir(model_dir):
        raise UserError(f"--model_dir={model_dir} is a file. Name a folder")
    if not checkpoints.is_begun(model_dir):
        return
    saved_params, notes = read_params(model_dir), read_run(model_dir)
    if reason := _why_another(saved_params, params.as_dict(), notes, experiment, seed):
        raise UserError(
            f"--model_dir={model_dir} {reason}. Choose another --model_dir (task.init_checkpoint="
            f"{model_dir} begins there with these weights), or delete this one"
        )


def _why_another(saved: dict | None, params: dict, run: dict, experiment, seed) -> str | None:
    """Returns how the run in a folder differs from the run that is about to start, or None.

    `saved` and `params` are the settings of the two runs as dicts, and `run` the notes on the run
    in the folder, as `read_run` returns them.
    """
    if saved is None:
        return "holds a checkpoint but no params.yaml that says what it is of"
    if experiment and run.get("experiment") not in (None, experiment):
        return f"holds the experiment {run['experiment']}, not {experiment}"
    if seed is not None and run.get("seed") not in (None, seed):
        return f"was begun with --seed={run['seed']}, not {seed}: without --seed it goes on"
    old, new = _identity(saved), _identity(params)
    differences = (_first_difference(old[path], new.get(path), path) for path in old)
    difference = next(filter(None, differences), None)
    return difference and f"holds another experiment: {difference}"


def check_followed(model_dir: str) -> None:
    """Checks, for `continuous_eval`, that a training run has begun in the folder.

    Otherwise the evaluation might wait for checkpoints that nobody writes.

    Raises:
        UserError: if there is no params.yaml and no checkpoint.
    """
    if read_params(model_dir) is None and not checkpoints.is_begun(model_dir):
        raise UserError(
            f"--model_dir={model_dir} holds no run to follow. Name the --model_dir of a training "
            "that has begun: it writes params.yaml at its start"
        )


def check_evaluated(params, model_dir: str) -> None:
    """Checks, by the params.yaml beside it, that the checkpoint to evaluate is of this model.

    Args:
        params: the experiment's `ExperimentConfig`.
        model_dir: the folder of the run. Without a checkpoint there, `task.init_checkpoint` is
            evaluated.

    Raises:
        UserError: if a setting of the model differs, and an evaluation may not change it.
    """
    source, folder, path = f"--model_dir={model_dir}", model_dir, params.task.init_checkpoint
    if path and not checkpoints.is_begun(model_dir):
        source = f"task.init_checkpoint={path}"
        folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    old = at(read_params(folder) or {}, "task.model") or {}
    new = params.task.model.as_dict()
    if difference := _first_difference(_as_evaluated(old), _as_evaluated(new), "task.model"):
        raise UserError(
            f"{source} holds another model: {difference}. Evaluate it as it was trained, with "
            f"--config_file={os.path.join(folder, 'params.yaml')}"
        )


def _as_evaluated(settings):
    """Returns the settings of a model without those that may differ in an evaluation.

    These are, for example, dropout and the momentum of batch normalization. The rest have to be
    equal in training and in evaluation.
    """
    if isinstance(settings, (list, tuple)):
        return [_as_evaluated(item) for item in settings]
    if not isinstance(settings, dict):
        return settings
    keys = (key for key in settings if not _FREE_IN_EVALUATION.search(str(key)))
    return {key: _as_evaluated(settings[key]) for key in keys}


def check_successor(before, after, keep_moments: bool) -> None:
    """Checks that a stage of training can continue from the weights of the previous stage.

    Args:
        before: the `ExperimentConfig` of the previous stage.
        after: the `ExperimentConfig` of the stage that continues from it.
        keep_moments: whether the second stage also restores the optimizer's slot variables and step
            count.

    Raises:
        UserError: if the models differ. With `keep_moments` also if the optimizers have different
            variables, if AdaScale would go on counting the steps of the previous stage, or if the
            warmup is not of the type `tf_lamb`, the only one that can begin at a later step.
    """
    old, new = before.task.model.as_dict(), after.task.model.as_dict()
    if difference := _first_difference(old, new, "task.model"):
        raise UserError(f"it cannot take over the weights of the stage before: {difference}")
    if not keep_moments:
        return
    old, new = (_state(params.as_dict()) for params in (before, after))
    if path := next((path for path in old if old[path] != new.get(path)), None):
        raise UserError(
            f"--moments=keep: the {path} of the stage before is {old[path]!r}, and of this one "
            f"{new[path]!r}. Write the same for both, or --moments=reset"
        )
    if "set" in (value for path, value in new.items() if path.endswith("adascale.scale")):
        raise UserError(
            "--moments=keep: AdaScale would go on counting the steps of the stage before. Write "
            "--moments=reset"
        )
    if after.trainer.optimizer_config.warmup.type != "tf_lamb":
        raise UserError(
            "--moments=keep needs trainer.optimizer_config.warmup.type=tf_lamb, which can begin "
            "where the optimizer's steps are"
        )


def check_handed_over(params, model_dir: str, successor: str) -> None:
    """Checks that the previous stage has not changed since the next stage started from it.

    Steps that the previous stage takes later would not reach the next stage. Nothing is checked if
    the next stage has not begun.

    Args:
        params: the `ExperimentConfig` of the previous stage.
        model_dir: the folder of the previous stage.
        successor: the folder of the next stage.

    Raises:
        UserError: if the previous stage has trained further, or is not over.
    """
    if not checkpoints.is_begun(successor):
        return
    latest = checkpoints.first_readable(model_dir)
    latest = latest and os.path.basename(latest)
    # The notes of older versions of this package lack the checkpoint that a run started from.
    start = read_run(successor).get("began_with") or latest
    start = start and os.path.basename(start)
    if start == latest and is_over(params, model_dir):
        return
    why = f"is at {latest or 'no checkpoint'} now" if start != latest else "is not over"
    raise UserError(
        f"--model_dir={successor} began with {start} of {model_dir}, which {why}: nothing of what "
        "is trained there since would reach it. Give the stage before as many steps as it had, or "
        f"delete {successor} to have this one begin anew"
    )


def _identity(params: dict) -> dict:
    """Returns the settings that may not change when a run is resumed, path -> value.

    The variables of a checkpoint, and the meaning of its steps, depend on them.
    """
    paths = "task.model", "task.train_data.global_batch_size"
    return {**{path: at(params, path) for path in paths}, **_state(params)}


def _state(params: dict) -> dict:
    """Returns the settings on which an optimizer's variables in a checkpoint depend, path -> value.

    For some settings it only matters whether they are on. Their values here say only that.
    """
    optimizer = f"trainer.optimizer_config.optimizer.{at(params, _OPTIMIZER)}"

    def is_set(path):
        return "not set" if at(params, path) is None else "set"

    precision, scale = "runtime.mixed_precision_dtype", f"{optimizer}.adascale.scale"
    noise, slots = f"{optimizer}.measure_noise.enabled", f"{optimizer}.dtypes.slots"
    averages, old_slots = "trainer.optimizer_config.ema", f"{optimizer}.slot_dtype"
    return {
        _OPTIMIZER: at(params, _OPTIMIZER),
        # Each of the next four settings puts the optimizer into a wrapper, so that the optimizer's
        # slot variables have other names in a checkpoint.
        averages: is_set(averages),
        precision: "float16" if at(params, precision) == "float16" else "not float16",
        scale: is_set(scale),
        noise: bool(at(params, noise)),
        # Older versions of this package named the setting `slot_dtype`.
        slots: at(params, slots) or at(params, old_slots) or "float32",
    }


def _first_difference(old, new, path: str) -> str | None:
    """Describes the first setting at or below `path` that differs, or returns None."""
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        # A key that only one of the dicts has is ignored: another version of Model Garden added it.
        for key in (key for key in old if key in new):
            if difference := _first_difference(old[key], new[key], f"{path}.{key}"):
                return difference
        return None
    return None if old == new else f"its {path} is {old!r}, yours {new!r}"
