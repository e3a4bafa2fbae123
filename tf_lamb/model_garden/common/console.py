"""The terminal of a command: its own lines, and one of progress. All others go to a log.

TensorFlow, Model Garden and Orbit write hundreds of lines to stderr, from Python and from C++. Here
the process's stderr is a file, and what is for the reader goes past it.
"""

import contextlib
import faulthandler
import inspect
import io
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from typing import Any

from absl import logging

_OURS = pathlib.Path(__file__).parents[2]
_LAST = 20  # lines of the log that an error shows


@contextlib.contextmanager
def _ended_at_once(end):
    """Calls `end` in a thread as soon as Ctrl-C or SIGTERM comes.

    Python's own handlers wait until C++ returns: a loop of steps, minutes of compilation. A signal
    that is ignored, as Ctrl-C is in the background of a script, stays so; one for which somebody
    else has a handler by then is theirs.
    """
    both = signal.SIGINT, signal.SIGTERM
    before = {n: signal.getsignal(n) for n in both if signal.getsignal(n) != signal.SIG_IGN}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def wait():
        while number := os.read(reading, 1):  # until the other end is closed
            if signal.getsignal(number[0]) is _leave_to_the_thread:
                end()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    noted_in = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, _leave_to_the_thread)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(noted_in)
        os.close(writing)
        thread.join()
        os.close(reading)


def _leave_to_the_thread(number, frame):
    pass


class Console:
    """Sends stderr to a log, and shows what is for the reader, until its block ends.

    With --verbosity=1 stderr stays as it is, and there is no log. An error shows the last of the
    log; where C++ aborts, the console has Python's line of it. Ctrl-C and SIGTERM end the process
    with one line and exit status 130, wherever it is: what is written is safe from a kill.
    """

    stream: Any  # the stderr that there was
    bar: Any = None  # the line of progress, while there is one
    step: int | None = None  # the last one that it has shown
    path = ""  # of the log, if any; unless a folder keeps it or there was an error, it goes
    _is_kept = False

    def __init__(self):
        self.on_stop = lambda: "Stopped."  # the line that Ctrl-C ends with

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.stream = stack.enter_context(open(os.dup(2), "w", buffering=1, errors="replace"))
            if logging.get_verbosity() < logging.DEBUG:
                handle, path = tempfile.mkstemp(".log", "tf_lamb-")
                os.close(handle)
                sys.stderr.flush()
                self._redirect(path)
                stack.callback(self.give_back)
                # Warnings of this package are for the reader.
                logger = logging.get_absl_logger()
                logger.addFilter(self._logged)
                stack.callback(logger.removeFilter, self._logged)
                stack.enter_context(warnings.catch_warnings())
                self._showwarning, warnings.showwarning = warnings.showwarning, self._warned
            if not faulthandler.is_enabled():
                faulthandler.enable(self.stream, all_threads=False)
                stack.callback(faulthandler.disable)
            stack.enter_context(_ended_at_once(self._stop))
            self._undo = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self.close_bar()
        with self._undo:
            if self.path and isinstance(error, Exception):  # a refusal is a SystemExit by now
                shown = [f"The last lines of {self.path}:", *self._log().splitlines()[-_LAST:]]
                print(*shown, sep="\n", file=self.stream, flush=True)
                traceback.print_exception(error)  # to the log; Python prints it again
                self._is_kept = True

    def _redirect(self, path, text=""):
        """Makes descriptor 2, to which C++ writes as well, the end of a log, behind a text."""
        with open(path, "a", errors="replace") as log:
            log.write(text)
            log.flush()
            os.dup2(log.fileno(), 2)
        self.path = path

    def keep_in(self, folder: str, name: str) -> None:
        """Keeps the log as a file of this folder; that of a bucket stays on this machine."""
        if not self.path:
            return
        if "://" not in folder:
            os.makedirs(folder, exist_ok=True)
            before = self.path
            self._redirect(os.path.join(folder, name), self._log())
            os.unlink(before)
        self._is_kept = True
        print(f"Full log: {self.path}", flush=True)

    def give_back(self, show: bool = False) -> None:
        """Makes stderr what it was; shows what was written meanwhile, if asked to."""
        if not self.path:
            return
        text, path, self.path = self._log(), self.path, ""
        os.dup2(self.stream.fileno(), 2)
        if show:
            self.stream.write(text)
        if not self._is_kept:
            os.unlink(path)

    def say(self, text: str, file=None) -> None:
        """Prints, above the line of progress."""
        if self.bar is not None:
            self.bar.clear()
        print(text, file=file, flush=True)
        if self.bar is not None:
            self.bar.refresh()

    def close_bar(self) -> None:
        """Ends the line of progress."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _stop(self):
        try:
            self.close_bar()
            self.give_back()
            self.stream.write(f"{self.on_stop()}\n")
        finally:
            os._exit(130)

    def _log(self):
        sys.stderr.flush()
        return pathlib.Path(self.path).read_text(errors="replace")

    def _logged(self, record):
        is_warning = record.levelno >= logging.converter.absl_to_standard(logging.WARNING)
        is_ours = pathlib.Path(record.pathname).is_relative_to(_OURS)
        if is_warning and is_ours and self.path:
            self.say(record.getMessage(), self.stream)
        return True

    def _warned(self, message, category, *where, **more):
        self._showwarning(message, category, *where, **more)
        # Known by who warns: the line that it points at is the user's. The first frame is given,
        # because Python 3.13 begins at another one where it is not.
        stack = traceback.walk_stack(inspect.currentframe())
        names = {frame.f_globals.get("__name__") for frame, _ in stack}
        if "tf_lamb.core.messages" in names and self.path:
            self.say(f"{category.__name__}: {message}", self.stream)


class ProgressBar:
    """The line of progress: an Orbit action, which is called after each loop of steps.

    On a terminal one line moves. Elsewhere there are ten: one when another tenth of the steps is
    over. `step` tells the present step; `total` is None where a run only evaluates.
    """

    def __init__(self, console: Console, step, total: int | None, batch_size: int):
        self._console, self._step, self._total = console, step, total
        self._batch_size = batch_size
        self._begun: float | None = None

    def begin(self) -> None:
        """Shows the line before the first step, which takes long: it is compiled."""
        import tqdm

        self._at = self._console.step = self._step()
        self._is_terminal = self._console.stream.isatty()
        self._shown = 10 * self._at // self._total  # tenths of the steps
        # What a narrow terminal cuts off comes last.
        gauge = " |{bar:12}| " if self._is_terminal else ", "
        self._console.bar = tqdm.tqdm(
            total=self._total,
            initial=self._at,
            mininterval=0,
            miniters=1,
            file=self._console.stream if self._is_terminal else io.StringIO(),
            ncols=shutil.get_terminal_size().columns if self._is_terminal else None,
            desc="compiling the first step",
            bar_format=f"step {{n_fmt}}/{{total_fmt}}{gauge}{{remaining}} left, {{desc}}",
        )

    def __call__(self, output):
        """Moves on to the present step."""
        step, now, bar = self._step(), time.perf_counter(), self._console.bar
        rate = output.get("scaled_learning_rate", output.get("learning_rate"))
        parts = [
            f"{name} {float(value):.4g}"
            for name, value in (("loss", output.get("training_loss")), ("learning rate", rate))
            if value is not None
        ]
        if self._begun is not None:  # the first loop compiles
            speed = (step - self._at) * self._batch_size / (now - self._begun)
            parts.append(f"{speed:,.0f} examples/s")
        bar.set_description_str(", ".join(parts), refresh=False)
        bar.update(step - bar.n)
        self._at, self._begun, self._console.step = step, now, step
        if not self._is_terminal and 10 * step // self._total > self._shown:
            self._shown = 10 * step // self._total
            self._console.say(str(bar))

    def evaluated(self, output):
        """Shows what an evaluation came to: an Orbit action, too."""
        parts = ", ".join(
            f"{name} {float(value):.4g}"
            for name, value in output.items()
            if not isinstance(value, dict) and not len(getattr(value, "shape", ()))
        )
        self._console.say(f"Evaluated at step {self._step():,}: {parts}")
        if self._begun is not None:
            self._begun = time.perf_counter()
