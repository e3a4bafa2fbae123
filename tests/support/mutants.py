"""Slips that somebody could make, each with the test that notices it: the lines of mutants.txt.

Below `== core`, which loads no framework, `== tensorflow`, both Kerases, or `== jax`, stand tests,
and indented below each test the slips that it must notice: a definition of the package, what is
wrong, and a passage of the definition, in which `{{before => after}}` is the slip.

A definition is a function, a class or a constant, named as in `support/killing.py`: `lamb`,
`Update._apply`, or with its room where both Kerases have one, `keras.LayerwiseOptimizer.build`;
its file does not matter. A passage is of its code as `ast.unparse` writes it: without comments, on
one line a statement, in single quotes.
"""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One slip: the definition, the passage, what it becomes, and the test that must then fail."""

    definition: str
    name: str
    before: str
    after: str
    test: str


def change(passage):
    """A passage with a slip in it, as it is and as it becomes."""
    head, _, rest = passage.partition("{{")
    slip, _, tail = rest.partition("}}")
    return tuple(head + part + tail for part in slip.split(" => "))


def _read():
    found, test = {}, ""
    for line in pathlib.Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("== "):
            own = found[line.removeprefix("== ")] = []
        elif line.startswith("    "):
            definition, name, passage = line[4:].split(": ", 2)
            own.append(Mutant(definition, name, *change(passage), test))
        else:
            test = line
    return found


MUTANTS = _read()
