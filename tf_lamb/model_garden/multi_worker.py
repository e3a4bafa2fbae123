"""Lets a `multi_worker_mirrored` run of Model Garden resume.

Model Garden gives every worker but the chief a fresh temporary folder to save to, and restores from
it as well: the chief goes on from its checkpoint, the others begin at step 0, and the job dies.
"""

import tempfile

import tensorflow as tf
from official.core import train_lib

from tf_lamb.model_garden import runner


class _ChiefsCheckpoint(tf.train.CheckpointManager):
    """Saves to its own folder, and restores from the chief's."""

    def __init__(self, *args, chief_dir: str, **kwargs):
        super().__init__(*args, **kwargs)
        self._chief_dir = chief_dir

    def restore_or_initialize(self):
        # seam: tensorflow 2.20. So the base class also remembers the step of that checkpoint;
        # workers that disagree on when to save the next one wait for each other forever.
        self._latest_checkpoint = tf.train.latest_checkpoint(self._chief_dir)
        return super().restore_or_initialize()


class _Runner(runner.Runner):
    # seam: tf-models-official 2.20.0.
    def _maybe_build_checkpoint_manager(self):
        if self.strategy.extended.should_checkpoint:
            return super()._maybe_build_checkpoint_manager()
        return _ChiefsCheckpoint(
            self.trainer.checkpoint,
            directory=tempfile.mkdtemp(),
            max_to_keep=1,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval,
            init_fn=self.trainer.initialize,
            chief_dir=self.model_dir,
        )


def restore_from_the_chief() -> None:
    """Has every run of this process restore what the chief saved. All must see its model_dir."""
    train_lib.OrbitExperimentRunner = _Runner
