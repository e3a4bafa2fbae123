"""The callbacks for Keras 3.

Each class joins the framework-independent class in `tf_lamb.api.callbacks` with Keras's base class.
"""

import contextlib
import math
import os
import re
import warnings

import keras

from tf_lamb.api import callbacks
from tf_lamb.api.docstrings import shows_docstring
from tf_lamb.api.seams import set_initial_epoch
from tf_lamb.core.messages import optional_imports
from tf_lamb.keras import processes, seams


class KerasCallback(keras.callbacks.Callback):
    """Adds to Keras 3's `Callback` the member that `tf_lamb.api.callbacks` needs of each Keras."""

    def _count_batches_per_call(self):
        """Returns how many batches `fit` trains between two calls of `on_train_batch_end`."""
        return self.model.steps_per_execution


class _HidesTrustRatios:
    """Mixin for callbacks that make the optimizer record its trust ratios.

    It has to be the first base class. It keeps wrappers of the optimizer from saving the records.
    """

    def _optimizer_to_read(self, model):
        """Returns the optimizer as the base class does, and keeps wrappers from saving its ratios.

        On JAX the recorded ratios are variables of the optimizer. A wrapper around it, such as
        `LossScaleOptimizer`, would list them among its own variables and save them.
        """
        optimizer = super()._optimizer_to_read(model)  # type: ignore[misc]  # of the class behind this mixin
        wrapper = model.optimizer
        while wrapper is not optimizer and keras.backend.backend() == "jax":
            seams.hide_trust_ratios(optimizer, wrapper)
            wrapper = wrapper.inner_optimizer
        return optimizer


@shows_docstring
class StopOnDivergence(_HidesTrustRatios, callbacks.StopOnDivergence, KerasCallback): ...


@shows_docstring
class NoiseScale(callbacks.NoiseScale, KerasCallback): ...


@shows_docstring
class StopAtBaseSteps(callbacks.StopAtBaseSteps, KerasCallback): ...


@shows_docstring
class TrustRatios(_HidesTrustRatios, callbacks.TrustRatios, KerasCallback):
    def _check_directory(self):
        """Raises ImportError, before training begins, if TensorFlow or TensorBoard is missing."""
        self._import_writer_class()
        super()._check_directory()

    def _import_writer_class(self):
        """Returns the class that writes TensorBoard's files; raises where TensorFlow is missing."""
        with optional_imports(
            f"TrustRatios(directory={self._directory!r}), which writes TensorBoard's files,",
            "tensorflow tensorboard", "leave the directory out and have the table alone, or ",
        ):  # fmt: skip
            from tf_lamb.tensorflow import summaries
        return summaries.Writer

    def _make_writer(self, directory, optimizer):
        """Returns a writer of TensorBoard's files, which TensorFlow writes.

        On JAX and torch, it first hides the GPUs from TensorFlow, if that is not initialized yet.
        """
        if keras.backend.backend() != "tensorflow":
            import tensorflow as tf

            # Without this call, TensorFlow would take the memory of the GPU on which JAX or torch
            # trains. The call raises RuntimeError if TensorFlow is already initialized.
            with contextlib.suppress(RuntimeError):
                tf.config.set_visible_devices([], "GPU")
        self._check_directory()
        return self._import_writer_class()(directory, optimizer)


_PREFIX, _SUFFIX = "after_epoch_", ".weights.h5"


@shows_docstring
class BackupAndRestore(callbacks.BackupAndRestore, keras.callbacks.BackupAndRestore):
    def __init__(self, backup_dir: str | os.PathLike, delete_checkpoint: bool = True):
        super().__init__(backup_dir, delete_checkpoint=delete_checkpoint)

    def on_train_begin(self, logs=None):
        """Restores the weights, the optimizer's state and the epoch, if there is a backup.

        Raises:
            ValueError: If the backup cannot be read or belongs to another model or optimizer; if
                the model has no weights yet; or, in every process, if processes differ in what they
                resume.
        """
        saved_epochs = self._epochs_of_backups()
        processes.check_agreement(
            "fit with BackupAndRestore", lambda: self._compared_texts(saved_epochs)
        )
        if not saved_epochs:
            return
        model, optimizer = self.model, self.model.optimizer
        if not model.built:
            raise self._refusal("the model has no weights yet. Call it on a batch before fit.")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        try:
            with warnings.catch_warnings():
                # If the optimizer's state does not fit, Keras would only warn, and train on with
                # new slots. Here its warning raises an error.
                warnings.filterwarnings("error", message="Skipping variable loading")
                with seams.lora_unmerged(model):
                    model.load_weights(self._backup_path(saved_epochs[-1]))
        except (OSError, ValueError, KeyError, UserWarning) as error:
            raise self._refusal(error) from error
        set_initial_epoch(model, saved_epochs[-1])  # so `fit` continues after the saved epoch

    def on_epoch_end(self, epoch, logs=None):
        """Writes a backup of weights and optimizer; of several processes only the first writes.

        Args:
            epoch: The number of the epoch, from 0.
            logs: Ignored.
        """
        with processes.gathered_variables([*self.model.variables, *self.model.optimizer.variables]):
            processes.run_in_first_process(lambda: self._write_backup(epoch))

    def on_train_end(self, logs=None):
        """Removes the backup, if `delete_checkpoint` asks for it."""
        processes.run_in_first_process(super().on_train_end)

    def _write_backup(self, epoch):
        """Writes the backup of an epoch, then removes earlier ones.

        If the process is killed in between, the earlier or the new backup is complete.
        """
        os.makedirs(self.backup_dir, exist_ok=True)
        temporary_path = os.path.join(self.backup_dir, f"unfinished{_SUFFIX}")
        try:
            self._reserve_space(temporary_path)
            with seams.lora_unmerged(self.model):
                self.model.save_weights(temporary_path, overwrite=True)
        except BaseException:
            if os.path.exists(temporary_path):
                os.remove(temporary_path)  # it would take space on a disk that may be full
            raise
        os.replace(temporary_path, self._backup_path(epoch + 1))
        for earlier_epoch in self._epochs_of_backups()[:-1]:
            os.remove(self._backup_path(earlier_epoch))

    def _reserve_space(self, path):
        """Reserves disk space for a backup in a file; raises OSError if the disk is full.

        Without it HDF5 would run out of space while it writes, which may end the process.
        """
        variables = [*self.model.variables, *self.model.optimizer.variables]
        sizes = (
            math.prod(variable.shape) * (8 if "64" in variable.dtype else 4) + 4096
            for variable in variables
        )
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, sum(sizes))

    def _compared_texts(self, saved_epochs):
        """Returns a dict of texts that have to be equal in all processes before a run resumes.

        Args:
            saved_epochs: The numbers of epochs after which the folder has backups.
        """
        fit_arguments = {name: repr(self.params.get(name)) for name in ("epochs", "steps")}
        return {
            **fit_arguments,
            "the last epoch in the folder that they share": str(saved_epochs[-1:]),
        }

    def _backup_path(self, epochs_done):
        """Returns the path of the backup that is written after `epochs_done` epochs."""
        return os.path.join(self.backup_dir, f"{_PREFIX}{epochs_done}{_SUFFIX}")

    def _epochs_of_backups(self):
        """Returns the numbers of epochs after which the folder has a backup, in rising order.

        There are several if a process was killed before it had removed the earlier backups.
        """
        names = os.listdir(self.backup_dir) if os.path.isdir(self.backup_dir) else []
        pattern = re.compile(rf"{re.escape(_PREFIX)}(\d+){re.escape(_SUFFIX)}")
        return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
