"""The plan of a model's optimizer, whatever wraps the optimizer."""

from collections.abc import Callable
from typing import Any

from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import unwrapped
from tf_lamb.core.messages import warn


def describe(model: Any, print_fn: Callable[[str], Any] = print) -> None:
    """Prints each variable's weight decay, and whether it has a trust ratio.

    It may be asked before the first step. The optimizer may stand in a wrapper: `AdaScale`,
    `MeasureNoise`, or the `LossScaleOptimizer` that mixed precision puts around it.

    Args:
        model: A model of either Keras, compiled with an optimizer of this package.
        print_fn: What prints the table. Defaults to `print`.

    Raises:
        TypeError: for an optimizer of another package, and for what has none.
        ValueError: for a model that is not compiled, or has no variables yet, and for an optimizer
            that was built for other variables than the model trains.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> inputs = tf.keras.Input((4,))
    >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(2, name="last")(inputs))
    >>> optimizer = tf_lamb.LAMB(weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> tf_lamb.describe(model, lambda table: print(*table.splitlines()[:3], sep="\\n"))
    variable       parameters       decay  adapted  layer
    last/kernel             8        0.01      yes
    last/bias               2           -       no
    """
    if not hasattr(model, "compile"):
        raise TypeError(f"describe takes a compiled model, not {model!r}.")
    optimizer = unwrapped(getattr(model, "optimizer", None))
    if optimizer is None:
        raise ValueError(
            f"{model.name} has no optimizer: call model.compile(optimizer=tf_lamb.LAMB(...)) first."
        )
    if not isinstance(optimizer, Layerwise):
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        inside = "; after the first step, ask describe() of each in model.optimizer.optimizers"
        way_out = inside if hasattr(optimizer, "optimizers") else ""  # of a MultiOptimizer
        raise TypeError(
            f"describe shows the plan of tf_lamb's optimizers, and {name} has none{way_out}."
        )
    plan = optimizer.plan
    if plan is None:
        if not (model.built and model.trainable_variables):
            raise ValueError(
                f"{model.name} has no variables yet: call model.build(input_shape), or the model "
                "on a batch, first."
            )
        plan = optimizer.plan_for(model.trainable_variables)
        if message := plan.warning():
            warn(message)
    else:
        optimizer.build(model.trainable_variables)  # which refuses other variables than its own
        trained = set(map(optimizer._index_of, model.trainable_variables))
        if frozen := [name for i, name in enumerate(plan.names) if i not in trained]:
            print_fn(f"Not trained now: {', '.join(frozen)}.")
        plan = optimizer.plan_now()
    optimizer.print_plan(plan, print_fn)
