"""A learning rate that an action moves between two loops of steps, as an extra may bring one.

`seams.add_learning_rates` makes it known to every experiment; the checks, the runner and the
trainer find it here.
"""

import tf_keras
from official.modeling.optimization import optimizer_factory

from tf_lamb.api.variables import unwrapped


class Steered(tf_keras.optimizers.schedules.LearningRateSchedule):
    """The base class of such rates.

    Attributes:
        is_watched: Whether the action is there.
    """

    is_watched = False

    @classmethod
    def check(cls, params) -> None:
        """Raises `UserError`, before training, where an experiment cannot have this rate."""

    def action(self, optimizer, model_dir: str, writes: bool):
        """The action, which is called with the output of each loop.

        The runner calls its `resume()` when a checkpoint is restored, and prints its `advice()` at
        the end.

        Args:
            optimizer: The trainer's, in whatever wrapper.
            model_dir: Where the action may keep its state.
            writes: Whether this process writes it; all of them read it.
        """
        raise NotImplementedError


def is_steered(kind) -> bool:
    """Whether a type of learning rate is one of these."""
    made_by = optimizer_factory.LR_CLS.get(kind)
    return isinstance(made_by, type) and issubclass(made_by, Steered)


def rate_of(optimizer) -> Steered | None:
    """The rate inside an optimizer and what may wrap it; None where it has another."""
    # seam: tf-models-official 2.20.0 and tf_keras 2.20.1. Averaging, and either generation.
    optimizer = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    rate = getattr(optimizer, "_learning_rate", None)
    rate = optimizer.learning_rate if rate is None else rate
    return rate if isinstance(rate, Steered) else None
