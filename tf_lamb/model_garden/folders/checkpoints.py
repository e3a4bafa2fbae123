"""The checkpoint that a run goes on from: the last complete one of its folder.

TensorFlow writes a checkpoint beside the others, then names it in the folder's file `checkpoint`:
whoever is killed in between goes on from the one before. That file may be damaged all the same, by
a disk or by a hand, and so may what it names. TensorFlow would then begin anew, over what is there.
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

# seam: tf-models-official 2.20.0 and tensorflow 2.20. What Orbit and TensorFlow name their files.
_NAMING_FILE, _PREFIX, _INDEX, _UNFINISHED = "checkpoint", "ckpt-", ".index", "_temp"
_UNREADABLE = (tf.errors.OpError, LookupError, RuntimeError, ValueError)


@contextlib.contextmanager
def atomic_write(path: str):
    """A temporary name to write to, which then replaces the file, or after an error is removed."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"  # each worker has its own
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, tf.errors.OpError):
            raise UserError(f"{path} cannot be written: {error.message}") from error
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(tf.errors.OpError):  # it is not there, or nothing can be done
        tf.io.gfile.remove(path)


def write_json(path: str, content) -> None:
    """Replaces a file by what JSON can hold."""
    with atomic_write(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        json.dump(content, file)


def is_writable(folder: str) -> bool:
    """Whether a file can be written into the folder, which is made if need be."""
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
    """The checkpoint that the folder's file `checkpoint` names, if there is such a one."""
    try:
        return tf.train.latest_checkpoint(folder)
    except ValueError:  # the file is empty, or no text
        return None


def readable(folder: str) -> str | None:
    """The checkpoint that the folder names, or else the newest, of which the index can be read."""
    return next((c for c in _candidates(folder) if _reader(c)), None)


def reader(folder: str):
    """The reader of the checkpoint that `readable` names; None where there is none."""
    return next(filter(None, map(_reader, _candidates(folder))), None)


def steps_done(folder: str) -> int:
    """The step of the checkpoint from which a run in this folder goes on; 0 if there is none."""
    return _count(folder, "global_step")


def updates_done(folder: str) -> int:
    """The same in steps of the optimizer, which counts none that it skipped."""
    return _count(folder, r"optimizer/(\w+/)*_?iter(ations)?")  # in whatever wraps it


def _count(folder, name) -> int:
    found, name = reader(folder), re.compile(rf"{name}/\.ATTRIBUTES/VARIABLE_VALUE")
    paths = filter(name.fullmatch, found.get_variable_to_shape_map() if found else ())
    try:
        return next((int(found.get_tensor(path)) for path in paths), 0)
    except _UNREADABLE:  # `last_whole` says so
        return 0


def _reader(checkpoint):
    try:
        return tf.train.load_checkpoint(checkpoint)
    except _UNREADABLE:
        return None


def is_begun(folder: str) -> bool:
    """Whether there is a checkpoint in the folder, be it broken."""
    return bool(_newest_first(folder)) or _is_named(folder)


def why_broken(checkpoint: str) -> str | None:
    """Why a checkpoint cannot be read to its end, or None. Compares all checksums."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except _UNREADABLE as error:
        return f"{checkpoint}: {str(error).splitlines()[0]}"
    return None


def gaps(checkpoint: str, root, variables) -> tuple[list[str], list[str]]:
    """The names of a model's variables that a checkpoint lacks, and of its own that it has over.

    What is not of the model, as an optimizer's is, does not count; nor do layers that are yet to be
    built. `root` is the `tf.train.Checkpoint` that would read it.
    """
    view, wanted = tf.train.CheckpointView(checkpoint), {id(variable) for variable in variables}
    # seam: tensorflow 2.20. Nothing public says by which name a node is saved.
    saved = view._object_graph_proto.nodes
    shared, _, missing = view.diff(root)
    pending = [node for node, mine in shared.items() if getattr(mine, "built", True)]
    seen, over = set(shared), []
    while pending:
        for node in set(view.children(pending.pop()).values()) - seen:
            seen.add(node)
            pending.append(node)
            over += [each.checkpoint_key for each in saved[node].attributes]
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    names = (name.removesuffix(end) for name in sorted(over) if name.endswith(end))
    return (
        [variable.name for variable in missing if id(variable) in wanted],
        [name for name in names if "/" in name and not name.startswith("optimizer/")],
    )


def lacks(missing: list[str]) -> str:
    """Says of a checkpoint which variables of a model it lacks."""
    return f"it lacks {len(missing)} variables of it, {missing[0]} for one"


def last_whole(folder: str) -> str | None:
    """The newest checkpoint that can be read to its end; None where none was ever finished.

    Warns where the folder names another; raises where there were checkpoints, and none can be read.
    """
    broken: list[str] = []
    named = latest(folder)
    for checkpoint in _candidates(folder):
        if not (reason := why_broken(checkpoint)):
            if checkpoint != named:
                why, name = _why(broken), os.path.basename(checkpoint)
                logging.warning("--model_dir=%s: %s. Going on from %s.", folder, why, name)
            return checkpoint
        broken.append(reason)
    if _is_named(folder):  # else none was ever finished
        raise UserError(
            f"--model_dir={folder} holds no checkpoint that can be read: {_why(broken)}. Bring "
            "back a copy, choose another --model_dir, or delete this one to begin anew"
        )
    return None


def _why(broken: list[str]) -> str:
    return "; ".join(broken) or "its file 'checkpoint' names none that is there"


def repair(folder: str) -> None:
    """Points the file `checkpoint` at the newest whole checkpoint; raises if there is none.

    Also removes what a killed process has left of a checkpoint that it was writing.
    """
    for name in _names(folder):
        if name.startswith(_PREFIX) and name.endswith(_UNFINISHED):
            with contextlib.suppress(tf.errors.NotFoundError):  # another worker was faster
                tf.io.gfile.rmtree(os.path.join(folder, name))
    if (checkpoint := last_whole(folder)) and checkpoint != latest(folder):
        _name(folder, checkpoint)


def _candidates(folder: str) -> list[str]:
    # The one that is named first, whatever its step: a run may have gone back to it.
    named = latest(folder)
    return [*dict.fromkeys([*([named] if named else []), *_newest_first(folder)])]


def _name(folder: str, checkpoint: str) -> None:
    """Names the older ones, too, so that TensorFlow removes them in their time."""
    newest = _newest_first(folder)
    oldest_first = newest[newest.index(checkpoint) :][::-1]
    # seam: tensorflow 2.20. Its public form writes paths that do not survive a move of the folder.
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
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [name.rstrip("/") for name in names]  # as the names of remote folders end


def _is_named(folder: str) -> bool:
    return tf.io.gfile.exists(os.path.join(folder, _NAMING_FILE))


def _newest_first(folder: str) -> list[str]:
    names = (name.removesuffix(_INDEX) for name in _names(folder) if name.endswith(_INDEX))
    steps = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    newest = sorted((int(step) for step in steps if step.isdecimal()), reverse=True)
    return [os.path.join(folder, f"{_PREFIX}{step}") for step in newest]


class Best(train_utils.BestCheckpointExporter):
    """Model Garden's exporter, but its notes come after the checkpoint: a kill breaks neither."""

    def maybe_export_checkpoint(self, checkpoint, eval_logs, global_step, write_logs=True):
        """See base class, which would miss a result only at the second evaluation."""
        try:
            train_utils.get_leaf_nested_dict(eval_logs, self._metric_name)
        except KeyError as error:
            name = "|".join(self._metric_name)
            known = unknown("trainer.best_checkpoint_eval_metric", name, sorted(eval_logs))
            raise UserError(known) from error
        is_better = super().maybe_export_checkpoint(checkpoint, eval_logs, global_step, False)
        if is_better and write_logs:
            with atomic_write(self.best_ckpt_logs_path) as self._notes:
                self.export_best_eval_metric(eval_logs, global_step)
            self._notes = None
        return is_better

    _notes = None

    @property
    def best_ckpt_logs_path(self):
        """The path of the notes; while they are written, a temporary one."""
        return self._notes or super().best_ckpt_logs_path


class Manager(tf.train.CheckpointManager):
    """Restores from the chief's folder, wherever it saves, and only what is of this model.

    Model Garden gives every worker but the chief a fresh folder, and restores from it as well: the
    chief would go on from its checkpoint, and the others begin at step 0.
    """

    def __init__(self, *args, model_dir: str, evaluated: str | None = None, mode="train", **kwargs):
        super().__init__(*args, **kwargs)
        self._model_dir, self._evaluated, self._mode = model_dir, evaluated, mode

    def restore_or_initialize(self):
        """See base class."""
        # seam: tensorflow 2.20. So the base class also remembers the step of that checkpoint;
        # workers that disagree on when to save the next one wait for each other forever.
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
        """Restores from this checkpoint, if it is of this model."""
        mine = self.checkpoint
        needed = [mine.global_step, *mine.model.variables]
        if "train" in self._mode:  # whatever wraps an optimizer moves what it keeps
            needed.append(mine.optimizer.iterations)
        missing, over = gaps(path, mine, needed)
        if missing:  # which TensorFlow would silently not restore; settings may change
            raise _foreign(path, lacks(missing))
        if over:
            raise _foreign(path, f"it holds {len(over)} variables more, {over[0]} for one")
        restored = mine
        if "train" not in self._mode and not self._check_averages(path):
            restored = tf.train.Checkpoint(global_step=mine.global_step, model=mine.model)
        try:
            # What is needed is there. An evaluation, or a run that takes no step, leaves the rest,
            # of which the base class has TensorFlow warn, variable by variable.
            restored.restore(path).expect_partial()
        except ValueError as error:  # of another shape
            raise _foreign(path, str(error)) from error
        return path

    def _check_averages(self, path) -> bool:
        """Whether averages are evaluated; raises where there are none: they would be 0."""
        asked = isinstance(self.checkpoint.optimizer, optimization.ExponentialMovingAverage)
        names = [name for name, _ in tf.train.list_variables(path)] if path else []
        # seam: tf-models-official 2.20.0, of which a slot for each weight has this name.
        has_averages = any("/average/" in name for name in names)
        if asked and not has_averages:
            raise UserError(
                f"trainer.optimizer_config.ema evaluates averages of the weights, and "
                f"{path or 'task.init_checkpoint'} gives none. Write trainer.optimizer_config.ema="
                "null, which evaluates the weights"
            )
        if has_averages and not asked:
            logging.warning(
                "%s holds averages of the weights, and the weights are evaluated. For the averages "
                "write trainer.optimizer_config.ema as the run has it.",
                path,
            )
        return asked


def _foreign(path, reason) -> UserError:
    return UserError(
        f"{path} is not a checkpoint of this model: {reason}. Bring back the right one, or choose "
        "another --model_dir"
    )
