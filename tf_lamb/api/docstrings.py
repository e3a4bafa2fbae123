"""Contains the decorator by which `help` shows the docstring of a class that joins two others."""

from typing import TypeVar

Class = TypeVar("Class", bound=type)


def shows_docstring(cls: Class) -> Class:
    """Gives a class the docstring of its base class of the same name.

    Each Keras's `LAMB` joins the `LAMB` of `tf_lamb.api`, which has the docstring, with a base
    class of that Keras. `help` of Python reads no docstring of a class from its bases.

    Args:
        cls: The class, without a docstring. It is changed in place.

    Returns:
        The class.
    """
    cls.__doc__ = next(base for base in cls.__mro__[1:] if base.__name__ == cls.__name__).__doc__
    return cls
