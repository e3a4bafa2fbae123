"""Commands of the package in processes of their own: for tests that kill them."""

import runpy
import signal
import sys
import tempfile
import time

from support import processes
from support.crashing import die_at_byte


def started(module, flags, limit=None, **more):
    """`python -m module flags`, which dies when it writes the byte `limit` of any file, if any."""
    return processes.started(_main, module, flags, limit, **more)


def run(module, flags, **environment):
    """The command's exit code, and what it said."""
    with tempfile.NamedTemporaryFile("r") as said:
        code = processes.exit_code(_main, module, flags, None, output=said.name, **environment)
        return code, said.read()


def wait_for_step(process, model_dir, step):
    """Returns as soon as the folder names a checkpoint of that step."""
    from tf_lamb.model_garden.folders.checkpoints import steps_done

    while process.exitcode is None and steps_done(str(model_dir)) < step:
        time.sleep(0.01)
    assert process.exitcode is None, "it was over before it could be killed"


def _main(module, flags, limit):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    if limit:
        die_at_byte(limit)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
