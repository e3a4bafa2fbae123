"""The face of a backup that no kill breaks; each door adds its host's."""


class BackupAndRestore:
    """Keras's `BackupAndRestore`, of which a kill at any moment leaves one that is whole.

    Give it to `fit` again, with the same arguments, and training goes on after the last epoch that
    ended: with the same data in the same order it ends with the same weights, bit for bit. Keras 3
    writes weights over the last ones, and the number of the epoch after them: killed in the first
    it has lost both, killed in between it trains an epoch twice. Within an epoch, neither Keras
    can go on: where epochs are long, give `fit` a smaller `steps_per_epoch`.

    Of several processes on JAX all give it, with one folder that they share: the first one writes,
    and what differs between them is refused before the first step.

    What cannot be read, or is of another model or optimizer, is refused and left as it is.

    Args:
        backup_dir: A folder of its own, on a disk that is mounted.
        delete_checkpoint: Whether the backup goes when training has ended.

    Example:
        >>> backup = tf_lamb.BackupAndRestore("backup")
        >>> model.fit(x, y, epochs=10, callbacks=[backup])
    """

    backup_dir: str

    def _refusal(self, reason) -> ValueError:
        why = " ".join(str(reason).split())
        return ValueError(
            f"The backup in backup_dir={self.backup_dir!r} cannot be restored: {why} Bring back a "
            "copy, or name another backup_dir to begin anew; nothing was changed."
        )
