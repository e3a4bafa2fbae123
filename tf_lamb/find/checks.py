"""Checks the model and the optimizers that a user passes to a search, and copies optimizers."""

from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.variables import as_int, is_ours, unwrapped
from tf_lamb.core import checks

# Attributes in which an optimizer of Keras keeps the arguments of exclude_from_weight_decay().
# seam: private API of Keras 3.15.1 and tf_keras 2.20.1.
EXCLUSION_ATTRIBUTES = {f"_exclude_from_weight_decay{end}" for end in ("", "_pattern", "_names")}
# Names of the settings of a `LossScaleOptimizer` in its config, in Keras 3 or in tf_keras.
LOSS_SCALE_SETTINGS = ("dynamic", "initial_scale", "dynamic_growth_steps")


def check_even_split(model: Any, examples: int) -> None:
    """Checks that the devices can share the examples of a call of the training step evenly.

    Args:
        model: The model. The number of devices is that of its distribution in Keras.
        examples: The number of examples in a call of the training step.

    Raises:
        ValueError: if the number of devices does not divide `examples`.
    """
    if examples % (devices := frontends.of(model).devices(model)):
        raise ValueError(
            f"A call has {examples:,} examples, which {devices} devices cannot share: take a batch "
            "that they divide."
        )


def baseline_rate_of(optimizer: Any, rate: float | None) -> float:
    """Returns the learning rate that the user has tuned for the baseline.

    Args:
        optimizer: An optimizer with a `learning_rate` in its config.
        rate: The user's `baseline_learning_rate`, which is returned. If it is None, the learning
            rate of the optimizer is returned.

    Raises:
        ValueError: if the optimizer has a schedule and `rate` is None, or for a rate that is not
            above 0.
    """
    if rate is None:
        rate = optimizer.get_config()["learning_rate"]
        if isinstance(rate, dict) or callable(rate):
            raise ValueError(
                "The model's optimizer has a schedule: pass its peak, baseline_learning_rate=."
            )
        rate = float(rate)
    return checks.number("baseline_learning_rate", rate, "(0, inf)")


def can_accumulate(optimizer: Any) -> bool:
    """Returns whether an optimizer can accumulate the gradients of several micro-batches."""
    return "gradient_accumulation_steps" in optimizer.get_config()


def copy_optimizer(optimizer: Any, calls: int, rate: Any = 1.0) -> Any:
    """Returns a new optimizer with the settings of another one, and without its state.

    The variables that `exclude_from_weight_decay` has excluded are excluded in the copy, too. They
    are copied apart, because the config of a Keras optimizer does not contain them.

    Args:
        optimizer: The optimizer to copy.
        calls: The number of micro-batches of an update. If it is above 1 and the optimizer can
            accumulate gradients, the copy accumulates the gradients of `calls` micro-batches.
        rate: The learning rate of the copy, a number or a schedule. Defaults to 1.0.
    """
    config = {**optimizer.get_config(), "learning_rate": rate}
    if can_accumulate(optimizer):
        config["gradient_accumulation_steps"] = calls if calls > 1 else None
    copy = type(optimizer).from_config(config)
    if not is_ours(optimizer):
        excluded = EXCLUSION_ATTRIBUTES & vars(optimizer).keys()
        vars(copy).update({name: vars(optimizer)[name] for name in excluded})
    return copy


def with_loss_scale_of(compiled_optimizer: Any, optimizer: Any) -> Any:
    """Wraps an optimizer in a `LossScaleOptimizer` if the model was compiled with one.

    Args:
        compiled_optimizer: The optimizer of `compile`. If it is a `LossScaleOptimizer`, the wrapper
            has its settings.
        optimizer: The optimizer to wrap.

    Returns:
        The wrapper, or `optimizer` itself if `compiled_optimizer` is no `LossScaleOptimizer`.
    """
    if "LossScale" not in type(compiled_optimizer).__name__:
        return optimizer
    config = compiled_optimizer.get_config()
    settings = {name: config[name] for name in LOSS_SCALE_SETTINGS if config.get(name) is not None}
    return type(compiled_optimizer)(optimizer, **settings)


def check_optimizer(optimizer: Any) -> None:
    """Checks that the learning rate of an optimizer can be searched.

    Raises:
        TypeError: for anything that is no optimizer.
        ValueError: for an optimizer whose learning rate cannot be set, such as AdaScale, and for a
            legacy optimizer of Keras.
    """
    if isinstance(optimizer, type) or not (
        hasattr(optimizer, "get_config") and hasattr(optimizer, "apply_gradients")
    ):
        raise TypeError(
            f"{optimizer!r} is no optimizer: take the name of a class, such as 'LAMB', 'Muon' or "
            "'AdamW', or pass an optimizer."
        )
    if "LossScale" in type(optimizer).__name__:
        optimizer = optimizer.inner_optimizer
    name = type(optimizer).__name__
    if name == "AdaScale" or "learning_rate" not in unwrapped(optimizer).get_config():
        raise ValueError(
            f"{name} sets rates itself: take an optimizer that is inside it for a search."
        )
    if not hasattr(optimizer, "build"):
        raise ValueError(
            f"{name} is one of the legacy optimizers, which are not searched: take {name} of "
            "tf_keras.optimizers."
        )


def steps_per_execution(model: Any) -> int:
    """Returns the `steps_per_execution` that was passed to `compile`, or its default of 1."""
    # seam: private API of tf_keras 2.20.1, which has no public name for `steps_per_execution`.
    count = getattr(model, "steps_per_execution", None) or getattr(
        model, "_steps_per_execution", None
    )  # fmt: skip
    return 1 if count is None else as_int(count)


def check_model(
    model: Any, batch_size: int, micro_batch_size: int | None, one_execution: bool = True
) -> None:
    """Checks that short runs of a model are possible.

    Args:
        model: The compiled model.
        batch_size: The number of examples in an update.
        micro_batch_size: The number of examples in a micro-batch; None for the whole batch.
        one_execution: Whether the search needs a model whose `steps_per_execution` is 1. Defaults
            to True.

    Raises:
        TypeError: if the model is compiled with something that is no optimizer.
        ValueError: if the model is not compiled, has a second optimizer, or was built for several
            replicas. Also if micro-batches or devices do not divide the batch evenly, if the
            learning rate of the optimizer cannot be searched, or, with `one_execution`, for a
            `steps_per_execution` above 1.
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model is not compiled, so that it has no loss to search by: call "
            "model.compile(optimizer=..., loss=...) first."
        )
    check_optimizer(model.optimizer)
    model_optimizer = unwrapped(model.optimizer)
    for name, value in vars(model).items():
        if hasattr(value, "apply_gradients") and unwrapped(value) is not model_optimizer:
            raise ValueError(
                f"The model has an optimizer of its own, {name}, beside that of compile. A search "
                "moves one learning rate, and would leave what that optimizer has learned changed."
            )
    if micro_batch_size is not None and batch_size % micro_batch_size:
        raise ValueError(
            f"micro_batch_size={micro_batch_size} does not divide batch_size={batch_size:,}."
        )
    if frontends.of(model).devices(model) > 1 and hasattr(model, "distribute_strategy"):
        raise ValueError(
            "The model was built for several replicas. Search with a model built outside of the "
            "strategy's scope: the answer depends on the batch, not on its replicas."
        )
    check_even_split(model, micro_batch_size or batch_size)
    if one_execution and (count := steps_per_execution(model)) != 1:
        raise ValueError(
            f"A search sets the rate of every step, and the model was compiled with "
            f"steps_per_execution={count}: compile it with 1 for the search."
        )
