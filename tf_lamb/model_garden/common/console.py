"""Shows the messages of a command and its progress on the terminal, and sends the rest to a log.

TensorFlow, Model Garden and Orbit write hundreds of lines to stderr, from Python and from C++.
`Console` redirects stderr to a log file, and writes the lines for the user to the original stderr.
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

# The folder of this package.
_OURS = pathlib.Path(__file__).parents[2]
_LAST = 20  # lines at the log's end that an error shows


@contextlib.contextmanager
def _ended_at_once(end):
    """Calls `end` in a thread as soon as Ctrl-C or SIGTERM comes, within its `with` block.

    Python's own signal handlers run only after C++ code has returned. That may take minutes, for a
    loop of training steps or for compilation. A signal that was ignored before stays ignored, such
    as Ctrl-C in a background process of a script. If other code sets a handler for a signal within
    the block, that handler is called and not `end`.
    """
    signals = signal.SIGINT, signal.SIGTERM
    handlers = {
        signum: signal.getsignal(signum)
        for signum in signals
        if signal.getsignal(signum) != signal.SIG_IGN
    }
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)

    def wait():
        while number := os.read(read_fd, 1):  # until the other end of the pipe is closed
            if signal.getsignal(number[0]) is _leave_to_the_thread:
                end()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in handlers:
        signal.signal(number, _leave_to_the_thread)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(write_fd)
        thread.join()
        os.close(read_fd)


def _leave_to_the_thread(number, frame):
    """Does nothing, as the handler of a signal, because a thread reacts to the signal.

    This is the thread in `_ended_at_once`. It reacts at once, also while C++ code runs.
    """


class Console:
    """Sends stderr to a log within its `with` block, and shows messages for the user.

    With --verbosity=1 stderr is left alone, and there is no log. After an error, the end of the log
    is shown. If C++ code aborts, the Python line that called it is shown. Ctrl-C and SIGTERM end
    the process at once, with one line and exit status 130. This damages no file of a run.

    Attributes:
        stream: the original stderr.
        bar: the progress bar, a `tqdm`; None while there is none.
        step: the last step that the bar has shown; None before the first.
        path: the path of the log; "" without one. The log is removed at the end, unless `keep_in`
            was called or there was an error.
        on_stop: a function that returns the last line to print at Ctrl-C or SIGTERM.
    """

    stream: Any
    bar: Any = None
    step: int | None = None
    path = ""
    _is_kept = False

    def __init__(self):
        self.on_stop = lambda: "Stopped."

    def __enter__(self):
        """Redirects stderr to a log, and sets the handlers of signals, warnings and crashes."""
        with contextlib.ExitStack() as stack:
            self.stream = stack.enter_context(open(os.dup(2), "w", buffering=1, errors="replace"))
            if logging.get_verbosity() < logging.DEBUG:
                handle, path = tempfile.mkstemp(".log", "tf_lamb-")
                os.close(handle)
                sys.stderr.flush()
                self._redirect(path)
                stack.callback(self.give_back)
                # Warnings of this package are shown to the user, and not only logged.
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
        """Undoes all that `__enter__` did, and shows the end of the log after an error."""
        self.close_bar()
        with self._undo:
            # A `UserError` is not shown here: `one_line` has turned it into a SystemExit.
            if self.path and isinstance(error, Exception):
                lines = [f"The last lines of {self.path}:", *self._log().splitlines()[-_LAST:]]
                print(*lines, sep="\n", file=self.stream, flush=True)
                traceback.print_exception(error)  # into the log; Python prints it to the terminal
                self._is_kept = True

    def _redirect(self, path, text=""):
        """Appends `text` to a log file, and sends file descriptor 2 (stderr) to the end of the log.

        C++ code writes to this descriptor, and not to Python's `sys.stderr`.
        """
        with open(path, "a", errors="replace") as log:
            log.write(text)
            log.flush()
            os.dup2(log.fileno(), 2)
        self.path = path

    def keep_in(self, folder: str, name: str) -> None:
        """Moves the log into a folder, keeps it there after the run, and prints its path.

        If the folder is in a bucket, the log stays in a temporary folder of this machine. Does
        nothing if there is no log.

        Args:
            folder: the folder, which is created if it is missing.
            name: the file's name.
        """
        if not self.path:
            return
        if "://" not in folder:
            os.makedirs(folder, exist_ok=True)
            old_path = self.path
            self._redirect(os.path.join(folder, name), self._log())
            os.unlink(old_path)
        self._is_kept = True
        print(f"Full log: {self.path}", flush=True)

    def give_back(self, show: bool = False) -> None:
        """Restores stderr, and removes the log unless `keep_in` was called or there was an error.

        With `show`, first writes the text of the log to stderr.
        """
        if not self.path:
            return
        text, path, self.path = self._log(), self.path, ""
        os.dup2(self.stream.fileno(), 2)
        if show:
            self.stream.write(text)
        if not self._is_kept:
            os.unlink(path)

    def say(self, text: str, file=None) -> None:
        """Prints a text above the progress bar.

        Args:
            text: the text.
            file: the file to print to; None prints to stdout.
        """
        if self.bar is not None:
            self.bar.clear()
        print(text, file=file, flush=True)
        if self.bar is not None:
            self.bar.refresh()

    def close_bar(self) -> None:
        """Ends the progress bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _stop(self):
        """Ends the process after Ctrl-C or SIGTERM, with exit status 130.

        It first prints the line that `on_stop` returns.
        """
        try:
            self.close_bar()
            self.give_back()
            self.stream.write(f"{self.on_stop()}\n")
        finally:
            os._exit(130)

    def _log(self):
        """Returns the text of the log."""
        sys.stderr.flush()
        return pathlib.Path(self.path).read_text(errors="replace")

    def _logged(self, record):
        """Shows a log record on the terminal if it is a warning of this package.

        This is a filter of absl's logger. It returns True, so that every record also gets logged.
        """
        is_warning = record.levelno >= logging.converter.absl_to_standard(logging.WARNING)
        is_ours = pathlib.Path(record.pathname).is_relative_to(_OURS)
        if is_warning and is_ours and self.path:
            self.say(record.getMessage(), self.stream)
        return True

    def _warned(self, message, category, *where, **more):
        """Logs a warning, and shows it on the terminal if it comes from this package.

        This method replaces `warnings.showwarning`.
        """
        self._showwarning(message, category, *where, **more)
        # A warning of this package has the file and line of the user's code. To recognize it, the
        # stack is searched for the module that issues all warnings of this package. The current
        # frame is passed, because `walk_stack` of Python 3.13 begins at another one by default.
        stack = traceback.walk_stack(inspect.currentframe())
        names = {frame.f_globals.get("__name__") for frame, _ in stack}
        if "tf_lamb.core.messages" in names and self.path:
            self.say(f"{category.__name__}: {message}", self.stream)


class ProgressBar:
    """Shows the progress of a run; Orbit calls it as an action after each loop of steps.

    On a terminal it shows one line that is updated. Elsewhere it prints ten lines, one after each
    tenth of the steps.

    Args:
        console: the `Console` that shows the line.
        step: a function that returns the current step.
        total: the number of steps of the run; None if the run only evaluates.
        batch_size: the global batch size, in examples.
    """

    def __init__(self, console: Console, step, total: int | None, batch_size: int):
        self._console, self._step, self._total = console, step, total
        self._batch_size = batch_size
        self._begun: float | None = None

    def begin(self) -> None:
        """Shows the progress line before the first step, which takes long to compile."""
        import tqdm

        self._at = self._console.step = self._step()
        self._is_terminal = self._console.stream.isatty()
        self._shown = 10 * self._at // self._total  # how many tenths of the steps
        # A narrow terminal cuts off the end, so the description comes last.
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
        """Updates the progress line to the current step; `output` is the output of a loop."""
        step, time_now, bar = self._step(), time.perf_counter(), self._console.bar
        rate = output.get("scaled_learning_rate", output.get("learning_rate"))
        parts = [
            f"{name} {float(value):.4g}"
            for name, value in (("loss", output.get("training_loss")), ("learning rate", rate))
            if value is not None
        ]
        if self._begun is not None:  # after the first loop, which includes compilation
            speed = (step - self._at) * self._batch_size / (time_now - self._begun)
            parts.append(f"{speed:,.0f} examples/s")
        bar.set_description_str(", ".join(parts), refresh=False)
        bar.update(step - bar.n)
        self._at, self._begun, self._console.step = step, time_now, step
        if not self._is_terminal and 10 * step // self._total > self._shown:
            self._shown = 10 * step // self._total
            self._console.say(str(bar))

    def evaluated(self, output):
        """Prints the results of an evaluation, `output`; Orbit calls it after each evaluation."""
        parts = ", ".join(
            f"{name} {float(value):.4g}"
            for name, value in output.items()
            if not isinstance(value, dict) and not len(getattr(value, "shape", ()))
        )
        self._console.say(f"Evaluated at step {self._step():,}: {parts}")
        if self._begun is not None:
            self._begun = time.perf_counter()
