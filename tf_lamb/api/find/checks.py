"""Models and optimizers that can be searched, and optimizers like them."""

from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.variables import as_int, is_ours, unwrapped
from tf_lamb.core import checks

# seam: Keras 3.15.1, tf_keras 2.20.1. What exclude_from_weight_decay() was told.
UNDECAYED = {f"_exclude_from_weight_decay{end}" for end in ("", "_pattern", "_names")}
SCALING = ("dynamic", "initial_scale", "dynamic_growth_steps")  # of a `LossScaleOptimizer`


def check_shared(model: Any, examples: int) -> None:
    """Raises for a call of so many examples that devices cannot share."""
    if examples % (devices := frontends.of(model).devices(model)):
        raise ValueError(
            f"A call has {examples:,} examples, which {devices} devices cannot share: take a batch "
            "that they divide."
        )


def tuned_rate(optimizer: Any, given: float | None) -> float:
    """The learning rate of an optimizer, or the one that is given; raises for a schedule."""
    if given is None:
        given = optimizer.get_config()["learning_rate"]
        if isinstance(given, dict) or callable(given):
            raise ValueError(
                "The model's optimizer has a schedule: pass its peak, baseline_learning_rate=."
            )
        given = float(given)
    return checks.number("baseline_learning_rate", given, "(0, inf)")


def accumulates(optimizer: Any) -> bool:
    """Whether it can make an update of several calls."""
    return "gradient_accumulation_steps" in optimizer.get_config()


def anew(optimizer: Any, calls: int, rate: Any = 1.0) -> Any:
    """The optimizer without its state, at a rate, with so many calls an update.

    Keras's keep no exclusion from weight decay in their config: it is copied.
    """
    told = {**optimizer.get_config(), "learning_rate": rate}
    if accumulates(optimizer):
        told["gradient_accumulation_steps"] = calls if calls > 1 else None
    made = type(optimizer).from_config(told)
    if not is_ours(optimizer):
        kept = UNDECAYED & vars(optimizer).keys()
        vars(made).update({name: vars(optimizer)[name] for name in kept})
    return made


def scaled_as(compiled: Any, optimizer: Any) -> Any:
    """The optimizer, in a `LossScaleOptimizer` like that of `compile` if there is one."""
    if "LossScale" not in type(compiled).__name__:
        return optimizer
    config = compiled.get_config()
    told = {name: config[name] for name in SCALING if config.get(name) is not None}
    return type(compiled)(optimizer, **told)


def check_optimizer(optimizer: Any) -> None:
    """Raises for an optimizer whose rate cannot be searched."""
    if isinstance(optimizer, type) or not hasattr(optimizer, "get_config"):
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


def executions(model: Any) -> int:
    """The `steps_per_execution` of `compile`."""
    # seam: tf_keras 2.20.1, where it has no public name.
    many = getattr(model, "steps_per_execution", None) or getattr(
        model, "_steps_per_execution", None
    )  # fmt: skip
    return 1 if many is None else as_int(many)


def check(
    model: Any, batch_size: int, micro_batch_size: int | None, one_execution: bool = True
) -> None:
    """Raises for a model that cannot be tried; `one_execution` is all that a search may make."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model is not compiled, so that it has no loss to search by: call "
            "model.compile(optimizer=..., loss=...) first."
        )
    check_optimizer(model.optimizer)
    own = unwrapped(model.optimizer)
    for name, each in vars(model).items():
        if hasattr(each, "apply_gradients") and unwrapped(each) is not own:
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
    check_shared(model, micro_batch_size or batch_size)
    if one_execution and (many := executions(model)) != 1:
        raise ValueError(
            f"A search sets the rate of every step, and the model was compiled with "
            f"steps_per_execution={many}: compile it with 1 for the search."
        )
