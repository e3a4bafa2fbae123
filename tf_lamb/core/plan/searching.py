"""Searches regexes in the paths of variables, and ends in bounded time.

A repeat inside a repeat, say `(a+)+$`, has exponentially many ways to match; no engine of the
standard library counts them. What cannot be bounded beforehand is searched by another process,
which can be ended. All of Python's syntax is allowed, and found as `re.search` finds it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

LIMIT = 10.0  # seconds; of a process that takes 20 ms, so that a busy machine refuses nothing
_WAYS = 10**8  # to match that are tried here: a second or two, had they all to be tried

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a class
_REPEAT = re.compile(r"(?:[*+?]|\{[\d,]*\})[?+]?")
# A group that is repeated; a comment or a verbose regex, in which nothing is what it seems.
_UNBOUNDED = re.compile(r"\)(?:[*+?]|\{[\d,]*\})|\(\?#|\(\?[a-zA-Z-]*x")
_CHILD = (
    "import json, re, sys; pattern, names = json.load(sys.stdin); "
    "json.dump([name for name in names if re.search(pattern, name)], sys.stdout)"
)


def search(
    argument: str, patterns: Iterable[str], names: Sequence[str]
) -> dict[str, frozenset[str]]:
    """Pattern -> the names in which it is found.

    Args:
        argument: whose patterns they are, for the error.
        patterns: regexes that compile.
        names: what they are searched in.

    Raises:
        ValueError: where a pattern takes longer than `LIMIT`.
    """
    return {pattern: frozenset(_found(argument, pattern, names)) for pattern in patterns}


def _found(argument, pattern, names):
    if is_quick(pattern, names):
        regex = re.compile(pattern)
        return [name for name in names if regex.search(name)]
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD], input=json.dumps([pattern, list(names)]),
            capture_output=True, text=True, check=True, timeout=LIMIT,
        )  # fmt: skip
        return json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        why = f"{LIMIT:g} seconds were not enough to search the paths for it"
    except (OSError, TypeError, ValueError, subprocess.SubprocessError) as error:
        why = f"no process could be started that searches it and can be ended ({error})"
    raise ValueError(
        f"{argument} holds {repr(pattern):.200}, which may try to match in exponentially many "
        f"ways: {why}. Write it without repeating a group, 'a+' for '(a+)+', or as several simple "
        "patterns."
    )


def is_quick(pattern: str, names: Iterable[str]) -> bool:
    """Whether the ways in which this pattern can try to match are known to be few.

    A repeated character stops at any place of the name, a branch of a group is taken or not, and a
    search begins at each place; a repeated group has no such bound.
    """
    bare = _ATOM.sub("a", pattern)
    if _UNBOUNDED.search(bare):
        return False
    bare = bare.replace("(?", "(")  # the mark of a kind of group is no repeat
    branches = [bare] if "(" in bare else bare.split("|")
    choices = 2 ** branches[0].count("|")
    repeats = [len(_REPEAT.findall(branch)) for branch in branches]
    places = [len(name) + 1 for name in names]
    return sum(choices * n * n**k for n in places for k in repeats) <= _WAYS
