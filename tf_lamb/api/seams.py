"""Replaces parts of a user's model, layers and optimizer, in both Kerases; no other module does so.

All of it is of Keras 3.15.1 and tf_keras 2.20.1, and changes one object. `keras/seams.py` and
`tf_keras/seams.py` have what belongs to one of the two, or changes the process.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# The attributes in which a model keeps its traced functions.
_COMPILED = ("train_function", "train_tf_function", "test_function", "predict_function")


def trace_anew(model: Any) -> None:
    """Drops the traced step, so that the next one is traced with what has changed since."""
    model.train_function = None


def forget_compiled(model: Any) -> None:
    """Drops all traced functions, also those of inner models, which `_flatten_layers` finds."""
    for part in model._flatten_layers():
        for name in _COMPILED:
            if getattr(part, name, None) is not None:
                setattr(part, name, None)


def become(layer: Any, cls: type, settings: Mapping[str, Any]) -> None:
    """Changes the class of a layer, which keeps its weights.

    Args:
        layer: The layer.
        cls: Its new class.
        settings: Name -> value of the attributes that the new class needs.
    """
    layer.__class__ = cls
    for name, value in settings.items():
        setattr(layer, name, value)


def use_optimizer(model: Any, optimizer: Any, compiled: Callable | None) -> None:
    """Trains a model with another optimizer from now on.

    Args:
        model: The model.
        optimizer: The optimizer.
        compiled: The training step that was compiled for this optimizer, or None.
    """
    model.optimizer = optimizer
    model.train_function = compiled


def set_own(
    model: Any, own: Mapping[str, Any], evaluating: Callable | None, without: Iterable[str] = ()
) -> None:
    """Sets instance attributes of a model.

    Args:
        model: The model.
        own: Name -> value of the attributes to set.
        evaluating: The evaluation function to use; None has evaluation traced anew.
        without: The names of attributes to delete first. Defaults to none.
    """
    for name in without:
        vars(model).pop(name, None)
    vars(model).update(own)
    model.test_function = evaluating


def begin_at(model: Any, epoch: int | None) -> None:
    """Has the next `fit` on Keras 3 begin at an epoch, by `_initial_epoch`.

    Args:
        model: The model.
        epoch: The epoch; None leaves it to the argument of `fit`.
    """
    model._initial_epoch = epoch


@contextlib.contextmanager
def executed(model: Any, count: int):
    """Has `fit`, in a `with` block, run `count` steps an execution, compiled for that number.

    `steps_per_execution` of Keras 3 is a number; `_steps_per_execution` of tf_keras is a variable.
    Afterwards the model has its former number and functions.

    Args:
        model: A compiled model.
        count: The number of steps of an execution.
    """
    public = hasattr(model, "steps_per_execution")
    steps_before = model.steps_per_execution if public else model._steps_per_execution
    if steps_before is None or int(steps_before) == count:
        yield
        return

    def use_steps(number):
        model.train_function = model.test_function = None
        if public:
            model.steps_per_execution = number
        else:
            model._steps_per_execution.assign(number)

    steps_before, functions = int(steps_before), (model.train_function, model.test_function)
    use_steps(count)
    try:
        yield
    finally:
        use_steps(steps_before)
        model.train_function, model.test_function = functions


@contextlib.contextmanager
def averaged_where(optimizer: Any, is_over: Callable[[], bool]):
    """Has `fit`, in a `with` block, end with the averages of `use_ema` only if training is over.

    Args:
        optimizer: The optimizer, whose `finalize_variable_values` is replaced meanwhile.
        is_over: Returns whether training ends with the running `fit`.
    """
    finalize = getattr(optimizer, "finalize_variable_values", None)
    if finalize is None:
        yield
        return

    def finalize_at_end(variables):
        if is_over():
            finalize(variables)

    optimizer.finalize_variable_values = finalize_at_end
    try:
        yield
    finally:
        del optimizer.finalize_variable_values


def use_rate(optimizer: Any, rate: Any) -> None:
    """Has an optimizer read a learning rate, by `_learning_rate`.

    Args:
        optimizer: The optimizer.
        rate: A number, a schedule or a callable.
    """
    optimizer._learning_rate = rate
