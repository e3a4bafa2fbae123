"""What a user passes to a function or a class."""

import inspect


def signature_of(thing):
    """Returns its signature; of a class that of `__init__`, without the first argument.

    `inspect.signature` of a Keras layer is that of Keras's `__new__` before Python 3.11.3.
    """
    if not (inspect.isclass(thing) and inspect.isfunction(thing.__init__)):
        return inspect.signature(thing)
    signature = inspect.signature(thing.__init__)
    return signature.replace(parameters=[*signature.parameters.values()][1:])
