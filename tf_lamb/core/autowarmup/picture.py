"""A picture of an automatic warmup: the losses, what the process made of them, and the rate."""

from typing import Any

from tf_lamb.core.autowarmup import gaussian_process
from tf_lamb.core.checks import installed


class Drawable:
    """What has points, a switch and a learning rate to draw."""

    settings: Any
    points: list
    begin: float
    peak: float
    found: bool
    rate: Any

    def plot(self, axes=None):
        """Draws loss, posterior and switch above the learning rate of the whole training.

        Args:
            axes: Two matplotlib `Axes`. Defaults to None: those of a new figure.

        Returns:
            The two `Axes`. To show or to save them is the caller's.

        Raises:
            ValueError: before there is a loss.
            ModuleNotFoundError: where matplotlib is not installed.
        """
        if not self.points:
            raise ValueError("There is no loss to draw yet: plot() is for after the first epoch.")
        installed.require("A picture of a warmup", "matplotlib", extra="pictures")
        import matplotlib.pyplot as plt
        import numpy as np

        if axes is None:
            axes = plt.subplots(2, sharex=True, figsize=(7, 6))[1]
        above, below = axes
        steps, losses = np.array(self.points).T
        seen = steps[-1] + 1
        grid, mean, deviation = gaussian_process.curve(steps / seen, losses)
        above.plot(steps, losses, ".", ms=2, color="0.7", label="loss")
        above.plot(grid * seen, mean, label="posterior, 2 deviations")
        above.fill_between(grid * seen, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
        above.set(ylabel="loss of a step")

        every = np.unique(np.r_[0 : self.settings.total_steps : 1000j, self.begin])
        below.plot(every, [self.rate(step) for step in every], label="learning rate")
        below.set(xlabel="steps", ylabel="learning rate", yscale="log")
        below.set_ylim(bottom=self.settings.min_learning_rate)
        what = "switch" if self.found else "longest warmup"
        for ax in axes:
            ax.axvline(self.begin, color="black", ls=":", lw=1, label=f"{what}: {self.begin:,.0f}")
            ax.legend()
        return above, below
