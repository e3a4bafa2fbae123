"""Finds, checks and restores the checkpoint from which a run resumes: the last complete one.

The module also writes files in one step (`atomic_write`, `write_json`), tests whether a folder can
be written (`is_writable`), and exports the best checkpoint of a run (`Best`).

TensorFlow writes a new checkpoint beside the older ones, and then writes its name into the file
`checkpoint` of the folder. A run that is killed in between resumes from the previous checkpoint.
Still, a disk or a person may damage the file `checkpoint` or the checkpoint that it names. Without
the checks of this module, TensorFlow would then start at step 0 and overwrite the old checkpoints.
"""

import contextlib
import json
import os
import re
import uuid

import tensorflow as tf
from absl import logging
from official.core import train_utils
from official.modeling import optimization

from tf_lamb.model_garden.common.errors import UserError, unknown

# seam: relies on tf-models-official 2.20.0 and tensorflow 2.20. These are the names that Orbit and
# TensorFlow give to the files of checkpoints.
_NAMING_FILE, _PREFIX, _INDEX, _UNFINISHED = "checkpoint", "ckpt-", ".index", "_temp"
# The errors with which TensorFlow refuses a damaged checkpoint.
UNREADABLE = (tf.errors.OpError, LookupError, RuntimeError, ValueError)


@contextlib.contextmanager
def atomic_write(path: str):
    """Replaces a file in one step, so that it is never half written.

    Args:
        path: the path of the file.

    Yields:
        The path of a temporary file to write to, which then replaces the file. After an error the
        temporary file is removed.

    Raises:
        UserError: if TensorFlow cannot write the file.
    """
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"  # unique: several workers may write the file
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, tf.errors.OpError):
            raise UserError(f"{path} cannot be written: {error.message}") from error
        raise


def _remove(path: str) -> None:
    """Removes a file; does nothing if it is absent or cannot be removed."""
    with contextlib.suppress(tf.errors.OpError):
        tf.io.gfile.remove(path)


def write_json(path: str, content) -> None:
    """Writes `content` as JSON to a file in one step, so that the file is never half written.

    Args:
        path: the path of the file, which is replaced if it exists.
        content: a value that `json.dump` takes.

    Raises:
        UserError: if the file cannot be written.
    """
    with atomic_write(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        json.dump(content, file)


def is_writable(folder: str) -> bool:
    """Creates `folder` if it is missing, and returns whether a file can be written into it."""
    path = os.path.join(folder, f"{uuid.uuid4().hex}.tmp")
    try:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(" ")
    except tf.errors.OpError:
        return False
    finally:
        _remove(path)
    return True


def latest(folder: str) -> str | None:
    """Returns the path of the checkpoint that the folder's file `checkpoint` names, or None."""
    try:
        return tf.train.latest_checkpoint(folder)
    except ValueError:  # the file is empty, or no text
        return None


def first_readable(folder: str) -> str | None:
    """Returns the path of a folder's first checkpoint whose `.index` file can be read, or None.

    It tries the checkpoint that the file `checkpoint` names, and then the others, newest first.
    """
    return next((checkpoint for checkpoint in _candidates(folder) if _reader(checkpoint)), None)


def reader(folder: str):
    """Returns TensorFlow's reader of what `first_readable` finds; None if it finds nothing."""
    return next(filter(None, map(_reader, _candidates(folder))), None)


def steps_done(folder: str) -> int:
    """Returns the `global_step` of the checkpoint that `first_readable` finds; 0 without one.

    After `repair`, a run in this folder resumes at that step.
    """
    return _count(folder, "global_step")


def updates_done(folder: str) -> int:
    """Returns the optimizer's `iterations` in the checkpoint that `first_readable` finds, or 0.

    Unlike `global_step`, `iterations` does not count a step that was skipped because its gradients
    were not finite.
    """
    return _count(folder, r"optimizer/(\w+/)*_?iter(ations)?")  # a wrapper adds a level


def _count(folder, name) -> int:
    """Returns the value of the first variable in the checkpoint that `first_readable` finds, or 0.

    `name` is a regular expression for the variable's name, without the suffix of checkpoints.
    """
    checkpoint, name = reader(folder), re.compile(rf"{name}/\.ATTRIBUTES/VARIABLE_VALUE")
    paths = filter(name.fullmatch, checkpoint.get_variable_to_shape_map() if checkpoint else ())
    try:
        return next((int(checkpoint.get_tensor(path)) for path in paths), 0)
    except UNREADABLE:  # no error here, because `last_whole` reports a damaged checkpoint
        return 0


def _reader(checkpoint):
    """Returns TensorFlow's reader of a checkpoint; None if its `.index` file cannot be read."""
    try:
        return tf.train.load_checkpoint(checkpoint)
    except UNREADABLE:
        return None


def is_begun(folder: str) -> bool:
    """Returns whether the folder has a checkpoint, even a broken one, or the file `checkpoint`."""
    return bool(_newest_first(folder)) or _is_named(folder)


def why_broken(checkpoint: str) -> str | None:
    """Returns why a checkpoint cannot be read, or None. Reads all its variables to find out.

    TensorFlow compares the checksum of each variable when it reads it.
    """
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except UNREADABLE as error:
        return f"{checkpoint}: {str(error).splitlines()[0]}"
    return None


def gaps(checkpoint: str, root, variables) -> tuple[list[str], list[str]]:
    """Compares the variables of a checkpoint with those of a model and its run.

    The slot variables of an optimizer are not compared, nor the variables of layers that are not
    built yet.

    Args:
        checkpoint: the path of the checkpoint.
        root: the `tf.train.Checkpoint` that would read it.
        variables: the variables that the checkpoint must have: those of the model, and those of the
            run, such as `global_step`.

    Returns:
        Two lists of names: the entries of `variables` that the checkpoint lacks, and the variables
        that the checkpoint has but the model lacks.
    """
    view, model_ids = tf.train.CheckpointView(checkpoint), {id(variable) for variable in variables}
    # seam: relies on tensorflow 2.20, which has no public function for the names under which the
    # variables of a node are saved.
    nodes = view._object_graph_proto.nodes
    shared_nodes, _, missing = view.diff(root)
    pending = [
        node for node, trackable in shared_nodes.items() if getattr(trackable, "built", True)
    ]
    visited, surplus = set(shared_nodes), []
    while pending:
        for node in set(view.children(pending.pop()).values()) - visited:
            visited.add(node)
            pending.append(node)
            surplus += [attribute.checkpoint_key for attribute in nodes[node].attributes]
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    surplus_names = (name.removesuffix(suffix) for name in sorted(surplus) if name.endswith(suffix))
    return (
        [variable.name for variable in missing if id(variable) in model_ids],
        [name for name in surplus_names if "/" in name and not name.startswith("optimizer/")],
    )


def lacks(missing: list[str]) -> str:
    """Returns a clause for an error on the variables of the model that a checkpoint lacks.

    `missing` are the names of these variables. The clause has their number and the first name.
    """
    return f"it lacks {len(missing)} variables of it, {missing[0]} for one"


def last_whole(folder: str) -> str | None:
    """Finds the checkpoint to resume from: the first one of which every variable can be read.

    It tries the checkpoint that the file `checkpoint` names, and then the others, newest first.
    Warns if the result is not the checkpoint that the file names.

    Returns:
        The path; None if no checkpoint was ever finished.

    Raises:
        UserError: if the folder has the file `checkpoint`, but no checkpoint that can be read.
    """
    reasons: list[str] = []
    latest_path = latest(folder)
    for checkpoint in _candidates(folder):
        if not (reason := why_broken(checkpoint)):
            if checkpoint != latest_path:
                message, name = _why(reasons), os.path.basename(checkpoint)
                logging.warning("--model_dir=%s: %s. Going on from %s.", folder, message, name)
            return checkpoint
        reasons.append(reason)
    if _is_named(folder):  # without that file, no checkpoint was ever finished
        raise UserError(
            f"--model_dir={folder} holds no checkpoint that can be read: {_why(reasons)}. Bring "
            "back a copy, choose another --model_dir, or delete this one to begin anew"
        )
    return None


def _why(broken: list[str]) -> str:
    """Joins the reasons why checkpoints are broken, for an error; `broken` may be empty."""
    return "; ".join(broken) or "its file 'checkpoint' names none that is there"


def repair(folder: str) -> None:
    """Writes the name of the checkpoint that `last_whole` finds into the file `checkpoint`.

    Also removes the unfinished files of a checkpoint that a killed process was writing.

    Raises:
        UserError: if the folder has the file `checkpoint`, but no checkpoint that can be read.
    """
    for name in _names(folder):
        if name.startswith(_PREFIX) and name.endswith(_UNFINISHED):
            with contextlib.suppress(tf.errors.NotFoundError):  # another worker removed it
                tf.io.gfile.rmtree(os.path.join(folder, name))
    if (checkpoint := last_whole(folder)) and checkpoint != latest(folder):
        _name(folder, checkpoint)


def _candidates(folder: str) -> list[str]:
    """Returns the paths of a folder's checkpoints, in the order in which to try to restore them."""
    # The checkpoint that the file `checkpoint` names is first, even if others have later steps,
    # because a run may have gone back to it.
    latest_path = latest(folder)
    return [*dict.fromkeys([*([latest_path] if latest_path else []), *_newest_first(folder)])]


def _name(folder: str, checkpoint: str) -> None:
    """Writes the names of a checkpoint and of the older ones into the file `checkpoint`.

    TensorFlow later deletes an older checkpoint (`max_to_keep`) only if the file names it.
    """
    newest = _newest_first(folder)
    oldest_first = newest[newest.index(checkpoint) :][::-1]
    # seam: relies on tensorflow 2.20, whose public function for this cannot write relative paths.
    # Other paths would be wrong after the folder is moved.
    tf.__internal__.train.update_checkpoint_state(
        folder,
        checkpoint,
        oldest_first,
        save_relative_paths=True,
        all_model_checkpoint_timestamps=[
            tf.io.gfile.stat(path + _INDEX).mtime_nsec / 1e9 for path in oldest_first
        ],
    )


def _names(folder: str) -> list[str]:
    """Returns the names in a folder; none if there is no folder."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [name.rstrip("/") for name in names]  # a bucket ends folder names with a slash


def _is_named(folder: str) -> bool:
    """Returns whether the folder has TensorFlow's file `checkpoint`.

    This file names the latest checkpoint.
    """
    return tf.io.gfile.exists(os.path.join(folder, _NAMING_FILE))


def _newest_first(folder: str) -> list[str]:
    """Returns the paths of a folder's checkpoints, sorted by step, the newest first."""
    names = (name.removesuffix(_INDEX) for name in _names(folder) if name.endswith(_INDEX))
    steps = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    newest = sorted((int(step) for step in steps if step.isdecimal()), reverse=True)
    return [os.path.join(folder, f"{_PREFIX}{step}") for step in newest]


class Best(train_utils.BestCheckpointExporter):
    """Exports the best checkpoint like its base class, but writes info.json after the checkpoint.

    The file info.json holds the results of the best evaluation. The base class writes it first. If
    the process were killed then, info.json would describe a checkpoint that does not exist.
    """

    def maybe_export_checkpoint(self, checkpoint, eval_logs, global_step, write_logs=True):
        """Exports a checkpoint if its result is the best so far.

        Unlike the base class, reports at the first evaluation, and not only at the second, that the
        results lack the metric that decides which checkpoint is the best.

        Args:
            checkpoint: the `tf.train.Checkpoint` to export.
            eval_logs: the results of the evaluation, name -> value.
            global_step: the step of the evaluation.
            write_logs: whether to write info.json, too.

        Returns:
            Whether the result is the best so far.

        Raises:
            UserError: if the results lack `trainer.best_checkpoint_eval_metric`.
        """
        try:
            train_utils.get_leaf_nested_dict(eval_logs, self._metric_name)
        except KeyError as error:
            name = "|".join(self._metric_name)
            message = unknown("trainer.best_checkpoint_eval_metric", name, sorted(eval_logs))
            raise UserError(message) from error
        is_better = super().maybe_export_checkpoint(checkpoint, eval_logs, global_step, False)
        if is_better and write_logs:
            with atomic_write(self.best_ckpt_logs_path) as temporary_path:
                self._notes = temporary_path
                try:
                    self.export_best_eval_metric(eval_logs, global_step)
                finally:
                    self._notes = None
        return is_better

    _notes = None

    @property
    def best_ckpt_logs_path(self):
        """The path of info.json; while info.json is being written, that of a temporary file."""
        return self._notes or super().best_ckpt_logs_path


class Manager(tf.train.CheckpointManager):
    """Restores the chief's checkpoint in every worker, and refuses a checkpoint of another model.

    The chief is the worker that writes the files of the run. Model Garden makes every other worker
    save to a temporary folder, and also restore from it. On resuming, the chief would start from
    its checkpoint, and the other workers at step 0.

    Args:
        *args: as in the base class.
        model_dir: the chief's folder.
        evaluated: the path of the checkpoint to restore; None for the last one of `model_dir`.
        mode: the mode of the run, such as "train" or "eval".
        **kwargs: as in the base class.
    """

    def __init__(self, *args, model_dir: str, evaluated: str | None = None, mode="train", **kwargs):
        super().__init__(*args, **kwargs)
        self._model_dir, self._evaluated, self._mode = model_dir, evaluated, mode

    def restore_or_initialize(self):
        """Restores a checkpoint, or initializes the model if there is none; see base class.

        The checkpoint is `evaluated`, if that is set, or else the last one of `model_dir`.

        Returns:
            The path of the checkpoint, or what the base class returns if there is none.

        Raises:
            UserError: if the checkpoint is not of this model, or lacks the moving averages of the
                weights that are to be evaluated.
        """
        # seam: relies on tensorflow 2.20, whose `CheckpointManager` keeps the step of its last
        # checkpoint in `_last_checkpoint_step`. The step is set in all workers, because workers
        # that disagree on when to save the next checkpoint wait for each other forever.
        path = self._evaluated or tf.train.latest_checkpoint(self._model_dir)
        self._latest_checkpoint = path
        if path is None:
            if self._mode == "eval":
                self._check_averages(None)
            return super().restore_or_initialize()
        self.restore(path)
        self._last_checkpoint_step = int(self._step_counter.numpy())
        return path

    def restore(self, path: str) -> str:
        """Restores a checkpoint.

        Args:
            path: the path of the checkpoint.

        Returns:
            The path.

        Raises:
            UserError: if the checkpoint is not of this model, or lacks the moving averages of the
                weights that are to be evaluated.
        """
        checkpoint = self.checkpoint
        variables = [checkpoint.global_step, *checkpoint.model.variables]
        if "train" in self._mode:  # only `iterations`: a wrapper renames the others
            variables.append(checkpoint.optimizer.iterations)
        missing, surplus = gaps(path, checkpoint, variables)
        # TensorFlow would ignore missing and surplus variables without an error. They occur if the
        # settings of the model have changed since the checkpoint was saved.
        iterations = checkpoint.optimizer.iterations.name if "train" in self._mode else None
        if missing == [iterations]:  # the weights fit
            raise UserError(
                f"{path} has this model's weights, but the state of another optimizer, such as the "
                "Model Garden's lamb. To begin with its weights, write "
                f"task.init_checkpoint={path} and choose another --model_dir, or go on with the "
                "type that it was trained by"
            )
        if missing:
            raise _foreign(path, lacks(missing))
        if surplus:
            raise _foreign(path, f"it holds {len(surplus)} variables more, {surplus[0]} for one")
        target = checkpoint
        if "train" not in self._mode and not self._check_averages(path):
            target = tf.train.Checkpoint(global_step=checkpoint.global_step, model=checkpoint.model)
        try:
            # By the check above, the checkpoint has all variables that are needed. `expect_partial`
            # silences TensorFlow's warnings about unread variables. An evaluation does not read the
            # optimizer's variables, nor does a training run that takes no step.
            target.restore(path).expect_partial()
        except ValueError as error:  # a variable has another shape
            raise _foreign(path, str(error)) from error
        return path

    def _check_averages(self, path) -> bool:
        """Returns whether the evaluation uses moving averages of the weights (`ema`).

        Raises `UserError` if it does and the checkpoint has no averages, because they would be 0.
        Logs a warning if it does not and the checkpoint has some.
        """
        uses_averages = isinstance(self.checkpoint.optimizer, optimization.ExponentialMovingAverage)
        names = [name for name, _ in tf.train.list_variables(path)] if path else []
        # seam: relies on tf-models-official 2.20.0, which names the averages "average" in a
        # checkpoint.
        has_averages = any("/average/" in name for name in names)
        if uses_averages and not has_averages:
            raise UserError(
                f"trainer.optimizer_config.ema evaluates averages of the weights, and "
                f"{path or 'task.init_checkpoint'} gives none. Write trainer.optimizer_config.ema="
                "null, which evaluates the weights"
            )
        if has_averages and not uses_averages:
            logging.warning(
                "%s holds averages of the weights, and the weights are evaluated. For the averages "
                "write trainer.optimizer_config.ema as the run has it.",
                path,
            )
        return uses_averages


def _foreign(path, reason) -> UserError:
    """Makes the error for a checkpoint that is not of this model."""
    return UserError(
        f"{path} is not a checkpoint of this model: {reason}. Bring back the right one, or choose "
        "another --model_dir"
    )
