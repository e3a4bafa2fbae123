"""What is replaced of a user's model, layers and optimizer, in both Kerases; nothing else does so.

All of it is of Keras 3.15.1 and tf_keras 2.20.1, and of one object; `keras/seams.py` and
`tf_keras/seams.py` have what is of one of the two, or of the process.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_COMPILED = ("train_function", "train_tf_function", "test_function", "predict_function")


def trace_anew(model: Any) -> None:
    """Has the next step traced anew, which learns what it was not traced with."""
    model.train_function = None


def forget_compiled(model: Any) -> None:
    """Drops all functions that were traced, of models inside, too; by `_flatten_layers`."""
    for part in model._flatten_layers():
        for name in _COMPILED:
            if getattr(part, name, None) is not None:
                setattr(part, name, None)


def become(layer: Any, cls: type, settings: Mapping[str, Any]) -> None:
    """Makes a layer one of this class, which has the same weights."""
    layer.__class__ = cls
    for name, value in settings.items():
        setattr(layer, name, value)


def use_optimizer(model: Any, optimizer: Any, compiled: Callable | None) -> None:
    """Trains a model with an optimizer in another's place, by the step that was compiled for it."""
    model.optimizer = optimizer
    model.train_function = compiled


def set_own(
    model: Any, own: Mapping[str, Any], evaluating: Callable | None, without: Iterable[str] = ()
) -> None:
    """Gives a model attributes of its own; evaluation is traced anew where `evaluating` is None."""
    for name in without:
        vars(model).pop(name, None)
    vars(model).update(own)
    model.test_function = evaluating


def begin_at(model: Any, epoch: int | None) -> None:
    """Has the next `fit` on Keras 3 begin at an epoch, by `_initial_epoch`; None: as it is told."""
    model._initial_epoch = epoch


@contextlib.contextmanager
def executed(model: Any, count: int):
    """Inside it, `fit` makes so many steps an execution, by a step that is compiled for them.

    `steps_per_execution` of Keras 3, a number; `_steps_per_execution` of tf_keras, a variable.
    """
    public = hasattr(model, "steps_per_execution")
    before = model.steps_per_execution if public else model._steps_per_execution
    if before is None or int(before) == count:
        yield
        return

    def use(number):
        model.train_function = model.test_function = None
        if public:
            model.steps_per_execution = number
        else:
            model._steps_per_execution.assign(number)

    before, functions = int(before), (model.train_function, model.test_function)
    use(count)
    try:
        yield
    finally:
        use(before)
        model.train_function, model.test_function = functions


@contextlib.contextmanager
def averaged_where(optimizer: Any, is_over: Callable[[], bool]):
    """Inside it, `fit` ends with the averages of `use_ema` as weights where that is so alone."""
    finalize = getattr(optimizer, "finalize_variable_values", None)
    if finalize is None:
        yield
        return

    def at_the_end(variables):
        if is_over():
            finalize(variables)

    optimizer.finalize_variable_values = at_the_end
    try:
        yield
    finally:
        del optimizer.finalize_variable_values


def use_rate(optimizer: Any, rate: Any) -> None:
    """Has an optimizer read this rate: `_learning_rate`, a number, a schedule or a callable."""
    optimizer._learning_rate = rate
