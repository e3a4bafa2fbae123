"""What a user did not mean, in one line."""

import difflib


class UserError(ValueError):
    """A run that cannot be; its message is one line that names the value and the way out."""


def did_you_mean(name, known) -> str:
    """What may have been meant instead of a name that is not known, or all that is."""
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"There is {', '.join(known)}."
