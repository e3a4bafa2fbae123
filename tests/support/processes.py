"""Runs a function in a process of its own, for tests that kill it.

The process is forked from a warm one that has imported the frameworks and run nothing, so that a
start costs no import. TensorFlow's runtime begins in the child: here it may have begun already.
"""

import multiprocessing
import os
import sys

_FROM_WARM = multiprocessing.get_context("forkserver")
_WARM = ["tensorflow", "tf_lamb.keras", "tf_lamb.tf_keras", "tf_lamb.model_garden.train"]
if os.environ.get("KERAS_BACKEND") == "jax":
    _WARM = ["tf_lamb.keras"]
_FROM_WARM.set_forkserver_preload(_WARM)


def started(function, *args, output=os.devnull, **environment):
    """The running process, a `multiprocessing.Process`: `kill`, `join`, `exitcode`.

    Args:
        function: Of a module that can be imported, not of a test file.
        *args: What can be pickled.
        output: A file that takes what it prints.
        **environment: Variables that it has besides those of this process.
    """
    process = _FROM_WARM.Process(
        target=_run, args=(str(output), environment, function, args), daemon=True
    )
    process.start()
    return process


def exit_code(function, *args, timeout=300, **more):
    """How the function's process has ended: 0, or less the number of the signal that killed it."""
    process = started(function, *args, **more)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{function.__name__} runs after {timeout} s")
    return process.exitcode


def _run(output, environment, function, args):
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open(output, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    function(*args)
