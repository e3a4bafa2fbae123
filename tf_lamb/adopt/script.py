"""Rewrites the calls and imports of a script, and leaves everything else as it stands."""

import dataclasses

import libcst as cst
from libcst.metadata import MetadataWrapper

from tf_lamb.adopt.finder import Finder
from tf_lamb.adopt.reading import Note, Script
from tf_lamb.adopt.rewriter import Rewriter


@dataclasses.dataclass(frozen=True)
class Adopted:
    """Holds a script that was rewritten.

    Attributes:
        code: The new script.
        notes: What became of each place, in the order of the script.
    """

    code: str
    notes: tuple[Note, ...]


def adopt(code: str, same_steps: bool = False) -> Adopted:
    """Rewrites a script of another package's LAMB, LARS or Muon for this one.

    Args:
        code: The script.
        same_steps: Whether to write the arguments with which the steps stay those of before.
            Defaults to False: the optimizer is the paper's, and notes say what changes.

    Returns:
        The new script, with notes.

    Raises:
        SyntaxError: if the script is no Python.

    Example:
        >>> from tf_lamb.adopt.script import adopt
        >>> adopted = adopt("import keras\\nlamb = keras.optimizers.Lamb(1e-3)\\n")
        >>> print(adopted.code)
        import keras
        import tf_lamb
        lamb = tf_lamb.keras.LAMB(1e-3)
        <BLANKLINE>
        >>> print(*adopted.notes)
        line 2: Keras's Lamb is tf_lamb.keras.LAMB
            Epsilon is 1e-07 there, and 1e-06 here; epsilon=1e-07 keeps it.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(code))
    except cst.ParserSyntaxError as error:
        text = f"line {error.raw_line} is no Python: {error.message.splitlines()[0]}"
        raise SyntaxError(text) from error
    script = Script(wrapper, code, same_steps)
    wrapper.visit(Finder(script))
    new = wrapper.module.visit(Rewriter(script)).code if script.replacements else code
    return Adopted(new, tuple(sorted(script.notes, key=lambda note: note.line)))
