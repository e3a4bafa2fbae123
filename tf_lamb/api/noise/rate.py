"""The learning rate of a base batch, as the inner optimizer of AdaScale reads it."""


class Rate:
    """What the inner optimizer reads: the base batch's rate at its own steps, times the gain.

    Each door puts it before its host's class of schedules.

    Args:
        outer: The `AdaScale`.
        base: What it stands for: the variable of a number, a schedule, or a callable.
    """

    def __init__(self, outer, base):
        super().__init__()
        self.outer, self.base = outer, base

    def __call__(self, step):
        xp, state = self.outer._xp, self.outer._state
        if state is None:
            return xp.convert_to_tensor(self.at(0))
        rate = xp.convert_to_tensor(self.at(xp.convert_to_tensor(state["step"])))
        gain = xp.convert_to_tensor(state["gain"])
        return rate * xp.cast(gain**self.outer.power, rate.dtype)

    def at(self, step):
        """The learning rate of the base batch."""
        if isinstance(self.base, self.outer._schedules):
            return self.base(step)
        return self.base() if callable(self.base) else self.base
