"""Of schedules what needs no host: that they are of the Keras that reads them."""


def check_host(name, value, host):
    """Refuses a schedule of the other Keras, which fails within the first step or when saved.

    Args:
        name: of the argument.
        value: anything.
        host: the base class of schedules in the Keras that is to read it.
    """
    bases = [base for base in type(value).__mro__ if base.__name__ == "LearningRateSchedule"]
    if not bases or host in bases:
        return
    theirs, ours = (base.__module__.partition(".")[0] for base in (bases[0], host))
    raise TypeError(
        f"{name} is a {type(value).__name__} of {theirs}, and what reads it is of {ours}: take one "
        f"of {ours}.optimizers.schedules or tf_lamb.{ours}.schedules. The schedule of a recipe is "
        f"recipe.schedule(tf_lamb.{ours}.schedules)."
    )
