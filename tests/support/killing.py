"""Runs tests against slips of the package, each in a child of one process.

    python tests/support/killing.py tensorflow keras < jobs > verdicts

The process loads the frameworks once, and nothing of `tf_lamb`. For each job it forks a child,
which sees one file of the package with one passage changed, imports the package, runs the tests
that are named, and ends with pytest's exit code. No file is written.

A line of `jobs` is {"file": path, "before": text, "after": text, "tests": ids}, in JSON; without a
file nothing is changed. A line of `verdicts` is the exit code and the end of what pytest printed.
"""

import gc
import importlib
import json
import linecache
import os
import signal
import sys
import tempfile
from importlib.machinery import SourceFileLoader

import pytest

PATIENCE = 300  # seconds; a slip may be endless


def slip(file, before, after):
    """From now on whoever imports the file, or asks for its source, gets it with the change.

    A second change of a file is added to the first.
    """
    source = "".join(linecache.getlines(file)).replace(before, after)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    get_code = SourceFileLoader.get_code

    def changed(loader, name):
        if loader.path == file:
            return compile(source, file, "exec")
        return get_code(loader, name)

    SourceFileLoader.get_code = changed


def judge(tests, output, file="", **change):
    """In the child: the exit code of the tests."""
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    signal.alarm(PATIENCE)
    assert not any(name.split(".")[0] == "tf_lamb" for name in sys.modules)
    if file:
        slip(file, **change)
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
