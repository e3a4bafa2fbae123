"""A picture of an automatic warmup: the losses, what the process made of them, and the rate."""

from tf_lamb.core.autowarmup import gaussian_process
from tf_lamb.core.checks import installed


def plot(warmup, axes=None):
    """Draws loss, posterior and switch above the learning rate of the whole training.

    Args:
        axes: Two matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The two `Axes`. To show or to save them is the caller's.

    Raises:
        ValueError: before there is a loss.
        ModuleNotFoundError: where matplotlib is not installed.
    """
    if not warmup.points:
        raise ValueError("There is no loss to draw yet: plot() is for after the first epoch.")
    installed.require("A picture of a warmup", "matplotlib", extra="pictures")
    import matplotlib.pyplot as plt
    import numpy as np

    if axes is None:
        axes = plt.subplots(2, sharex=True, figsize=(7, 6))[1]
    above, below = axes
    steps, losses = np.array(warmup.points).T
    seen = steps[-1] + 1
    grid, mean, deviation = gaussian_process.curve(steps / seen, losses)
    above.plot(steps, losses, ".", ms=2, color="0.7", label="loss")
    above.plot(grid * seen, mean, label="posterior, 2 deviations")
    above.fill_between(grid * seen, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
    above.set(ylabel="loss of a step")

    every = np.unique(np.r_[0 : warmup.settings.total_steps : 1000j, warmup.begin])
    below.plot(every, [warmup.rate(step) for step in every], label="learning rate")
    below.set(xlabel="steps", ylabel="learning rate", yscale="log")
    below.set_ylim(bottom=warmup.settings.min_learning_rate)
    what = "switch" if warmup.found else "longest warmup"
    for ax in axes:
        ax.axvline(warmup.begin, color="black", ls=":", lw=1, label=f"{what}: {warmup.begin:,.0f}")
        ax.legend()
    return above, below
