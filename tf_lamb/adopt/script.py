"""Rewrites the calls and imports of a script, and leaves everything else as it stands."""

import dataclasses
import difflib
import io
import re
import tokenize

import libcst as cst
from libcst.metadata import MetadataWrapper

from tf_lamb.adopt.continuing import loading_notes
from tf_lamb.adopt.finder import Finder
from tf_lamb.adopt.reading import Note, Script
from tf_lamb.adopt.rewriter import Rewriter

# The names and the texts in the two sets below are taken for another package's optimizer only if
# the script imports one of these packages.
_PACKAGES = {
    "keras",
    "official",
    "tensorflow",
    "tensorflow_addons",
    "tensorflow_models",
    "tf_keras",
}
_OPTIMIZER_NAMES = {"LAMB", "LARS", "Lamb", "Muon", "tensorflow_addons"}
_FAMILIES = {"lamb": "LAMB", "lars": "LARS", "muon": "Muon"}
_OPTIMIZER_TYPES = set(_FAMILIES)
_GARDEN_PACKAGES = {"official", "tensorflow_models"}


@dataclasses.dataclass(frozen=True)
class Adopted:
    """Holds a script that was rewritten.

    Attributes:
        code: The new script.
        notes: Notes on what was rewritten and what was not, in the order of the lines.
        can_keep_steps: Whether `same_steps` would add arguments that keep the updates the same.
            Defaults to False.
    """

    code: str
    notes: tuple[Note, ...]
    can_keep_steps: bool = False


def adopt(code: str, same_steps: bool = False) -> Adopted:
    """Rewrites a script that uses another package's LAMB, LARS or Muon, so that it uses tf_lamb's.

    Args:
        code: The script.
        same_steps: Whether to add the arguments with which the updates stay the same. Defaults to
            False: arguments get this package's defaults, and notes say what that changes.

    Returns:
        The new script, with notes.

    Raises:
        SyntaxError: if the script is not valid Python.

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
            epsilon was 1e-07, and is 1e-06 here. Pass epsilon=1e-07 to keep it.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(code))
    except cst.ParserSyntaxError as error:
        error_text = f"line {error.raw_line} is no Python: {error.message.splitlines()[0]}"
        raise SyntaxError(error_text) from error
    script = Script(wrapper, code, same_steps)
    wrapper.visit(Finder(script))
    new_code = wrapper.module.visit(Rewriter(script)).code if script.replacements else code
    notes = [*script.notes, *loading_notes(script, new_code), *_mention_notes(script, new_code)]
    ordered = sorted(notes, key=lambda note: note.line)
    return Adopted(new_code, tuple(ordered), script.can_keep_steps)


def _literal_text(literal: str) -> str:
    """Returns the text of a string literal, without its prefix and its quotes."""
    return literal.lstrip("rRbBuUfF").strip("\"'")


def _mention_notes(script: Script, new_code: str) -> list[Note]:
    """Returns notes on unchanged lines that name another package's optimizer and have no note."""
    if not script.imported_packages & _PACKAGES:
        return []
    noted = {note.line for note in script.notes}
    # Which lines were left: an equal line elsewhere in the new code says nothing of this one.
    matcher = difflib.SequenceMatcher(
        None, script.code.splitlines(), new_code.splitlines(), autojunk=False
    )
    left = {start + i + 1 for start, _, size in matcher.get_matching_blocks() for i in range(size)}
    imports = script.kept_imports()
    texts_by_line: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(script.code).readline):
        line, column = token.start
        is_name = token.type == tokenize.NAME and token.string in _OPTIMIZER_NAMES
        is_text = (
            token.type == tokenize.STRING
            and _literal_text(token.string).lower() in _OPTIMIZER_TYPES
        )
        is_ours = re.search(r"\btf_lamb\.([\w.]+\.)?$", token.line[:column])
        is_unnoted = line in left and line not in noted
        if (is_name or is_text) and is_unnoted and not is_ours:
            text = imports.get(line) or f"{token.string} is left as it is{_advice(script, token)}"
            texts_by_line.setdefault(line, []).append(text)
    return [
        Note(line, "; ".join(dict.fromkeys(texts)), is_left=True)
        for line, texts in texts_by_line.items()
    ]


def _advice(script: Script, token: tokenize.TokenInfo) -> str:
    """Returns why a name or a string is left as it is, and what to write for it."""
    optimizer_type = _literal_text(token.string).lower()
    if optimizer_type not in _OPTIMIZER_TYPES:  # the name of a package
        return ", because it is no optimizer that this package replaces"
    our_class = f"{script.module_for('')}.{_FAMILIES[optimizer_type]}"
    if token.type == tokenize.NAME:
        return f", because its meaning is not certain: if it is the optimizer, write {our_class}"
    is_type = optimizer_type != "muon" and script.imported_packages & _GARDEN_PACKAGES
    in_config = f', or "tf_{optimizer_type}" in a config of the Model Garden' if is_type else ""
    return f", because it is a text: if it selects the optimizer, write {our_class}(...){in_config}"
