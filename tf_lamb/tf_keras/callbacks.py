"""The callbacks for tf_keras.

Each class joins a framework-independent class from `tf_lamb.api.callbacks` with a callback class of
tf_keras.
"""

import os

import tensorflow as tf
import tf_keras

from tf_lamb.api import callbacks
from tf_lamb.api.docstrings import shows_docstring
from tf_lamb.api.variables import variables_of
from tf_lamb.tensorflow import summaries


class KerasCallback(tf_keras.callbacks.Callback):
    """Counts how many batches `fit` runs between two calls of a callback's batch methods.

    Unlike other callbacks, its subclasses do not make tf_keras wait for the loss of each batch.
    """

    def __init__(self):
        super().__init__()
        self._supports_tf_logs = True  # avoids a wait for each loss; seam: tf_keras 2.20.1

    def _count_batches_per_call(self):
        """Returns the number of batches between two calls of a method like `on_train_batch_end`."""
        # seam: tf_keras 2.20.1. A model has no public attribute with this number.
        return int(self.model._steps_per_execution.numpy())


@shows_docstring
class StopOnDivergence(callbacks.StopOnDivergence, KerasCallback): ...


@shows_docstring
class NoiseScale(callbacks.NoiseScale, KerasCallback): ...


@shows_docstring
class StopAtBaseSteps(callbacks.StopAtBaseSteps, KerasCallback): ...


@shows_docstring
class TrustRatios(callbacks.TrustRatios, KerasCallback):
    _make_writer = summaries.Writer


@shows_docstring
class BackupAndRestore(callbacks.BackupAndRestore, tf_keras.callbacks.BackupAndRestore):
    def __init__(self, backup_dir: str | os.PathLike, delete_checkpoint: bool = True):
        super().__init__(backup_dir, delete_checkpoint=delete_checkpoint)

    def on_train_begin(self, logs=None):
        """Restores the weights, the optimizer's state and the epoch, if there is a backup.

        Raises:
            ValueError: If the backup cannot be read, or lacks variables of this model or of its
                optimizer.
        """
        folder = os.path.join(self.backup_dir, "chief")  # seam: tf_keras 2.20 uses it
        has_backup = tf.io.gfile.exists(os.path.join(folder, "checkpoint"))
        try:
            path = tf.train.latest_checkpoint(folder)
            if has_backup and path is None:
                # Without this error, training would silently begin at the first epoch.
                raise ValueError("its file 'checkpoint' names none that is there.")
            super().on_train_begin(logs)
        except (tf.errors.OpError, LookupError, ValueError) as error:
            raise self._refusal(error) from error
        if path and (missing := self._missing_variables(path)):
            raise self._refusal(f"it lacks {missing[0]}, which this model has.")

    def _missing_variables(self, path):
        """Returns the names of the model's and the optimizer's variables that a checkpoint lacks.

        TensorFlow itself raises no error for them: they would keep their present values.
        """
        model = self.model
        root = tf.train.Checkpoint(model=model)
        model_variables = [*model.variables, *variables_of(model.optimizer)]
        needed_ids = {id(variable) for variable in model_variables}
        _, _, missing = tf.train.CheckpointView(path).diff(root)
        return [variable.name for variable in missing if id(variable) in needed_ids]
