"""Reads and writes the notes in a model_dir, checks what may run there, and locks the folder."""

import fcntl  # not on Windows, where Model Garden cannot be installed for want of tensorflow-text
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

# Model Garden saves the settings as params.yaml at every start. These files hold what is not in it:
# the notes of the run (experiment, seed, initial checkpoint), and the step of the last evaluation.
RUN_FILE, EVALUATED_FILE = "tf_lamb_run.json", "tf_lamb_evaluated.json"
_OPTIMIZER = "trainer.optimizer_config.optimizer.type"
_LOCK_FILE = "tf_lamb_run.lock"
# The settings of a model that an evaluation may change.
_FREE_IN_EVALUATION = re.compile("drop|input_size|momentum|stochastic|sync_bn")
_locked: dict[str, IO] = {}  # path -> lock file, open while this process trains there


def lock(model_dir: str) -> None:
    """Keeps other runs out of a folder while this process lives.

    Does nothing in a bucket, or on a file system without locks.

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
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _locked[path] = file


def _read(path: str, load) -> dict | None:
    """Returns the mapping that a file holds; None if there is no file, or no mapping in it."""
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = load(file.read())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_run(model_dir: str) -> dict:
    """Returns the last run's notes: experiment, seed and initial checkpoint; {} without notes."""
    return _read(os.path.join(model_dir, RUN_FILE), json.loads) or {}


def write_run(model_dir: str, experiment: str, seed: int | None, begins=None) -> None:
    """Writes the notes of this run: experiment, seed, and the checkpoint with which it began.

    When a run is resumed, the checkpoint in the notes stays.

    Args:
        model_dir: the folder of the run, which is made if need be.
        experiment: the name of the experiment.
        seed: the seed, if any.
        begins: `task.init_checkpoint`, a checkpoint or a folder with one; None for fresh weights.
    """
    tf.io.gfile.makedirs(model_dir)
    if checkpoints.is_begun(model_dir):
        first_checkpoint = read_run(model_dir).get("began_with")
    else:
        first_checkpoint = checkpoint_in(begins) if begins else None
    content = {"experiment": experiment, "seed": seed, "began_with": first_checkpoint}
    checkpoints.write_json(os.path.join(model_dir, RUN_FILE), content)


def read_evaluated(model_dir: str) -> int:
    """Returns the step of the last evaluation of a training in this folder; 0 without one."""
    return (_read(os.path.join(model_dir, EVALUATED_FILE), json.loads) or {}).get("step", 0)


def write_evaluated(model_dir: str, step: int) -> None:
    """Remembers that all evaluations due up to a step were made.

    Args:
        model_dir: the folder of the run.
        step: the step of the weights that were evaluated last.
    """
    checkpoints.write_json(os.path.join(model_dir, EVALUATED_FILE), {"step": step})


def write_params(params, model_dir: str) -> None:
    """Writes params.yaml, completely or not at all.

    The keys keep their order, because the first of several patterns that match counts.

    Args:
        params: the experiment.
        model_dir: the folder of the run, which is made if need be.
    """
    tf.io.gfile.makedirs(model_dir)
    path = os.path.join(model_dir, "params.yaml")
    with checkpoints.atomic_write(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        yaml.dump(params.as_dict(), file, sort_keys=False)


def read_params(model_dir: str) -> dict | None:
    """Returns the params.yaml that Model Garden saved here, as a dict, or None."""
    return _read(os.path.join(model_dir, "params.yaml"), yamls.read)


def read_facts(file: str) -> dict:
    """Returns the data.json beside a data file, as a dict; {} without one.

    `tf_lamb.model_garden.sample_data` and `sample_pictures` write such a file.
    """
    return _read(os.path.join(os.path.dirname(file), "data.json"), json.loads) or {}


def checkpoint_in(path: str) -> str | None:
    """Returns the path of a checkpoint; None if there is none.

    `path` is the checkpoint's own path, or a folder, whose last checkpoint is meant.
    """
    if tf.io.gfile.isdir(path):
        return checkpoints.latest(path)
    return path if tf.io.gfile.exists(f"{path}.index") else None


def is_over(params, model_dir: str, mode: str = "train") -> bool:
    """Returns whether training is over: no step is left, and no evaluation is missing.

    AdaScale may end a training before `trainer.train_steps`.

    Args:
        params: the experiment.
        model_dir: the folder of the run.
        mode: the mode of the run; only "train_and_eval" waits for evaluations.
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
    """Returns the steps of the base batch that AdaScale has counted in the last checkpoint.

    They are 0 without AdaScale, and if the checkpoint is damaged, which `checkpoints.repair`
    reports.
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
    """Raises if this experiment cannot train in this folder. It can in one without a checkpoint.

    Args:
        params: the experiment.
        model_dir: the folder.
        experiment: the name of the experiment, if known.
        seed: the seed, if one is set.

    Raises:
        UserError: if the folder is a file, or holds another experiment.
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
    """Returns how the run that a folder holds differs from this one, or None."""
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
    """Raises if the checkpoint to evaluate is of another model, by the params.yaml beside it.

    Args:
        params: the experiment.
        model_dir: the folder of the run. Without a checkpoint there, `task.init_checkpoint` is
            evaluated.

    Raises:
        UserError: if a setting of the model differs that an evaluation may not change.
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
    """Returns a model's settings, without those that an evaluation may change."""
    if isinstance(settings, (list, tuple)):
        return [_as_evaluated(item) for item in settings]
    if not isinstance(settings, dict):
        return settings
    keys = (key for key in settings if not _FREE_IN_EVALUATION.search(str(key)))
    return {key: _as_evaluated(settings[key]) for key in keys}


def check_successor(before, after, keep_moments: bool) -> None:
    """Checks that a stage can continue from the weights of the stage before.

    Args:
        before: the experiment of the stage before.
        after: the experiment of the stage that continues from it.
        keep_moments: whether the second stage also takes over the optimizer's variables, which are
            its slots and its step count.

    Raises:
        UserError: if the models differ. With `keep_moments` also if the optimizers have different
            variables, if AdaScale would continue to count the steps of the stage before, or if the
            warmup cannot begin at a later step.
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
    """Checks that the stage before is over, and has not trained further since a stage began.

    The stage that has begun would miss the added steps.

    Args:
        params: the experiment of the stage before.
        model_dir: the folder of the stage before.
        successor: the folder of the stage that continues from it.

    Raises:
        UserError: if the stage before has trained further, or is not over.
    """
    if not checkpoints.is_begun(successor):
        return
    latest = checkpoints.readable(model_dir)
    latest = latest and os.path.basename(latest)
    # Older versions did not write into the notes with which checkpoint a run began.
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
    """Returns the settings that a checkpoint's variables and steps depend on; others may change."""
    paths = "task.model", "task.train_data.global_batch_size"
    return {**{path: at(params, path) for path in paths}, **_state(params)}


def _state(params: dict) -> dict:
    """Returns the settings on which an optimizer's variables in a checkpoint depend, path -> value.

    If it only matters whether a setting is on, the value says that.
    """
    optimizer = f"trainer.optimizer_config.optimizer.{at(params, _OPTIMIZER)}"

    def is_set(path):
        return "not set" if at(params, path) is None else "set"

    precision, scale = "runtime.mixed_precision_dtype", f"{optimizer}.adascale.scale"
    noise, slots = f"{optimizer}.measure_noise.enabled", f"{optimizer}.dtypes.slots"
    averages, old_slots = "trainer.optimizer_config.ema", f"{optimizer}.slot_dtype"
    return {
        _OPTIMIZER: at(params, _OPTIMIZER),
        # Each of the next four wraps the optimizer, whose slots then have other names in a
        # checkpoint.
        averages: is_set(averages),
        precision: "float16" if at(params, precision) == "float16" else "not float16",
        scale: is_set(scale),
        noise: bool(at(params, noise)),
        # Older versions wrote `slot_dtype`.
        slots: at(params, slots) or at(params, old_slots) or "float32",
    }


def _first_difference(old, new, path: str) -> str | None:
    """Describes the first setting at or below `path` that differs, or returns None."""
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        # Another version of Model Garden added a field that only one of them has.
        for key in (key for key in old if key in new):
            if difference := _first_difference(old[key], new[key], f"{path}.{key}"):
                return difference
        return None
    return None if old == new else f"its {path} is {old!r}, yours {new!r}"
