"""Optimizers that stand around others."""


def unwrapped(optimizer):
    """What wrappers such as `LossScaleOptimizer` hold innermost."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer
