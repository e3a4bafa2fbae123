"""A flag that is up inside a `with`, for what is called or traced there."""

import contextlib
import contextvars


class Flag:
    """Down at first, in each thread: a replica is one.

    DOUBLED = Flag("doubled")
    with DOUBLED.up():
        assert DOUBLED
    """

    def __init__(self, name: str):
        self._is_up = contextvars.ContextVar(name, default=False)

    def __bool__(self):
        return self._is_up.get()

    @contextlib.contextmanager
    def up(self):
        """Holds it up."""
        token = self._is_up.set(True)
        try:
            yield
        finally:
            self._is_up.reset(token)
