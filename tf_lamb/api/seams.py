"""Replaces attributes of a user's model, layers and optimizer, also private ones.

A seam is a use of a framework's private API. In this package, modules named `seams.py` replace the
private attributes of a framework's objects, and other modules only set public ones, such as
`stop_training`. The functions here work with Keras 3.15.1 and with tf_keras 2.20.1, and change the
objects that are passed to them. `keras/seams.py` and `tf_keras/seams.py` have the functions for one
of the two, and the functions that change Keras itself for the whole process.
`model_garden/common/seams.py` has those for Model Garden.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# The attributes in which a model keeps the functions that Keras has compiled for it.
_TRACED_FUNCTIONS = ("train_function", "train_tf_function", "test_function", "predict_function")


def drop_traced_step(model: Any) -> None:
    """Deletes the compiled training step of a model, so that the next step is traced again."""
    model.train_function = None


def drop_traced_functions(model: Any) -> None:
    """Deletes all compiled functions of a model and of the models inside it."""
    for part in model._flatten_layers():
        for name in _TRACED_FUNCTIONS:
            if getattr(part, name, None) is not None:
                setattr(part, name, None)


def change_class(layer: Any, cls: type, settings: Mapping[str, Any]) -> None:
    """Changes the class of a layer, which keeps its weights.

    Args:
        layer: The layer.
        cls: Its new class.
        settings: Name -> value of the attributes that the new class needs.
    """
    layer.__class__ = cls
    for name, value in settings.items():
        setattr(layer, name, value)


def use_optimizer(model: Any, optimizer: Any, train_function: Callable | None) -> None:
    """Sets the optimizer of a model, and the training step that was compiled for this optimizer.

    Args:
        model: The model.
        optimizer: The optimizer.
        train_function: The compiled training step; None if none was compiled yet.
    """
    model.optimizer = optimizer
    model.train_function = train_function


def set_attributes(
    model: Any,
    attributes: Mapping[str, Any],
    test_function: Callable | None,
    names_to_delete: Iterable[str] = (),
) -> None:
    """Sets instance attributes of a model, and replaces or drops its compiled evaluation step.

    Args:
        model: The model.
        attributes: Name -> value of the attributes to set.
        test_function: The compiled evaluation step to use; with None, evaluation is traced again.
        names_to_delete: The names of attributes to delete first. Defaults to none.
    """
    for name in names_to_delete:
        vars(model).pop(name, None)
    vars(model).update(attributes)
    model.test_function = test_function


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Makes `fit` on Keras 3 begin at an epoch, by setting `_initial_epoch`.

    It holds for the `fit` that is running, if its first epoch has not begun, and for every later
    one, until this function is called with None.

    Args:
        model: The model.
        epoch: The epoch; with None, the argument `initial_epoch` of `fit` decides.
    """
    model._initial_epoch = epoch


@contextlib.contextmanager
def with_steps_per_execution(model: Any, count: int):
    """Makes `fit` in the `with` block use `steps_per_execution=count`.

    A compiled function is valid for one value of `steps_per_execution` only, so new functions are
    compiled for the block. At its end the model gets its former value and functions again. Keras 3
    holds the value in the attribute `steps_per_execution`, tf_keras in the variable
    `_steps_per_execution`.

    Args:
        model: A compiled model.
        count: The number of training steps that one call of the compiled function runs.
    """
    is_public = hasattr(model, "steps_per_execution")
    steps_before = model.steps_per_execution if is_public else model._steps_per_execution
    if steps_before is None or int(steps_before) == count:
        yield
        return

    def use_steps(number):
        model.train_function = model.test_function = None
        if is_public:
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
def average_only_at_end(optimizer: Any, is_training_over: Callable[[], bool]):
    """Prevents `fit` in the `with` block from replacing weights by averages too early.

    With `use_ema=True`, the end of each `fit` overwrites the weights with their moving averages. If
    several calls of `fit` make up one training, only the last call must overwrite them.

    Args:
        optimizer: The optimizer. Its `finalize_variable_values` is replaced during the block.
        is_training_over: A function that returns whether training ends with the `fit` that is
            running.
    """
    finalize = getattr(optimizer, "finalize_variable_values", None)
    if finalize is None:
        yield
        return

    def finalize_at_end(variables):
        if is_training_over():
            finalize(variables)

    is_on_instance = "finalize_variable_values" in vars(optimizer)  # a user may have set it there
    optimizer.finalize_variable_values = finalize_at_end
    try:
        yield
    finally:
        if is_on_instance:
            optimizer.finalize_variable_values = finalize
        else:
            del optimizer.finalize_variable_values


def use_rate(optimizer: Any, rate: Any) -> None:
    """Makes an optimizer use a learning rate, by setting `_learning_rate`.

    Args:
        optimizer: The optimizer.
        rate: A number, a schedule or a callable.
    """
    optimizer._learning_rate = rate
