"""Which array a variable has: on JAX `fit` takes it from the variable, and a step donates it.

Seam into Keras 3 (3.15.1): `Variable._value`, which is None while `fit` has the array.
"""

from keras import ops

from tf_lamb.api.variables import path_of


def take(variable, value):
    """Has a variable take the value of another, in an array of its own.

    On JAX an assignment hands the array itself over, and so does a cast to the dtype that it has.
    The next step would donate it twice.
    """
    variable.assign(ops.copy(ops.cast(value, variable.dtype)))


def is_lost(variable):
    """Whether a step of `fit` on JAX has failed with its value, and its error is on the way."""
    return variable._value is None


def check_model(optimizer):
    """Raises where `fit` trains another model than the optimizer was built for.

    Keras hands over values, in the order of that model's variables. `fit` has taken the arrays of
    its own model and of the optimizer by then, but those of another model are still there.
    """
    if not is_lost(optimizer._iterations):
        return
    for variable in optimizer._trainable_variables:
        if not is_lost(variable):
            raise ValueError(
                f"{optimizer.name} was built for {path_of(variable)!r}, which is no trainable "
                "variable of the model that fit trains: its slots and its plan belong to the "
                "variables that it was built for. Make a new optimizer for a new model, for "
                f"instance {type(optimizer).__name__}.from_config(optimizer.get_config()); and the "
                "model, whose weights Keras drops with any error in a fit on JAX."
            )
