"""The terminal of a command: its own lines, and one of progress. All others go to a log.

TensorFlow, Model Garden and Orbit write hundreds of lines to stderr, from Python and from C++. Here
the process's stderr is a file, and what is for the reader goes past it.

Python sees to Ctrl-C and SIGTERM between two lines of Python. Where TensorFlow compiles or trains,
the next line is minutes away; what C notes of a signal wakes up a thread at once.
"""

import contextlib
import faulthandler
import inspect
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from typing import Any

from absl import logging

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interrupts_handled(stop):
    """Has a thread call `stop` when this process is interrupted, or asked to end, in the block.

    A signal that is ignored, as Ctrl-C is in the background of a script, stays so; one for which
    somebody else has a handler by then is theirs.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, _note) for each in heard}
    noted_in = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_wait, args=(reading, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(noted_in)
        for each, handler in before.items():
            if signal.getsignal(each) is _note:
                signal.signal(each, handler)
        os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)


def _note(number, frame):
    """The thread sees to it."""


def _wait(reading, stop):
    while number := os.read(reading, 1)[0]:
        if signal.getsignal(number) is _note:
            stop()


_OURS = pathlib.Path(__file__).parents[2]
_LAST = 20  # lines of the log that an error shows


class Console:
    """Has stderr go to a log, and takes what is for the reader, until its block ends.

    With --verbosity=1 all that goes to the log is shown, too. An error shows the last of it; where
    C++ aborts, the console has Python's line of it. Ctrl-C and SIGTERM end the process with one
    line and exit status 130, wherever it is: what is written is safe from a kill.

    Attributes:
        stream: the stderr that there was.
        path: the log; one that no folder keeps is removed unless there was an error.
        bar: the line of progress, while there is one.
        step: the step that the line of progress shows, if it was ever shown.
        on_stop: returns the line that Ctrl-C ends with.
        parts: of how many parts of a run the progress is shown where no line can move.
    """

    bar: Any = None
    step: int | None = None
    parts = 10
    _tee: Any = None
    _bucket: str | None = None  # where the log goes in the end, if that is no local folder
    _is_kept = _is_given_back = False

    def __init__(self):
        self._shows_all, self.on_stop = logging.get_verbosity() >= logging.DEBUG, lambda: "Stopped."

    def __enter__(self):
        sys.stderr.flush()
        with contextlib.ExitStack() as stack:
            self.stream = stack.enter_context(open(os.dup(2), "w", buffering=1, errors="replace"))
            handle, self.path = tempfile.mkstemp(".log", "tf_lamb-")
            os.close(handle)
            stack.callback(self._close_log)
            stack.callback(self._restore)
            self._redirect()
            # Warnings of this package are for the reader.
            logger = logging.get_absl_logger()
            logger.addFilter(self._logged)
            stack.callback(logger.removeFilter, self._logged)
            stack.enter_context(warnings.catch_warnings())
            self._showwarning, warnings.showwarning = warnings.showwarning, self._warned
            if not faulthandler.is_enabled():
                faulthandler.enable(self.stream, all_threads=False)
                stack.callback(faulthandler.disable)
            stack.enter_context(interrupts_handled(self._stop))
            self._undo = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self.close_bar()
        with self._undo:
            # A refusal is a SystemExit by now.
            if isinstance(error, Exception) and not self._is_given_back:
                self._is_kept = True
                if not self._shows_all:
                    last = self._log().splitlines()[-_LAST:]
                    shown = [f"The last lines of {self._bucket or self.path}:", *last]
                    print(*shown, sep="\n", file=self.stream, flush=True)
                traceback.print_exception(error)  # to the log; Python prints it again

    def _redirect(self):
        """Has descriptor 2, which C++ writes to as well, be the log."""
        with open(self.path, "ab") as log:
            if self._shows_all:
                tee = ["tee", "-a", "-i", self.path]
                self._tee = subprocess.Popen(tee, stdin=subprocess.PIPE, stdout=self.stream)
            os.dup2((self._tee.stdin if self._tee else log).fileno(), 2)

    def _restore(self):
        """Has descriptor 2 be what it was; the log is complete then."""
        sys.stderr.flush()
        os.dup2(self.stream.fileno(), 2)
        if self._tee:
            self._tee.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a child of ours may hold it open
                self._tee.wait(timeout=5)
            self._tee = None

    def keep_in(self, folder: str, name: str) -> None:
        """The log is a file of this folder from now on, and goes on in one that is there."""
        path = os.path.join(folder, name)
        if "://" in folder:  # a descriptor is of local files
            self._bucket = path
            print(f"Full log: {self.path}, in the end to {path}", flush=True)
            return
        os.makedirs(folder, exist_ok=True)
        self._restore()
        with open(path, "a") as log:
            log.write(self._log())
        os.unlink(self.path)
        self.path, self._is_kept = path, True
        self._redirect()
        print(f"Full log: {path}", flush=True)

    def give_back(self) -> None:
        """Has stderr be what it was, and shows what was written meanwhile."""
        self._restore()
        if not self._shows_all:
            self.stream.write(self._log())
        self._undo.close()
        self._is_given_back = True

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
            self._restore()
            self.stream.write(f"{self.on_stop()}\n")
            self._close_log()
        finally:
            os._exit(130)

    def _log(self):
        sys.stderr.flush()
        return pathlib.Path(self.path).read_text(errors="replace")

    def _close_log(self):
        if self._bucket:
            import tensorflow as tf

            with tf.io.gfile.GFile(self._bucket, "a") as log:
                log.write(self._log())
        if self._bucket or not self._is_kept:
            os.unlink(self.path)

    def _logged(self, record):
        is_warning = record.levelno >= logging.converter.absl_to_standard(logging.WARNING)
        is_ours = pathlib.Path(record.pathname).is_relative_to(_OURS)
        if is_warning and is_ours and not self._shows_all:
            self.say(record.getMessage(), self.stream)
        return True

    def _warned(self, message, category, *where, **more):
        self._showwarning(message, category, *where, **more)
        # Known by who warns: the line that it points at is the user's. The first frame is given,
        # because Python 3.13 begins at another one where it is not.
        stack = traceback.walk_stack(inspect.currentframe())
        names = {frame.f_globals.get("__name__") for frame, _ in stack}
        if "tf_lamb.core.messages" in names and not self._shows_all:
            self.say(f"{category.__name__}: {message}", self.stream)


class ProgressBar:
    """The line of progress: an Orbit action, which is called after each loop of steps.

    On a terminal one line moves. Elsewhere there are ten of it, as there are of evaluations
    anywhere: one when another tenth of the steps is over, or as the console's `parts` say.

    Args:
        console: where it is shown.
        step: what tells the present step.
        total: steps of the run; None where it only evaluates.
        batch_size: examples of one update.
    """

    def __init__(self, console: Console, step, total: int | None, batch_size: int):
        self._console, self._step, self._total = console, step, total
        self._batch_size = batch_size
        self._parts: dict[str, int] = {}  # "loop", "evaluation" -> the part of the last one shown
        self._begun: float | None = None

    def begin(self) -> None:
        """Shows the line before the first step, which takes long: it is compiled."""
        import tqdm

        self._at = self._console.step = self._step()
        self._is_terminal = self._console.stream.isatty()
        self._first = self._part()
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
        if not self._is_terminal and self._is_due("loop"):
            self._console.say(str(bar))

    def evaluated(self, output):
        """Shows what an evaluation came to: an Orbit action, too."""
        # What was made up for, before any step, is always shown.
        if self._begun is None or self._is_due("evaluation"):
            parts = ", ".join(
                f"{name} {float(value):.4g}"
                for name, value in output.items()
                if not isinstance(value, dict) and not len(getattr(value, "shape", ()))
            )
            self._console.say(f"Evaluated at step {self._step():,}: {parts}")
        if self._begun is not None:
            self._begun = time.perf_counter()

    def _is_due(self, what):
        before, self._parts[what] = self._parts.get(what, self._first), self._part()
        return self._parts[what] > before

    def _part(self):
        return self._console.parts * self._step() // self._total
