"""Runs tests against slips of the package, each in a child of one process.

    python tests/support/killing.py tensorflow keras < jobs > verdicts

The process loads the frameworks once, and nothing of ours. For each job it forks a child,
which sees one definition of the package with one passage changed, imports the package, runs the
tests that are named, and ends with pytest's exit code. No file is written.

A line of `jobs` is {"tests": ids, "change": [definition, before, after]}, in JSON; without a change
the package is as it is. A line of `verdicts` is the exit code and the end of what pytest printed.
"""

import ast
import gc
import importlib.util
import json
import linecache
import os
import pathlib
import re
import signal
import sys
import tempfile
from importlib.machinery import SourceFileLoader

import pytest

ROOT = pathlib.Path(importlib.util.find_spec("tf_lamb").origin).parents[1]  # not imported by this
PACKAGES = ("tf_lamb", "tf_lamb_extras")
FILES = sorted(file for name in PACKAGES for file in ROOT.joinpath(name).rglob("*.py"))
PATIENCE = 300  # seconds; a slip may be endless


def definitions(tree, names=()):
    """(its names from the outermost on, its node) of every function, class and constant."""
    for node in ast.iter_child_nodes(tree):
        inside = names
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = (*names, node.name)
            yield inside, node
        elif isinstance(node, ast.Assign):
            targets = ast.walk(ast.Tuple(node.targets))
            yield from (((*names, each.id), node) for each in targets if isinstance(each, ast.Name))
        if isinstance(node, ast.stmt):
            yield from definitions(node, inside)


def found(file, definition, before):
    """The trees of a file with the node that is called so and in which the passage stands once."""
    source, wanted = "".join(linecache.getlines(str(file))), definition.split(".")
    if not re.search(rf"^\s*(def |class )?{wanted[-1]}\b", source, re.MULTILINE):
        return  # which spares most files the parsing
    tree = ast.parse(source)
    for names, node in definitions(tree, file.relative_to(ROOT).with_suffix("").parts):
        given = iter(names)  # folders and file first; those that are wanted, in their order
        is_it = names[-1] == wanted[-1] and all(name in given for name in wanted)
        if is_it and ast.unparse(node).count(before) == 1:
            yield tree, node


def edited(definition, before, after):
    """A file of the package, and its source with the change; one definition must have the passage.

    It is found by its name, wherever it is; where several have the name, by the names around it:
    `keras.LayerwiseOptimizer.build`.
    """
    places = [(file, *each) for file in FILES for each in found(file, definition, before)]
    if len(places) != 1:
        raise LookupError(
            f"{len(places)} definitions of the package are called {definition} and hold {before!r} "
            f"once; it must be one: {[str(file) for file, *_ in places]}"
        )
    ((file, tree, node),) = places
    (changed,) = ast.parse(ast.unparse(node).replace(before, after)).body
    if ast.unparse(changed) == ast.unparse(node):
        raise ValueError(f"{definition} with {after!r} for {before!r} is the same program")
    vars(node).update(vars(changed))
    return str(file), ast.unparse(tree)


def slip(definition, before, after):
    """From now on whoever imports the file, or asks for its source, gets it with the change.

    A second change of a file is added to the first.
    """
    file, source = edited(definition, before, after)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    get_code = SourceFileLoader.get_code

    def changed(loader, name):
        if loader.path == file:
            return compile(source, file, "exec")
        return get_code(loader, name)

    SourceFileLoader.get_code = changed


def judge(tests, output, change=None):
    """In the child: the exit code of the tests."""
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    signal.alarm(PATIENCE)
    assert not any(name.split(".")[0] in PACKAGES for name in sys.modules)
    if change:
        slip(*change)
    options = ["-q", "-x", "--tb=line", "-m", "not slow", "-W", "ignore::DeprecationWarning"]
    return pytest.main([*options, "-p", "no:cacheprovider", *tests])


def verdict(job):
    """The exit code of a child, and the end of its output."""
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            code = 99  # what follows was never reached
            try:
                code = judge(output=output, **job)
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()[-500:]


if __name__ == "__main__":
    for framework in sys.argv[1:]:
        importlib.import_module(framework)
    gc.freeze()  # what is here stays; the children need not look through it
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), flush=True)
