"""Saves the compiler's results in small files, so that no step is compiled twice.

A file has sizes and counts as JSON, about 1 kB, but not the compiled program. Its name is a hash of
the program, of the topology, of the compiler and its flags, and of the code of this package. So a
saved result is the same as a new compilation would give. No file is ever deleted; users may delete
the folder at any time.
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

# Environment variables that change the compiler's result without changing the program.
_FLAGS = ("LIBTPU_INIT_ARGS", "TPU_LIBRARY_PATH", "XLA_FLAGS")


class Cache:
    """Saves the compiler's results for the programs of one model in a folder.

    The text of the first program identifies the model. The other programs are the same model's step
    at other batches, and its update. A hash of the first program's text and of their own name
    identifies them. So if the folder has the result of such a program, it is not even lowered.

    Args:
        cache_dir: The folder, which need not exist yet. With None or an empty name, nothing is
            saved.
        place: The topology or kind of device for which the programs are compiled.
        text: A function from a lowered program to its text, which must be the same in every
            process.
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
        """Returns the memory and the operations of a program, from the folder or by compiling it.

        Args:
            name: The name of the program, different for each program of the model.
            make: A function that returns the program, lowered but not compiled.
            compile_: A function that takes what `make` returned, and compiles it.

        Raises:
            Refused: If the compiler rejects the program, or if it was saved as too large.
        """
        if self._folder is None:
            return compile_(make())
        if self._question is None:
            program = make()
            make = lambda: program  # noqa: E731
            self._question = _hash(self._context, self._text(program))
        key = _hash(self._question, name)
        file = self._folder / f"{key}.json"
        answer = self._read(key, file)
        if answer is None:
            answer = _answer(lambda: compile_(make()))
            self._write(key, file, answer)
        return _program(answer)

    def _read(self, key, file):
        """Returns the saved result in a file, or None if the file is missing or damaged.

        Args:
            key: The key of the program, from which the checksum in the file was computed.
            file: The path of the file.
        """
        try:
            content = json.loads(file.read_bytes())
            return content["answer"] if content["check"] == _check(key, content["answer"]) else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _write(self, key, file, answer):
        """Writes a file atomically, so that another process reads all of it or nothing.

        If the file cannot be written, the method warns, and nothing is saved from then on.
        """
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
    """Compiles a program, and returns a dict to save.

    It has the memory and the operations of the program. If the program is too large, it has the
    bytes that are needed and available instead. Other errors are raised and not saved, because
    their cause may be this machine, such as a lack of memory.

    Args:
        compile_: A function that compiles the program.
    """
    try:
        return {"program": dataclasses.asdict(dataclasses.replace(compile_(), text=""))}
    except compiler.TooLarge as error:
        return {"too_large": [error.needed, error.available]}


def _program(answer):
    """Returns the `Program` of a saved result; raises `TooLarge` if the program was too large."""
    if "too_large" in answer:
        raise compiler.TooLarge(*answer["too_large"])
    exchanges = tuple(programs.Exchange(*fields) for fields in answer["program"]["exchanges"])
    return compiler.Program(**answer["program"] | {"exchanges": exchanges})


def _check(key, answer):
    """Returns the checksum by which a damaged file of the cache is recognized.

    It covers the key and the saved result of the compiler.
    """
    return _hash(key, json.dumps(answer))


def _hash(*texts):
    """Returns the SHA-256 of texts, in hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@functools.cache
def _sources():
    """Returns a hash of all source files of `tf_lamb` and its extras.

    A change of this code may change the programs, or what is read from the compiler's output.
    """
    root, digest = pathlib.Path(__file__).parents[3], hashlib.sha256()
    for path in sorted([*root.glob("tf_lamb/**/*.py"), *root.glob("tf_lamb_extras/**/*.py")]):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()
