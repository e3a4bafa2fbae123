"""Ownership of a model_dir: what a run may resume from, and a lock against a second run."""

import fcntl  # Windows has none, and no Model Garden: there is no tensorflow-text for it
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

# Model Garden saves its params.yaml at every start. What it does not hold is here.
RUN_FILE, EVALUATED_FILE = "tf_lamb_run.json", "tf_lamb_evaluated.json"
_OPTIMIZER = "trainer.optimizer_config.optimizer.type"
_LOCK_FILE = "tf_lamb_run.lock"
_FREE_IN_EVALUATION = re.compile("drop|input_size|momentum|stochastic|sync_bn")
_locked: dict[str, IO] = {}  # by path, open as long as this process trains there


def lock(model_dir: str) -> None:
    """Keeps other runs out of a folder while this process lives, where a file can be locked."""
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
    """The content of a file, if it is there and a mapping."""
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            found = load(file.read())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_run(model_dir: str) -> dict:
    """The notes of the last run here: experiment, seed, where it began; {} if there are none."""
    return _read(os.path.join(model_dir, RUN_FILE), json.loads) or {}


def write_run(model_dir: str, experiment: str, seed: int | None, begins=None) -> None:
    """Says what this run is, and with which checkpoint it began: that of `begins`, if any."""
    tf.io.gfile.makedirs(model_dir)
    if checkpoints.is_begun(model_dir):
        began = read_run(model_dir).get("began_with")
    else:
        began = checkpoint_in(begins) if begins else None
    content = {"experiment": experiment, "seed": seed, "began_with": began}
    checkpoints.write_json(os.path.join(model_dir, RUN_FILE), content)


def read_evaluated(model_dir: str) -> int:
    """The step of the last evaluation that a training in this folder made; 0 if there is none."""
    return (_read(os.path.join(model_dir, EVALUATED_FILE), json.loads) or {}).get("step", 0)


def write_evaluated(model_dir: str, step: int) -> None:
    """Remembers that the weights of this step were evaluated, and all that was due before them."""
    checkpoints.write_json(os.path.join(model_dir, EVALUATED_FILE), {"step": step})


def write_params(params, model_dir: str) -> None:
    """Writes params.yaml whole, with keys in their order: of several patterns the first counts."""
    tf.io.gfile.makedirs(model_dir)
    path = os.path.join(model_dir, "params.yaml")
    with checkpoints.atomic_write(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        yaml.dump(params.as_dict(), file, sort_keys=False)


def read_params(model_dir: str) -> dict | None:
    """The params.yaml that Model Garden saved here, or None."""
    return _read(os.path.join(model_dir, "params.yaml"), yamls.read)


def read_facts(file: str) -> dict:
    """The data.json beside a data file that `tf_lamb.model_garden.sample_data` wrote, or {}."""
    return _read(os.path.join(os.path.dirname(file), "data.json"), json.loads) or {}


def checkpoint_in(path: str) -> str | None:
    """The checkpoint that is meant by its own name, or by that of the folder it is in; or None."""
    if tf.io.gfile.isdir(path):
        return checkpoints.latest(path)
    return path if tf.io.gfile.exists(f"{path}.index") else None


def is_over(params, model_dir: str, mode: str = "train") -> bool:
    """Whether no step is left, which AdaScale may say early, and no evaluation is missed."""
    done = checkpoints.steps_done(model_dir)
    if mode == "train_and_eval" and read_evaluated(model_dir) != done:
        return False
    adascale = getattr(params.trainer.optimizer_config.optimizer.get(), "adascale", None)
    limit = getattr(adascale, "base_steps", None)
    if limit is not None and _steps_of_adascale(model_dir) >= limit:
        return True
    return done >= params.trainer.train_steps


def _steps_of_adascale(model_dir: str) -> float:
    """The base batch's steps that the last checkpoint is worth, by names; 0 where none counts."""
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    reader = checkpoints.reader(model_dir)
    for name in reader.get_variable_to_shape_map() if reader else ():
        if name.startswith("optimizer/") and name.endswith(f"/fraction{end}"):
            step = name.replace(f"/fraction{end}", f"/step{end}")
            return float(reader.get_tensor(name)) + float(reader.get_tensor(step))
    return 0.0


def check_folder(params, model_dir: str, experiment: str | None, seed: int | None) -> None:
    """Raises where this experiment cannot train in this folder; without a checkpoint it can."""
    if tf.io.gfile.exists(model_dir) and not tf.io.gfile.isdir(model_dir):
        raise UserError(f"--model_dir={model_dir} is a file. Name a folder")
    if not checkpoints.is_begun(model_dir):
        return
    saved, run = read_params(model_dir), read_run(model_dir)
    if why := _why_another(saved, params.as_dict(), run, experiment, seed):
        raise UserError(
            f"--model_dir={model_dir} {why}. Choose another --model_dir (task.init_checkpoint="
            f"{model_dir} begins there with these weights), or delete this one"
        )


def _why_another(saved: dict | None, params: dict, run: dict, experiment, seed) -> str | None:
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
    """Raises where there is no run whose checkpoints could come."""
    if read_params(model_dir) is None and not checkpoints.is_begun(model_dir):
        raise UserError(
            f"--model_dir={model_dir} holds no run to follow. Name the --model_dir of a training "
            "that has begun: it writes params.yaml at its start"
        )


def check_evaluated(params, model_dir: str) -> None:
    """Raises where this is not the model whose checkpoint is evaluated, as its params.yaml says."""
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
    """A model's settings, without those that an evaluation may have otherwise than the training."""
    if isinstance(settings, (list, tuple)):
        return [_as_evaluated(each) for each in settings]
    if not isinstance(settings, dict):
        return settings
    kept = (key for key in settings if not _FREE_IN_EVALUATION.search(str(key)))
    return {key: _as_evaluated(settings[key]) for key in kept}


def check_successor(before, after, keep_moments: bool) -> None:
    """Raises where an experiment cannot go on from the weights of the one before."""
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
    """Raises where a stage that has begun would see nothing of what the one before has trained.

    Args:
        params: the experiment of the stage before.
        model_dir: its folder.
        successor: the folder of the stage that goes on from it.
    """
    if not checkpoints.is_begun(successor):
        return
    latest = checkpoints.readable(model_dir)
    latest = latest and os.path.basename(latest)
    began = read_run(successor).get("began_with") or latest  # older versions did not note it
    began = began and os.path.basename(began)
    if began == latest and is_over(params, model_dir):
        return
    now = f"is at {latest or 'no checkpoint'} now" if began != latest else "is not over"
    raise UserError(
        f"--model_dir={successor} began with {began} of {model_dir}, which {now}: nothing of what "
        "is trained there since would reach it. Give the stage before as many steps as it had, or "
        f"delete {successor} to have this one begin anew"
    )


def _identity(params: dict) -> dict:
    """The settings that a checkpoint's variables and steps depend on; all others may change."""
    same = "task.model", "task.train_data.global_batch_size"
    return {**{path: at(params, path) for path in same}, **_state(params)}


def _state(params: dict) -> dict:
    """The settings that an optimizer's state depends on."""
    optimizer = f"trainer.optimizer_config.optimizer.{at(params, _OPTIMIZER)}"

    def is_set(path):
        return "not set" if at(params, path) is None else "set"

    precision, scale = "runtime.mixed_precision_dtype", f"{optimizer}.adascale.scale"
    noise, slots = f"{optimizer}.measure_noise.enabled", f"{optimizer}.dtypes.slots"
    averages, former = "trainer.optimizer_config.ema", f"{optimizer}.slot_dtype"
    return {
        _OPTIMIZER: at(params, _OPTIMIZER),
        # Each of these wraps the optimizer, and so moves its slots to another place.
        averages: is_set(averages),
        precision: "float16" if at(params, precision) == "float16" else "not float16",
        scale: is_set(scale),
        noise: bool(at(params, noise)),
        slots: at(params, slots) or at(params, former) or "float32",  # of a folder of before
    }


def _first_difference(old, new, path: str) -> str | None:
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        # A field that only one of them has is one that another version of Model Garden added.
        for key in (key for key in old if key in new):
            if found := _first_difference(old[key], new[key], f"{path}.{key}"):
                return found
        return None
    return None if old == new else f"its {path} is {old!r}, yours {new!r}"
