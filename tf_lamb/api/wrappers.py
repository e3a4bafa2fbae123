"""Optimizers that stand around others."""

# Of wrappers such as `LossScaleOptimizer`, and (tf-models-official 2.20.0) of averaging.
_NAMES = ("inner_optimizer", "_optimizer")


def unwrapped(optimizer, kind: type | tuple = ()):
    """What wrappers hold innermost, or the first of a kind on the way there."""
    while not isinstance(optimizer, kind):
        inner = [each for name in _NAMES if (each := getattr(optimizer, name, None)) is not None]
        if not inner:
            break
        optimizer = inner[0]
    return optimizer
