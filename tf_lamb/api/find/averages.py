"""The running averages of batch normalization in a short run."""

from collections.abc import Callable
from typing import Any

from tf_lamb.api.variables import Snapshot

HUGE = 2.0**100


def normalizations(model: Any) -> list:
    """Its layers of batch normalization whose averages training moves."""
    # seam: Keras 3.15.1, tf_keras 2.20.1. No public walk reaches layers inside of layers.
    every = model._flatten_layers()
    return [each for each in every if hasattr(each, "moving_variance") and each.trainable]


class RunningAverages:
    """Running averages, estimated for the weights of now: they would lag behind a short run.

    An update takes an average a to s a + (1 - s) x, with the statistic x of its batch. A layer may
    be called several times, or in groups, so that its s is not its momentum: it is measured. Beside
    2^100 a batch adds nothing: what is left / 2^100 is what one update keeps, s. From zero, n
    updates give (1 - s^n) times the mean of x.
    """

    def __init__(self, model: Any):
        layers = normalizations(model)
        self._means = [layer.moving_mean for layer in layers]
        self._variances = [layer.moving_variance for layer in layers]
        self._kept: list[float] = []  # by an update, of each layer

    def __bool__(self) -> bool:
        return bool(self._means)

    def measure(self, update: Callable[[], Any]) -> None:
        """Measures what an update keeps of them; they are lost."""
        _fill(self._variances, HUGE)
        update()
        self._kept = [float(each.numpy().flat[0]) / HUGE for each in self._variances]

    @property
    def is_measured(self) -> bool:
        """Whether it is known what an update keeps."""
        return bool(self._kept)

    def estimate(self, update: Callable[[], Any], count: int) -> None:
        """Sets them to the means over so many updates."""
        before = Snapshot([*self._means, *self._variances])
        _fill(before.variables, 0.0)
        for _ in range(count):
            update()
        for variable, old, kept in zip(
            before.variables, before.values, 2 * self._kept, strict=True
        ):
            # Nothing moved those of a layer that is called with training=False.
            variable.assign(old if kept == 1.0 else variable.numpy() / (1 - kept**count))


def _fill(variables, value):
    for each in variables:
        each.assign(0 * each.numpy() + value)
