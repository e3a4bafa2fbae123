"""The compiler's results in small files: the same question is not compiled again.

A file holds sizes and counts as JSON, about 1 kB, and no program. It is named after a hash of the
program, of where it was compiled for, of the compiler and its flags, and of this package's own
code, so that what is found is what would be found anew. No file is ever deleted; the folder may be,
at any time.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from tf_lamb.core.messages import warn
from tf_lamb_extras.preflight.tpu import compiler, programs

# What changes the compiler's mind and stands in no program.
_FLAGS = ("LIBTPU_INIT_ARGS", "TPU_LIBRARY_PATH", "XLA_FLAGS")


class Cache:
    """The compiler's answers to one question, in a folder.

    The first program of a question stands for it: the others, of the same model at another batch,
    are known by that and by what they are called, and are not even made where they are kept.

    Args:
        cache_dir: the folder, which need not be there yet; None or an empty name is none.
        place: what it compiles for.
        text: a program as text, the same in every process.
    """

    def __init__(self, cache_dir: str | os.PathLike | None, place: str, text: Callable[[Any], str]):
        self._folder = pathlib.Path(cache_dir).expanduser() if cache_dir else None
        self._text = text
        flags = {name: os.environ.get(name) for name in _FLAGS}
        self._context = json.dumps([place, compiler.versions(), flags, _sources()])
        self._question: str | None = None

    def compiled(
        self,
        name: str,
        make: Callable[[], Any],
        compile_: Callable[[Any], compiler.Program],
    ) -> compiler.Program:
        """A program that the folder has, or made and compiled now.

        Args:
            name: tells the programs of a question from each other.
            make: makes what is compiled.
            compile_: compiles it.

        Raises:
            Refused: as the compiler did.
        """
        if self._folder is None:
            return compile_(make())
        if self._question is None:
            made = make()
            make = lambda: made  # noqa: E731
            self._question = _hash(self._context, self._text(made))
        key = _hash(self._question, name)
        file = self._folder / f"{key}.json"
        answer = self._read(key, file)
        if answer is None:
            answer = _answer(lambda: compile_(make()))
            self._write(key, file, answer)
        return _program(answer)

    def _read(self, key, file):
        """The answer in a file, or None where it is missing or is not as it was written."""
        try:
            kept = json.loads(file.read_bytes())
            return kept["answer"] if kept["check"] == _check(key, kept["answer"]) else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _write(self, key, file, answer):
        """Writes a file at once: another process sees all of it or nothing."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
                partial = pathlib.Path(temporary, "answer.json")
                partial.write_text(json.dumps({"answer": answer, "check": _check(key, answer)}))
                os.replace(partial, file)
        except OSError as error:
            warn(
                f"What was compiled is not kept: {error}. Name a folder that can be written to as "
                "cache_dir, or leave it out."
            )
            self._folder = None


def _answer(compile_):
    """The content of a file: a program, or that it is too large.

    Another refusal is not kept, for it may be this machine's, which ran out of its own memory.
    """
    try:
        return {"program": dataclasses.asdict(dataclasses.replace(compile_(), text=""))}
    except compiler.TooLarge as error:
        return {"too_large": [error.needed, error.available]}


def _program(answer):
    if "too_large" in answer:
        raise compiler.TooLarge(*answer["too_large"])
    exchanges = tuple(programs.Exchange(*each) for each in answer["program"]["exchanges"])
    return compiler.Program(**answer["program"] | {"exchanges": exchanges})


def _check(key, answer):
    return _hash(key, json.dumps(answer))


def _hash(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@functools.cache
def _sources():
    """A hash of our own code, which builds the programs and reads what became of them."""
    root, found = pathlib.Path(__file__).parents[3], hashlib.sha256()
    for path in sorted([*root.glob("tf_lamb/**/*.py"), *root.glob("tf_lamb_extras/**/*.py")]):
        found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()
